"""SimPy simulation of a synchronous job with failures, checkpoints and restarts, in whole
microseconds.

All ranks stop when one fails, so the job is one SimPy process; causes of failure, slow nodes and
repairs are processes that interrupt it. Between two interruptions its progress is a function of
time, without an event per checkpoint. Times between failures are drawn from hashes of (seed, cause,
number) in decimal arithmetic, and so are equal on all machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import cast

import simpy

from simcoll.planning.reliability.chances import DIGITS, PPM, standard_exponential, words

Events = Generator[simpy.Event, object, None]

__all__ = ["PPM", "Cause", "Slowness", "Spent", "TrainingJob", "simulate"]

_STRAGGLERS, _REPAIRS = 1 << 10, 1 << 11
"""Streams of random numbers besides those of the causes."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of failures.

    Attributes
    ----------
    name
        Such as ``"GPU"``.
    mean_us
        Mean time between failures of the whole job.
    shape
        Weibull shape of the times between failures; 1 is exponential.
    nodes
        Number of nodes that leave for repair; 0: a restart suffices.
    repair_us, repair_shape
        Mean of the repair time, and the shape of its Weibull distribution; shape 0: always the
        mean.
    """

    name: str
    mean_us: int
    shape: float = 1.0
    nodes: int = 0
    repair_us: int = 0
    repair_shape: float = 0.0


@dataclass(frozen=True, slots=True)
class Slowness:
    """Nodes that become slow without failing, and lengthen every step until they are detected.

    Attributes
    ----------
    mean_us
        Mean time between two such nodes in the whole job.
    longer_ppm
        Increase of the step time, in millionths.
    noticed_us, repair_us
        Time until the node is replaced, and its repair time.
    """

    mean_us: int
    longer_ppm: int
    noticed_us: int
    repair_us: int = 0


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The simulated job.

    Attributes
    ----------
    nodes, spares, replica_nodes
        Nodes that the job needs, spare nodes, and nodes per data-parallel replica: with too few
        nodes the job continues with fewer replicas; 0: it waits.
    interval_us
        Training between two checkpoints.
    blocking_us, saving_us
        Time that a checkpoint blocks training, and time from its start until it is durable; the
        rest is written asynchronously.
    detect_us, load_us
        Time to detect a failure and replace nodes, during which nothing can fail; then the time to
        load and warm up, which a failure restarts.
    """

    nodes: int
    interval_us: int
    blocking_us: int
    saving_us: int
    detect_us: int
    load_us: int
    causes: tuple[Cause, ...]
    slowness: Slowness | None = None
    spares: int = 0
    replica_nodes: int = 0


@dataclass(slots=True)
class Spent:
    """Breakdown of the time in microseconds: all fields except the counters add up to the simulated
    time.

    Attributes
    ----------
    useful
        Retained training, at full speed.
    slow
        Loss of retained training to slow or missing nodes.
    checkpoint, lost, detect, restart, waiting
        Blocked by checkpoints; training lost and repeated; failure detection; loading; waiting for
        nodes.
    interruptions, causes
        Number of interruptions, in total and by cause.
    """

    useful: int = 0
    slow: int = 0
    checkpoint: int = 0
    lost: int = 0
    detect: int = 0
    restart: int = 0
    waiting: int = 0
    interruptions: int = 0
    causes: Counter[str] = field(default_factory=Counter)


def simulate(job: TrainingJob, span_us: int, seed: int) -> Spent:
    """Simulate a job for a time span.

    Examples
    --------
    >>> costs = {"blocking_us": 30, "saving_us": 30, "detect_us": 0, "load_us": 300}
    >>> job = TrainingJob(nodes=2, interval_us=600, causes=(), **costs)
    >>> simulate(job, 6300, seed=1)
    Spent(useful=6000, slow=0, checkpoint=300, lost=0, detect=0, restart=0, waiting=0, ...)
    """
    run = _JobRun(job, span_us, seed)
    run.env.run(until=span_us)
    run.settle_at_end()
    return run.spent


