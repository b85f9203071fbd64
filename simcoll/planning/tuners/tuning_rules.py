"""Rules that make no size slower: only between the sizes that were asked, only where the gain
exceeds the interval of the predictions, and played back before they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from simcoll.errors import ConfigError
from simcoll.formats.tuners.tuner_rules import NO_LIMIT, Rule
from simcoll.libraries.nccl_decision import own_choices
from simcoll.planning.tuners.fastest_choices import ChoicePlayer, NcclPlayer, Picked

__all__ = [
    "PLAYED_SIZES",
    "counting_blocks",
    "cover_all",
    "nodes_of_nccl",
    "own_nccl_ranges",
    "own_ranges",
    "played_back",
    "rules_of",
    "whole_ranks",
]

PLAYED_SIZES = tuple(size for power in range(3, 34) for size in (1 << power, 3 << power - 1))[:-1]
"""Sizes at which rules are played back: two for each doubling from 8 B to 8 GiB."""
_STEPS_OF_DOUBLING = 8
_LAST_POWER = 43


def rules_of(picked: Sequence[Picked], *, ranks: int = -1, nodes: int = -1) -> list[Rule]:
    """Rules where the gain of a choice exceeds the interval, each from the first to the last of
    consecutive sizes with the same choice.

    Parameters
    ----------
    ranks, nodes
        The numbers of ranks and nodes that the rules are for; -1: any.
    """

    def choice(row: Picked) -> tuple[str, str, str]:
        return (row.collective, row.algorithm, row.protocol) if row.certain else ("", "", "")

    rules = []
    for (collective, algorithm, protocol), group in groupby(picked, key=choice):
        sizes = [row.size_bytes for row in group]
        if algorithm:
            choice_of_rule = (algorithm, protocol, -1)
            rules.append(Rule(collective, sizes[0], sizes[-1], *choice_of_rule, nodes, ranks))
    return rules


def played_back(rules: Sequence[Rule], player: ChoicePlayer) -> list[Rule]:
    """The parts of rules in which no played size takes longer than the library's own choice.

    Sizes without a rule are the library's own and need no play.
    """
    quick: list[Rule] = []
    for rule in rules:
        between = [size for size in PLAYED_SIZES if rule.min_bytes < size < rule.max_bytes]
        sizes = sorted({rule.min_bytes, *between, rule.max_bytes})

        def is_faster(size: int, rule: Rule = rule) -> bool:
            ruled_fs, default_fs = player.times_fs(
                rule.collective, size, rule.algorithm, rule.protocol
            )
            return ruled_fs is not None and default_fs is not None and ruled_fs <= default_fs

        for faster, group in groupby(sizes, key=is_faster):
            part = list(group)
            if faster:
                quick.append(replace(rule, min_bytes=part[0], max_bytes=part[-1]))
    return quick


def nodes_of_nccl(player: NcclPlayer) -> int:
    """Number of nodes as NCCL counts them, where its graphs are known."""
    communicator = player.question("all_reduce").communicator
    boxes = player.topology.groups.get("box")
    if communicator is not None:
        return communicator.nodes
    return -1 if boxes is None else len(set(boxes.tolist()))


def counting_blocks(rules: Sequence[Rule], kinds: Collection[str], ranks: int) -> list[Rule]:
    """The rules with the bytes of one block for collectives of which a library counts these."""
    counting = []
    for rule in rules:
        if rule.collective in kinds:
            low = -(-rule.min_bytes // ranks)
            high = NO_LIMIT if rule.max_bytes < 0 else rule.max_bytes // ranks
            if high != NO_LIMIT and low > high:
                continue
            counting.append(replace(rule, min_bytes=low, max_bytes=high))
        else:
            counting.append(rule)
    return counting


def whole_ranks(rules: Sequence[Rule], ranks: int) -> list[Rule]:
    """The rules for a library that counts whole bytes of a rank; those below one are left out."""
    rounded: list[Rule] = []
    for rule in rules:
        low, high = -(-rule.min_bytes // ranks) * ranks, rule.max_bytes
        if high != NO_LIMIT:
            high = high // ranks * ranks + ranks - 1
        if high == NO_LIMIT or low <= high:
            rounded.append(replace(rule, min_bytes=low, max_bytes=high))
    return rounded


def cover_all(
    rules: Sequence[Rule], collectives: Iterable[str], default_of: Callable[[str], Sequence[Rule]]
) -> list[Rule]:
    """The rules of collectives with the library's own choices in between, for files that must
    cover all sizes; ``default_of`` gives these for a collective, in order and without gaps.
    """
    covering: list[Rule] = []
    for collective in collectives:
        covering += cover(
            [rule for rule in rules if rule.collective == collective], default_of(collective)
        )
    return covering


def cover(rules: Sequence[Rule], defaults: Sequence[Rule]) -> Iterator[Rule]:
    """The rules of one collective, and the parts of its own ranges that they leave."""
    pieces: list[Rule] = list(rules)
    for range_ in defaults:
        begin = range_.min_bytes
        for rule in rules:
            if range_.max_bytes != NO_LIMIT and rule.min_bytes > range_.max_bytes:
                break
            if rule.max_bytes < begin:
                continue
            if rule.min_bytes > begin:
                pieces.append(replace(range_, min_bytes=begin, max_bytes=rule.min_bytes - 1))
            begin = rule.max_bytes + 1
        if range_.max_bytes == NO_LIMIT or begin <= range_.max_bytes:
            pieces.append(replace(range_, min_bytes=begin))
    return iter(sorted(pieces, key=lambda piece: piece.min_bytes))


def own_ranges(
    collective: str, default_of: Callable[[int], tuple[str, str]], shape: Rule
) -> list[Rule]:
    """The library's own choices of algorithm and protocol over all sizes.

    Parameters
    ----------
    default_of
        The choice for a size.
    shape
        A rule whose other fields they have.
    """
    sizes = [0]
    for power in range(_LAST_POWER):
        steps = range(_STEPS_OF_DOUBLING)
        sizes += [
            (1 << power) * (_STEPS_OF_DOUBLING + step) // _STEPS_OF_DOUBLING for step in steps
        ]
    sizes = sorted(set(sizes))
    begins = [0]
    for low, high in pairwise(sizes):
        if default_of(max(low, 1)) != default_of(high):
            begins.append(_first_change(default_of, low, high))
    ranges = []
    for place, begin in enumerate(begins):
        algorithm, protocol = default_of(max(begin, 1))
        end = begins[place + 1] - 1 if place + 1 < len(begins) else NO_LIMIT
        ranges.append(
            replace(
                shape,
                collective=collective,
                min_bytes=begin,
                max_bytes=end,
                algorithm=algorithm,
                protocol=protocol,
            )
        )
    return ranges


def _first_change(default_of: Callable[[int], tuple[str, str]], low: int, high: int) -> int:
    """The first size above ``low`` with the choice of ``high``."""
    choice = default_of(high)
    while high - low > 1:
        middle = (low + high) // 2
        if default_of(middle) == choice:
            high = middle
        else:
            low = middle
    return high


def own_nccl_ranges(collective: str, player: NcclPlayer, shape: Rule) -> list[Rule]:
    """NCCL's own choices of algorithm and protocol over all sizes.

    Raises
    ------
    ConfigError
        Where they are unknown.
    """
    question = player.question(collective)
    if own_choices(question, [1]) is None:
        raise ConfigError(
            f"NCCL's own choices are unknown on {player.topology.name}, whose PCIe devices are not "
            "described: write the rules without --complete"
        )

    def choice_of_nccl(size_bytes: int) -> tuple[str, str]:
        choice = (own_choices(question, [size_bytes]) or [])[0]
        return choice.algorithm, choice.protocol.lower()

    return own_ranges(collective, choice_of_nccl, shape)
