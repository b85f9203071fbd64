"""Preparing, loading and running; results are the business of the conformance suite."""

import numpy as np
import pytest

import realcoll
import simcoll
from realcoll.meeting.control import Control


def ring(n=3, count=4, dtype="float32", **options):
    return simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=n, **options), count, dtype)


def test_a_prepared_plan_runs_again_on_its_own_memory():
    prepared = realcoll.prepare(ring())
    for value in (1, 5):
        for view in prepared.inputs.values():
            view[...] = value
        prepared.run()
        assert prepared.outputs[2].tolist() == [3 * value] * 4
    assert prepared.inputs[0].tolist() == [5] * 4


def test_in_place_input_and_output_are_one_memory():
    prepared = realcoll.prepare(ring(in_place=True))
    assert np.shares_memory(prepared.inputs[1], prepared.outputs[1])


def test_inputs_are_not_changed_and_may_come_by_rank():
    arrays = {rank: np.full(4, rank, "float32") for rank in range(3)}
    assert realcoll.execute(ring(), arrays)[0].tolist() == [3] * 4
    assert [array.tolist() for array in arrays.values()] == [[0] * 4, [1] * 4, [2] * 4]


def test_premul_sum_scales_and_avg_divides():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=2)
    arrays = [np.array([3, -5], "int32"), np.array([4, -4], "int32")]
    scaled = realcoll.execute(
        simcoll.bind(schedule, 2, "int32", simcoll.types.premul_sum(3)), arrays
    )
    assert scaled[1].tolist() == [21, -27]
    assert realcoll.execute(simcoll.bind(schedule, 2, "int32", "avg"), arrays)[0].tolist() == [
        3,
        -4,
    ]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ([np.ones(4, "float32")] * 2, "data for 2 ranks was given; the plan has 3"),
        ({0: np.ones(4, "float32")}, "rank 1 needs 4 elements of float32 as input; got nothing"),
        (
            [np.ones(4, "float32"), np.ones(5, "float32"), None],
            "rank 1 needs 4 elements of float32 as input; got 5 of float32",
        ),
        (
            [np.ones(4, "float64")] * 3,
            "rank 0 needs 4 elements of float32 as input; got 4 of float64",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, said):
    with pytest.raises(simcoll.ConfigError, match=said):
        realcoll.execute(ring(), arrays)


@pytest.mark.parametrize("placement", [[0, 0], [0, 0, 1], [0, -1, 0]])
def test_a_placement_names_a_process_for_every_rank(placement):
    with pytest.raises(
        simcoll.ConfigError, match=r"placement must name one process 0\.\.0 for each of 3 ranks"
    ):
        realcoll.prepare(ring(), placement=placement)


def test_a_process_without_ranks_has_nothing_to_do():
    transport = realcoll.LocalTransport()
    transport.control = Control(5, 6, 1.0)
    prepared = realcoll.prepare(ring(), transport)
    prepared.load({})
    prepared.run()
    assert prepared.fetch() == {}


def test_a_closed_transport_is_of_no_use():
    transport = realcoll.LocalTransport()
    transport.close()
    with pytest.raises(realcoll.FaultError, match="make a new one"):
        realcoll.prepare(ring(), transport)
