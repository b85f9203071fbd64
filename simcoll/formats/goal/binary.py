"""Binary GOAL, as LogGOPSim's ``txt2bin`` writes it and LogGOPSim and ATLAHS read it.

Little endian: a cookie, the number of ranks, the highest cpu and nic; start and end of each rank, counted from after the cookie; then for
each rank its number of operations and of independent ones, the latter's numbers, 39 bytes per operation, and the numbers of its dependent
operations: first those that wait for its end, then those that wait for its start.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from simcoll.core.step import spread
from simcoll.errors import ConfigError
from simcoll.files.reader_arguments import Content, content_of
from simcoll.formats.goal.language import CALC, MAX_OPERATIONS, MAX_RANKS, RECV, SEND, Goal

__all__ = ["goal_binary", "parse_goal_binary"]

COOKIE = 4223
_NODE = np.dtype([
    ("waits", "<u4"), ("kind", "i1"), ("peer", "<u4"), ("size", "<u8"), ("tag", "<u4"), ("cpu", "u1"), ("nic", "u1"),
    ("done", "<u4"), ("first_done", "<u4"), ("begun", "<u4"), ("first_begun", "<u4"),
])  # fmt: skip
_HEAD = 4 + 2
_ANY = 2**32 - 1


def goal_binary(goal: Goal) -> bytes:
    """Write GOAL in binary, byte for byte as ``txt2bin`` writes the text of :func:`~simcoll.formats.goal.language.goal_text`."""
    # Dependents of an operation: done before begun, each in the order in which they are written.
    by_earlier = np.lexsort((goal.at_start, goal.earlier))
    earlier, later, begun = (column[by_earlier] for column in (goal.earlier, goal.later, goal.at_start))
    total = len(goal.kind)
    nodes = np.zeros(total, _NODE)
    nodes["waits"] = np.bincount(goal.later, minlength=total)
    for name in ("kind", "size", "cpu", "nic"):
        nodes[name] = getattr(goal, name)
    for name in ("peer", "tag"):
        nodes[name] = getattr(goal, name) & _ANY
    nodes["done"], nodes["begun"] = (np.bincount(earlier[begun == which], minlength=total) for which in (False, True))
    ahead = np.searchsorted(earlier, np.arange(total + 1))
    rank = goal.rank
    nodes["first_done"] = ahead[:-1] - ahead[goal.start[rank]]
    nodes["first_begun"] = nodes["first_done"] + nodes["done"]
    parts, table, at = [], [], _HEAD + 16 * goal.nranks
    for first, last in zip(goal.start[:-1].tolist(), goal.start[1:].tolist(), strict=True):
        own = nodes[first:last]
        roots = np.flatnonzero(own["waits"] == 0).astype("<u4")
        waiting = (later[ahead[first] : ahead[last]] - first).astype("<u4")
        part = np.array([len(own), len(roots)], "<u4").tobytes() + roots.tobytes() + own.tobytes() + waiting.tobytes()
        table += [at, at + len(part)]
        at += len(part)
        parts.append(part)
    most = bytes([int(goal.cpu.max(initial=0)), int(goal.nic.max(initial=0))])
    head = np.array([COOKIE], "<u8").tobytes() + np.array([goal.nranks], "<u4").tobytes() + most
    return b"".join([head, np.array(table, "<u8").tobytes(), *parts])


def parse_goal_binary(content: Content, file: str | None = None) -> Goal:
    """Read GOAL in binary.

    Raises
    ------
    ConfigError
        With the rank, for numbers that contradict each other, lie outside the file, or name ranks and operations that do not exist.
    """
    content = content_of(content, "parse_goal_binary")
    data = np.frombuffer(content, np.uint8)

    def refuse(message: str, rank: int | None = None) -> NoReturn:
        raise ConfigError(message, file=file, path=None if rank is None else f"rank {rank}")

    if len(content) < 8 + _HEAD or int(data[:8].view("<u8")[0]) != COOKIE:
        refuse(f"not a GOAL binary: it does not begin with the cookie {COOKIE}")
    body = data[8:]
    nranks = int(body[:4].view("<u4")[0])
    if not 1 <= nranks <= MAX_RANKS or len(body) < _HEAD + 16 * nranks:
        refuse(f"{nranks} ranks; expected 1 to {MAX_RANKS:,}, with the place of each in the file")
    places = body[_HEAD : _HEAD + 16 * nranks].view("<u8").reshape(nranks, 2)
    if (places > len(body)).any() or (places[:, 0] + np.uint64(8) > places[:, 1]).any():
        refuse(
            "a rank lies outside the file",
            int(np.flatnonzero((places > len(body)).any(axis=1) | (places[:, 0] + np.uint64(8) > places[:, 1]))[0]),
        )
    if int((places[:, 1] - places[:, 0]).sum()) > len(body):
        refuse("ranks overlap")
    start, nodes, orders = [0], [np.zeros(0, _NODE)], [np.zeros((3, 0), np.int64)]
    for rank, (begin, end) in enumerate(places.astype(np.int64).tolist()):
        count, roots = body[begin : begin + 8].view("<u4").tolist()
        after = begin + 8 + 4 * roots
        if after + _NODE.itemsize * count > end or (end - after - _NODE.itemsize * count) % 4:
            refuse(f"{count} operations, {roots} of them first, do not fit into {end - begin} bytes", rank)
        own = body[after : after + _NODE.itemsize * count].view(_NODE)
        waiting = body[after + _NODE.itemsize * count : end].view("<u4").astype(np.int64)
        found = _orders(own, waiting)
        if isinstance(found, str):
            refuse(found, rank)
        if not np.array_equal(body[begin + 8 : after].view("<u4"), np.flatnonzero(own["waits"] == 0)):
            refuse("the list of operations that wait for nothing is wrong", rank)
        orders.append(found + np.array([[start[-1]], [start[-1]], [0]]))
        nodes.append(own)
        start.append(start[-1] + count)
        if start[-1] > MAX_OPERATIONS:
            refuse(f"more than {MAX_OPERATIONS:,} operations", rank)
    every = np.concatenate(nodes)
    fault = _fault(every, nranks)
    if fault is not None:
        what, at = fault
        refuse(what, int(np.searchsorted(start, at, "right")) - 1)
    peer, tag = (np.where(every[name] == _ANY, -1, every[name].astype(np.int64)) for name in ("peer", "tag"))
    later, earlier, begun = np.concatenate(orders, axis=1)
    return Goal(
        np.array(start, np.int64), every["kind"].copy(), peer, every["size"].astype(np.int64), tag,
        every["cpu"].astype(np.int64), every["nic"].astype(np.int64), later, earlier, begun == 1,
    )  # fmt: skip


def _orders(own: np.ndarray, waiting: np.ndarray) -> np.ndarray | str:
    """Rows ``later, earlier, at_start`` of one rank; or a description of what is wrong."""
    counts = np.stack([own["done"], own["begun"]], axis=1).astype(np.int64).reshape(-1)
    firsts = np.stack([own["first_done"], own["first_begun"]], axis=1).astype(np.int64).reshape(-1)
    if int(counts.sum()) != len(waiting):
        return f"{int(counts.sum())} orders are announced and {len(waiting)} given"
    if not np.array_equal(firsts[counts > 0], (np.cumsum(counts) - counts)[counts > 0]):
        return "lists of waiting operations are not one after the other"
    if len(waiting) and int(waiting.max()) >= len(own):
        return f"operation {int(waiting.max())} does not exist; there are {len(own)}"
    if not np.array_equal(np.bincount(waiting, minlength=len(own)), own["waits"]):
        return "the numbers of orders that operations wait for are wrong"
    row, _ = spread(counts)
    return np.stack([waiting, row // 2, row % 2])


def _fault(every: np.ndarray, nranks: int) -> tuple[str, int] | None:
    """The first invalid operation: a description, and its number."""
    kind, peer = every["kind"], every["peer"]
    away = kind != CALC
    for wrong, what in (
        (~np.isin(kind, (SEND, RECV, CALC)), "kind {kind} is none of 1 (send), 2 (recv), 3 (calc)"),
        (every["size"] > 2**63 - 1, "size {size} is out of range"),
        (away & (peer >= nranks) & ~((kind == RECV) & (peer == _ANY)), "rank {peer} does not exist"),
        ((kind == SEND) & (every["tag"] == _ANY), "a send has one tag; only receives take any"),
    ):
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            return what.format(**{name: int(every[name][at]) for name in ("kind", "size", "peer")}), at
    return None
