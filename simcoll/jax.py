"""Compiled programs of JAX as workloads. JAX itself is not imported: the text of the program is
enough.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from simcoll.errors import ConfigError, shown
from simcoll.jobs.hlo_program import program_of
from simcoll.jobs.hlo_text import parse_hlo
from simcoll.jobs.hlo_workload import hlo_workload
from simcoll.training.gpu import load_gpu
from simcoll.workload.workload import Workload

__all__ = ["Compiled", "workload"]


class Compiled(Protocol):
    """A compiled program: ``jax.jit(function).lower(...).compile()``."""

    def as_text(self) -> str:
        """The text of its optimised HLO module."""


def workload(compiled: Compiled, *, gpu: str | Path, accept_cpu: bool = False) -> Workload:
    r"""The workload of a compiled program: its work, timed by a GPU, its loops and its collectives.

    Parameters
    ----------
    compiled
        The compiled program, of which only ``as_text()`` is used.
    gpu
        The GPU whose rates time the work: the name of a shipped one (``"h100"``) or a file.
    accept_cpu
        Accept a program that was compiled for CPUs, though its collectives are not those of GPUs.

    Raises
    ------
    ConfigError
        With the line of the text, for what cannot be read; for programs that are not compiled, or
        for CPUs or TPUs; and for unknown GPUs.

    Examples
    --------
    >>> class Step:
    ...     def as_text(self):
    ...         return (
    ...             "HloModule sum, is_scheduled=true, num_partitions=8\n"
    ...             "ENTRY %main (x: bf16[1024]) -> bf16[1024] {\n"
    ...             "  %x = bf16[1024]{0} parameter(0), metadata={scheduling_name=\"x\"}\n"
    ...             "  ROOT %y = bf16[1024]{0} all-reduce(%x), replica_groups={}, channel_id=1,"
    ...             " use_global_device_ids=true, to_apply=%add\n"
    ...             "}\n"
    ...         )
    >>> step = workload(Step(), gpu="h100")
    >>> step.nranks, step.operations[0].kind, step.operations[0].size_bytes
    (8, 'all_reduce', 2048)
    """
    as_text: Any = getattr(compiled, "as_text", None)
    if not callable(as_text):
        raise ConfigError(
            f"expected a compiled program, jax.jit(f).lower(...).compile(), got {shown(compiled)}"
        )
    return hlo_workload(program_of(parse_hlo(as_text())), load_gpu(gpu), cpu=accept_cpu)
