"""An engine that plays what a formula knows: a ring on a crossbar, where nothing shares a link. The
contributing page shows it.
"""

import numpy as np

from simcoll.core.protocol import ideal
from simcoll.emulator.digest import TraceHash
from simcoll.emulator.model import checked_time
from simcoll.emulator.request import Request
from simcoll.emulator.result import Result

FS_PER_SECOND_UBPS = 10**21
"""Femtoseconds in which a link of one micro-byte per second carries a byte."""


class RingFormula:
    """Every step of a ring takes the latency of a route and the time of a chunk on a link."""

    name = "formula"

    def refuses(self, request: Request) -> str | None:
        """What is no ring of equal chunks, alone on a crossbar."""
        plan, topology = request.plan, request.topology
        if (plan.schedule.name, plan.collective.kind, plan.nchannels) != ("ring", "all_reduce", 1):
            return f"formula: no ring all_reduce of one channel, but {plan.schedule.title}"
        if (
            request.storage
            or request.observer
            or request.timeline
            or request.keep
            or request.quotient
        ):
            return "formula: more than the time is asked for"
        if plan.protocol != ideal() or plan.sizes % plan.schedule.layout.chunks:
            return "formula: steps of different length"
        if (
            topology.nlinks != 2 * topology.nranks
            or len(set(topology.link_capacity_uBps.tolist())) > 1
        ):
            return f"formula: {topology.name} is no crossbar"
        return None

    def play(self, request: Request) -> Result:
        """The times of all messages, step by step."""
        plan, topology, seen = request.plan, request.topology, request.summary
        route = topology.route(np.array([0]), np.array([1]))
        latency, rate = int(route.latency_fs[0]), int(topology.link_capacity_uBps[0])
        now, number, trace = 0, 0, TraceHash()
        for step in plan.steps():
            local = step.src_rank == step.dst_rank
            largest = int(step.size_bytes.max(where=~local, initial=0))
            checked_time(now + latency + largest * (FS_PER_SECOND_UBPS // rate))
            flow = step.size_bytes * (FS_PER_SECOND_UBPS // rate)
            start = np.where(local, now, now + latency)
            end = np.where(local, now, start + flow)
            numbers = np.arange(number, number + len(step))
            trace.add([numbers, step.src_rank, step.dst_rank, step.size_bytes, start, end, end])
            now, number = int(end.max()), number + len(step)
        moved = sum(seen.bytes_by_op)
        return Result(
            plan,
            topology.name,
            self.name,
            "",
            now,
            seen.steps,
            number,
            moved,
            switched=False,
            trace_hash=trace.hexdigest(),
        )
