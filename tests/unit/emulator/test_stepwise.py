"""Data moved a step at a time is the data that the engines move, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.plan import INPUT, OUTPUT
from simcoll.core.reference import exact_inputs
from simcoll.core.schedule import COPY, Step
from simcoll.emulator.data.dataplane import Storage
from simcoll.emulator.data.stepwise import BufferPool, data_errors, move_inputs
from simcoll.errors import ConfigError
from simcoll.topology import load_topology
from simcoll.tuning import collective_on, schedule_on


def same(plan):
    inputs = exact_inputs(plan, 3)
    storage = Storage(plan, inputs)
    storage.play()
    wanted = storage.outputs()
    for got, want in zip(move_inputs(plan, inputs), wanted, strict=True):
        if want is None:
            assert got is None
        else:
            assert got.tobytes() == want.tobytes()
    pool, reduction = BufferPool(plan), plan.reduction
    for _ in range(2):  # moves that are kept are written in place where they can be
        for place, given in zip(pool.visible(INPUT), inputs, strict=True):
            if place.size:
                place[...] = reduction.prepared(given) if plan.collective.spec.reduces else given
        pool.play()
        for got, want in zip(pool.visible(OUTPUT), wanted, strict=True):
            if want is not None:
                if plan.collective.spec.reduces:
                    reduction.finish(got, plan.nranks)
                assert got.tobytes() == want.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "nodes"), [("dgx-h100", 1), ("dgx-a100", 2)])
def test_every_algorithm(name, nodes):
    machine = load_topology(name, nodes=nodes)
    played = 0
    for found in ALGORITHMS:
        if found.collective == "barrier":
            continue
        try:
            made = schedule_on(collective_on(found.collective, machine.nranks), found.name, machine)
        except ConfigError:
            continue
        chunks = made.layout.chunks
        dtype, op = (("float32", "sum"), ("int8", "avg"), ("bfloat16", "max"))[played % 3]
        same(simcoll.bind(made, chunks if made.divisible else chunks + chunks // 4 + 1, dtype, op))
        played += 1
    assert played > 40


@pytest.mark.parametrize("count", [0, 1, 3, 8, 41])
@pytest.mark.parametrize("algorithm", ["ring", "one_shot", "switch"])
def test_awkward_counts_in_place(algorithm, count):
    made = simcoll.schedule("all_reduce", algorithm, nranks=5, in_place=True)
    plan = simcoll.bind(made, count, "float64", "product")
    same(plan)
    assert data_errors(plan) == 0


def test_a_wrong_schedule_shows():
    made = simcoll.schedule("all_gather", "ring", nranks=4)

    def broken():
        steps = list(made.steps())
        last = steps[-1]
        steps[-1] = Step(
            *(
                column[1:]
                for column in (
                    last.src_rank,
                    last.src_chunk,
                    last.dst_rank,
                    last.dst_chunk,
                    last.count,
                )
            ),
            np.full(3, COPY, np.int8),
            last.channel[1:],
        )
        return iter(steps)

    plan = simcoll.bind(replace(made, source=broken), 6, unproved=True)
    assert data_errors(plan) == 6  # one block of one rank never came
