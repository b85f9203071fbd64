"""The cost and the power of a design, against sums by hand and a published bill of material."""

from __future__ import annotations

import pytest

from simcoll.planning.costs import (
    ClusterCost,
    ClusterPower,
    Hardware,
    hardware,
    hourly_cost,
    node_watts,
    power_kw,
    price_rows,
)
from simcoll.planning.designs.design_search import time_design
from simcoll.planning.designs.space import load_space
from simcoll.training.design import design_from
from simcoll.training.gpu import load_gpu, shipped_gpus

PLAN = """
[model]
layers = 4
hidden = 1024
heads = 8
vocabulary = 1000
sequence = 1024
global_batch = 64
[topology]
name = "dgx-h100"
nodes = 4
[parallel]
tp = 1
[objective]
tokens = "1B"
[cost]
node = 250_000
switch = 40_000
cable = 1_000
storage = 500_000
depreciation_years = 5
people = 800_000
sources = { node = "quote of March" }
[power]
switch = "1 kW"
pue = 1.25
usd_per_kwh = 0.08
"""


def design_on(name, **cluster):
    return design_from(
        {
            "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 4096},
            "topology": {"name": name, **cluster},
        }
    )


def row_of(folder, text):
    (folder / "plan.toml").write_text(text)
    (point,) = load_space(folder / "plan.toml").points(1)
    return point, time_design(point)


@pytest.mark.parametrize(
    ("oversubscription", "switches", "cables"),
    [
        # NVIDIA DGX SuperPOD reference architecture, four scalable units: 32 leaves, 16 spines.
        (1, 32 + 16, 1024 + 1024),
        # Half the uplinks: 1,024 + 512 ports on leaves, 512 on spines.
        (2, 24 + 8, 1024 + 512),
    ],
)
def test_a_superpod_has_the_switches_of_its_reference_architecture(
    oversubscription, switches, cables
):
    settings = {"network.oversubscription": oversubscription}
    design = design_on("superpod-h100", nodes=128, set=settings)
    parts = hardware(design, ClusterPower())
    assert (parts.switches, parts.cables) == (switches, cables)
    assert (parts.gpus, parts.nodes, parts.nics) == (1024, 128, 1024)


def test_four_dgx_exceed_a_limit_that_their_gpus_alone_meet(tmp_path):
    _, result = row_of(tmp_path, PLAN + "[limits]\nkilowatts = 25\n")
    # 4 nodes of 10.2 kW and 2 switches of 1 kW, with 25 % for the building.
    assert result["fits"] == "53.5 of 25.0 kW"


def test_the_cost_of_an_hour_by_hand(tmp_path):
    point, result = row_of(tmp_path, PLAN)
    hours = 5 * 365.25 * 24
    # 32 NICs: 32 + 32 ports of leaves in one switch, 32 of spines in another; 64 cables.
    by_hand = {
        "nodes": 4 * 250_000 / hours,
        "switches": 2 * 40_000 / hours,
        "cables": 64 * 1_000 / hours,
        "storage": 500_000 / hours,
        "energy": (4 * 10.2 + 2 * 1) * 1.25 * 0.08,
        "people": 800_000 / (365.25 * 24),
    }
    assert result["cost"] == pytest.approx(by_hand)
    hour = 22.816 + 1.825 + 1.460 + 11.408 + 4.280 + 91.262  # the same, on a calculator
    assert result["usd_per_hour"] == pytest.approx(hour, abs=0.01)
    rate = result["tokens_per_second"]
    assert result["usd_per_mtoken"] == pytest.approx(hour / 3600 / rate * 1e6, rel=1e-4)
    assert result["usd"] == pytest.approx(1e9 / rate / 3600 * hour, rel=1e-4)

    sources = {name: source for name, _, source in price_rows(point["terms"], load_gpu("h100"))}
    assert sources["cost.node"] == "quote of March"
    assert sources["cost.switch"] == sources["power.switch"] == "yours"
    assert sources["power.switch_ports"] == "default"
    assert "DGX H100" in sources["watts of a GPU with its share of the node"]


def test_spares_are_paid_for(tmp_path):
    failures = '[failures]\ngpu_hours = 50_000\ncheckpoint = "30 s"\nrestart = "5 min"\n'
    rent = PLAN[: PLAN.index("[cost]")] + "[cost]\ngpu_hour = 2\n"
    _, plain = row_of(tmp_path, rent + failures)
    _, spared = row_of(tmp_path, rent + failures + "spares = 2\n")
    assert plain["usd_per_hour"] == 32 * 2
    assert spared["usd_per_hour"] == (32 + 16) * 2
    assert spared["kilowatts"] > plain["kilowatts"]
    assert spared["tokens_per_second"] == plain["tokens_per_second"]
    assert spared["gpus"] == 32


def test_only_used_racks_are_bought():
    design = design_on("gb200-nvl72", nodes=36, gpus=64)
    parts = hardware(design, ClusterPower())
    assert (parts.nodes, parts.gpus_per_node, parts.nics) == (1, 72, 72)
    assert power_kw(design, ClusterPower(node="120 kW"), parts) == pytest.approx(
        120 + 1.72 * parts.switches
    )


@pytest.mark.parametrize(
    "name", [name for name in shipped_gpus() if "power.watts" in load_gpu(name).values]
)
def test_a_gpu_with_its_node_draws_more_than_itself(name):
    gpu = load_gpu(name)
    watts, source = node_watts(gpu)
    assert 1.1 * gpu.values["power.watts"] < watts <= 2.04 * gpu.values["power.watts"]
    assert source


def test_rent_and_capital_add_up():
    parts = Hardware(gpus=8, nodes=1, nics=8, switches=1, cables=16, gpus_per_node=8)
    bill = hourly_cost(ClusterCost(gpu_hour=1, gpu=8766), ClusterPower(), parts, 10)
    assert [(item.part, item.usd_per_hour) for item in bill] == [("rent", 8), ("GPUs", 2)]
