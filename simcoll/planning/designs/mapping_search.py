"""Search the legal mappings of each machine of a plan: what cannot win is not timed.

A mapping is dropped before it is timed if (1) it needs more than nine tenths of the memory, or than
a stated limit; (2) it recomputes more than another mapping that fits and is equal otherwise, which
computes less and moves the same bytes; (3) the lower bound of its time
(:mod:`simcoll.training.time_bound`) is not below the time of a mapping of the same machine that was
timed, nor is it if both are multiplied by what steps of their classes typically took
(:mod:`simcoll.training.step_intervals`). Figures of one machine rank mappings as their times do
(its GPUs and prices are the same), so that none of these can be the best, as predicted or by the
errors of published steps. Without a budget, some of those that only the latter make likely are
timed (:data:`MOST_TYPICAL`). The Pareto front is that of the designs that were timed.
Mappings are timed in the order of their bounds, in batches of a fixed size: the same file gives the
same designs, whatever the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simcoll.errors import ConfigError
from simcoll.files.strict import convert_table
from simcoll.planning.designs.mapping_space import NOT_SEARCHED, MappingInputs, mappings
from simcoll.planning.grids.grid import Point, Row
from simcoll.training.design import Design, design_from, design_inputs
from simcoll.training.memory import memory_by_stage
from simcoll.training.parallel import Parallel
from simcoll.training.step_intervals import class_interval, class_of
from simcoll.training.time_bound import TimeBounds

__all__ = [
    "EXCHANGE_KEYS",
    "MAPPING_KEYS",
    "MachineSearch",
    "MappingSearch",
    "machine_of",
    "typical_of",
]

MOST_TIMED = 64
"""Designs of a machine that are timed without a budget."""
MOST_TYPICAL = 16
"""Designs of a machine that are timed without a budget after the best as predicted is known,
because steps of their classes are typically faster. Timing all of them (``--budget``) improves the
best by at most 0.5 % in the shipped plans ``oversubscription``, ``nic-speed`` and ``moe-experts``.
"""
BATCH = 8
"""Designs of a machine that are timed before bounds are compared again."""
RECOMPUTE = ("selective", "full")
MAPPING_KEYS = ("tp", "cp", "pp", "ep", "micro_batch", "virtual", "recompute", "shard")
EXCHANGE_KEYS = ("overlap_ep", "dispatch")
"""Keys of a mapping that tables show; the latter of mixtures of experts."""
MOST_MEMORY = 0.9
"""Share of the memory that a mapping may need: the context, buffers of NCCL and fragments of the
allocator take the rest. A limit of the plan file replaces it.
"""


@dataclass(frozen=True, slots=True)
class _BoundedMapping:
    """A mapping that fits, with its lower bound, and the factor that steps of its class typically
    took.
    """

    bound_fs: int
    typical: float
    memory_bytes: int
    point: Point

    @property
    def typical_fs(self) -> float:
        """The bound of what steps of its class typically take."""
        return self.typical * self.bound_fs


@dataclass(frozen=True, slots=True)
class _BestTimes:
    """The least predicted time of a machine's designs, and the least with typical errors."""

    predicted_fs: int
    typical_fs: float


