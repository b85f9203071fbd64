"""Recorded results of torch 2.13 gloo.

A small part is in ``recorded.json``; with a folder in SIMCOLL_GOLDEN all of it is replayed:
``golden.json`` (an index) and ``golden.npz`` (one array of bytes, ``blob``). A case gives the
operation, world size, dtype, inputs of every group rank, and the tensors afterwards.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import simcoll.distributed as dist

FOLDER = os.environ.get("SIMCOLL_GOLDEN")
OPS = (
    "all_gather",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "batch_ring",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "ring",
    "scatter",
)


@pytest.fixture(scope="module")
def golden():
    if FOLDER is None:
        return json.loads(
            Path(__file__).with_name("recorded.json").read_text(encoding="utf-8")
        ), b""
    index = json.loads((Path(FOLDER) / "golden.json").read_text(encoding="utf-8"))
    return index, np.load(Path(FOLDER) / "golden.npz")["blob"].tobytes()


def tensor(case, blob, entry):
    dtype = np.dtype(ml_dtypes.bfloat16 if case["dt"] == "bfloat16" else case["dt"])
    shape, values = entry
    if isinstance(values, list):
        return np.array(values, dtype).reshape(shape)
    return np.frombuffer(blob, dtype, int(np.prod(shape)), values).reshape(shape).copy()


def run_case(case, inputs, outs, group, g):
    """Replay a case on one rank; returns its tensors."""
    op, root, n = case["op"], case.get("root"), len(case["in"])
    kw = {"group": group}
    mine = [np.zeros_like(out) for out in outs] if outs is not None else []
    if "redop" in case:
        kw["op"] = getattr(dist.ReduceOp, case["redop"])
    at_root = root is not None and dist.get_rank() == root
    match op:
        case "all_reduce":
            dist.all_reduce(inputs[0], **kw)
            return [inputs[0]]
        case "reduce":
            dist.reduce(inputs[0], root, **kw)
            return [inputs[0]]
        case "broadcast":
            dist.broadcast(inputs[0], root, **kw)
            return [inputs[0]]
        case "gather":
            dist.gather(inputs[0], mine if at_root else None, dst=root, **kw)
        case "scatter":
            dist.scatter(mine[0], inputs if at_root else None, src=root, **kw)
        case "all_gather":
            dist.all_gather(mine, inputs[0], **kw)
        case "all_gather_single":
            dist.all_gather_into_tensor(mine[0], inputs[0], **kw)
        case "reduce_scatter":
            dist.reduce_scatter(mine[0], inputs, **kw)
        case "reduce_scatter_single":
            dist.reduce_scatter_tensor(mine[0], inputs[0], **kw)
        case "all_to_all_single":
            splits = [
                None if case.get(key) is None else case[key][g] for key in ("osplit", "isplit")
            ]
            dist.all_to_all_single(mine[0], inputs[0], *splits, **kw)
        case "all_to_all":
            dist.all_to_all(mine, inputs, **kw)
        case "ring" | "batch_ring":
            ranks = dist.get_process_group_ranks(group)
            right, left = ranks[(g + 1) % n], ranks[(g - 1) % n]
            if op == "ring":
                work = dist.isend(inputs[0], right, tag=3, **kw)
                dist.recv(mine[0], left, tag=3, **kw)
                work.wait()
            else:
                ops = [
                    dist.P2POp(dist.irecv, mine[0], left, group),
                    dist.P2POp(dist.isend, inputs[0], right, group),
                ]
                for work in dist.batch_isend_irecv(ops):
                    work.wait()
    return mine


def same(case, got, want):
    if case["exact"]:
        equal = np.array_equal(
            got.view(np.uint8) if got.ndim else got, want.view(np.uint8) if want.ndim else want
        )
        return equal or (want.dtype.kind != "u" and np.array_equal(got, want))
    close = 1e-12 if case["dt"] == "float64" else 1e-5
    return np.allclose(got, want, rtol=close, atol=close)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_tensors(golden, op):
    index, blob = golden
    cases = [case for case in index["cases"] if case["op"] == op]
    worlds, wrong = Counter(case["W"] for case in cases), []
    for world in sorted(worlds):
        todo = [case for case in cases if case["W"] == world]

        def program(rank, world_size, todo=todo):
            groups = {}
            for case in todo:
                ranks = case.get("ranks")
                key = None if ranks is None else tuple(ranks)
                if key not in groups:
                    groups[key] = None if ranks is None else dist.new_group(ranks)
                members = sorted(ranks) if ranks else list(range(world_size))
                if rank not in members:
                    continue
                g = members.index(rank)
                outs = case["out"][g]
                expected = None if outs is None else [tensor(case, blob, entry) for entry in outs]
                got = run_case(
                    case, [tensor(case, blob, e) for e in case["in"][g]], expected, groups[key], g
                )
                if expected is None:
                    continue
                if len(got) != len(expected) or not all(
                    a.shape == b.shape and same(case, a, b)
                    for a, b in zip(got, expected, strict=True)
                ):
                    wrong.append((case["id"], rank))

        dist.spawn(program, world)
    assert wrong == []
    assert sum(worlds.values()) > 0


def test_objects(golden):
    wrong = []

    def program(rank, world_size, number, case):
        op, root, src = case["op"], case["root"], case["src"]
        match op:
            case "all_gather_object":
                got = [None] * world_size
                dist.all_gather_object(got, case["mine"][rank])
            case "gather_object":
                got = [None] * world_size if rank == root else None
                dist.gather_object(case["mine"][rank], got, dst=root)
            case "broadcast_object_list":
                got = list(src) if rank == root else [None] * len(src)
                dist.broadcast_object_list(got, src=root)
            case "scatter_object_list":
                got = [None, "keep"]
                dist.scatter_object_list(got, src if rank == root else None, src=root)
        if got != case["out"][rank]:
            wrong.append((number, rank))

    for number, case in enumerate(golden[0]["objects"]):
        dist.spawn(program, case["W"], args=(number, case))
    assert wrong == []
