"""Operators whose kernels a program registers for CUDA alone."""

from __future__ import annotations

import textwrap

import pytest

from tests.support.deferred import Deferred, needs_torch

torch = Deferred("torch")
backend, command = Deferred("simcoll.torch"), Deferred("simcoll.torch.__main__")

pytestmark = needs_torch

OPERATORS = """
    import os
    import torch

    RANK = int(os.environ["RANK"])
    library = torch.library.Library("only_on_gpus", "DEF")

    @torch.library.custom_op("only_on_gpus::scaled", mutates_args=(), device_types="cuda")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return 2 * x + RANK * torch.ones(3, device="cuda")

    scaled.register_autograd(lambda context, gradient: gradient * 2)
    library.define("tripled(Tensor x) -> Tensor")
    library.impl("tripled", lambda x: x * 3, "CUDA")
    library.define("either(Tensor x) -> Tensor")
    library.impl("either", lambda x: x * 5, "CUDA")
    library.impl("either", lambda x: x * 7, "CPU")  # where both are, that of the CPU runs

    @torch.library.custom_op("only_on_gpus::filled", mutates_args=(), device_types="cuda")
    def filled(n: int, device: torch.device) -> torch.Tensor:
        return torch.full((n,), 4.0, device=device)

    torch.cuda.set_device(RANK)
    x = torch.ones(3, device="cuda", requires_grad=True)
    scaled(x).sum().backward()
    operators = torch.ops.only_on_gpus
    results = [scaled(x), operators.tripled(x), operators.either(x)]
    results.append(filled(1, torch.device("cuda")))
    print([result.tolist()[0] for result in results], results[0].device, x.grad.tolist())
    try:
        scaled(torch.ones(3))
    except NotImplementedError as error:
        print(str(error)[:84])
"""


@pytest.mark.slow
def test_kernels_for_cuda_alone_serve_simulated_gpus(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(OPERATORS))
    assert command.main(["-n", "2", "train.py"]) == 0
    lines = sorted(capsys.readouterr().out.splitlines()[:-1])
    refusal = "Could not run 'only_on_gpus::scaled' with arguments from the 'CPU' backend: it has a"
    assert lines == [
        *[refusal[:84]] * 2,
        "[2.0, 3.0, 7.0, 4.0] cuda:0 [2.0, 2.0, 2.0]",
        "[3.0, 3.0, 7.0, 4.0] cuda:1 [2.0, 2.0, 2.0]",
    ]


def test_an_operator_of_before_the_run_serves_its_gpus():
    def double(x):
        return x * 2

    operator = torch.library.custom_op(
        "of_before::double",
        double,
        mutates_args=(),
        device_types="cuda",
        schema="(Tensor x) -> Tensor",
    )

    def program(_rank, _size):
        return operator(torch.ones(3, device="cuda")).tolist()

    assert list(backend.spawn(program, 2, cuda_is_cpu=True).returns) == [[2.0] * 3] * 2
    with pytest.raises(NotImplementedError, match="of_before::double"):  # as without GPUs
        operator(torch.ones(3))
