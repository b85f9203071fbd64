"""A round of colour refinement: hashes of lanes and links enter those of messages, and vice versa.

All hashes are mixed words, so those of a multiset may be added; a factor tells different parts apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcoll.arrays import Array, Ints, Shorts, Words
from simcoll.core.hashing import SALTS, mix
from simcoll.emulator.fast.compiled import COMPILED, SOURCES, entry
from simcoll.emulator.fast.trace_hashing import mixed
from simcoll.emulator.steps.timed import Shape

__all__ = ["Colours", "spread", "tied"]


RECEIVED, LEADS, AWAITED = SALTS
"""Factors of what a lane receives, and of the operation and the earlier messages to which a message is tied."""
SPREAD_ROWS = 1 << 16
"""Number of messages whose links are converted at a time."""


class Colours(NamedTuple):
    """A hash of every lane, link and connection."""

    lanes: Words
    links: Words
    ways: Words


def spread(shape: Shape, cost: Words, ways: Ints, marks: Words, old: Colours, new: Colours, message: Words) -> None:
    """Add the hashes of a step's messages, computed from old colours, to the new colours; fill in the hashes.

    ``ways`` is the connection of each message, and ``marks`` a hash of the messages tied to it; both are empty where there are none.
    """
    if not COMPILED:
        message[:] = _spread(shape, cost, ways, marks, old, new)
        return
    sender, receiver, way = (np.require(each, np.int64, ["C", "W"]) for each in (shape.sender, shape.receiver, ways))
    own, tied = (np.require(each, np.uint64, ["C", "W"]) for each in (cost, marks))
    linked = np.require(np.zeros(0) if shape.linked is None else shape.linked, np.int64, ["C", "W"])
    size = len(cost) if shape.linked is not None else SPREAD_ROWS
    for first in range(0, len(cost), size):
        here = slice(first, first + size)
        links = np.require(shape.links if shape.linked is not None else shape.links[here], np.int32, ["C", "W"])
        _add(sender[here], receiver[here], way[here], links, linked, own[here], tied[here], *old, *new, message[here])


def _spread(shape: Shape, cost: Words, ways: Ints, marks: Words, old: Colours, new: Colours) -> Words:
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
        here = row
        if len(linked) or not len(links):
            here = place if place < len(linked) and linked[place] == row else -1
            place += here >= 0
        word = cost[row] + old_lanes[sender[row]] + old_lanes[receiver[row]] * RECEIVED
        width = links.shape[1] if here >= 0 else 0
        for hop in range(width):
            if links[here, hop] >= 0:
                word += old_links[links[here, hop]]
        if len(ways):
            word += old_ways[ways[row]]
        if len(marks):
            word += marks[row]
        word = mixed(word)
        message[row] = word
        if len(ways):
            to_ways[ways[row]] += word
        lanes[sender[row]] += word
        lanes[receiver[row]] += word * RECEIVED
        for hop in range(width):
            if links[here, hop] >= 0:
                to_links[links[here, hop]] += word


def tied(messages: Words, leader: Ints, later: Array, earlier: Array) -> Words:
    """Hashes of messages, mixed with those of the messages that they are tied to (:class:`simcoll.emulator.folding.partition.Ties`)."""
    operations = np.zeros_like(messages)
    if COMPILED:
        found = np.empty_like(messages)
        _tie(messages, leader, _plain(later), _plain(earlier), operations, found)
        return found
    found, rows = messages.copy(), np.flatnonzero(leader >= 0)
    leads = leader[rows]
    np.add.at(operations, leads, messages[rows])
    found[rows] += (operations[leads] + (leads == rows).astype(np.uint64)) * LEADS
    np.add.at(found, later, messages[earlier] * AWAITED)
    return mix(found)


def _plain(column: Array) -> Shorts:
    return np.require(column, np.int32, ["C", "W"])


@entry
def _tie(
    messages: Words,
    leader: Ints,
    later: Shorts,
    earlier: Shorts,
    operations: Words,
    found: Words,
    _sources: int = SOURCES,
) -> None:
    """See :func:`tied`; ``operations`` is all 0."""
    for row in range(len(leader)):
        if leader[row] >= 0:
            operations[leader[row]] += messages[row]
    for row in range(len(leader)):
        found[row] = messages[row]
        if leader[row] >= 0:
            found[row] += (operations[leader[row]] + np.uint64(leader[row] == row)) * LEADS
    for pair in range(len(later)):
        found[later[pair]] += messages[earlier[pair]] * AWAITED
    for row in range(len(found)):
        found[row] = mixed(found[row])
