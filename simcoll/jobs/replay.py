"""Replay a job: the earliest times of all nodes, with measured durations and no residual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simcoll.errors import ConfigError
from simcoll.jobs.work_graph import NodeKind, WorkGraph

__all__ = ["JobChange", "JobOrder", "Replay"]


@dataclass(frozen=True, slots=True)
class JobChange:
    """What a replay changes of the job that was traced.

    Attributes
    ----------
    slow
        Factors of the computation of some ranks.
    services_ns
        Services of some collectives, by number of the meeting, instead of the measured ones.
    lone_services_ns
        Durations of collectives of which not all ranks were traced, by (graph, part).
    device_factor
        Factor of the computation of all ranks.
    """

    slow: Mapping[int, float] = field(default_factory=dict)
    services_ns: Mapping[int, int] = field(default_factory=dict)
    lone_services_ns: Mapping[tuple[int, int], int] = field(default_factory=dict)
    device_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Replay:
    """Ends of all nodes, graph after graph, in nanoseconds; the job begins at ``begin_ns``."""

    ends_ns: Sequence[int]
    begin_ns: int

    @property
    def time_ns(self) -> int:
        """The time of the job."""
        return max(self.ends_ns, default=self.begin_ns) - self.begin_ns


class JobOrder:
    """The nodes of all graphs in an order in which each comes after what it needs."""

    def __init__(
        self,
        graphs: Sequence[WorkGraph],
        meetings: Sequence[Mapping[int, int]],
        partners: Mapping[int, Mapping[int, tuple[int, ...]]],
    ) -> None:
        """Order the graphs of a job.

        A meeting has the number of its part in each of its graphs. ``partners`` has, by meeting and
        graph, the graphs that it waits for, if these are not all.
        """
        self.graphs = graphs
        self.offsets = [0]
        for graph in graphs:
            self.offsets.append(self.offsets[-1] + len(graph))
        total = self.offsets[-1]
        self.needs: list[list[tuple[int, int]]] = []
        for offset, graph in zip(self.offsets, graphs, strict=False):
            self.needs += [
                [(offset + need, lag) for need, lag in needs] if offset else needs
                for needs in graph.needs
            ]
        self.member_of: dict[int, int] = {}
        self.waits_of: dict[int, int] = {}
        self.arrivals: list[list[int]] = []
        self.services_ns: dict[int, int] = {}
        for number, meeting in enumerate(meetings):
            if number in partners:
                for place, awaited in partners[number].items():
                    self._meet(number, meeting, [place], [place, *awaited])
            else:
                self._meet(number, meeting, list(meeting), list(meeting))
        self.order = self._topological(total)

    def _meet(
        self, number: int, meeting: Mapping[int, int], places: list[int], awaited: list[int]
    ) -> None:
        """Let the parts of some graphs in a meeting end after the arrivals of some graphs.

        Their services are the measured times after the last of these arrivals.
        """
        parts = {place: self.graphs[place].parts[part] for place, part in meeting.items()}
        last_ns = max(parts[place].work.begin_ns for place in awaited)
        for place in places:
            end = self.offsets[place] + parts[place].end
            self.member_of[end] = number
            self.waits_of[end] = len(self.arrivals)
            self.services_ns[end] = max(0, parts[place].work.end_ns - last_ns)
        self.arrivals.append([self.offsets[place] + parts[place].arrival for place in awaited])

    def _topological(self, total: int) -> list[int]:
        needed = [len(needs) for needs in self.needs]
        outs: list[list[int]] = [[] for _ in range(total)]
        for node, needs in enumerate(self.needs):
            for need, _ in needs:
                outs[need].append(node)
        for end, number in self.waits_of.items():
            for arrival in self.arrivals[number]:
                outs[arrival].append(end)
            needed[end] += len(self.arrivals[number])
        ready = [node for node, count in enumerate(needed) if not count]
        ready.reverse()
        order: list[int] = []
        while ready:
            node = ready.pop()
            order.append(node)
            for later in outs[node]:
                needed[later] -= 1
                if not needed[later]:
                    ready.append(later)
        if len(order) < total:
            raise ConfigError(
                "the collectives of the ranks cannot be matched: their orders contradict each "
                "other, so these are traces of different programs"
            )
        return order

    def replay(self, change: JobChange = JobChange()) -> Replay:
        """The earliest end of every node."""
        durations = self._durations(change)
        ends = [0] * len(self.needs)
        origins = [graph.begin_ns for graph in self.graphs]
        starts = [
            graph.starts_ns[node] if graph.kinds[node] is NodeKind.QUEUED else origin
            for graph, origin in zip(self.graphs, origins, strict=True)
            for node in range(len(graph))
        ]
        last_arrivals: dict[int, int] = {}
        needs = self.needs
        waits_of = self.waits_of
        for node in self.order:
            number = waits_of.get(node)
            if number is None:
                ready = starts[node]
                for need, lag in needs[node]:
                    end = ends[need] + lag
                    if end > ready:  # noqa: PLR1730 - the innermost loop: max() takes twice as long
                        ready = end
            else:
                if number not in last_arrivals:
                    last_arrivals[number] = max(ends[place] for place in self.arrivals[number])
                ready = last_arrivals[number]
            ends[node] = ready + durations[node]
        return Replay(ends, min(origins, default=0))

    def _durations(self, change: JobChange) -> list[int]:
        """Durations of all nodes: those of a collective are its service after the last arrival."""
        durations: list[int] = []
        for graph in self.graphs:
            factor = change.device_factor * change.slow.get(graph.trace.rank, 1.0)
            if factor == 1.0:
                durations += graph.durations_ns
            else:
                durations += [
                    round(duration * factor) if kind is NodeKind.WORK else duration
                    for kind, duration in zip(graph.kinds, graph.durations_ns, strict=True)
                ]
        for node, number in self.member_of.items():
            durations[node] = change.services_ns.get(number, self.services_ns[node])
        for (place, part), service_ns in change.lone_services_ns.items():
            durations[self.offsets[place] + self.graphs[place].parts[part].end] = service_ns
        return durations

    def critical_path(self, replay: Replay) -> dict[tuple[str, int], int]:
        """Nanoseconds of the longest chain, by what takes them (``"host"``, ``"computation"``,
        ``"network"``, ``"launch"``, work ``"queued"`` before the window, or the late ``"start"`` of
        a rank's window) and rank.
        """
        ends = replay.ends_ns
        durations = self._durations(JobChange())
        places = [place for place, graph in enumerate(self.graphs) for _ in range(len(graph))]
        times: dict[tuple[str, int], int] = {}
        node = max(range(len(ends)), key=ends.__getitem__, default=-1)
        while node >= 0:
            place = places[node]
            graph = self.graphs[place]
            rank = graph.trace.rank
            kind = graph.kinds[node - self.offsets[place]]
            key = (_TITLES[kind], rank)
            times[key] = times.get(key, 0) + durations[node]
            begin = ends[node] - durations[node]
            if node in self.member_of:
                node = max(self.arrivals[self.waits_of[node]], key=ends.__getitem__)
                continue
            needs = self.needs[node]
            latest = max(needs, key=lambda need: ends[need[0]] + need[1], default=(-1, 0))
            if kind is NodeKind.QUEUED:
                times["queued", rank] = ends[node] - replay.begin_ns
                break
            if not needs or ends[latest[0]] + latest[1] < begin:
                times["start", rank] = begin - replay.begin_ns
                break
            node, lag = latest
            times["launch", rank] = times.get(("launch", rank), 0) + lag
        return times


_TITLES = {
    NodeKind.GAP: "host",
    NodeKind.CALL: "host",
    NodeKind.WAIT: "host",
    NodeKind.WORK: "computation",
    NodeKind.QUEUED: "queued",
    NodeKind.ARRIVAL: "network",
    NodeKind.COLLECTIVE: "network",
}
