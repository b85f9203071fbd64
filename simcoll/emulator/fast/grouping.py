"""Grouping of equal rows and comparison of lists in one pass, several times as fast as sorting.

Without numba, numpy sorts and yields the same numbers and answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcoll.arrays import Array, Ints, Shorts, Words
from simcoll.core.hashing import SALTS, mix
from simcoll.emulator.fast.compiled import COMPILED, SOURCES, entry
from simcoll.emulator.fast.state import WORD
from simcoll.emulator.fast.trace_hashing import mixed

__all__ = ["grouped", "lists_equal", "numbered", "positions"]

BULK = 1 << 13
"""Columns with fewer rows are joined."""


def grouped(columns: Sequence[Array]) -> tuple[Ints, bool]:
    """Number the distinct rows of some columns from 0 by hashes.

    Also return whether rows with one number are indeed equal.

    >>> grouped([np.array([7, 7, 5, 7]), np.array([1, 2, 1, 1])])[0].tolist()
    [0, 1, 2, 0]
    """
    words = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        if COMPILED:
            _stir(words, _whole(column))
        else:
            words = mix(words + SALTS[0] ^ column.astype(np.uint64))
    names, first = numbered(words)
    if COMPILED:
        return names, all(_stray(_whole(column), names, first) < 0 for column in columns)
    return names, all(np.array_equal(column[first][names], column) for column in columns)


def _whole(column: Array) -> Ints:
    """A column in the form that the compiled loops take; converted one at a time to save memory."""
    return np.require(column, np.int64, ["C", "W"])


@entry
def _stir(words: Words, column: Ints, _sources: int = SOURCES) -> None:
    """Mix a column into the hash of every row."""
    for row in range(len(words)):
        words[row] = mixed((words[row] + SALTS[0]) ^ np.uint64(column[row]))


@entry
def _stray(column: Ints, names: Ints, first: Ints, _sources: int = SOURCES) -> int:
    """The first row that differs from the first row of its group; -1 if there is none."""
    for row in range(len(names)):
        if column[row] != column[first[names[row]]]:
            return row
    return -1


def numbered(words: Words) -> tuple[Ints, Ints]:
    """Number the distinct words from 0 in order of appearance; also return the first row of each.

    >>> numbered(np.array([7, 5, 7, 9], np.uint64))[0].tolist()
    [0, 1, 0, 2]
    """
    if not COMPILED:
        return _sorted(words)
    rows = len(words)
    table = np.zeros(1 << max(2 * rows, 1).bit_length(), np.int32)
    names, first = np.empty(rows, np.int64), np.empty(rows, np.int64)
    count = _number(np.ascontiguousarray(words), table, names, first)
    return names, first[:count].copy()


def _sorted(words: Words) -> tuple[Ints, Ints]:
    """:func:`numbered` by numpy."""
    _, first, names = np.unique(words, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(first), np.int64)
    place[order] = np.arange(len(first))
    return place[names], first[order]


@entry
def _number(words: Words, table: Shorts, names: Ints, first: Ints, _sources: int = SOURCES) -> int:
    """Fill in the numbers and first rows of all words; ``table`` holds a number plus 1, or 0 if empty. Return the number of groups."""
    mask, count = np.uint64(len(table) - 1), 0
    for row in range(len(words)):
        word = words[row]
        slot = (word ^ word >> np.uint64(WORD)) & mask
        while table[slot] > 0 and words[first[table[slot] - 1]] != word:
            slot = (slot + np.uint64(1)) & mask
        if table[slot] == 0:
            first[count] = row
            count += 1
            table[slot] = count
        names[row] = table[slot] - 1
    return count


def positions(names: Ints, count: int) -> Ints:
    """For each row, how many rows of its name come before it; names are below ``count``.

    >>> positions(np.array([1, 0, 1, 1]), 2).tolist()
    [0, 0, 1, 2]
    """
    if not COMPILED:
        return _sorted_positions(names)
    place = np.empty(len(names), np.int64)
    _positions(np.require(names, np.int64, ["C", "W"]), np.zeros(count, np.int64), place)
    return place


def _sorted_positions(names: Ints) -> Ints:
    """:func:`positions` by numpy."""
    order = np.argsort(names, kind="stable")
    ordered = names[order]
    place = np.empty(len(names), np.int64)
    place[order] = np.arange(len(names)) - np.searchsorted(ordered, ordered)
    return place


@entry
def _positions(names: Ints, seen: Ints, place: Ints, _sources: int = SOURCES) -> None:
    """See :func:`positions`; ``seen`` is all 0."""
    for row in range(len(names)):
        place[row] = seen[names[row]]
        seen[names[row]] += 1


def lists_equal(pairs: Sequence[tuple[Array, Array]], model: Ints) -> bool:
    """Whether every owner has the same multiset of values as its model.

    ``pairs`` are columns of owners, where -1 is none, and of values, both below 2**31; ``model`` has an owner for each owner.

    >>> lists_equal([(np.array([0, 1]), np.array([5, 5]))], np.array([0, 0]))
    True
    """
    if not COMPILED:
        return _equal_sorted(pairs, model)
    whole = _in_bulk(pairs)
    most = max((int(values.max(initial=0)) for _, values in whole), default=0)
    if (len(model) + 1) * (most + 1) <= sum(len(owner) for owner, _ in whole):
        return _equal_counts(whole, model, most + 1)
    end = np.zeros(len(model) + 1, np.int64)
    for owner, _ in whole:
        _count(_short(owner), end)
    end = np.cumsum(end)
    value = np.empty(end[-1], np.int32)
    for owner, values in whole:
        _place(_short(owner), _short(values), end, value)
    return bool(_equal(value, end, model, np.zeros(most + 1, np.int32)))


def _equal_counts(pairs: Sequence[tuple[Array, Array]], model: Ints, width: int) -> bool:
    """:func:`lists_equal` for few owners, and values below ``width``, by a table of how often each owner has each value."""
    count = np.zeros((len(model) + 1, width), np.int32)  # the last row is for those of none
    for owner, values in pairs:
        _tally(_short(owner), _short(values), count)
    return np.array_equal(count[model], count[:-1])


def _in_bulk(pairs: Sequence[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
    """The pairs with all short columns as one, since each call of a loop costs microseconds."""
    short = [pair for pair in pairs if len(pair[0]) < BULK]
    if len(short) < 2:
        return [*pairs]
    one = tuple(np.concatenate([np.asarray(each, np.int32) for each in column]) for column in zip(*short, strict=True))
    return [(one[0], one[1]), *(pair for pair in pairs if len(pair[0]) >= BULK)]


def _short(column: Array) -> Shorts:
    """A column in the form that these loops take."""
    return np.require(column, np.int32, ["C", "W"])


def _equal_sorted(pairs: Sequence[tuple[Array, Array]], model: Ints) -> bool:
    """:func:`lists_equal` by numpy."""
    every = [owner.astype(np.int64) << WORD | values for owner, values in pairs]
    keys = np.concatenate([np.zeros(0, np.int64), *(keys[keys >= 0] for keys in every)])
    keys.sort()
    start = np.searchsorted(keys, np.arange(len(model) + 1) << WORD)
    count = np.diff(start)
    if not (count[model] == count).all():
        return False
    owner = keys >> WORD
    place = np.arange(len(keys)) - start[owner] + start[model[owner]]
    return bool(((keys[place] ^ keys) & (1 << WORD) - 1 == 0).all())


@entry
def _tally(owners: Shorts, values: Shorts, count: Shorts, _sources: int = SOURCES) -> None:
    """Count how often each owner has each value; owner -1 is the last."""
    for row in range(len(owners)):
        count[owners[row], values[row]] += 1


@entry
def _count(owners: Shorts, count: Ints, _sources: int = SOURCES) -> None:
    """Count the values of each owner, shifted by one entry."""
    for owner in owners:
        if owner >= 0:
            count[owner + 1] += 1


@entry
def _place(owners: Shorts, values: Shorts, end: Ints, value: Shorts, _sources: int = SOURCES) -> None:
    """Place values by owner; ``end`` holds the next free position of each."""
    for row in range(len(owners)):
        owner = owners[row]
        if owner >= 0:
            value[end[owner]] = values[row]
            end[owner] += 1


@entry
def _equal(value: Shorts, end: Ints, model: Ints, tally: Shorts, _sources: int = SOURCES) -> bool:
    """Count the values of each owner against those of its model; the tally is all 0 before and after."""
    for owner in range(len(model)):
        one = model[owner]
        begin, begin_one = end[owner - 1] if owner else 0, end[one - 1] if one else 0
        if end[owner] - begin != end[one] - begin_one:
            return False
        if one == owner:
            continue
        for row in range(begin_one, end[one]):
            tally[value[row]] += 1
        for row in range(begin, end[owner]):
            tally[value[row]] -= 1
            if tally[value[row]] < 0:
                return False
    return True