@dataclass(eq=False)
class MachineSearch:
    """The search on one machine: one combination of all values that a plan file states.

    Attributes
    ----------
    name
        For people.
    candidates
        Mappings that fit, in the order in which they are timed.
    nearest
        The mapping that needs the least memory, if none fits.
    legal, unfit
        Numbers of legal mappings, and of those that exceed the memory.
    timed
        Places of the candidates that were handed out to be timed.
    typical_count
        Number of those that only steps of other classes make likely.
    cases
        Their cases, to know their rows.
    """

    name: str
    candidates: list[_BoundedMapping]
    nearest: Point | None
    legal: int
    unfit: int
    timed: set[int] = field(default_factory=set)
    typical_count: int = 0
    cases: set[str] = field(default_factory=set)

    def best_times(self, rows: Sequence[Row]) -> _BestTimes | None:
        """The times of its best designs so far."""
        results = [
            row["result"]
            for row in rows
            if _case_key(row["point"]["case"]) in self.cases and "time_fs" in row.get("result", {})
        ]
        if not results:
            return None
        return _BestTimes(
            min(result["time_fs"] for result in results),
            min(result["time_fs"] * typical_of(result) for result in results),
        )

    def rivals(self, best: _BestTimes | None) -> list[int]:
        """Places of the candidates not timed that may be faster than the best, as predicted."""
        return [
            place
            for place, candidate in enumerate(self.candidates)
            if place not in self.timed and (best is None or candidate.bound_fs < best.predicted_fs)
        ]

    def typical_rivals(self, best: _BestTimes) -> list[int]:
        """Places of the candidates not timed that may typically be faster, the likeliest first."""
        places = [
            place
            for place, candidate in enumerate(self.candidates)
            if place not in self.timed and candidate.typical_fs < best.typical_fs
        ]
        return sorted(places, key=lambda place: self.candidates[place].typical_fs)

    def take(self, batch: int, best: _BestTimes | None, most_typical: int) -> list[Point]:
        """The next candidates that may be better than the best as predicted; after these, up to
        ``most_typical`` in all that may typically be better.
        """
        places = self.rivals(best)[:batch]
        if not places and best is not None:
            batch = min(batch, most_typical - self.typical_count)
            places = self.typical_rivals(best)[:batch]
            self.typical_count += len(places)
        points = [self.candidates[place].point for place in places]
        self.timed.update(places)
        self.cases.update(_case_key(point["case"]) for point in points)
        return points


