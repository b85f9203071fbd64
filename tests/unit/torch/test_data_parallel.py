"""DistributedDataParallel: casts on a stream, and findings on its times and memory."""

from __future__ import annotations

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist, nn = Deferred("torch"), Deferred("torch.distributed"), Deferred("torch.nn")
parallel = Deferred("torch.nn.parallel.distributed")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*no gradient was written to:UserWarning")
@pytest.mark.parametrize(("cast", "reduced"), [("bfloat16", "bfloat16"), ("float16", "float32")])
def test_mixed_precision_has_gradients_from_the_second_step_on(cast, reduced):
    """As on plain gloo: the first step reduces a bucket that no gradient was written to."""

    def body(rank, world_size):
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        casts = parallel._MixedPrecision(getattr(torch, cast), getattr(torch, reduced), None)
        model = parallel.DistributedDataParallel(nn.Linear(4, 2), mixed_precision=casts)
        norms = []
        for step in range(3):
            model.zero_grad()
            model(torch.full((1, 4), float(rank + step))).float().sum().backward()
            norms.append(float(model.module.weight.grad.norm()))
        assert model.module.weight.grad.dtype == torch.float32
        return norms

    result = backend.spawn(body, 2, cuda_is_cpu=True)
    norm = 8**0.5  # of ones, times the mean of inputs, rank + step
    assert list(result.returns) == [pytest.approx([0, 1.5 * norm, 2.5 * norm])] * 2
    assert [line for line in result.findings if "no gradient was written to" in line]


@pytest.mark.filterwarnings("ignore:.*are those of this computer:UserWarning")
@pytest.mark.parametrize("level", ["DETAIL", "OFF"])
def test_host_times_of_the_logger_are_a_finding(level):
    def body(rank, world_size):
        dist.init_process_group("gloo")
        dist.set_debug_level(getattr(dist.DebugLevel, level))
        try:
            model = parallel.DistributedDataParallel(nn.Linear(2, 2))
            model(torch.ones(1, 2)).sum().backward()
        finally:
            dist.set_debug_level(dist.DebugLevel.OFF)

    findings = backend.spawn(body, 2).findings
    assert any("are those of this computer" in line for line in findings) == (level == "DETAIL")


@pytest.mark.filterwarnings("ignore:.*are those of this computer:UserWarning")
def test_the_logger_has_the_program_s_devices():
    def body(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        model = parallel.DistributedDataParallel(nn.Linear(2, 2).cuda(), device_ids=[rank])
        fields = model._get_ddp_logging_data()
        return fields["device_ids"], fields["output_device"]

    assert backend.spawn(body, 2, cuda_is_cpu=True).returns == (("0", 0), ("1", 1))


@pytest.mark.filterwarnings("ignore:.*are those of this computer:UserWarning")
@pytest.mark.parametrize(
    ("name", "added"),
    [
        (
            "gloo",
            {
                "gloo_socket_ifname": "eth7",
                "gloo_device_transport": "N/A",
                "gloo_num_threads": 2,
            },
        ),
        (
            "nccl",
            {
                "nccl_socket_ifname": "N/A",
                "nccl_blocking_wait": "1",
                "nccl_async_error_handling": "N/A",
                "nccl_debug": "WARN",
                "nccl_nthreads": "N/A",
                "nccl_ib_timeout": "N/A",
            },
        ),
        ("simcoll", {}),
    ],
)
def test_the_logger_has_the_program_s_backend_and_its_variables(monkeypatch, name, added):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_BLOCKING_WAIT", "0")
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")

    def body(rank, world_size):
        dist.init_process_group(name)
        fields = parallel.DistributedDataParallel(nn.Linear(2, 2))._get_ddp_logging_data()
        return fields["backend_name"], {
            field: value for field, value in fields.items() if field.startswith(("gloo_", "nccl_"))
        }

    assert backend.spawn(body, 2, cuda_is_cpu=True).returns == ((name, added),) * 2


def test_what_a_join_never_waits_for_is_no_finding():
    def body(rank, world_size):
        dist.init_process_group("gloo")
        model = parallel.DistributedDataParallel(nn.Linear(2, 1, bias=False))
        with model.join():
            for _ in range(1 + rank):
                model.zero_grad()
                model(torch.full((1, 2), 2.0 + rank)).sum().backward()
        return model.module.weight.grad.tolist()

    result = backend.spawn(body, 2)
    assert result.returns[1] == [[1.5, 1.5]]  # by default the sum is divided by all ranks
    assert not result.findings
