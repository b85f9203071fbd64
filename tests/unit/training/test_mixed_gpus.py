"""Designs with several kinds of GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcoll.errors import ConfigError
from simcoll.planning.costs import ClusterPower, hardware, power_kw
from simcoll.training.design import design_from
from simcoll.training.mixed_gpus import rank_factors
from simcoll.training.steps import TrainingStep, step


def design_of(mixed, slow=None, **parallel):
    return design_from(
        {
            "model": {"name": "llama-3.1-8b", "sequence": 4096, "global_batch": 32},
            "gpu": {"name": "h100", "mixed": mixed},
            "topology": {"name": "dgx-h100", "nodes": 2, "slow": slow or {}},
            "parallel": {"tp": 2, "pp": 2, "virtual": 1, **parallel},
        }
    )


@pytest.mark.slow
def test_another_gpu_is_as_slow_as_its_layers():
    mixed = design_of({"8-15": "a100-80"})
    (factor,) = set(rank_factors(mixed).values())
    slowed = design_of({}, slow={"8-15": factor})
    assert TrainingStep(mixed).time_fs(tier=2) == TrainingStep(slowed).time_fs(tier=2)
    # 989 to 312 TFLOPS of bf16, and measured rates of single kernels closer than that.
    assert 2 < factor < 3.2


@pytest.mark.slow
def test_fewer_layers_on_the_slower_stage_are_faster():
    even = TrainingStep(design_of({"8-15": "a100-80"}, split=[16, 16])).time_fs(tier=2)
    uneven = TrainingStep(design_of({"8-15": "a100-80"}, split=[22, 10])).time_fs(tier=2)
    assert uneven < 0.8 * even


@pytest.mark.slow
def test_memory_peak_and_power_count_each_kind():
    mixed = design_of({"8-15": "a100-40"})
    assert mixed.memory_limit == 40335 * 2**20  # as CUDA reports the capacity
    assert mixed.peak_flops == pytest.approx(8 * 989.4e12 + 8 * 312e12, rel=1e-3)
    plain = ClusterPower()
    assert power_kw(mixed, plain, hardware(mixed, plain)) == pytest.approx(
        8 * 1.275 + 8 * 0.8125 + 1.72 * hardware(mixed, plain).switches
    )
    assert any("ranks 8 to 15 are a100-40" in note for note in step(mixed, tier=1).notes)
    assert mixed.hash != design_of({}).hash


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"8-16": "a100-80"}, "'8-16': expected ranks from 0 to 15"),
        ({"eight": "a100-80"}, "'eight': expected ranks, such as '64-127'"),
        ({"8-15": "a100"}, "unknown GPU 'a100'"),
        ({"8-15": "a100-80", "12": "a100-40"}, "rank 12 is named twice"),
    ],
)
def test_wrong_ranks_and_names(others, said):
    with pytest.raises(ConfigError) as caught:
        design_of(others)
    assert said in str(caught.value)


def test_the_fastest_gpu_is_the_first():
    with pytest.raises(ConfigError, match=r"b200 takes 0\.\d\d times as long as h100; name the"):
        TrainingStep(design_of({"8-15": "b200"})).time_fs(tier=1)


def test_the_utilisation_of_a_mixed_cluster_is_that_of_all_its_gpus():
    mixed = design_of({"8-15": "a100-80"}, split=[16, 16], recompute="full")
    mixed = replace(mixed, sequence=8192, global_batch=32)  # as published
    result = step(mixed, tier=1)
    (line,) = (line for line in result.lacks if "% MFU" in line)
    assert f": {100 * result.mfu:.0f} % MFU, " in line
