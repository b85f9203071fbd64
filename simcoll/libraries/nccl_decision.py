"""NCCL's own choice where a question is about NCCL on a machine whose graphs are known.

:func:`own_choices` is the one place where predictions take it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from simcoll.libraries.nccl.choice import NcclCall, NcclChoice, nccl_choice

if TYPE_CHECKING:
    from simcoll.libraries.question import Question

__all__ = ["own_choices"]


def own_choices(question: Question, sizes_bytes: Iterable[float]) -> list[NcclChoice] | None:
    """NCCL's choice for every size; None if its graphs here are unknown, or another rule decides.

    Sends and receives have no algorithm to choose, and a calibration with NCCL's own tuning table
    knows more than its rules.

    Raises
    ------
    ConfigError
        When the variables leave nothing to run.
    """
    communicator, calibration = question.communicator, question.calibration
    if communicator is None or question.is_p2p:
        return None
    if calibration and calibration.tuning_rows(
        question.collective, question.nranks, question.machine.domains
    ):
        return None
    return [
        nccl_choice(communicator, NcclCall(question.collective, int(size_bytes)))
        for size_bytes in sizes_bytes
    ]
