"""A round of colour refinement: hashes of lanes and links enter those of messages, and vice versa.

All hashes are mix_word words, so those of a multiset may be added; a factor tells different parts
apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcoll.arrays import Array, Ints, Shorts, Words
from simcoll.core.hashing import SALTS, mix
from simcoll.emulator.fast.compiled import COMPILED, entry
from simcoll.emulator.fast.sources import SOURCES
from simcoll.emulator.fast.trace_hashing import mix_word
from simcoll.emulator.steps.timed import StepShape

__all__ = ["Colours", "spread", "tie_hashes"]


RECEIVED, LEADS, AWAITED = SALTS
"""Factors of what a lane receives, and of the operation and the earlier messages to which a message
is tied.
"""
SPREAD_ROWS = 1 << 16
"""Number of messages whose links are converted at a time. Time decides little (one_shot of 1,024
ranks: 0.82 s with 4,096, 0.75 with 65,536, 0.77 with a million); memory grows with it.
"""


class Colours(NamedTuple):
    """A hash of every lane, link and connection."""

    lanes: Words
    links: Words
    ways: Words


def spread(
    shape: StepShape,
    cost: Words,
    ways: Ints,
    marks: Words,
    old: Colours,
    new: Colours,
    message: Words,
) -> None:
    """Add the hashes of a step's messages, computed from old colours, to the new colours; fill in
    the hashes.

    ``ways`` is the connection of each message, and ``marks`` a hash of the messages tied to it;
    both are empty where there are none.
    """
    if not COMPILED:
        message[:] = _spread(shape, cost, ways, marks, old, new)
        return
    sender, receiver, connection = (
        np.require(column, np.int64, ["C", "W"]) for column in (shape.sender, shape.receiver, ways)
    )
    costs, ties = (np.require(column, np.uint64, ["C", "W"]) for column in (cost, marks))
    linked = np.require(np.zeros(0) if shape.linked is None else shape.linked, np.int64, ["C", "W"])
    size = len(cost) if shape.linked is not None else SPREAD_ROWS
    for begin in range(0, len(cost), size):
        rows = slice(begin, begin + size)
        links = np.require(
            shape.links if shape.linked is not None else shape.links[rows], np.int32, ["C", "W"]
        )
        _add(
            sender[rows],
            receiver[rows],
            connection[rows],
            links,
            linked,
            costs[rows],
            ties[rows],
            *old,
            *new,
            message[rows],
        )


def _spread(
    shape: StepShape, cost: Words, ways: Ints, marks: Words, old: Colours, new: Colours
) -> Words:
    """:func:`spread` by numpy."""
    message = cost + old.lanes[shape.sender] + old.lanes[shape.receiver] * RECEIVED
    rows = slice(None) if shape.linked is None else shape.linked
    on_links = np.zeros(len(cost), np.uint64)
    on_links[rows] = np.append(old.links, np.uint64(0))[shape.links].sum(axis=1, dtype=np.uint64)
    message = message + on_links
    if len(ways):
        message = message + old.ways[ways]
    if len(marks):
        message = message + marks
    message = mix(message)
    if len(ways):
        np.add.at(new.ways, ways, message)
    np.add.at(new.lanes, shape.sender, message)
    np.add.at(new.lanes, shape.receiver, message * RECEIVED)
    used = shape.links >= 0
    np.add.at(new.links, shape.links[used], np.broadcast_to(message[rows, None], used.shape)[used])
    return message


@entry
def _add(
    sender: Ints,
    receiver: Ints,
    ways: Ints,
    links: Shorts,
    linked: Ints,
    cost: Words,
    marks: Words,
    old_lanes: Words,
    old_links: Words,
    old_ways: Words,
    lanes: Words,
    to_links: Words,
    to_ways: Words,
    message: Words,
    _sources: int = SOURCES,
) -> None:
    """See :func:`spread`."""
    place = 0  # index of the next row that has links
    for row in range(len(cost)):
        link_row = row
        if len(linked) or not len(links):
            link_row = place if place < len(linked) and linked[place] == row else -1
            place += link_row >= 0
        word = cost[row] + old_lanes[sender[row]] + old_lanes[receiver[row]] * RECEIVED
        width = links.shape[1] if link_row >= 0 else 0
        for hop in range(width):
            if links[link_row, hop] >= 0:
                word += old_links[links[link_row, hop]]
        if len(ways):
            word += old_ways[ways[row]]
        if len(marks):
            word += marks[row]
        word = mix_word(word)
        message[row] = word
        if len(ways):
            to_ways[ways[row]] += word
        lanes[sender[row]] += word
        lanes[receiver[row]] += word * RECEIVED
        for hop in range(width):
            if links[link_row, hop] >= 0:
                to_links[links[link_row, hop]] += word


def tie_hashes(messages: Words, leader: Ints, later: Array, earlier: Array) -> Words:
    """Hashes of messages, mixed with those of the messages that they are tied to
    (:class:`simcoll.emulator.folding.partition.Ties`).
    """
    operations = np.zeros_like(messages)
    if COMPILED:
        hashes = np.empty_like(messages)
        _tie(messages, leader, _plain(later), _plain(earlier), operations, hashes)
        return hashes
    hashes, rows = messages.copy(), np.flatnonzero(leader >= 0)
    leads = leader[rows]
    np.add.at(operations, leads, messages[rows])
    hashes[rows] += (operations[leads] + (leads == rows).astype(np.uint64)) * LEADS
    np.add.at(hashes, later, messages[earlier] * AWAITED)
    return mix(hashes)


def _plain(column: Array) -> Shorts:
    return np.require(column, np.int32, ["C", "W"])


@entry
def _tie(
    messages: Words,
    leader: Ints,
    later: Shorts,
    earlier: Shorts,
    operations: Words,
    hashes: Words,
    _sources: int = SOURCES,
) -> None:
    """See :func:`tie_hashes`; ``operations`` is all 0."""
    for row in range(len(leader)):
        if leader[row] >= 0:
            operations[leader[row]] += messages[row]
    for row in range(len(leader)):
        hashes[row] = messages[row]
        if leader[row] >= 0:
            hashes[row] += (operations[leader[row]] + np.uint64(leader[row] == row)) * LEADS
    for pair in range(len(later)):
        hashes[later[pair]] += messages[earlier[pair]] * AWAITED
    for row in range(len(hashes)):
        hashes[row] = mix_word(hashes[row])
