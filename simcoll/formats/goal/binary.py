"""Binary GOAL, as LogGOPSim's ``txt2bin`` writes it and LogGOPSim and ATLAHS read it.

Little endian: a cookie, the number of ranks, the highest cpu and nic; start and end of each rank,
counted from after the cookie; then for each rank its number of operations and of independent ones,
the latter's numbers, 39 bytes per operation, and the numbers of its dependent operations: first
those that wait for its end, then those that wait for its start.
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
_NODE = np.dtype(
    [
        ("waits", "<u4"),
        ("kind", "i1"),
        ("peer", "<u4"),
        ("size", "<u8"),
        ("tag", "<u4"),
        ("cpu", "u1"),
        ("nic", "u1"),
        ("done", "<u4"),
        ("first_done", "<u4"),
        ("begun", "<u4"),
        ("first_begun", "<u4"),
    ]
)
_HEAD = 4 + 2
_ANY = 2**32 - 1


def goal_binary(goal: Goal) -> bytes:
    """Write GOAL in binary, byte for byte as ``txt2bin`` writes the text of
    :func:`~simcoll.formats.goal.language.goal_text`.
    """
    # Dependents of an operation: done before begun, each in the order in which they are written.
    by_earlier = np.lexsort((goal.at_start, goal.earlier))
    earlier, later, begun = (
        column[by_earlier] for column in (goal.earlier, goal.later, goal.at_start)
    )
    total = len(goal.kind)
    nodes = np.zeros(total, _NODE)
    nodes["waits"] = np.bincount(goal.later, minlength=total)
    for name in ("kind", "size", "cpu", "nic"):
        nodes[name] = getattr(goal, name)
    for name in ("peer", "tag"):
        nodes[name] = getattr(goal, name) & _ANY
    nodes["done"], nodes["begun"] = (
        np.bincount(earlier[begun == at_start], minlength=total) for at_start in (False, True)
    )
    ahead = np.searchsorted(earlier, np.arange(total + 1))
    rank = goal.rank
    nodes["first_done"] = ahead[:-1] - ahead[goal.start[rank]]
    nodes["first_begun"] = nodes["first_done"] + nodes["done"]
    parts, table = [], []
    offset = _HEAD + 16 * goal.nranks
    for begin, last in zip(goal.start[:-1].tolist(), goal.start[1:].tolist(), strict=True):
        operations = nodes[begin:last]
        roots = np.flatnonzero(operations["waits"] == 0).astype("<u4")
        waiting = (later[ahead[begin] : ahead[last]] - begin).astype("<u4")
        counts = np.array([len(operations), len(roots)], "<u4")
        part = b"".join(array.tobytes() for array in (counts, roots, operations, waiting))
        table += [offset, offset + len(part)]
        offset += len(part)
        parts.append(part)
    cookie = np.array([COOKIE], "<u8")
    nranks = np.array([goal.nranks], "<u4")
    largest = np.array([goal.cpu.max(initial=0), goal.nic.max(initial=0)], "u1")
    places = np.array(table, "<u8")
    head = (cookie, nranks, largest, places)
    return b"".join([*(array.tobytes() for array in head), *parts])


def parse_goal_binary(content: Content, file: str | None = None) -> Goal:
    """Read GOAL in binary.

    Raises
    ------
    ConfigError
        With the rank, for numbers that contradict each other, lie outside the file, or name ranks
        and operations that do not exist.
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
    too_short = places[:, 0] + np.uint64(8) > places[:, 1]
    outside_file = np.flatnonzero((places > len(body)).any(axis=1) | too_short)
    if outside_file.size:
        refuse("a rank lies outside the file", int(outside_file[0]))
    if int((places[:, 1] - places[:, 0]).sum()) > len(body):
        refuse("ranks overlap")
    start, nodes, orders = [0], [np.zeros(0, _NODE)], [np.zeros((3, 0), np.int64)]
    for rank, (begin, end) in enumerate(places.astype(np.int64).tolist()):
        count, roots = body[begin : begin + 8].view("<u4").tolist()
        body_begin = begin + 8 + 4 * roots
        body_end = body_begin + _NODE.itemsize * count
        if body_end > end or (end - body_end) % 4:
            refuse(
                f"{count} operations, {roots} of them first, do not fit into {end - begin} bytes",
                rank,
            )
        operations = body[body_begin:body_end].view(_NODE)
        waiting = body[body_end:end].view("<u4").astype(np.int64)
        rank_orders = _orders(operations, waiting)
        if isinstance(rank_orders, str):
            refuse(rank_orders, rank)
        if not np.array_equal(
            body[begin + 8 : body_begin].view("<u4"), np.flatnonzero(operations["waits"] == 0)
        ):
            refuse("the list of operations that wait for nothing is wrong", rank)
        orders.append(rank_orders + np.array([[start[-1]], [start[-1]], [0]]))
        nodes.append(operations)
        start.append(start[-1] + count)
        if start[-1] > MAX_OPERATIONS:
            refuse(f"more than {MAX_OPERATIONS:,} operations", rank)
    every = np.concatenate(nodes)
    fault = _fault(every, nranks)
    if fault is not None:
        description, operation = fault
        refuse(description, int(np.searchsorted(start, operation, "right")) - 1)
    peer, tag = (
        np.where(every[name] == _ANY, -1, every[name].astype(np.int64)) for name in ("peer", "tag")
    )
    later, earlier, begun = np.concatenate(orders, axis=1)
    return Goal(
        np.array(start, np.int64),
        every["kind"].copy(),
        peer,
        every["size"].astype(np.int64),
        tag,
        every["cpu"].astype(np.int64),
        every["nic"].astype(np.int64),
        later,
        earlier,
        begun == 1,
    )


