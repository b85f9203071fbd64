"""Kernels for registered buffers: NCCL's estimate of them, and where there are any."""

import math

import numpy as np
import pytest

import simcoll
from simcoll.errors import ConfigError
from simcoll.libraries.environment import parse_environment
from simcoll.libraries.isolated import alone_fs
from simcoll.libraries.library import load_library
from simcoll.libraries.plans import library_call
from simcoll.libraries.prediction import choose
from simcoll.libraries.question import question_on
from simcoll.topology import load_topology

LARGE = 2**30


def predicted(name, size, variables="", collective="all_reduce", nodes=1):
    topology = load_topology(name, nodes=nodes)
    environment = parse_environment(f"REGISTERED=1 {variables}")
    return simcoll.predict(collective, size, topology, environment=environment)


@pytest.mark.parametrize(
    ("name", "collective", "start_us"),
    [
        ("dgx-a100", "all_reduce", 4.5),
        ("dgx-h100", "all_gather", 4.5),
        ("dgx-b200", "all_gather", 8.5),
        ("dgx-b200", "all_reduce", 11.0),
    ],
)
def test_a_small_message_takes_the_start_of_ll(name, collective, start_us):
    prediction = predicted(name, 8, collective=collective)
    assert (prediction.algorithm, prediction.protocol) == ("symmetric", "LL")
    # A smooth maximum of 0 and the time on the links less 1 us.
    assert prediction.time_us == pytest.approx(start_us + math.log1p(math.exp(-1)), rel=0.01)


def test_times_as_measured_on_one_node():
    # Small messages of 8 H100 with registered windows: 3 to 9 us, by several publishers, where
    # ordinary buffers take 15 to 26.
    for size in (8, 1024, 2**15):
        assert 3 < predicted("dgx-h100", size).time_us < 9
        ordinary = simcoll.predict("all_reduce", size, load_topology("dgx-h100"))
        assert ordinary.time_us > 15


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_large_messages_are_as_fast_as_the_links(collective):
    topology = load_topology("dgx-h100")
    ordinary = simcoll.predict(collective, 2**33, topology)
    registered = predicted("dgx-h100", 2**33, collective=collective)
    assert registered.time_us == pytest.approx(ordinary.time_us, rel=0.05)
    assert registered.time_fs >= registered.bound_fs


@pytest.mark.parametrize(
    ("name", "variables", "collective", "nodes"),
    [
        ("dgx-h100", "DTYPE=int32", "all_reduce", 1),
        ("dgx-h100", "OP=max", "reduce_scatter", 1),
        ("dgx-h100", "", "all_to_all", 1),
        ("dgx-h100", "", "all_reduce", 2),
        ("rtx-pro-6000", "", "all_reduce", 1),
        ("dgx-1v", "", "all_reduce", 1),
    ],
)
def test_elsewhere_buffers_are_ordinary(name, variables, collective, nodes):
    registered = predicted(name, LARGE, variables, collective, nodes)
    topology = load_topology(name, nodes=nodes)
    ordinary = simcoll.predict(
        collective, LARGE, topology, environment=parse_environment(variables)
    )
    assert registered.time_fs == ordinary.time_fs
    assert registered.interval() == ordinary.interval()
    assert "registered buffers change nothing here" in registered.assumed
    assert "registered" not in ordinary.assumed


def test_without_switches_gpus_reach_each_other():
    with_switches = predicted("dgx-h100", LARGE)
    without = predicted("dgx-h100", LARGE, "NCCL_NVLS_ENABLE=0")
    assert without.time_us > 1.2 * with_switches.time_us


def test_what_is_assumed_is_said():
    prediction = predicted("dgx-h100", LARGE)
    assert "NCCL's own estimate" in prediction.assumed
    assert prediction.timed_by == "formula"
    assert "not message by message" in prediction.note
    assert prediction.errors_of.endswith("uncalibrated, large, nccl")


def test_a_program_s_call_has_the_time_of_the_prediction():
    topology = load_topology("dgx-h100")
    environment = parse_environment("REGISTERED=1")
    call = library_call("all_reduce", 2**16, topology, environment=environment)
    alone = alone_fs(call.plan(), topology)
    assert alone == pytest.approx(predicted("dgx-h100", 2**16).time_fs, rel=0.01)


def test_a_kernel_s_time_grows_with_the_size():
    topology = load_topology("dgx-h100")
    question = question_on(
        "all_reduce",
        topology,
        load_library("nccl"),
        parse_environment("REGISTERED=1"),
    )
    sizes = np.geomspace(8, 2**33, 2000)
    costs, _ = choose(question, sizes)
    kernels = [cost for cost in costs if cost.algorithm == "symmetric"]
    assert len(kernels) == 4
    for kernel in kernels:
        assert (np.diff(kernel.time_us(sizes)) >= 0).all()


NO_BLOCKS = "NCCL_CTA_POLICY=2"


@pytest.mark.parametrize(
    ("name", "collective", "nodes", "version"),
    [
        ("dgx-h100", "all_gather", 1, "2.28"),
        ("dgx-h100", "all_to_all", 1, "2.30"),
        ("dgx-a100", "scatter", 1, "2.29"),
        ("dgx-h100", "all_gather", 2, "2.30"),
    ],
)
def test_copy_engines_are_refused(name, collective, nodes, version):
    topology = load_topology(name, nodes=nodes)
    for policy in (NO_BLOCKS, "NCCL_CTA_POLICY=zero|default"):
        environment = parse_environment(f"REGISTERED=1 {policy}")
        with pytest.raises(ConfigError, match=f"gives {collective} of registered .* copy engines"):
            simcoll.predict(collective, LARGE, topology, environment=environment, version=version)


@pytest.mark.parametrize(
    ("name", "collective", "nodes", "version", "variables"),
    [
        ("dgx-h100", "all_reduce", 1, "2.30", "REGISTERED=1"),  # they do not add
        ("dgx-h100", "all_gather", 1, "2.27", "REGISTERED=1"),
        ("dgx-h100", "gather", 2, "2.30", "REGISTERED=1"),
        ("dgx-h100", "all_gather", 2, "2.29", "REGISTERED=1"),
        ("rtx-pro-6000", "all_gather", 1, "2.30", "REGISTERED=1"),  # no NVLink
        ("dgx-h100", "all_gather", 1, "2.30", ""),
    ],
)
def test_elsewhere_kernels_run(name, collective, nodes, version, variables):
    topology = load_topology(name, nodes=nodes)
    with_kernels, without = (
        simcoll.predict(
            collective, LARGE, topology, environment=parse_environment(text), version=version
        )
        for text in (variables, f"{variables} {NO_BLOCKS}")
    )
    assert without.time_fs == with_kernels.time_fs


def test_what_copy_engines_would_do_is_said():
    unregistered = simcoll.predict(
        "all_gather", LARGE, load_topology("dgx-h100"), environment=parse_environment(NO_BLOCKS)
    )
    assert "NCCL_CTA_POLICY=2 changes nothing without registered buffers" in unregistered.assumed
    for version, is_said in (("2.27", False), ("2.29", True)):
        prediction = simcoll.predict(
            "all_gather",
            LARGE,
            load_topology("dgx-b200"),
            environment=parse_environment("REGISTERED=1"),
            version=version,
        )
        assert ("where NCCL takes copy engines" in prediction.assumed) == is_said
    with pytest.raises(ConfigError, match="unknown value 'NONE'; valid: "):
        parse_environment("NCCL_CTA_POLICY=none")
