"""NCCL's cost formula, against the numbers that NCCL itself computed."""

import csv
from pathlib import Path

import numpy as np
import pytest

from simcoll.errors import ConfigError
from simcoll.libraries.formula import stated_costs, tree_correction
from simcoll.libraries.library import load_library
from simcoll.topology import load_topology
from simcoll.topology.machine import machine

LINES = (Path(__file__).parent / "tuning_h100.csv").read_text().splitlines()
ROWS = list(csv.DictReader(line for line in LINES if not line.startswith("#")))
ONE = np.array([1.0])


def h100(nodes, gpus):
    """Nodes with some of the 8 GPUs of a DGX H100, each with its NIC."""
    whole = load_topology("dgx-h100", nodes=nodes)
    return machine(
        whole.with_ranks([8 * node + gpu for node in range(nodes) for gpu in range(gpus)])
    )


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4, 8, 16, 32])
def test_the_formula_gives_what_nccl_computed(nodes):
    checked = 0
    for gpus in (1, 2, 4, 8):
        found = {}
        for collective in ("all_reduce", "all_gather", "reduce_scatter"):
            for cost in stated_costs(
                h100(nodes, gpus), collective, ONE, load_library("nccl-2.27"), by_size=False
            ):
                found[collective, cost.algorithm, cost.protocol] = cost
        for row in ROWS:
            if (int(row["nodes"]), int(row["gpus_per_node"])) != (nodes, gpus):
                continue
            for collective in row["collective"].split("+"):
                cost = found[collective, row["algorithm"], row["protocol"]]
                assert cost.latency_us[0] == pytest.approx(float(row["latency_us"]), rel=0.002), (
                    row,
                    collective,
                )
                # The log rounds to 0.1 GB/s.
                assert cost.rate_GBps[0] == pytest.approx(
                    float(row["algbw_GBps"]), rel=0.002, abs=0.051
                ), (
                    row,
                    collective,
                )
                checked += 1
    assert checked == sum(
        len(row["collective"].split("+")) for row in ROWS if int(row["nodes"]) == nodes
    )


def test_every_row_of_the_log_is_there():
    assert len(ROWS) == 190
    assert {row["algorithm"] for row in ROWS} == {"ring", "tree", "nvls_tree"}


def test_trees_are_corrected_by_powers_of_two_from_64_bytes():
    sizes = np.array([8.0, 64.0, 64.0 * 2**8, 64.0 * 2**9 - 1, 64.0 * 2**23])
    assert tree_correction(sizes, "Simple", load_library()).tolist() == [1, 0.9, 0.7, 0.7, 1]


def test_rings_of_simple_over_nodes_pay_the_plateau_from_64_bytes_a_channel_and_rank():
    library, site = load_library(), h100(2, 8)
    plateau = 8 * 16 * 64  # channels x ranks x bytes
    costs = stated_costs(site, "all_reduce", np.array([plateau - 1.0, plateau]), library)
    below, above = next(
        c.latency_us for c in costs if (c.algorithm, c.protocol) == ("ring", "Simple")
    )
    assert above == pytest.approx(1.4 * below)


def test_a_generation_without_constants_is_named():
    with pytest.raises(
        ConfigError, match=r"nccl 2\.27 has no constants for GPUs of generation 'mi300'"
    ):
        stated_costs(machine(load_topology("mi300x")), "all_reduce", ONE, load_library("nccl"))