def _orders(operations: np.ndarray, waiting: np.ndarray) -> np.ndarray | str:
    """Rows ``later, earlier, at_start`` of one rank; or a description of what is wrong."""
    counts = (
        np.stack([operations["done"], operations["begun"]], axis=1).astype(np.int64).reshape(-1)
    )
    firsts = (
        np.stack([operations["first_done"], operations["first_begun"]], axis=1)
        .astype(np.int64)
        .reshape(-1)
    )
    if int(counts.sum()) != len(waiting):
        return f"{int(counts.sum())} orders are announced and {len(waiting)} given"
    some = counts > 0
    starts = np.cumsum(counts) - counts
    if not np.array_equal(firsts[some], starts[some]):
        return "lists of waiting operations are not one after the other"
    if len(waiting) and int(waiting.max()) >= len(operations):
        return f"operation {int(waiting.max())} does not exist; there are {len(operations)}"
    if not np.array_equal(np.bincount(waiting, minlength=len(operations)), operations["waits"]):
        return "the numbers of orders that operations wait for are wrong"
    row, _ = spread(counts)
    return np.stack([waiting, row // 2, row % 2])


def _fault(every: np.ndarray, nranks: int) -> tuple[str, int] | None:
    """The first invalid operation: a description, and its number."""
    kind, peer = every["kind"], every["peer"]
    away = kind != CALC
    any_sender = (kind == RECV) & (peer == _ANY)
    for wrong, description in (
        (~np.isin(kind, (SEND, RECV, CALC)), "kind {kind} is none of 1 (send), 2 (recv), 3 (calc)"),
        (every["size"] > 2**63 - 1, "size {size} is out of range"),
        (away & (peer >= nranks) & ~any_sender, "rank {peer} does not exist"),
        ((kind == SEND) & (every["tag"] == _ANY), "a send has one tag; only receives take any"),
    ):
        if wrong.any():
            operation = int(np.flatnonzero(wrong)[0])
            values = {name: int(every[name][operation]) for name in ("kind", "size", "peer")}
            return description.format(**values), operation
    return None