@dataclass(eq=False)
class MappingSearch:
    """The search of a plan.

    Attributes
    ----------
    machines
        The machines whose mappings are searched.
    budget
        The most designs that are timed on all machines together; 0: 64 for each machine.
    stopped
        Why the search ended before its budget, if a clock ended it.
    """

    machines: tuple[MachineSearch, ...]
    budget: int = 0
    stopped: str = ""

    def next_points(self, rows: Sequence[Row]) -> tuple[Point, ...]:
        """The designs to time next, given all that were timed; none: the search is over."""
        if self.stopped:
            return ()
        points: list[Point] = []
        for machine in self.machines:
            if not rows and machine.nearest is not None:
                points.append(machine.nearest)
            batch = min(BATCH, self._share - len(machine.timed))
            if batch > 0:
                most_typical = self._share if self.budget else MOST_TYPICAL
                points += machine.take(batch, machine.best_times(rows), most_typical)
        return tuple(points)

    @property
    def _share(self) -> int:
        """The most designs of one machine."""
        return max(1, self.budget // len(self.machines)) if self.budget else MOST_TIMED

    def lines(self, rows: Sequence[Row]) -> Iterator[str]:
        """What was searched on each machine, what was not, and why."""
        for machine in self.machines:
            best = machine.best_times(rows)
            rivals = machine.rivals(best)
            typical = machine.typical_rivals(best) if best is not None else []
            slower = len(machine.candidates) - len(machine.timed) - len({*rivals, *typical})
            parts = [
                f"{machine.legal:,} legal mappings",
                f"{machine.unfit:,} need too much memory",
                f"{len(machine.timed):,} timed",
                f"{slower:,} cannot be faster than the best, by their bound",
            ]
            if rivals and best is not None:
                gain = 1 - machine.candidates[rivals[0]].bound_fs / best.predicted_fs
                why = self.stopped or f"for the budget of {self._share:,} on a machine"
                parts.append(f"{len(rivals):,} not timed {why}: at most {100 * gain:.1f} % faster")
            elif typical and best is not None:
                gain = 1 - machine.candidates[typical[0]].typical_fs / best.typical_fs
                parts.append(
                    f"{len(typical):,} not timed though typically up to {100 * gain:.1f} % faster"
                )
            yield f"{machine.name + ': ' if machine.name else ''}{', '.join(parts)}"
        yield f"not searched: {NOT_SEARCHED}"


def machine_of(place: Point, *, by_memory: bool = False) -> MachineSearch:
    """Enumerate and bound the mappings of one machine.

    Parameters
    ----------
    place
        A point without a mapping: the tables of a design file, whose ``[parallel]`` is held, the
        values that tell the machine from others, and the inputs of figures.
    by_memory
        Whether the least memory is looked for, and not the least time.

    Raises
    ------
    ConfigError
        When the machine or the model is invalid, or no mapping is legal.
    """
    document, case = place["design"], place["case"]
    share = 1.0 if document.get("limits", {}).get("memory") else MOST_MEMORY
    stated = dict(document.get("parallel", {}))
    _check_parallel(stated)
    inputs = design_inputs(document, file="plan")
    bounds = TimeBounds(inputs.topology)
    space = MappingInputs(
        inputs.model,
        inputs.sequence,
        inputs.global_batch,
        inputs.topology.nranks,
        MappingInputs.domain_of(inputs.topology),
    )
    candidates: list[_BoundedMapping] = []
    unfit: list[_BoundedMapping] = []
    refusal: ConfigError | None = None
    for mapping in mappings(space, stated):
        try:
            design, memory_bytes = _least_recomputation(document, mapping, stated, share)
        except ConfigError as error:
            refusal = refusal or error
            continue
        fits = memory_bytes <= share * design.memory_limit
        chosen = {**mapping, "recompute": design.parallel.recompute}
        point = {
            **place,
            "case": {**case, **_mapping_cells(design, case)},
            "design": {**document, "parallel": chosen},
            "tier": 1,
        }
        bound_fs = bounds.step_fs(design) if fits else 0
        typical = class_interval(class_of(design)).typical
        mapping_bound = _BoundedMapping(bound_fs, typical, memory_bytes, point)
        (candidates if fits else unfit).append(mapping_bound)
    if not candidates and not unfit:
        raise refusal or ConfigError(
            f"no mapping of {inputs.global_batch} sequences of {inputs.sequence:,} tokens onto "
            f"{space.gpus:,} GPUs is legal: no data parallelism divides the batch",
            path="$.model.global_batch",
        )
    order = _by_memory if by_memory else _by_bound
    nearest = min(unfit, key=_by_memory).point if not candidates else None
    return MachineSearch(
        ", ".join(str(value) for value in case.values()),
        sorted(candidates, key=order),
        nearest,
        len(candidates) + len(unfit),
        len(unfit),
    )


def typical_of(result: Mapping[str, Any]) -> float:
    """What steps of the class of a result typically took over their predictions; 1 if unknown."""
    return float((result.get("interval") or {}).get("typical", 1.0))


def _case_key(case: Mapping[str, Any]) -> str:
    """A case as text, in any order of its values."""
    return repr(sorted(case.items()))


def _by_bound(candidate: _BoundedMapping) -> tuple[int, int]:
    return candidate.bound_fs, candidate.memory_bytes


def _by_memory(candidate: _BoundedMapping) -> tuple[int, int]:
    return candidate.memory_bytes, candidate.bound_fs


def _check_parallel(stated: Mapping[str, Any]) -> None:
    """Refuse wrong keys and values of ``[parallel]`` before thousands of mappings have them."""
    try:
        convert_table(dict(stated), Parallel)
    except ConfigError as error:
        raise ConfigError(error.message, path=f"$.parallel{(error.path or '$')[1:]}") from None


def _least_recomputation(
    document: Mapping[str, Any],
    mapping: Mapping[str, Any],
    stated: Mapping[str, Any],
    share: float,
) -> tuple[Design, int]:
    """The design that recomputes least among those that fit, and its memory; else the one that
    recomputes most. ``share``: of the memory, that it may need.
    """
    for recompute in (stated["recompute"],) if "recompute" in stated else RECOMPUTE:
        parallel = {**mapping, "recompute": recompute}
        design = design_from({**document, "parallel": parallel}, file="plan")
        memory_bytes = max(stage.total for stage in memory_by_stage(design))
        if memory_bytes <= share * design.memory_limit:
            break
    return design, memory_bytes


def _mapping_cells(design: Design, case: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a mapping that tables show."""
    keys = (*MAPPING_KEYS, *EXCHANGE_KEYS) if design.model.experts else MAPPING_KEYS
    names = [key for key in keys if key not in case and (key != "ep" or design.model.experts)]
    return {key: getattr(design.parallel, key) for key in names}
