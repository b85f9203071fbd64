"""NCCL's own choice where a question is about NCCL on a machine whose graphs are known.

:func:`own_choices` is the one place where predictions take it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from simcoll.libraries.nccl.choice import NcclCall, NcclChoice, nccl_choice

if TYPE_CHECKING:
    from simcoll.formats.logs.nccl_tuning import TunedCost
    from simcoll.libraries.nccl.communicator import CommunicatorFacts
    from simcoll.libraries.question import Question

__all__ = ["call_of", "decides", "own_choices"]


def own_choices(question: Question, sizes_bytes: Iterable[float]) -> list[NcclChoice] | None:
    """NCCL's choice for every size; None if its graphs here are unknown, or it offers no choice.

    Sends and receives have no algorithm to choose. Under a calibration with NCCL's own tuning
    table, its numbers count instead of those that the rules give.

    Raises
    ------
    ConfigError
        When the variables leave nothing to run.
    """
    communicator = question.communicator
    if communicator is None or question.is_p2p:
        return None
    logged = tuple(
        (row.algorithm, row.protocol, row.latency_fs / 1e9, row.bandwidth_uBps / 1e15)
        for row in _log_rows(question)
    )
    sizes = tuple(int(size_bytes) for size_bytes in sizes_bytes)
    return list(_choices(communicator, call_of(question), sizes, logged))


def call_of(question: Question, size_bytes: int = 1) -> NcclCall:
    """The call that is asked about, of one size."""
    environment = question.environment
    return NcclCall(
        question.collective, size_bytes, environment.dtype or "float32", environment.op or "sum"
    )


@lru_cache(maxsize=4096)
def _choices(
    communicator: CommunicatorFacts,
    call: NcclCall,
    sizes_bytes: tuple[int, ...],
    logged: tuple[tuple[str, str, float, float], ...],
) -> tuple[NcclChoice, ...]:
    """Remembered, because a fit asks for equal sizes hundreds of times."""
    return tuple(
        nccl_choice(communicator, replace(call, size_bytes=size_bytes), logged)
        for size_bytes in sizes_bytes
    )


def decides(question: Question) -> bool:
    """Whether predictions choose as NCCL does, and not by their times.

    As its library file says, and under a calibration with NCCL's own tuning table. Over nodes,
    graphs of the search are not enough: with them, times of left-out systems are off by 21.5 and
    8.4 % at middle and large sizes, by the fastest choice 21.0 and 6.7 %.
    """
    communicator = question.communicator
    is_guess = communicator and communicator.is_searched and question.machine.domains > 1
    by_rules = question.constants.text("rules.choice") == "nccl" and not is_guess
    return by_rules or bool(_log_rows(question))


def _log_rows(question: Question) -> tuple[TunedCost, ...]:
    """The rows of the calibration's tuning table for the collective."""
    calibration, nodes = question.calibration, question.machine.domains
    if calibration is None:
        return ()
    return calibration.tuning_rows(question.collective, question.nranks, nodes)
