"""Certificates made by hand: every collective by direct sends, rings and small programs, without
simcoll.
"""

from __future__ import annotations

import copy
import itertools

REDUCING = ("reduce", "all_reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
KINDS = (
    *ROOTED,
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "barrier",
)


def schedule(collective, blocks, *, chunks=1, order="", proof=None, **more):
    """The certificate of a schedule; steps and transfers are counted, and other claims are the
    strong ones unless given.
    """
    claims = {"order": order, "shared_chunks": False, "folds": False}
    claims |= {"steps": sum(len(block["steps"]) * block.get("repeat", 1) for block in blocks)}
    rows = sum(
        len(step["src_rank"]) * block.get("repeat", 1)
        for block in blocks
        for step in block["steps"]
    )
    claims |= {"transfers": rows} | more.pop("claims", {})
    return {
        "format": "simcoll-certificate",
        "version": 1,
        "subject": "schedule",
        "name": "by hand",
        "collective": collective,
        "chunks": chunks,
        "blocks": blocks,
        "proof": proof or {"kind": "full"},
        "claims": claims,
        **more,
    }


def step(rows):
    """A step of rows (source rank, source chunk, destination rank, destination chunk, operation[,
    channel[, count]]).
    """
    keys = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "op", "channel", "count")
    columns = itertools.zip_longest(*rows)
    return {key: list(column) for key, column in zip(keys, columns, strict=False)}


def slots(kind, n):
    return (n if kind in ("reduce_scatter", "scatter", "all_to_all") else 1), (
        n if kind in ("all_gather", "gather", "all_to_all") else 1
    )


def contributions(kind, n, root, pairs, rank, slot):
    """The (rank, input slot) pairs that an output slot must hold."""
    match kind:
        case "broadcast":
            return [(root, 0)]
        case "reduce":
            return [(other, 0) for other in range(n)] if rank == root else []
        case "all_reduce":
            return [(other, 0) for other in range(n)]
        case "all_gather":
            return [(slot, 0)]
        case "gather":
            return [(slot, 0)] if rank == root else []
        case "reduce_scatter":
            return [(other, rank) for other in range(n)]
        case "scatter":
            return [(root, rank)]
        case "all_to_all":
            return [(slot, rank)]
        case "send_recv":
            return [(source, 0) for source, target in pairs if target == rank]
    raise AssertionError(kind)


