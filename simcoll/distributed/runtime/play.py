"""Where a checked call goes: to the emulator, or to the registered backend of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcoll.distributed.runtime.operations import Call, issue
from simcoll.distributed.runtime.work import Work, timeout_fs
from simcoll.distributed.runtime.world import current

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.distributed.api.groups import ProcessGroup

    Array = NDArray[Any]

__all__ = ["play"]


def play(
    group: ProcessGroup,
    call: Call,
    sources: list[Array],
    targets: list[Array],
    results: list[Any],
    *,
    async_op: bool,
    timeout: Any = None,
) -> Work | None:
    """Run a call: its input is ``sources`` one after the other, its output fills ``targets``.

    ``results`` are the caller's own objects for the outputs.
    """
    rank = current().rank
    if group.executor is not None:
        from simcoll.distributed.runtime.execute import execute

        work: Work = execute(group, rank, call, sources, targets, guard=async_op)
    else:
        work = issue(group.communicator, rank, call, sources, targets, guard=async_op)
    work.results = list(results)
    if async_op:
        rank.open_works[work] = None
        return work
    if timeout is not None and timeout_fs(timeout) > 0:
        work.wait(timeout)
    else:
        work.wait()
    return None
