"""Events in PyTorch programs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist, backend = Deferred("torch"), Deferred("torch.distributed"), Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore:rank 1 stopped")]


def program(rank, world_size, name):
    dist.init_process_group(name, timeout=timedelta(seconds=30))
    x = torch.ones(4)
    dist.all_reduce(x)
    backend.compute(1e-3)
    try:
        dist.all_reduce(x)
    except RuntimeError as error:
        return type(error), backend.emulated_time()
    return None


@pytest.mark.parametrize(
    ("name", "kind", "after"), [("gloo", "RuntimeError", 0), ("nccl", "DistBackendError", 30)]
)
def test_the_others_learn_of_a_rank_that_stops(name, kind, after):
    result = backend.spawn(program, 3, args=(name,), events=["t=0.5ms rank 1 stops"])
    assert result.returns[1] is None
    for found, when in (result.returns[0], result.returns[2]):
        assert found.__name__ == kind
        assert when == pytest.approx(1e-3 + after, abs=1e-5)
