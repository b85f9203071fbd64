"""Collectives of Python objects. Examples are those of the torch.distributed documentation."""

from __future__ import annotations

import numpy as np
import pytest

import simcoll.distributed as dist

THINGS = ["foo", 12, {1: 2}]


def run(program, nprocs=3, **kw):
    result = dist.spawn(program, nprocs, **kw)
    return result.returns


def test_all_gather_object():
    """OB-01 OB-02 OB-10 OB-11: everybody's object in every list; longer lists keep the rest; arrays
    inside; no Work.
    """

    def program(rank, world_size):
        got = [None] * 3 + ["keep"]
        assert dist.all_gather_object(got, THINGS[rank]) is None
        with pytest.raises(IndexError):
            dist.all_gather_object([None], 1)
        arrays = [None] * 3
        dist.all_gather_object(arrays, {"x": np.arange(rank)})
        return got, [a["x"].tolist() for a in arrays]

    assert run(program) == (([*THINGS, "keep"], [[], [0], [0, 1]]),) * 3


def test_gather_object():
    """OB-03: only the destination has a list."""

    def program(rank, world_size):
        if rank == 0:
            with pytest.raises(ValueError, match="must be specified on destination rank"):
                dist.gather_object(1)
        else:
            with pytest.raises(ValueError, match="Argument ``gather_list`` must NOT be specified"):
                dist.gather_object(1, [None] * 3)
        got = [None] * 3 if rank == 0 else None
        dist.gather_object(THINGS[rank], got)
        return got

    assert run(program) == (THINGS, None, None)


def test_roots():
    """OB-04 OB-06: global rank 0 unless one of the two is given; ValueError for both."""

    def program(rank, world_size):
        got = [rank]
        for call in (
            lambda **kw: dist.broadcast_object_list(got, **kw),
            lambda **kw: dist.scatter_object_list(got, **kw),
        ):
            with pytest.raises(ValueError, match="Can't specify both"):
                call(src=0, group_src=0)
        with pytest.raises(ValueError, match="Can't specify both"):
            dist.gather_object(1, dst=0, group_dst=0)
        dist.broadcast_object_list(got)
        other = [rank]
        dist.broadcast_object_list(other, group_src=2)
        return got + other

    assert run(program) == ([0, 2],) * 3


def test_broadcast_object_list():
    """OB-05: lists of one length; else a RuntimeError on every rank."""

    def program(rank, world_size):
        got = list(THINGS) if rank == 0 else [None] * 3
        dist.broadcast_object_list(got, src=0)
        with pytest.raises(RuntimeError, match="number of elements"):
            dist.broadcast_object_list([None] * (rank + 1), src=0)
        return got

    assert run(program) == (THINGS,) * 3


def test_scatter_object_list():
    """OB-07 OB-08 OB-09: entry r of the source's list becomes the first of rank r's; wrong lists
    are a ValueError.
    """

    def program(rank, world_size):
        for wrong in ([], None):
            with pytest.raises(ValueError, match="to be a list of size at least 1"):
                dist.scatter_object_list(wrong, THINGS)
        if rank == 0:
            with pytest.raises(ValueError, match="source rank must provide non-None"):
                dist.scatter_object_list([None])
        got = [None, "keep"]
        dist.scatter_object_list(got, THINGS if rank == 0 else [None, None], src=0)
        return got

    assert run(program) == tuple([thing, "keep"] for thing in THINGS)


def test_how_objects_travel():
    """OB-12: sizes first, then bytes: two all_gathers, an all_gather and a gather, two broadcasts,
    a broadcast and two scatters.
    """

    def program(rank, world_size, which):
        got = [None] * 3
        match which:
            case 0:
                dist.all_gather_object(got, 1)
            case 1:
                dist.gather_object(1, got if rank == 0 else None)
            case 2:
                dist.broadcast_object_list(got)
            case 3:
                dist.scatter_object_list(got, THINGS)
            case 4 if rank == 0:
                dist.send_object_list(THINGS, 1)
            case 4 if rank == 1:
                dist.recv_object_list(got, 0)

    names = [
        [record.name for record in dist.spawn(program, 3, args=(which,)).records]
        for which in range(5)
    ]
    sent = "send 0 -> 1 tag 0"
    assert names == [
        ["all_gather", "all_gather"],
        ["all_gather", "gather"],
        ["broadcast", "broadcast"],
        ["broadcast", "scatter", "scatter"],
        [sent, sent],
    ]


def test_objects_that_are_no_data(monkeypatch):
    def program(rank, world_size):
        with pytest.raises(Exception, match="trusted=True"):
            dist.all_gather_object([None] * 3, print)
        got = [None] * 3
        dist.all_gather_object(got, print, trusted=True)
        monkeypatch.setenv("SIMCOLL_TRUSTED_PICKLE", "1")
        more = [None] * 3
        dist.all_gather_object(more, print)
        return got == more == [print] * 3

    assert run(program) == (True,) * 3
