"""Plans that convert on the way: the bits of the emulator, and the bytes of their messages."""

import numpy as np
import pytest

import realcoll
import simcoll
from realcoll.turns import part
from simcoll.algorithms import in_transit
from simcoll.collectives import quantised_two_step
from simcoll.core.reference import random_inputs
from simcoll.core.wire_format import wire_format
from simcoll.emulator.data.stepwise import move_inputs
from tests.support.custom_cases import converting
from tests.support.fake_cupy import alone, install


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_outputs_have_the_bits_of_the_emulator(nranks, dtype):
    schedules = converting(nranks)
    assert len(schedules) >= 20
    for count in (1, 257):
        for name, schedule in schedules.items():
            plan = simcoll.bind(schedule, count, dtype)
            inputs = random_inputs(plan)
            outputs = realcoll.execute(plan, inputs)
            for rank, values in enumerate(move_inputs(plan, inputs)):
                if values is not None:
                    assert outputs[rank].tobytes() == values.tobytes(), (name, count, rank)


def test_messages_have_the_bytes_of_the_format():
    n, count = 4, 1000
    plan = simcoll.bind(quantised_two_step(simcoll.Collective("all_reduce", n)), count)
    (lane,) = part(plan, range(n), 0).lanes
    sizes = {span[3] for turn in lane for span, _, _ in turn.sends}
    assert sizes == {wire_format("int8/256").size_bytes(count // n)}


def test_several_channels_convert_apart():
    ring = simcoll.schedule("all_reduce", "ring", nranks=4, channels=3)
    plan = simcoll.bind(in_transit(ring, wire="int8/16"), 999)
    inputs = random_inputs(plan)
    outputs = realcoll.execute(plan, inputs)
    for rank, values in enumerate(move_inputs(plan, inputs)):
        assert outputs[rank].tobytes() == values.tobytes()


def test_values_that_are_not_finite_arrive_as_in_the_emulator():
    plan = simcoll.bind(quantised_two_step(simcoll.Collective("all_reduce", 2)), 4)
    inputs = [np.array([1, np.inf, 2, 3], np.float32), np.array([1, 1, np.nan, 3], np.float32)]
    outputs = realcoll.execute(plan, inputs)
    for rank, values in enumerate(move_inputs(plan, inputs)):
        assert outputs[rank].tobytes() == values.tobytes()


def test_nccl_refuses_with_the_reason(monkeypatch):
    alone(monkeypatch)
    install(monkeypatch)
    transport = realcoll.NcclTransport()
    plan = simcoll.bind(quantised_two_step(simcoll.Collective("all_reduce", 2)), 4)
    with pytest.raises(simcoll.ConfigError, match="nccl has no kernels that convert messages to i"):
        realcoll.prepare(plan, transport)
    transport.close()
