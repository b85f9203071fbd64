"""The parts common to all calls, wherever they are played: their Work, plan and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcoll.core.collective import Collective
from simcoll.distributed.runtime.buffers import scatter_into
from simcoll.distributed.runtime.flight import Entry, calling_site
from simcoll.distributed.runtime.plans import plan_for
from simcoll.distributed.runtime.work import Work, timeout_fs
from simcoll.distributed.runtime.world import current_rank

if TYPE_CHECKING:
    from simcoll.core.memory import Array
    from simcoll.core.plan import Plan
    from simcoll.distributed.runtime.calls import Call
    from simcoll.distributed.runtime.world import Buffers, Communicator, ProcessGroup, Rank

__all__ = ["begin", "deliver", "plan_of", "play"]


def begin(group: Communicator, me: Rank, name: str, buffers: Buffers, *, p2p: bool = False) -> Work:
    """The Work of a call, noted in the rank's flight record.

    Raises
    ------
    RuntimeError
        When the group has failed before, or an output is read-only.
    """
    if group.failure is not None:
        raise RuntimeError(group.failure)
    if any(not target.flags.writeable for target in buffers[1]):
        raise RuntimeError(f"{name}: an output tensor is read-only")
    made = group.messages if p2p else group.calls
    here, now = group.group_rank[me.number], group.world.now
    inputs, outputs = ([(array.shape, array.dtype.name) for array in arrays] for arrays in buffers)
    label, site = (group.name, group.desc), calling_site()
    entry = Entry(label, name, made[here], p2p, inputs, outputs, group.timeout_fs, now, site)
    made[here] += 1
    me.flight.add(entry)
    work = Work(me, name, *buffers, entry)
    work.deadline_fs = now + group.timeout_fs
    work.explicit = group.explicit
    return work


def plan_of(group: Communicator, call: Call, sizes: Any) -> Plan:
    """The plan of a call, whose ``sizes`` are those that all ranks agree on."""
    plans = group.world.plans
    collective = Collective(call.kind, len(group.members), root=call.root)
    op = call.op.pairwise if call.op is not None else "sum"
    choices = (call.algorithm, group.algorithm, plans.algorithm)
    return plan_for(plans, collective, sizes, call.dtype, op, group.members, choices)


def deliver(work: Work, call: Call, values: Array | None, nranks: int) -> str | None:
    """Fill a call's outputs from a plan's flat output; returns a fault of the buffers, if there is one."""
    error = work.guarded()
    if error is None and values is not None:
        if call.op is not None:
            call.op.finish(values, nranks)
        scatter_into(work.targets, values)
    return error


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
    """Run a checked call: ``sources``, concatenated, are its input; its output fills ``targets``.

    ``results`` are the caller's own objects for the outputs.
    """
    me = current_rank()
    work = me.world.issue(group, me, call, (sources, targets), guard=async_op)
    work.results = list(results)
    if async_op:
        me.open_works[work] = None
        return work
    if timeout is not None and timeout_fs(timeout) > 0:
        work.wait(timeout)
    else:
        work.wait()
    return None
