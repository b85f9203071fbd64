"""Ranges of ``record_function`` that nothing records.

PyTorch opens and closes each by two operators. Under ``FakeTensorMode`` these take a twentieth of a
micro-batch of ``fully_shard``, which names its phases by ranges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.profiler import record_function
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from simcoll.torch.compute_time import Watched
from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["range_replacements"]

_OF_RUN = frozenset((FakeTensorMode, Watched))
_UNRECORDED = object()
"""Stands for the record of a range that has none."""


def _has_observer() -> bool:
    """Whether a profile, or a dispatch mode of the program, would see a range."""
    if torch.autograd._profiler_enabled():
        return True
    return not _OF_RUN.issuperset(map(type, _get_current_dispatch_mode_stack()))


@for_ranks
def _enter(_thread: RankThread, standard: Any, self: Any) -> Any:
    if _has_observer():
        return standard(self)
    self.record = _UNRECORDED
    return self


@for_ranks
def _exit(_thread: RankThread, standard: Any, self: Any, *error: Any) -> Any:
    return None if self.record is _UNRECORDED else standard(self, *error)


@for_ranks
def _end_with(_thread: RankThread, standard: Any, self: Any, fut: Any) -> Any:
    """Leave a range open until a future is set; nothing is to be closed then."""
    return fut if self.record is _UNRECORDED else standard(self, fut)


def range_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the methods of a range."""
    changes = {"__enter__": _enter, "__exit__": _exit, "_call_end_callbacks_on_future": _end_with}
    return [
        (record_function, name, change(getattr(record_function, name)))
        for name, change in changes.items()
    ]
