"""Predictions take NCCL's own choice where its graphs are known."""

from dataclasses import replace

import numpy as np
import pytest

from simcoll.errors import ConfigError
from simcoll.formats.logs.nccl_tuning import TunedCost, TuningTable
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import parse_environment
from simcoll.libraries.library import load_library
from simcoll.libraries.nccl_decision import decides, own_choices
from simcoll.libraries.prediction import choose, formula_time, predict
from simcoll.libraries.question import question_on
from simcoll.topology import load_topology

H100 = load_topology("dgx-h100")
SIZES = [8, 2**16, 2**20, 2**25, 2**30]


def library_with(choice, version="2.30"):
    return load_library(f"nccl-{version}").with_values({"rules.choice": choice})


def test_the_channels_are_nccls():
    # dgx-h100 under NCCL 2.27.7, 8 ranks: 24 channels, of which 22 have work.
    environment = parse_environment("NCCL_ALGO=Ring NCCL_PROTO=Simple")
    prediction = formula_time("all_gather", 2**25, H100, environment=environment)
    choice = own_choices(
        question_on("all_gather", H100, load_library("nccl"), environment), [2**25]
    )[0]
    assert prediction.channels == choice.channels


def test_a_library_may_choose_as_nccl_does():
    question = question_on("all_reduce", H100, library_with("nccl"))
    costs, picks = choose(question, np.array(SIZES, float))
    keys = [(costs[pick].algorithm, costs[pick].protocol) for pick in picks]
    assert keys == [choice.key for choice in own_choices(question, SIZES)]


def test_unknown_graphs_leave_the_choice_to_the_times():
    # seven ranks, and no description of the PCIe devices in which NCCL's graphs could be searched
    changed = replace(H100.with_ranks([0, 1, 2, 3, 4, 5, 6]), host=None)
    assert question_on("all_reduce", changed, library_with("nccl")).communicator is None
    assert formula_time("all_reduce", 2**20, changed, library=library_with("nccl")).algorithm


def test_other_libraries_have_no_graphs():
    question = question_on("all_reduce", load_topology("mi300x"), load_library("rccl"))
    assert own_choices(question, [8]) is None


def test_sends_have_no_choice():
    assert own_choices(question_on("all_to_all", H100, load_library("nccl")), [8]) is None


@pytest.mark.parametrize("variables", ["", "NCCL_PROTO=^LL128"])
def test_a_fabric_without_ll128_holds_unless_variables_name_protocols(variables):
    machine = load_topology("gcp-a3-high", nodes=2)
    question = question_on(
        "all_reduce", machine, load_library("nccl"), parse_environment(variables)
    )
    protocols = {choice.protocol for choice in own_choices(question, SIZES)}
    assert protocols <= ({"LL", "Simple"} if variables else {"Simple"})


def test_a_tuning_table_of_the_machine_counts_instead_of_the_rules():
    rows = (
        TunedCost("all_reduce", "ring", "LL", 10**9, 10**15),
        TunedCost("all_reduce", "tree", "Simple", 5 * 10**9, 500 * 10**15),
    )
    calibration = Calibration(tuning=(TuningTable(8, 1, rows),))
    question = question_on("all_reduce", H100, load_library("nccl"), calibration=calibration)
    assert decides(question)
    small, large = own_choices(question, [8, 2**30])
    assert (small.key, large.key) == (("ring", "LL"), ("tree", "Simple"))
    assert large.estimate_us == pytest.approx(5 + 2**30 / 500e3, rel=0.2)


def test_switches_gather_where_variables_say_so():
    environment = parse_environment("NCCL_ALGO=NVLS")
    by_switches = predict("all_gather", 2**28, H100, environment=environment)
    by_rings = predict("all_gather", 2**28, H100)
    assert (by_switches.algorithm, by_switches.channels) == ("nvls", 16)
    assert by_switches.timed_by == "formula"
    assert by_switches.time_fs == pytest.approx(by_rings.time_fs, rel=0.1)
    assert "no published table measures it" in by_switches.assumed


def test_nccl_refuses_what_it_cannot_run():
    for text in ("NCCL_ALGO=Tree", "NCCL_ALGO=allgather:NVLSTree", "NCCL_ALGO=NVLS"):
        machine = H100 if "=NVLS" not in text else load_topology("dgx-h100", nodes=2)
        with pytest.raises(ConfigError, match="leaves nothing to run all_gather"):
            predict("all_gather", 2**20, machine, environment=parse_environment(text))


def test_the_version_is_named():
    assert predict("all_reduce", 2**20, H100, library="nccl-2.30").library == "nccl 2.30"
    assert predict("all_reduce", 2**20, H100).library == "nccl 2.27"


def test_numbers_may_change_without_a_file():
    library = replace(load_library("nccl"), version="2.27")
    assert question_on("all_reduce", H100, library).communicator is not None
