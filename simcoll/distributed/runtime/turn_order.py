"""Orders of turns: the rank that goes on first where several can, or messages that arrive first.

An order is a sequence of choices among numbered options. Option 0 always gives the order of a run
without one; others are the further ranks and, last, to let messages arrive first. So an order is
written as its deviations, and replayed from them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simcoll.errors import ConfigError, shown

__all__ = ["MESSAGES", "TurnOrder", "parse_order"]

MESSAGES = (-1, 0)
"""Stands for messages and the clock among ranks that could go on."""
EXPECTED = "expected 'seed 17', or 'turns 4:1 9:2': at turn 4 option 1, at turn 9 option 2"
MOST_DIGITS = 12

Goer = tuple[int, int]
"""A rank, and the number of its task."""


@dataclass(slots=True, eq=False)
class TurnOrder:
    """One order of turns, which notes its choices while it is played.

    Parameters
    ----------
    deviations
        The options other than 0, by the number of the turn.
    seed
        Draw all options at random instead.
    explained
        Note what each deviation meant, for :attr:`notes`.

    Attributes
    ----------
    options
        The number of options of each turn that had several.
    choices
        The options other than 0 that it took, by the number of the turn.
    notes
        The deviations in words.
    """

    deviations: Mapping[int, int] = field(default_factory=dict)
    seed: int | None = None
    explained: bool = False
    options: list[int] = field(default_factory=list)
    choices: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _draws: random.Random = field(init=False)
    _priorities: dict[Goer, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._draws = random.Random(self.seed)  # noqa: S311  # not for secrets

    def choose(self, goers: Sequence[Goer]) -> int:
        """The option to take: a position in ``goers``."""
        turn, count = len(self.options), len(goers)
        self.options.append(count)
        if self.seed is None:
            option = min(self.deviations.get(turn, 0), count - 1)
        elif self.seed % 2:
            option = self._draws.randrange(count)
        else:
            option = self._by_priority(goers)
        if option:
            self.choices[turn] = option
        return option

    def _by_priority(self, goers: Sequence[Goer]) -> int:
        """The goer of the highest random priority, which now and then becomes the lowest.

        A race that needs few switches at the right places is found so more often than by drawing
        at every turn (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of
        finding bugs", ASPLOS 2010).
        """
        draws, priorities = self._draws, self._priorities
        for goer in goers:
            if goer not in priorities:
                priorities[goer] = draws.random()
        leader = max(goers, key=priorities.__getitem__)
        # One switch in 4, 8, 16 or 32 turns, by the seed: short programs and long ones.
        if draws.random() < 1 / (4 << (self.seed or 0) // 2 % 4):
            priorities[leader] = min(priorities.values()) - 1
            leader = max(goers, key=priorities.__getitem__)
        return goers.index(leader)

    @property
    def replay(self) -> str:
        """The order in words, which :func:`parse_order` reads."""
        if self.seed is not None:
            return f"seed {self.seed}"
        return " ".join(
            ["turns", *(f"{turn}:{option}" for turn, option in self.deviations.items())]
        )


def parse_order(text: str) -> TurnOrder:
    """The order of a text: that of a seed, or of deviations.

    >>> parse_order("turns 4:1 9:2").deviations
    {4: 1, 9: 2}
    >>> parse_order("seed")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: interleavings='seed': expected 'seed 17', or 'turns 4:1 9:2': \
at turn 4 option 1, at turn 9 option 2
    """
    kind, _, remainder = text.strip().partition(" ")
    if kind == "seed" and _is_number(remainder):
        return TurnOrder(seed=int(remainder))
    parts = [part.partition(":") for part in remainder.split()]
    if kind == "turns" and all(_is_number(a) and _is_number(b) for a, _, b in parts):
        return TurnOrder({int(turn): int(option) for turn, _, option in parts}, explained=True)
    raise ConfigError(f"interleavings={shown(text)}: {EXPECTED}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