def _draws(mean_us: int, shape: float, seed: int, stream: int) -> Iterator[int]:
    """Draw times from a Weibull distribution with a given mean, at least 1 microsecond each."""
    power, scale = 1 / Decimal(repr(shape)), Decimal(mean_us) / _gamma(1 + 1 / Decimal(repr(shape)))
    for word in words(seed, stream):
        share = standard_exponential(word)
        if share and shape != 1:
            share = DIGITS.exp(DIGITS.multiply(DIGITS.ln(share), power))
        yield max(1, int(DIGITS.multiply(scale, share)))


def _gamma(x: Decimal) -> Decimal:
    """The gamma function above 1, for the mean of a Weibull distribution, by Stirling's series
    after shifting the argument.
    """
    if x == 2:
        return Decimal(1)
    shift = Decimal(1)
    while x < 30:
        shift, x = DIGITS.multiply(shift, x), x + 1
    half_log_2pi = Decimal("0.918938533204672741780329736406")
    terms = 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5) - 1 / (1680 * x**7)
    log = DIGITS.multiply(x - Decimal("0.5"), DIGITS.ln(x)) - x + half_log_2pi + terms
    return DIGITS.divide(DIGITS.exp(log), shift)


@dataclass(frozen=True, slots=True)
class _Interruption:
    """A cause that stops training; a ``clean`` one follows a checkpoint, so that nothing is
    lost.
    """

    cause: str
    clean: bool = False


_SPEED = object()
"""Interrupt cause for a change of speed only."""


