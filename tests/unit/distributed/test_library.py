"""Rank programs whose collectives are what a communication library runs."""

import pytest

import simcoll
import simcoll.distributed as dist
from simcoll.errors import ConfigError


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "broadcast"])
def test_collectives_take_what_is_predicted_for_the_library(collective):
    size = 1 << 24

    def program(rank, world_size):
        whole, part = dist.fake_array(size, "uint8"), dist.fake_array(size // world_size, "uint8")
        if collective == "all_gather":
            dist.all_gather_into_tensor(whole, part)
        elif collective == "reduce_scatter":
            dist.reduce_scatter_tensor(part, whole)
        else:
            dist.broadcast(whole, 0)

    result = dist.spawn(program, 16, topology="dgx-h100", library="nccl")
    predicted = simcoll.predict(collective, size, simcoll.load_topology("dgx-h100", nodes=2))
    assert result.time_fs == pytest.approx(predicted.time_fs, rel=0.01)
    assert result.records[0].protocol == predicted.protocol


@pytest.mark.slow
def test_another_root_and_messages_run_too():
    def program(rank, world_size):
        x = dist.fake_array(1 << 20)
        dist.broadcast(x, 5)
        if rank == 1:
            dist.send(x, 9)
        elif rank == 9:
            dist.recv(x, 1)
        dist.all_reduce(x, algorithm="rabenseifner")

    result = dist.spawn(program, 16, topology="dgx-h100", library="nccl")
    assert [record.schedule.partition("(")[0] for record in result.records] == [
        "chain",
        "direct",
        "rabenseifner",
    ]


def test_a_library_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'nccl'"):
        dist.spawn(print, 2, library="ncl")
