"""``torch.compile`` in ranks: functions and modules stay as they are, and the run says so.

A compiled function would run on the CPU of this machine, with kernels that say nothing of a GPU's; and the compiler keeps one state per
process, with locks that a rank would hold while others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simcoll.distributed.runtime.world import current_rank
from simcoll.torch.rank_threads import current_thread, current_thread_or_none

__all__ = ["compile_replacements"]

_FINDING = "torch.compile has no effect: the ranks' operators run one by one, as the program writes them"


def _noted() -> None:
    findings = current_rank().world.history.findings
    if _FINDING not in findings:
        findings.append(_FINDING)


def _compile(standard: Callable[..., Any]) -> Callable[..., Any]:
    def compile(model: Any = None, **options: Any) -> Any:  # noqa: A001  # torch's name
        if current_thread_or_none() is None:
            return standard(model, **options)
        current_thread().call(_noted)
        return model if model is not None else lambda function: function

    return compile


def _compile_module(standard: Callable[..., None]) -> Callable[..., None]:
    def compile(self: torch.nn.Module, *args: Any, **options: Any) -> None:  # noqa: A001
        if current_thread_or_none() is None:
            standard(self, *args, **options)
        else:
            current_thread().call(_noted)

    return compile


def compile_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what compiles."""
    return [
        (torch, "compile", _compile(torch.compile)),
        (torch.nn.Module, "compile", _compile_module(torch.nn.Module.compile)),
    ]
