"""``torch.compile`` in ranks: functions and modules are left uncompiled, and the run reports it.

Compiled kernels for this machine's CPU would say nothing about a GPU; and the compiler's state and
locks are per process, so a rank could hold a lock while the other ranks wait for it.
"""

from __future__ import annotations

from typing import Any

import torch

from simcoll.distributed.runtime.world import current_rank
from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["compile_replacements"]

_FINDING = (
    "torch.compile has no effect: the ranks' operators run one by one, as the program writes them"
)


def _note_finding() -> None:
    findings = current_rank().world.history.findings
    if _FINDING not in findings:
        findings.append(_FINDING)


@for_ranks
def _compile(thread: RankThread, _: Any, model: Any = None, **_options: Any) -> Any:
    thread.call(_note_finding)
    return model if model is not None else lambda function: function


@for_ranks
def _compile_module(thread: RankThread, *_: Any, **_options: Any) -> None:
    thread.call(_note_finding)


def compile_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the compiler's entry points."""
    return [
        (torch, "compile", _compile(torch.compile)),
        (torch.nn.Module, "compile", _compile_module(torch.nn.Module.compile)),
    ]
