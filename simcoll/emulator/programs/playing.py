"""Programs by the compiled engine: every row, or one of each class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.emulator.digest import TraceHash
from simcoll.emulator.fast.state import MOVES
from simcoll.emulator.programs.lowering import BEGINS, ENDS
from simcoll.emulator.programs.result import Times
from simcoll.emulator.pruning import without_links
from simcoll.emulator.quotient import fold
from simcoll.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.emulator.fast.timed import Timed
    from simcoll.emulator.programs.lowering import Lowered
    from simcoll.emulator.quotient import Quotient

    Ints = NDArray[np.int64]

__all__ = ["Played", "play_all", "play_classes"]


class Played:
    """Times of a run, and of its messages and operations where they are asked for.

    With a quotient, times of classes become those of all messages.
    """

    def __init__(self, lowered: Lowered, quotient: Quotient | None, *, keep: bool) -> None:
        self.lowered, self.quotient = lowered, quotient
        self.time_fs = self.classes = 0
        self.hash = TraceHash()
        self.trace_hash = ""
        self.done_fs = np.full(lowered.messages, -1, np.int64) if keep else None
        numbers: dict[Timed, int] = {}
        which: list[int] = []
        entries: list[int] = []
        for group, times in lowered.stream:
            entries.append(len(which))
            which += [numbers.setdefault(step, len(numbers)) for step in group] * times
        self.patterns = tuple(numbers)
        self.which = np.array(which, np.int64)
        small = np.array([len(step) for step in (quotient.steps if quotient else self.patterns)], np.int64)
        large = np.array([len(step) * (step.role == MOVES) for step in self.patterns], np.int64)
        self.first = np.cumsum(small[self.which]) - small[self.which]
        self.number = np.cumsum(large[self.which]) - large[self.which]
        self.marks = {
            entries[entry]: (operation, kind)
            for operation, places in lowered.marks.items()
            for kind, entry in zip((BEGINS, ENDS), places, strict=True)
        }
        self.marked: dict[tuple[int, int], Ints] = {}

    def __call__(self, first: int, step: Timed, start: Ints, end: Ints, done: Ints) -> None:
        """A step is over."""
        place = int(np.searchsorted(self.first, first, "right")) - 1
        if place in self.marks:
            self.marked[self.marks[place]] = done.copy()
        if step.role != MOVES:
            return
        step = self.patterns[self.which[place]]
        if self.quotient is not None:
            names = self.quotient.classes[self.which[place]]
            start, end, done = start[names], end[names], done[names]
        begin = int(self.number[place])
        if self.done_fs is not None:
            self.done_fs[begin : begin + len(step)] = done
        if self.quotient is not None:
            number = np.arange(begin, begin + len(step))
            self.hash.add([number, step.shape.src, step.shape.dst, step.size, start, end, done])

    def times(self) -> dict[int, Times]:
        """When operations began and ended, by number."""
        found, places = {}, {mark: place for place, mark in self.marks.items()}
        for operation in self.lowered.marks:
            begin, end = ((operation, kind) for kind in (BEGINS, ENDS))
            names = None
            if self.quotient is not None:
                one, two = (self.quotient.classes[self.which[places[mark]]] for mark in (begin, end))
                names = one, two
            found[operation] = Times(self.marked[begin], self.marked[end], names)
        return found


def play_all(lowered: Lowered, *, keep: bool) -> Played:
    """Play every row with the compiled loops."""
    from simcoll.emulator.fast.machine import Machine  # brings in numba

    ground, played = lowered.ground, Played(lowered, None, keep=keep) if keep else None
    machine = Machine(ground.capacity, lowered.lane_steps, iter(lowered.stream), fifo=ground.fifo, over=played)
    machine.play(ground.link_name)
    if machine.messages != lowered.rows or tuple(machine.bytes_by_op) != lowered.bytes_by_op:
        raise InternalError(
            f"{machine.messages} rows moved {machine.bytes_by_op} bytes; the program has {lowered.rows} and {lowered.bytes_by_op}"
        )
    played = played or Played(lowered, None, keep=False)
    played.time_fs, played.trace_hash = machine.time_fs, machine.hexdigest()
    return played


def play_classes(lowered: Lowered, *, keep: bool, expand: bool, worth_it: bool) -> Played | str:
    """Play one row of every class, or say why not; ``expand``: with a trace hash."""
    from simcoll.emulator.fast.machine import Machine  # brings in numba

    ground = lowered.ground
    found = fold(without_links(lowered.stream, lowered.dropped), ground.capacity, lowered.lane_steps, worth_it=worth_it)
    if isinstance(found, str):
        return found
    played = Played(lowered, found, keep=keep) if keep or expand else None
    machine = Machine(found.capacity, found.lane_steps, found.stream(), fifo=ground.fifo, hashed=False, over=played)
    machine.play(lambda link: f"class {link}, for example {ground.link_name(int(found.links[link]))}")
    if machine.messages != found.messages:
        raise InternalError(f"{machine.messages} of {found.messages} rows of the quotient are done")
    done = played or Played(lowered, found, keep=False)
    done.time_fs, done.classes = machine.time_fs, machine.messages
    done.trace_hash = done.hash.hexdigest() if played else ""
    return done
