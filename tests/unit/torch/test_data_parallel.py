"""DistributedDataParallel's casts and host times, which a simulated run has not."""

from __future__ import annotations

import pytest

from simcoll.errors import ConfigError
from tests.support.deferred import Deferred, needs_torch

torch, dist, nn = Deferred("torch"), Deferred("torch.distributed"), Deferred("torch.nn")
parallel = Deferred("torch.nn.parallel.distributed")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


@pytest.mark.parametrize("on_gpus", [False, True])
def test_mixed_precision_is_refused_by_name(on_gpus):
    def body(rank, world_size):
        dist.init_process_group("gloo")
        casts = parallel._MixedPrecision(param_dtype=torch.bfloat16)
        with pytest.raises(ConfigError, match=r"DistributedDataParallel\(mixed_precision="):
            parallel.DistributedDataParallel(nn.Linear(2, 2), mixed_precision=casts)

    backend.spawn(body, 2, cuda_is_cpu=on_gpus)


@pytest.mark.filterwarnings("ignore:.*are those of this computer:UserWarning")
@pytest.mark.parametrize("level", ["DETAIL", "OFF"])
def test_host_times_of_the_logger_are_a_finding(level):
    def body(rank, world_size):
        dist.init_process_group("gloo")
        dist.set_debug_level(getattr(dist.DebugLevel, level))
        try:
            model = parallel.DistributedDataParallel(nn.Linear(2, 2))
            model(torch.ones(1, 2)).sum().backward()
        finally:
            dist.set_debug_level(dist.DebugLevel.OFF)

    findings = backend.spawn(body, 2).findings
    assert any("are those of this computer" in line for line in findings) == (level == "DETAIL")
