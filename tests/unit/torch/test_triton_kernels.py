"""Triton's kernels in scripts: run on the CPU, and told where times are simulated."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest

from tests.support.deferred import needs_torch

pytestmark = [needs_torch, pytest.mark.slow]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, as PyTorch for CUDA has it"
)
COMMAND = (sys.executable, "-m", "simcoll.torch", "-n", "2", "--compute", "roofline")


def play(tmp_path, text):
    """Run a script by the command, in a process of its own."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.run(
        [*COMMAND, "--gpu", "h100", str(script)], capture_output=True, text=True, check=False
    )


def test_the_command_asks_triton_to_interpret(tmp_path):
    done = play(tmp_path, "import os; print('asked', os.environ['TRITON_INTERPRET'])")
    assert done.stdout.splitlines()[:2] == ["asked 1"] * 2, done.stderr


@needs_triton
def test_kernels_compute_and_are_told_where_times_are_simulated(tmp_path):
    done = play(
        tmp_path,
        """
        import torch, triton
        import torch.distributed as dist
        import triton.language as tl

        @triton.jit
        def add(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
            places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + places, mask=places < size, other=0)
            tl.store(y_ptr + places, x + tl.sum(x, 0), mask=places < size)

        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        x = torch.arange(6.0, device="cuda") + dist.get_rank()
        y = torch.empty_like(x)
        add[(2,)](x, y, 6, BLOCK=4)
        dist.all_reduce(y)
        print(y.tolist())
        """,
    )
    # Blocks of 4: the sums are 6 and 9 on rank 0, 10 and 11 on rank 1.
    expected = [17.0, 19.0, 21.0, 23.0, 29.0, 31.0]
    assert done.stdout.splitlines()[:2] == [str(expected)] * 2, done.stderr
    assert done.stderr.count("Triton kernel add at ") == 1
    assert ": it takes no simulated time" in done.stderr
