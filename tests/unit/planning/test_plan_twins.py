"""The shipped plans against published steps of the same model, machine and batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcoll.files.paths import shipped_files
from simcoll.planning.designs.design_search import open_search, time_design
from simcoll.planning.designs.space import load_space
from simcoll.planning.measured.step_rows import published_steps

TWINS = {
    "nic-speed": (("dgxc-2502", "Llama 3.1 70B", 64, "bf16"), {"nic.bandwidth": "400 Gbps"}),
    "oversubscription": (
        ("dgxc-2502", "Llama 3.1 70B", 256, "bf16"),
        {"network.oversubscription": 1, "order": "tp-cp-dp-pp"},
    ),
    "damage": (("dgxc-2502", "Llama 3.1 8B", 64, "bf16"), {"degraded": "none", "slow": "none"}),
    "placement": (("dgxc-2502", "Llama 3.1 8B", 64, "bf16"), {"alternative": "two whole leaves"}),
    "h100-or-gb200": (
        ("dgxc-2502", "Llama 3.1 70B", 2048, "bf16"),
        {"alternative": "2,048 H100"},
    ),
    "llama3-405b": (("llama3-paper", "Llama 3.1 405B", 16384, "bf16"), {"virtual": 8}),
    "moe-experts": (
        ("deepseek-v3-paper", "DeepSeek V3, H800", 2048, "fp8"),
        {"ep": 16, "imbalance": 1.0},
    ),
}
"""For each plan, its published step and the undamaged machine that took it."""
ERRORS = {"dgxc-2502": 0.035, "llama3-paper": 0.046, "deepseek-v3-paper": 0.157}
"""Mean errors of the tables on ``docs/accuracy-steps.md``."""


def twin_of(table, fold, gpus, dtype):
    """The published step."""
    (row,) = (
        row
        for row in published_steps(table).rows
        if (row.fold, row.design.mesh.nranks, row.design.dtype) == (fold, gpus, dtype)
    )
    return row


def test_every_shipped_plan_has_a_twin():
    assert set(TWINS) == set(shipped_files("scenarios/plans"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TWINS))
def test_no_plan_is_slower_than_its_published_twin(name):
    published, case = TWINS[name]
    row = twin_of(*published)
    file = shipped_files("scenarios/plans")[name]
    assert f"{row.seconds:.2f} s" in file.read_text()
    space = load_space(file)
    chosen = replace(space, machines=tuple(place for place in space.machines if is_of(place, case)))
    points = [point for point in space.points(1) if is_of(point, case)]
    rows = [{"point": point, "result": time_design(point)} for point in points]
    search = open_search(chosen)
    while search and (batch := search.next_points(rows)):
        rows += [{"point": point, "result": time_design(point)} for point in batch]
    points = [timed["point"] for timed in rows]
    times = [timed["result"]["step_s"] for timed in rows]
    model = points[0]["design"]["model"]
    share = (model["global_batch"] / len_of(points[0])) / (
        row.design.global_batch / row.design.mesh.nranks
    )
    assert share == pytest.approx(1)
    assert min(times) <= row.seconds * (1 + ERRORS[published[0]])


def is_of(point, case):
    """Whether a point has the values of a case."""
    return case.items() <= point["case"].items()


def len_of(point):
    """GPUs of a point."""
    from simcoll.training.design import design_inputs

    return design_inputs(point["design"], file="plan").topology.nranks
