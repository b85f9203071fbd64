"""A call of a library alone: its plan bound to a size, and a plan that takes a predicted time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary

from simcoll.binding import bind
from simcoll.core.collective import KINDS
from simcoll.core.facts import FactStore
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import Schedule
from simcoll.emulator import emulate
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.quotient_way import count_classes
from simcoll.topology import Topology

__all__ = ["alone_fs", "bind_size", "scale_protocol", "settle"]

ENGINE = "fast" if COMPILED else "auto"
MANY = 64
"""Elements of a chunk from which on it is rounded down: the change is below 1 / 64."""
MILLION = 10**6
"""Denominator of a share, small enough for the bytes of any message times its numerator."""
ATTEMPTS = 4
"""Rounding up to whole bytes makes a shortened plan a little too long, so it is repeated."""


FEWEST_FOLDED = 1 << 12
"""Messages of a run above which the classes of its schedule are found when it comes again. On 128
nodes of DGX H100, a tree of 49,120 messages takes 131 ms in the loops, 250 ms with finding classes,
and 12 ms with its 3,070 known ones.
"""
LEAST_FOLDING = 4
"""Messages of a class from which on classes are played again. A ring of 128 ranks with a slow link
takes 7 ms in lock-step, and 28 ms by as many classes as messages.
"""

_messages_of: FactStore[Schedule, WeakKeyDictionary[Topology, int]] = FactStore(
    lambda _: WeakKeyDictionary()
)
"""Number of messages of a schedule's runs, by machine; 0 where classes do not pay."""


def alone_fs(plan: Plan, topology: Topology) -> int:
    """The time of a plan with the links of a topology to itself, in femtoseconds.

    A schedule that comes again, with another size or protocol, is played by classes: sizes of a
    table, and steps of a training run, ask for one schedule many times.
    """
    messages = _messages_of(plan.schedule)
    if not COMPILED or messages.get(topology, 0) <= FEWEST_FOLDED:
        result = emulate(plan, topology, data="none", bound=False, engine=ENGINE)
        messages.setdefault(topology, result.messages)
        return result.time_fs
    if count_classes(plan, topology) * LEAST_FOLDING > messages[topology]:
        messages[topology] = 0
        return alone_fs(plan, topology)
    return emulate(plan, topology, data="none", bound=False, quotient=True).time_fs


def bind_size(
    schedule: Schedule,
    protocol: Protocol,
    size_bytes: int,
    imbalance: float = 1.0,
    slight_bytes: float = 0.0,
) -> Plan:
    """A schedule bound to a size as nccl-tests counts it, rounded to equal chunks where that
    matters little: such chunks are symmetric and are played once.

    Parameters
    ----------
    imbalance
        For an all_to_all, the data of the most loaded rank over the mean; above 1, blocks are
        uneven.
    slight_bytes
        Change of the size that does not matter.
    """
    n, kind = schedule.nranks, KINDS[schedule.collective.kind]
    slots = max(kind.input_slots(n), kind.output_slots(n), 1)
    count, chunks = max(1, size_bytes // slots), schedule.layout.chunks
    even = max(chunks, count - count % chunks)
    if count >= MANY * chunks or abs(even - count) * slots < slight_bytes:
        count = even
    if imbalance > 1 and schedule.collective.kind == "all_to_all" and n > 1:
        loaded, unloaded = (
            round(count * imbalance),
            round(count * max(0.0, (n - imbalance) / (n - 1))),
        )
        row = [loaded, *[unloaded] * (n - 1)]
        return bind(schedule, [row] * n, "uint8", protocol=protocol)
    return bind(schedule, count, "uint8", protocol=protocol)


def settle(plan: Plan, topology: Topology, time_fs: int) -> Plan:
    """The plan under a protocol with which it takes a predicted time, alone on a topology.

    A plan that is too quick is launched later. One that is too slow, because it stands for
    messages that the emulator does not know, has all delays and bytes shortened alike.
    """
    time_alone_fs = alone_fs(plan, topology)
    share = Fraction(1)
    original = plan.protocol
    for _ in range(ATTEMPTS):
        if time_alone_fs <= time_fs:
            break
        share = Fraction(int(share * MILLION * time_fs / time_alone_fs) or 1, MILLION)
        plan = replace(plan, protocol=scale_protocol(original, share))
        time_alone_fs = alone_fs(plan, topology)
    launch_fs = plan.protocol.launch_fs + max(0, time_fs - time_alone_fs)
    return replace(plan, protocol=replace(plan.protocol, launch_fs=launch_fs))


def scale_protocol(protocol: Protocol, share: Fraction) -> Protocol:
    """A protocol whose delays and bytes on the wire are a share of another's."""
    changes: dict[str, Any] = {"wire_factor": protocol.wire_factor * share}
    for name in ("launch_fs", "send_overhead_fs", "receive_overhead_fs", "jitter_fs"):
        changes[name] = int(getattr(protocol, name) * share)
    for name in ("reduce_as_per_byte", "copy_as_per_byte"):
        changes[name] = int(getattr(protocol, name) * share)
    for name in ("occupancy_fs", "hop_latency_fs"):
        pairs = getattr(protocol, name)
        changes[name] = tuple((kind, int(value * share)) for kind, value in pairs)
    return replace(protocol, **changes)