class _JobRun:
    """One job, one seed."""

    def __init__(self, job: TrainingJob, span_us: int, seed: int) -> None:
        self.job, self.span, self.seed = job, span_us, seed
        self.env, self.spent = simpy.Environment(), Spent()
        self.healthy = job.nodes + job.spares
        self.replicas_speed = PPM
        self.slow: list[int] = []
        self.returned = self.env.event()
        self.shielded = False
        self.pieces: list[tuple[int, int]] = []
        self.since: tuple[str, int] = ("train", 0)
        self.process = self.env.process(self._live())
        for number, cause in enumerate(job.causes):
            self.env.process(self._fail(cause, number))
        if job.slowness is not None:
            self.env.process(self._turn_slow(job.slowness))

    @property
    def now(self) -> int:
        """Microseconds since the job began."""
        return int(self.env.now)

    # What happens to the job.

    def _fail(self, cause: Cause, number: int) -> Events:
        repairs = _draws(
            max(1, cause.repair_us), cause.repair_shape or 1.0, self.seed, _REPAIRS + number
        )
        for wait in _draws(cause.mean_us, cause.shape, self.seed, number):
            yield self.env.timeout(wait)
            if cause.nodes:
                away = next(repairs) if cause.repair_shape else cause.repair_us
                self.env.process(self._repair(min(cause.nodes, self.healthy), away))
            self._interrupt(_Interruption(cause.name))

    def _turn_slow(self, slowness: Slowness) -> Events:
        for wait in _draws(slowness.mean_us, 1.0, self.seed, _STRAGGLERS):
            yield self.env.timeout(wait)
            self.env.process(self._be_slow(slowness))

    def _be_slow(self, slowness: Slowness) -> Events:
        self.slow.append(slowness.longer_ppm)
        self._interrupt(_SPEED)
        yield self.env.timeout(slowness.noticed_us)
        self.slow.remove(slowness.longer_ppm)
        self.env.process(self._repair(min(1, self.healthy), slowness.repair_us))
        self._interrupt(_Interruption("slow node", clean=True))

    def _repair(self, nodes: int, away_us: int) -> Events:
        self.healthy -= nodes
        yield self.env.timeout(away_us)
        self.healthy += nodes
        self.returned.succeed()
        self.returned = self.env.event()

    def _interrupt(self, why: object) -> None:
        if not self.shielded:
            self.process.interrupt(why)

    # What the job does.

    @property
    def speed(self) -> int:
        """Training speed in millionths of the full speed."""
        return self.replicas_speed * PPM // (PPM + max(self.slow, default=0))

    def _live(self) -> Events:
        while True:
            yield from self._come_back((yield from self._train()))

    def _train(self) -> Generator[simpy.Event, object, _Interruption]:
        begin = self.now
        self.since, self.pieces = ("train", begin), [(0, self.speed)]
        while True:
            try:
                yield self.env.timeout(self.span)
            except simpy.Interrupt as interrupt:
                if interrupt.cause is _SPEED:
                    self.pieces.append((self.now - begin, self.speed))
                    continue
                failure = cast("_Interruption", interrupt.cause)
                self._settle(self.now - begin, all_kept=failure.clean)
                return failure

    def _come_back(self, failure: _Interruption | None) -> Events:
        """Recover from a failure: detect it, find nodes, load; again after each further failure."""
        if failure is not None and failure.clean:
            yield from self._shield("checkpoint", self.env.timeout(self.job.saving_us))
        while failure is not None:
            self.spent.interruptions += 1
            self.spent.causes[failure.cause] += 1
            if not failure.clean:
                yield from self._shield("detect", self.env.timeout(self.job.detect_us))
            while not self._place_replicas():
                yield from self._shield("waiting", self.returned)
            failure = yield from self._load()

    def _load(self) -> Generator[simpy.Event, object, _Interruption | None]:
        """Load, unless something fails; a node that becomes slow during loading has no effect."""
        begin = self.now
        failure: _Interruption | None = None
        self.since = ("restart", begin)
        while failure is None and (remaining_us := begin + self.job.load_us - self.now):
            try:
                yield self.env.timeout(remaining_us)
            except simpy.Interrupt as interrupt:
                failure = None if interrupt.cause is _SPEED else interrupt.cause
        self.spent.restart += self.now - begin
        return failure

    def _shield(self, activity: str, event: simpy.Event) -> Events:
        """Wait without being interrupted by failures, as nothing runs."""
        self.since, self.shielded = (activity, self.now), True
        while not event.processed:
            try:
                yield event
            except simpy.Interrupt:  # of the same microsecond as the failure
                continue
        self.shielded = False
        setattr(self.spent, activity, getattr(self.spent, activity) + self.now - self.since[1])

    def _place_replicas(self) -> bool:
        """Whether the healthy nodes suffice to run, with fewer replicas if necessary."""
        job, missing = self.job, max(0, self.job.nodes - self.healthy)
        lost = (
            -(-missing // job.replica_nodes) * job.replica_nodes
            if job.replica_nodes
            else missing and job.nodes
        )
        self.replicas_speed = max(0, job.nodes - lost) * PPM // job.nodes
        return self.replicas_speed > 0

    # What came of it.

    def settle_at_end(self) -> None:
        """Account for the current activity at the end of the simulation, without loss of
        training.
        """
        activity, begin = self.since
        elapsed = self.span - begin
        if activity == "train":
            self._settle(elapsed, all_kept=True)
        else:
            setattr(self.spent, activity, getattr(self.spent, activity) + elapsed)

    def _settle(self, elapsed: int, *, all_kept: bool) -> None:
        """Account for an ended interval of training, useful up to the last durable checkpoint."""
        # Invariant: useful, slow, checkpoint and lost grow by exactly `elapsed` in all. Checkpoint
        # k begins at k * cycle - blocking and is durable `saving` later, so `safe` counts those of
        # which that time has come; training after the last of them is lost. All of it is arithmetic
        # on `elapsed`: an event for each checkpoint would fill a long job with events that decide
        # nothing.
        job, spent = self.job, self.spent
        cycle = job.interval_us + job.blocking_us
        safe = max(0, elapsed - (job.saving_us - job.blocking_us)) // cycle
        blocked = elapsed // cycle * job.blocking_us + max(0, elapsed % cycle - job.interval_us)
        kept_until = elapsed if all_kept else safe * cycle
        useful, retained = 0, 0
        edges = [start for start, _ in self.pieces]
        for (start, speed), end in zip(self.pieces, [*edges[1:], elapsed], strict=True):
            trained = self._training_us(min(end, kept_until)) - self._training_us(
                min(start, kept_until)
            )
            useful, retained = useful + trained * speed // PPM, retained + trained
        spent.useful += useful
        spent.slow += retained - useful
        spent.checkpoint += blocked
        spent.lost += elapsed - blocked - retained

    def _training_us(self, elapsed: int) -> int:
        """Training time without the time blocked by checkpoints."""
        cycle = self.job.interval_us + self.job.blocking_us
        return elapsed // cycle * self.job.interval_us + min(elapsed % cycle, self.job.interval_us)
