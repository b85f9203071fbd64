"""Programs on the compiled engine: every row, or one of each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcoll.arrays import Ints
from simcoll.emulator.events.cut import Cut
from simcoll.emulator.events.timeline import Timeline
from simcoll.emulator.folding.expanding import ExpandedHash
from simcoll.emulator.folding.quotient import Quotient, fold, most_lane_classes
from simcoll.emulator.interrupted import cut_of_machine
from simcoll.emulator.programs.program_events import changes_during
from simcoll.emulator.programs.program_request import KeptTimes
from simcoll.emulator.programs.program_result import OperationTimes
from simcoll.emulator.programs.step_lowering import BEGINS, ENDS, Lowered
from simcoll.emulator.steps.pruning import without_links
from simcoll.emulator.steps.roles import MOVES
from simcoll.emulator.steps.timed import StepStream, Timed
from simcoll.errors import InternalError

__all__ = ["ProgramOutcome", "fold_program", "play_all", "play_classes"]

ROWS_OF_PART = 1 << 14
"""Number of rows of a quotient that are loaded together, at 400 bytes each: a step of a row or two
costs ten times as much alone.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ProgramOutcome:
    """The outcome of a run: time and hash, the number of classes played, and the times of messages
    and operations that it keeps.

    A run that events cut off has a ``cut``, the number of completed ``messages``, and no times of
    operations.
    """

    time_fs: int
    trace_hash: str
    classes: int | None
    done_fs: Ints | None = None
    times: dict[int, OperationTimes] | None = None
    cut: Cut | None = None
    messages: int = 0


class _ProgramTimes:
    """Collects the times of operations, and of all messages if they are kept, step by step.

    With a quotient, the times of classes are expanded to those of all messages where these are kept
    or, with ``hashed``, for their hash.
    """

    def __init__(
        self, lowered: Lowered, quotient: Quotient | None, *, keep: KeptTimes, hashed: bool
    ) -> None:
        self.lowered, self.quotient = lowered, quotient
        self.hashed = hashed
        self.hash = ExpandedHash()
        self.done_fs = np.full(lowered.messages, -1, np.int64) if keep is True else None
        numbers: dict[Timed, int] = {}
        sequence: list[int] = []
        entries: list[int] = []
        for group, times in lowered.stream:
            entries.append(len(sequence))
            sequence += [numbers.setdefault(step, len(numbers)) for step in group] * times
        self.patterns = tuple(numbers)
        self.which = np.array(sequence, np.int64)
        small = np.array(
            [len(step) for step in (quotient.steps if quotient else self.patterns)], np.int64
        )
        large = np.array([len(step) * (step.role == MOVES) for step in self.patterns], np.int64)
        self.first = np.cumsum(small[self.which]) - small[self.which]
        self.number = np.cumsum(large[self.which]) - large[self.which]
        self.marks = {
            entries[entry]: (operation, kind)
            for operation, places in lowered.marks.items()
            for kind, entry in zip((BEGINS, ENDS), places, strict=True)
        }
        self.marked_rows = {int(self.first[place]): place for place in self.marks}
        self.place_of_row = dict(zip(self.first.tolist(), range(len(self.first)), strict=True))
        self.marked: dict[tuple[int, int], Ints] = {}

    def __call__(
        self, first_row: int, step: Timed, start_fs: Ints, end_fs: Ints, done_fs: Ints
    ) -> None:
        """Take the times of a finished step."""
        if first_row in self.marked_rows:
            self.marked[self.marks[self.marked_rows[first_row]]] = done_fs.copy()
        if step.role != MOVES or not (self.hashed or self.done_fs is not None):
            return
        place = self.place_of_row[first_row]
        pattern, begin = self.which[place], int(self.number[place])
        step = self.patterns[pattern]
        names = None if self.quotient is None else self.quotient.classes[pattern]
        if self.hashed and names is not None:
            self.hash.add(begin, step, names, start_fs, end_fs, done_fs)
        if self.done_fs is not None:
            of_messages = done_fs if names is None else done_fs[names]
            self.done_fs[begin : begin + len(step)] = of_messages

    def times(self) -> dict[int, OperationTimes]:
        """Begin and end of operations, by number."""
        times, places = {}, {mark: place for place, mark in self.marks.items()}
        for operation in self.lowered.marks:
            begin, end = ((operation, kind) for kind in (BEGINS, ENDS))
            names = None
            if self.quotient is not None:
                begin_names, end_names = (
                    self.quotient.classes[self.which[places[mark]]] for mark in (begin, end)
                )
                names = begin_names, end_names
            times[operation] = OperationTimes(self.marked[begin], self.marked[end], names)
        return times


