"""What a job would do elsewhere: on another machine, with a slow rank, on more ranks.

The replay keeps what was measured (computation, hosts, what waits for what) and takes the services
of collectives from a prediction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from simcoll.errors import ConfigError, ranks_listed
from simcoll.jobs.comm_records import RecordKind
from simcoll.jobs.job import Job
from simcoll.jobs.job_report import effect, format_ns
from simcoll.jobs.meetings import TracedMeeting
from simcoll.jobs.replay import JobChange
from simcoll.jobs.work_graph import NodeKind, WorkGraph
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.prediction import COLLECTIVES, Prediction, formula_time, predict
from simcoll.topology import Topology
from simcoll.units import counted, format_size

__all__ = ["JobQuestion", "answer_lines", "overlaps_computation"]

_FS = 10**6
"""Femtoseconds of a nanosecond."""
MOST_EMULATED = 4096
"""Ranks of a collective that is emulated, 7 CPU s for a ring; more are timed by the formula, which
was equal to nine digits at 256, 1,024 and 4,096 ranks of DGX H100.
"""
_DATA_PARALLEL = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier")
_MODEL_PARALLEL = {"tp", "pp", "ep", "cp", "sp", "tensor", "pipeline", "expert", "model"}
"""Words in the descriptions of groups that divide a model."""
UNTESTED = (
    "no public pair of traces of one program on two machines or sizes exists, so the accuracy of "
    "these answers is untested; services have the intervals of predictions of collectives alone"
)


@dataclass(frozen=True)
class JobQuestion:
    """What would change.

    Attributes
    ----------
    topology
        The machine whose services are predicted; None: services as measured.
    slow
        Factors of the computation of ranks.
    beside_factor
        Factor of predicted services beside computation.
    nranks
        Another number of ranks; 0: that of the job.
    calibration
        A calibration of that machine.
    """

    topology: Topology | None = None
    slow: Mapping[int, float] = field(default_factory=dict)
    beside_factor: float = 1.0
    nranks: int = 0
    calibration: Calibration | None = None


@dataclass(eq=False)
class _WhatIf:
    """Answers a question about a job."""

    job: Job
    question: JobQuestion
    predictions: dict[object, Prediction] = field(default_factory=dict)

    def lines(self) -> list[str]:
        job, question = self.job, self.question
        job.refuse_changes()
        absent = sorted(set(question.slow) - set(job.ranks))
        if absent:
            raise ConfigError(
                f"--slow: {ranks_listed(absent)} not traced; traced: {ranks_listed(job.ranks)}"
            )
        lines = [f"what if: {'; '.join(self._inputs())}"]
        if question.topology is not None:
            self._refuse_unpredictable()
            lines += self._services()
        lines += self._times()
        if question.topology is not None:
            lines.append(f"# {UNTESTED}")
        return lines

    def _inputs(self) -> list[str]:
        """What is predicted, assumed and measured."""
        question, inputs = self.question, []
        if question.topology is not None:
            count = len(self._subjects)
            ranks = f" for {counted(question.nranks, 'rank')}" if question.nranks else ""
            if question.nranks > MOST_EMULATED:
                ranks += ", by the formula of the library alone,"
            inputs.append(
                f"predicted: services of {counted(count, 'collective')} on "
                f"{question.topology.name}{ranks}"
            )
        if question.beside_factor != 1.0:
            inputs.append(f"assumed: services beside computation x {question.beside_factor:g}")
        if question.slow:
            factors = ", ".join(
                f"rank {rank} x {factor:g}" for rank, factor in sorted(question.slow.items())
            )
            inputs.append(f"assumed: computation of {factors}")
        services = "" if question.topology is not None else ", services"
        device = f" of {self.job.traces[0].device}" if self.job.traces[0].device else ""
        inputs.append(f"measured: computation{device}, hosts, order{services}")
        return inputs

    @cached_property
    def _subjects(self) -> list[tuple[int, int]]:
        """Keys of what is predicted: (-1, number of a meeting), or (place, number of a call)."""
        job = self.job
        if job.matching.meetings:
            return [(-1, number) for number in range(len(job.matching.meetings))]
        return [
            (place, number) for place, calls in enumerate(job.calls) for number in range(len(calls))
        ]

    def _subject(self, key: tuple[int, int]) -> tuple[RecordKind, int, tuple[int, ...]]:
        """Kind, size and ranks of what is predicted."""
        place, number = key
        if place < 0:
            meeting = self.job.matching.meetings[number]
            return meeting.kind, meeting.size_bytes, meeting.ranks
        call = self.job.calls[place][number]
        return call.kind, call.size_bytes, call.group.ranks or tuple(range(self.job.nranks))

    def _measured_ns(self, key: tuple[int, int]) -> int:
        place, number = key
        if place < 0:
            return self.job.matching.meetings[number].service_ns
        call = self.job.calls[place][number]
        return call.end_ns - call.begin_ns

    def _refuse_unpredictable(self) -> None:
        job, question = self.job, self.question
        subjects = [self._subject(key) for key in self._subjects]
        if not subjects:
            raise ConfigError("no collectives in the traces, so no machine changes their services")
        unsized = sum(size < 0 and kind != "barrier" for kind, size, _ in subjects)
        if unsized:
            raise ConfigError(
                f"{unsized} of {counted(len(subjects), 'collective')} have no recorded size, so "
                "their services elsewhere cannot be predicted"
            )
        if any(kind == "messages" and len(ranks) > 2 for kind, _, ranks in subjects):
            raise ConfigError(
                "services of messages among more than two ranks at once cannot be predicted"
            )
        valid = {*COLLECTIVES, "send", "messages", "barrier"}
        unknown = sorted({kind for kind, _, _ in subjects} - valid)
        if unknown:
            raise ConfigError(
                f"services of {', '.join(kind or 'calls of unknown kind' for kind in unknown)} "
                "cannot be predicted"
            )
        alone = sum(map(len, job.matching.alone.values()))
        if job.matching.meetings and alone:
            raise ConfigError(
                f"{counted(alone, 'call')} without all ranks among the traces: their services "
                "elsewhere cannot be separated from waiting"
            )
        if question.nranks:
            self._refuse_other_ranks()

    def _refuse_other_ranks(self) -> None:
        """Refuse other numbers of ranks unless the job is purely data parallel."""
        job, nranks = self.job, self.question.nranks
        if len(job.traces) == 1 and job.nranks > 1:
            raise ConfigError(
                "--ranks needs the traces of all ranks: the arrivals of the others are unknown"
            )
        for key in self._subjects:
            kind, _, ranks = self._subject(key)
            if kind not in _DATA_PARALLEL or len(ranks) != job.nranks:
                words = f"{kind} of {len(ranks)} of {job.nranks} ranks"
                raise ConfigError(
                    f"--ranks {nranks}: only a purely data-parallel job does the same on other "
                    f"numbers of ranks; this one has {words}"
                )
        titles = {call.group.description.lower() for calls in job.calls for call in calls}
        split = sorted(title for title in titles if _is_model_parallel(title))
        if split:
            raise ConfigError(
                f"--ranks {nranks}: group {split[0]!r} divides the model, so each rank would "
                "compute something else"
            )

    def _prediction(self, key: tuple[int, int]) -> Prediction | None:
        """The prediction for a collective; None for a barrier, which keeps its service."""
        kind, size_bytes, ranks = self._subject(key)
        topology = self.question.topology
        if topology is None or kind == "barrier" or size_bytes <= 0:
            return None
        members = tuple(range(self.question.nranks)) if self.question.nranks else ranks
        subject = (kind, size_bytes, members)
        if subject not in self.predictions:
            place = topology
            if members != tuple(range(topology.nranks)):
                place = topology.with_ranks(members)
            title = "send_recv" if kind in {"send", "messages"} else kind
            ask = formula_time if len(members) > MOST_EMULATED else predict
            self.predictions[subject] = ask(
                title, size_bytes, place, calibration=self.question.calibration
            )
        return self.predictions[subject]

    def _service_ns(self, key: tuple[int, int], bound: str) -> int:
        """A service in the middle of its interval (``"time"``), or at an end of it."""
        prediction = self._prediction(key)
        if prediction is None:
            return self._measured_ns(key)
        time_fs = {
            "time": prediction.time_fs,
            "low": prediction.low90_fs,
            "high": prediction.high90_fs,
        }[bound]
        factor = self.question.beside_factor if self._beside[key] else 1.0
        return round(time_fs / _FS * factor)

    @cached_property
    def _beside(self) -> dict[tuple[int, int], bool]:
        if self.question.beside_factor == 1.0:
            return dict.fromkeys(self._subjects, False)
        meetings = self.job.matching.meetings
        if not meetings:
            busy = [_busy_times(graph) for graph in self.job.graphs]
            return {
                (place, number): _computes_mostly(busy[place], call.begin_ns, call.end_ns)
                for place, number in self._subjects
                for call in (self.job.calls[place][number],)
            }
        overlaps = overlaps_computation(self.job, meetings)
        return {(-1, number): overlap for number, overlap in enumerate(overlaps)}

    def _services(self) -> list[str]:
        """A table of measured and predicted services."""
        rows: dict[tuple[RecordKind, int, int], list[tuple[int, int]]] = defaultdict(list)
        for key in self._subjects:
            kind, size_bytes, ranks = self._subject(key)
            rows[kind, size_bytes, self.question.nranks or len(ranks)].append(key)
        title = "service" if self.job.matching.meetings else "kernel"
        head = f"{'collective':<15}{'size':>12}{'ranks':>7}{'calls':>7}{f'measured {title}':>18}"
        lines = [f"{head}{'predicted':>12}  90 % interval"]
        for (kind, size_bytes, number), keys in rows.items():
            size = format_size(size_bytes) if size_bytes >= 0 else "-"
            measured = format_ns(median(map(self._measured_ns, keys)))
            low, time, high = (
                format_ns(median([self._service_ns(key, bound) for key in keys]))
                for bound in ("low", "time", "high")
            )
            interval = f"{low} to {high}" if self._prediction(keys[0]) else "as measured"
            lines.append(
                f"{kind:<15}{size:>12}{number:>7}{len(keys):>7}{measured:>18}{time:>12}  {interval}"
            )
        return lines

    def _replay_ns(self, bound: str) -> int:
        """The time of the job under the question."""
        services: dict[int, int] = {}
        alone: dict[tuple[int, int], int] = {}
        if self.question.topology is not None:
            for place, number in self._subjects:
                service_ns = self._service_ns((place, number), bound)
                if place < 0:
                    services[number] = service_ns
                else:
                    alone[place, number] = service_ns
        return self.job.replay_with(JobChange(self.question.slow, services, alone))

    def _times(self) -> list[str]:
        job = self.job
        number = max(1, job.steps)
        base = format_ns(job.baseline.time_ns / number)
        unit = "a step" if job.steps else "the job"
        changed_ns = self._replay_ns("time")
        change = effect(job, changed_ns)
        if job.nranks > 1 and not job.matching.meetings and self.question.topology is not None:
            text = f"{unit}: between {format_ns(changed_ns / number)}, with predicted services and "
            text += f"no waiting, and {base}, with the measured kernels; "
            return [text + "arrival of the other ranks unknown"]
        if change is None:
            return [f"{unit}: {base}, no effect above the replay error ({job.replay_error:+.2%})"]
        text = f"{unit}: {base} -> {format_ns(changed_ns / number)} ({change})"
        if self.question.topology is not None:
            low, high = (format_ns(self._replay_ns(bound) / number) for bound in ("low", "high"))
            text += f", {low} to {high} with the services at the ends of their intervals"
        return [text]


def _is_model_parallel(title: str) -> bool:
    words = title.replace("-", "_").split("_")
    return not _MODEL_PARALLEL.isdisjoint(words)


def overlaps_computation(job: Job, meetings: Sequence[TracedMeeting]) -> list[bool]:
    """Whether computation runs on some rank during at least half of the service of a meeting."""
    busy = [_busy_times(graph) for graph in job.graphs]
    overlaps = []
    for meeting in meetings:
        begin, end = meeting.arrivals_ns[meeting.last], max(meeting.ends_ns.values())
        overlaps.append(any(_computes_mostly(busy[place], begin, end) for place in meeting.calls))
    return overlaps


def _busy_times(graph: WorkGraph) -> list[tuple[int, int]]:
    """Disjoint intervals in which a device computes, in order."""
    intervals = sorted(
        (graph.starts_ns[node], graph.end_of(node))
        for node, kind in enumerate(graph.kinds)
        if kind is NodeKind.WORK
    )
    merged: list[tuple[int, int]] = []
    for begin, end in intervals:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _computes_mostly(intervals: Sequence[tuple[int, int]], begin: int, end: int) -> bool:
    """Whether a device computes in at least half of a time."""
    total = 0
    place = max(0, bisect_right(intervals, (begin, begin)) - 1)
    for start, stop in intervals[place:]:
        if start >= end:
            break
        total += max(0, min(stop, end) - max(start, begin))
    return total * 2 >= end - begin > 0


def answer_lines(job: Job, question: JobQuestion) -> list[str]:
    """Answer a question about a job.

    Raises
    ------
    ConfigError
        For a replay error above 5 %, collectives whose services cannot be predicted, and other
        numbers of ranks of a job that is not purely data parallel.
    """
    return _WhatIf(job, question).lines()
