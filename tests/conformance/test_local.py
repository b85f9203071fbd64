"""The suite on the transports of one process."""

import itertools
from functools import cache

import pytest

import realcoll
from simcoll.algorithms import ALGORITHMS
from tests.support.conformance_cases import (
    COUNTS,
    DTYPES,
    OPS,
    RANKS,
    check_alone,
    select,
    turns_of,
)
from tests.support.fake_cupy import alone, install

ALL = sorted({(found.collective, found.name) for found in ALGORITHMS})


@pytest.mark.slow
def test_the_selection_covers_the_pairs():
    cases = select()
    algorithms = {case.algorithm for case in cases}
    assert {case.nranks for case in cases} == set(RANKS)
    assert {(case.nranks, case.count) for case in cases} == set(itertools.product(RANKS, COUNTS))
    assert {(case.algorithm, case.dtype) for case in cases} == set(
        itertools.product(algorithms, DTYPES)
    )
    assert algorithms == set(ALL)
    assert {"float32", "bfloat16"} <= {case.dtype for case in cases if case.op == "avg"}
    assert {case.op for case in cases} == set(OPS)


@cache
def on_the_stand_in(*, streams):
    """A part of the cases; plans of one channel have one stream either way."""
    cases = select()
    several = [case for case in cases if case.plan().nchannels > 1]
    return frozenset([*several[::2], *cases[::4]] if streams else cases[::3])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALL, ids="-".join)
def test_results_are_those_of_the_definition_and_of_the_emulator(algorithm, monkeypatch):
    """Copied in this process, and by the calls of NCCL that a stand-in plays, on one stream and on
    one for each channel.
    """
    alone(monkeypatch)
    monkeypatch.setattr("realcoll.executor.part", turns_of)
    library, *_ = install(monkeypatch)
    nccl = {streams: realcoll.NcclTransport(channel_streams=streams) for streams in (False, True)}
    for case in select():
        if case.algorithm == algorithm:
            played = [
                made for streams, made in nccl.items() if case in on_the_stand_in(streams=streams)
            ]
            assert check_alone(case, [realcoll.LocalTransport(), *played]) == []
    for transport in nccl.values():
        transport.close()
    assert all(comm.destroyed for comm in library.comms)
