"""Events in PyTorch programs."""

from __future__ import annotations

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import simcoll.torch  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:rank 1 stopped")]


def program(rank, world_size, backend):
    dist.init_process_group(backend, timeout=timedelta(seconds=30))
    x = torch.ones(4)
    dist.all_reduce(x)
    simcoll.torch.compute(1e-3)
    try:
        dist.all_reduce(x)
    except RuntimeError as error:
        return type(error), simcoll.torch.emulated_time()
    return None


@pytest.mark.parametrize(("backend", "kind", "after"), [("gloo", RuntimeError, 0), ("nccl", dist.DistBackendError, 30)])
def test_the_others_learn_of_a_rank_that_stops(backend, kind, after):
    result = simcoll.torch.spawn(program, 3, args=(backend,), events=["t=0.5ms rank 1 stops"])
    assert result.returns[1] is None
    for found, when in (result.returns[0], result.returns[2]):
        assert found is kind
        assert when == pytest.approx(1e-3 + after, abs=1e-5)