def direct(kind, n, *, chunks=1, root=0, pairs=((0, 1),), in_place=False):
    """A collective in one step: every output chunk is copied, or copied and added, straight from
    the inputs.
    """
    collective = {"kind": kind, "nranks": n, "in_place": in_place}
    collective |= {"root": root} if kind in ROOTED else {}
    collective |= {"pairs": [list(pair) for pair in pairs]} if kind == "send_recv" else {}
    if kind == "barrier":
        rows = [(a, 0, b, 0, "sync") for a in range(n) for b in range(n) if a != b]
        return schedule(collective, [{"steps": [step(rows)]}] if rows else [])
    inputs, outputs = (count * chunks for count in slots(kind, n))
    aliased = {
        "broadcast": {root},
        "scatter": {root},
        "reduce": {root},
        "gather": {root},
        "all_to_all": (),
        "send_recv": (),
    }
    rows, dropped = [], 0
    for rank, output in itertools.product(range(n), range(outputs)):
        parts = contributions(kind, n, root, pairs, rank, output // chunks)
        alias = in_place and rank in aliased.get(kind, range(n))
        if alias:  # what is there already is the first operand
            parts.sort(key=lambda part: part[0] != rank)
        for number, (source, slot) in enumerate(parts):
            dropped += alias and source == rank and number == 0
            rows.append(
                (
                    source,
                    slot * chunks + output % chunks,
                    rank,
                    inputs + output,
                    "reduce" if number else "copy",
                )
            )
    order = "position-independent" if kind in REDUCING else ""
    if in_place and n > 2:  # every rank begins with its own
        order = {"all_reduce": "any", "reduce_scatter": "run-consistent"}.get(kind, order)
    claims = {"folds": kind in REDUCING and n > 1, "transfers": len(rows) - dropped}
    return schedule(
        collective,
        [{"steps": [step(rows)]}] if rows else [],
        chunks=chunks,
        order=order,
        claims=claims,
    )


def ring(n, proof="full"):
    """A ring all_reduce in place; with the renumbering of its symmetry."""
    ranks, after = list(range(n)), [(rank + 1) % n for rank in range(n)]
    blocks = [
        {
            "steps": [
                {
                    "src_rank": ranks,
                    "src_chunk": [n + k for k in places],
                    "dst_rank": after,
                    "dst_chunk": [n + k for k in places],
                    "op": op,
                }
            ],
            "repeat": n - 1,
            "stride": -1,
            "base": n,
            "modulus": n,
        }
        for places, op in ((ranks, "reduce"), (after, "copy"))
    ]
    certificate = schedule(
        {"kind": "all_reduce", "nranks": n, "in_place": True},
        blocks,
        chunks=n,
        order="run-consistent",
    )
    certificate["proof"] = (
        {"kind": "full"}
        if proof == "full"
        else {"kind": proof, "rank": [after], "lane": 0, "place": after}
    )
    return certificate


def unrolled(certificate):
    """The same without repeats."""
    plain = copy.deepcopy(certificate)
    plain["blocks"] = []
    for block in certificate["blocks"]:
        base, modulus, shift = block.get("base", 0), block.get("modulus", 1), block.get("stride", 0)
        for turn in range(block.get("repeat", 1)):
            for one in block["steps"]:
                new = copy.deepcopy(one)
                for key in ("src_chunk", "dst_chunk"):
                    new[key] = [
                        base + (chunk - base + turn * shift) % modulus for chunk in one[key]
                    ]
                plain["blocks"].append({"steps": [new]})
    return plain


def program(
    collective, ranks, buffers, *, chunks=1, depth=2, order="", least=1, messages=0, in_place=False
):
    """The certificate of a program; ranks: for each rank a list of (channel, instructions)."""
    lanes = [
        [{"channel": channel, "instructions": list(code)} for channel, code in lanes]
        for lanes in ranks
    ]
    return {
        "format": "simcoll-certificate",
        "version": 1,
        "subject": "program",
        "name": "by hand",
        "collective": collective,
        "chunks": chunks,
        "program": {
            "nranks": len(ranks),
            "buffers": buffers,
            "in_place": in_place,
            "fifo_depth": depth,
            "protocol": "Simple",
            "ranks": lanes,
        },
        "claims": {
            "data": collective is not None,
            "order": order,
            "least_depth": least,
            "steps": None,
            "messages": messages,
        },
    }


def exchange():
    """An all_gather of two ranks: both send first, so that rendezvous blocks and a FIFO of one
    message is enough.
    """
    ranks = [
        [
            (
                0,
                [
                    {"op": "send", "src": 0, "send_to": 1 - rank},
                    {"op": "recv", "dst": 1 + 1 - rank, "recv_from": 1 - rank},
                    {"op": "copy", "src": 0, "dst": 1 + rank},
                ],
            )
        ]
        for rank in range(2)
    ]
    return program({"kind": "all_gather", "nranks": 2}, ranks, [1, 2, 0], messages=2)


def chain(n=3):
    """A reduce to the last rank along a chain, and a broadcast back: all operations that receive
    and send at once.
    """
    ranks = []
    for rank in range(n):
        code = []
        if rank == 0:
            code = [
                {"op": "send", "src": 0, "send_to": 1},
                {"op": "recv", "dst": 1, "recv_from": 1},
            ]
        elif rank < n - 1:
            code = [
                {"op": "recv_reduce_send", "src": 0, "recv_from": rank - 1, "send_to": rank + 1},
                {"op": "recv_copy_send", "dst": 1, "recv_from": rank + 1, "send_to": rank - 1},
            ]
        else:
            code = [
                {
                    "op": "recv_reduce_copy_send",
                    "src": 0,
                    "dst": 1,
                    "recv_from": rank - 1,
                    "send_to": rank - 1,
                }
            ]
        ranks.append([(0, code)])
    return program(
        {"kind": "all_reduce", "nranks": n},
        ranks,
        [1, 1, 0],
        order="position-independent",
        least=1,
        messages=2 * (n - 1),
    )
