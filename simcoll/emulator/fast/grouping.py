"""Grouping of equal rows and comparison of lists in one pass, several times as fast as sorting.

Without numba, numpy sorts and yields the same numbers and answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcoll.arrays import Array, Ints, Shorts, Words
from simcoll.core.hashing import SALTS, mix
from simcoll.emulator.fast.compiled import COMPILED, entry
from simcoll.emulator.fast.sources import SOURCES
from simcoll.emulator.fast.state import WORD
from simcoll.emulator.fast.trace_hashing import mix_word

__all__ = ["group_rows", "lists_equal", "number_words", "positions"]

BULK = 1 << 13
"""Columns with fewer rows are joined. The classes of a pairwise exchange of 512 ranks take 2 %
longer with 2^10 and 5 % with 2^16; those of a double tree of 1,024 ranks 7 % less, and 9 % longer.
"""


def group_rows(columns: Sequence[Array]) -> tuple[Ints, bool]:
    """Number the distinct rows of some columns from 0 by hashes.

    Also return whether rows with one number are indeed equal.

    >>> group_rows([np.array([7, 7, 5, 7]), np.array([1, 2, 1, 1])])[0].tolist()
    [0, 1, 2, 0]
    """
    words = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        if COMPILED:
            _stir(words, _whole(column))
        else:
            words = mix(words + SALTS[0] ^ column.astype(np.uint64))
    names, first_rows = number_words(words)
    if COMPILED:
        return names, all(_stray(_whole(column), names, first_rows) < 0 for column in columns)
    return names, all(np.array_equal(column[first_rows][names], column) for column in columns)


def _whole(column: Array) -> Ints:
    """A column in the form that the compiled loops take; converted one at a time to save memory."""
    return np.require(column, np.int64, ["C", "W"])


@entry
def _stir(words: Words, column: Ints, _sources: int = SOURCES) -> None:
    """Mix a column into the hash of every row."""
    for row in range(len(words)):
        words[row] = mix_word((words[row] + SALTS[0]) ^ np.uint64(column[row]))


@entry
def _stray(column: Ints, names: Ints, first_rows: Ints, _sources: int = SOURCES) -> int:
    """The first row that differs from the first row of its group; -1 if there is none."""
    for row in range(len(names)):
        if column[row] != column[first_rows[names[row]]]:
            return row
    return -1


def number_words(words: Words) -> tuple[Ints, Ints]:
    """Number the distinct words from 0 in order of appearance; also return the first row of each.

    >>> number_words(np.array([7, 5, 7, 9], np.uint64))[0].tolist()
    [0, 1, 0, 2]
    """
    if not COMPILED:
        return _number_by_sorting(words)
    rows = len(words)
    table = np.zeros(1 << max(2 * rows, 1).bit_length(), np.int32)
    names, first_rows = np.empty(rows, np.int64), np.empty(rows, np.int64)
    count = _number(np.ascontiguousarray(words), table, names, first_rows)
    return names, first_rows[:count].copy()


def _number_by_sorting(words: Words) -> tuple[Ints, Ints]:
    """:func:`number_words` by numpy."""
    _, first_rows, names = np.unique(words, return_index=True, return_inverse=True)
    order = np.argsort(first_rows)
    place = np.empty(len(first_rows), np.int64)
    place[order] = np.arange(len(first_rows))
    return place[names], first_rows[order]


@entry
def _number(
    words: Words, table: Shorts, names: Ints, first_rows: Ints, _sources: int = SOURCES
) -> int:
    """Fill in the numbers and first rows of all words; ``table`` holds a number plus 1, or 0 if
    empty. Return the number of groups.
    """
    mask, count = np.uint64(len(table) - 1), 0
    for row in range(len(words)):
        word = words[row]
        slot = (word ^ word >> np.uint64(WORD)) & mask
        while table[slot] > 0 and words[first_rows[table[slot] - 1]] != word:
            slot = (slot + np.uint64(1)) & mask
        if table[slot] == 0:
            first_rows[count] = row
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
        return _positions_by_sorting(names)
    place = np.empty(len(names), np.int64)
    _positions(np.require(names, np.int64, ["C", "W"]), np.zeros(count, np.int64), place)
    return place


def _positions_by_sorting(names: Ints) -> Ints:
    """:func:`positions` by numpy."""
    order = np.argsort(names, kind="stable")
    ordered = names[order]
    place = np.empty(len(names), np.int64)
    place[order] = np.arange(len(names)) - np.searchsorted(ordered, ordered)
    return place


@entry
def _positions(names: Ints, counts: Ints, place: Ints, _sources: int = SOURCES) -> None:
    """See :func:`positions`; ``counts`` is all 0."""
    for row in range(len(names)):
        place[row] = counts[names[row]]
        counts[names[row]] += 1


def lists_equal(pairs: Sequence[tuple[Array, Array]], model: Ints) -> bool:
    """Whether every owner has the same multiset of values as its model.

    ``pairs`` are columns of owners, where -1 is none, and of values, both below 2**31; ``model``
    has an owner for each owner.

    >>> lists_equal([(np.array([0, 1]), np.array([5, 5]))], np.array([0, 0]))
    True
    """
    if not COMPILED:
        return _equal_by_sorting(pairs, model)
    columns = _in_bulk(pairs)
    largest = max((int(values.max(initial=0)) for _, values in columns), default=0)
    if (len(model) + 1) * (largest + 1) <= sum(len(owner) for owner, _ in columns):
        return _equal_counts(columns, model, largest + 1)
    end = np.zeros(len(model) + 1, np.int64)
    for owner, _ in columns:
        _count(_short(owner), end)
    end = np.cumsum(end)
    value = np.empty(end[-1], np.int32)
    for owner, values in columns:
        _place(_short(owner), _short(values), end, value)
    return bool(_equal(value, end, model, np.zeros(largest + 1, np.int32)))


def _equal_counts(pairs: Sequence[tuple[Array, Array]], model: Ints, width: int) -> bool:
    """:func:`lists_equal` for few owners, and values below ``width``, by a table of how often each
    owner has each value.
    """
    count = np.zeros((len(model) + 1, width), np.int32)  # the last row is for those of none
    for owner, values in pairs:
        _tally(_short(owner), _short(values), count)
    return np.array_equal(count[model], count[:-1])


def _in_bulk(pairs: Sequence[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
    """The pairs with all short columns as one, since each call of a loop costs microseconds."""
    short = [pair for pair in pairs if len(pair[0]) < BULK]
    if len(short) < 2:
        return [*pairs]
    joined = tuple(
        np.concatenate([np.asarray(column, np.int32) for column in columns])
        for columns in zip(*short, strict=True)
    )
    return [(joined[0], joined[1]), *(pair for pair in pairs if len(pair[0]) >= BULK)]


def _short(column: Array) -> Shorts:
    """A column in the form that these loops take."""
    return np.require(column, np.int32, ["C", "W"])


def _equal_by_sorting(pairs: Sequence[tuple[Array, Array]], model: Ints) -> bool:
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
def _place(
    owners: Shorts, values: Shorts, end: Ints, value: Shorts, _sources: int = SOURCES
) -> None:
    """Place values by owner; ``end`` holds the next free position of each."""
    for row in range(len(owners)):
        owner = owners[row]
        if owner >= 0:
            value[end[owner]] = values[row]
            end[owner] += 1


@entry
def _equal(value: Shorts, end: Ints, model: Ints, tally: Shorts, _sources: int = SOURCES) -> bool:
    """Count the values of each owner against those of its model; the tally is all 0 before and
    after.
    """
    for owner in range(len(model)):
        twin = model[owner]
        begin, twin_begin = end[owner - 1] if owner else 0, end[twin - 1] if twin else 0
        if end[owner] - begin != end[twin] - twin_begin:
            return False
        if twin == owner:
            continue
        for row in range(twin_begin, end[twin]):
            tally[value[row]] += 1
        for row in range(begin, end[owner]):
            tally[value[row]] -= 1
            if tally[value[row]] < 0:
                return False
    return True