def play_all(
    lowered: Lowered, *, keep: KeptTimes, timeline: Timeline | None = None
) -> ProgramOutcome:
    """Play every row with the compiled loops, including events."""
    from simcoll.emulator.fast.driver import StepMachine  # imports numba

    resources, expansion = (
        lowered.resources,
        _ProgramTimes(lowered, None, keep=keep, hashed=False) if keep else None,
    )
    changes = None if timeline is None else changes_during(resources, timeline)
    machine = StepMachine(
        resources.capacity,
        lowered.lane_steps,
        lowered.drawn(),
        fifo=resources.fifo,
        on_step=expansion,
        changes=changes,
    )
    machine.play(resources.link_name)
    if timeline is not None and not machine.through:
        record, cut = cut_of_machine(
            timeline, machine, resources.link_name, resources.stride, sum(lowered.bytes_by_op)
        )
        done_fs = None if expansion is None else expansion.done_fs
        if done_fs is not None:
            done_fs[record.numbers] = record.done_fs
        return ProgramOutcome(
            cut.time_fs, record.trace_hash, None, done_fs, cut=cut, messages=record.messages
        )
    if machine.messages != lowered.rows or tuple(machine.bytes_by_op) != lowered.bytes_by_op:
        raise InternalError(
            f"{machine.messages} rows moved {machine.bytes_by_op} bytes; the program has "
            f"{lowered.rows} and {lowered.bytes_by_op}"
        )
    return _times(machine.time_fs, machine.hexdigest(), None, expansion, keep=keep)


def fold_program(
    lowered: Lowered, *, worth_it: bool, patience: int | None = None
) -> Quotient | str:
    """The classes of the rows, or why there are none; ``worth_it``: only if that saves a lot;
    ``patience``: the limit of rounds.
    """
    lanes = lowered.lane_steps
    return fold(
        StepStream(without_links(lowered.stream.groups, lowered.dropped), lowered.stream.order),
        lowered.resources.capacity,
        lanes,
        most_lanes=most_lane_classes(lanes) if worth_it else len(lanes),
        patience=patience,
    )


def play_classes(
    lowered: Lowered, quotient: Quotient, *, keep: KeptTimes, hashed: bool
) -> ProgramOutcome:
    """Play one row of every class; ``hashed``: with the trace hash of all rows."""
    from simcoll.emulator.fast.driver import StepMachine  # imports numba

    resources = lowered.resources
    expansion = None
    if keep or hashed:
        expansion = _ProgramTimes(lowered, quotient, keep=keep, hashed=hashed)
    messages = quotient.messages
    machine = StepMachine(
        quotient.capacity,
        quotient.lane_steps,
        iter(()),
        fifo=resources.fifo,
        hashed=False,
        on_step=expansion,
    )
    machine.load_parts(quotient.steps, quotient.parts(ROWS_OF_PART))
    machine.play(
        lambda link: f"class {link}, for example {resources.link_name(int(quotient.links[link]))}"
    )
    if machine.messages != messages:
        raise InternalError(f"{machine.messages} of {messages} rows of the quotient are done")
    trace_hash = expansion.hash.hexdigest() if expansion and hashed else ""
    return _times(machine.time_fs, trace_hash, machine.messages, expansion, keep=keep)


def _times(
    time_fs: int,
    trace_hash: str,
    classes: int | None,
    expansion: _ProgramTimes | None,
    *,
    keep: KeptTimes,
) -> ProgramOutcome:
    """The outcome of a run."""
    if expansion is None or not keep:
        return ProgramOutcome(time_fs, trace_hash, classes)
    return ProgramOutcome(time_fs, trace_hash, classes, expansion.done_fs, expansion.times())
