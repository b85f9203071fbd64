"""How time and memory grow with recorded runs of PyTorch, and with pipelines of unlike ranks.

``python benchmarks/large_cases.py recorded 4x5 8x20`` writes the profiles of a job that never ran,
of so many ranks and steps, and reads them with ``simcoll job``. ``python benchmarks/large_cases.py
pipeline 8 16`` steps a pipeline of so many ranks by 1F1B, with twice as many micro-batches, on
fake tensors: each rank runs the script for itself (no ``alike``). Prints CPU seconds and peak
memory of each command, and the exponent of the time between two of them.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from simcoll.jobs.example_traces import ExampleJob, write_example_traces

LAYERS = 24
PIPELINE = textwrap.dedent(
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    with FakeTensorMode():
        stage = PipelineStage(nn.Linear(64, 64), rank, n, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 2 * n, loss_fn=lambda y, target: (y - target).square().sum())
        given = (torch.ones(16 * n, 64),) if rank == 0 else ()
        last = {"target": torch.zeros(16 * n, 64)} if rank == n - 1 else {}
        schedule.step(*given, **last)
    """
)


def cost(arguments: list[str]) -> tuple[float, int]:
    """CPU seconds and peak MB of a command of simcoll."""
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss >> 10


def recorded(case: str, folder: Path) -> tuple[int, tuple[float, int]]:
    """Collectives of all ranks of a job, such as 8 ranks by 10 steps, and the cost to read it."""
    ranks, steps = map(int, case.split("x"))
    traces = folder / case
    collectives = write_example_traces(traces, ExampleJob(ranks, steps, LAYERS))
    return ranks * len(collectives), cost(["simcoll", "job", str(traces)])


def pipeline(case: str, folder: Path) -> tuple[int, tuple[float, int]]:
    """Passes of all ranks of a pipeline, and the cost to step it."""
    ranks = int(case)
    script = folder / "pipeline.py"
    script.write_text(PIPELINE)
    return 4 * ranks * ranks, cost(["simcoll.torch", "-n", str(ranks), str(script)])


def main() -> None:
    """Measure the cases."""
    kind, *cases = sys.argv[1:]
    measure, unit = {
        "recorded": (recorded, "collectives"),
        "pipeline": (pipeline, "passes"),
    }[kind]
    latest = None
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            size, (seconds, megabytes) = measure(case, Path(folder))
            growth = ""
            if latest is not None and latest[0] != size:
                exponent = math.log(seconds / latest[1]) / math.log(size / latest[0])
                growth = f", exponent {exponent:.2f}"
            print(f"{case}: {size:,} {unit}, {seconds:.1f} s, {megabytes} MB{growth}", flush=True)
            latest = size, seconds


if __name__ == "__main__":
    main()
