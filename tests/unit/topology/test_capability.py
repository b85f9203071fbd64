"""Compute capability of GPUs."""

import pytest

from simcoll.topology import load_topology
from simcoll.topology.capability import compute_capability


@pytest.mark.parametrize(
    ("machine", "capability"),
    [
        ("dgx-1v", 70),
        ("rtx-2080ti-pair", 75),
        ("dgx-a100", 80),
        ("dgx-h200", 90),
        ("alps-gh200", 90),
        ("gb200-nvl72", 100),
        ("dgx-b300", 103),
        ("gb300-nvl72", 103),
        ("rtx-pro-6000", 120),
        ("dgx-spark", 121),
        ("mi300x", 0),
    ],
)
def test_the_model_of_a_gpu_has_its_capability(machine, capability):
    # developer.nvidia.com/cuda-gpus
    assert compute_capability(load_topology(machine).traits) == capability


def test_a_dump_states_the_chip():
    assert compute_capability({"gpu": "sm89", "generation": "ampere"}) == 89


def test_an_unknown_model_counts_as_the_first_of_its_generation():
    assert compute_capability({"gpu": "H9000", "generation": "hopper"}) == 90
    assert compute_capability({}) == 0
