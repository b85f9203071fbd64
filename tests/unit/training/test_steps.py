"""Training steps: schedules against closed forms, tiers against each other, exposure, stragglers,
the command.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import astuple, replace
from fractions import Fraction

import numpy as np
import pytest

from simcoll.cli import main
from simcoll.emulator.programs import emulate_program
from simcoll.errors import ConfigError
from simcoll.topology import crossbar, load_topology
from simcoll.training.design import design_from
from simcoll.training.gpu import load_gpu
from simcoll.training.layers import ends_of, layer_of
from simcoll.training.memory import memory_by_stage, offloaded_bytes, stage_parameters
from simcoll.training.operators import Roofline
from simcoll.training.parallel import Parallel
from simcoll.training.pipeline import stage_order
from simcoll.training.script_clock import _play, _Slowing, _stretch, play_script
from simcoll.training.step_calibration import UNCALIBRATED, StepCalibration, shipped_calibration
from simcoll.training.step_workload import StepParts
from simcoll.training.steps import TrainingStep, step
from simcoll.workload.class_clock import play_classes
from simcoll.workload.lower import lower
from simcoll.workload.playing import alone_on, play_workload
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Inside,
    SendOperation,
    Workload,
)

MS = 10**12
SMALL = {
    "layers": 8,
    "hidden": 2048,
    "heads": 16,
    "vocabulary": 32000,
    "sequence": 2048,
    "global_batch": 32,
}


PLAIN = {
    "virtual": 1,
    "shard": "none",
    "sequence_parallel": False,
    "recompute": "none",
    "overlap_dp": False,
}
"""A step without anything that only a well-run job does."""


def design(nodes=1, model=None, topology=None, **parallel):
    return design_from(
        {
            "model": {**SMALL, **(model or {})},
            "topology": {"name": "dgx-h100", "nodes": nodes, **(topology or {})},
            "gpu": {"name": "h100"},
            "parallel": {**PLAIN, **parallel},
        }
    )


class Free:
    """Everything said takes no time."""

    def call(self, _call):
        return 0

    def inside(self, _operation, _inner):
        return 0

    def send(self, _send):
        return 0


def pipeline(p, v, m, forward, backward, weights, schedule):
    """A pipeline of equal turns, without communication."""
    orders = [stage_order(p, v, m, stage, schedule) for stage in range(p)]
    takes = {"F": forward, "B": backward, "W": weights}
    done, free, places = {}, [0] * p, [0] * p
    while any(places[s] < len(orders[s]) for s in range(p)):
        moved = False
        for s in range(p):
            while places[s] < len(orders[s]):
                kind, micro, chunk = orders[s][places[s]]
                part = chunk * p + s
                needs = {
                    "F": ("F", micro, part - 1),
                    "B": ("B", micro, part + 1),
                    "W": ("B", micro, part),
                }[kind]
                if kind == "B" and part == p * v - 1:
                    needs = ("F", micro, part)
                if needs[2] >= 0 and needs not in done:
                    break
                free[s] = max(free[s], done.get(needs, 0)) + takes[kind]
                done[kind, micro, part] = free[s]
                places[s], moved = places[s] + 1, True
        assert moved, "the schedule deadlocks"
    return max(free)


@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_bubbles_are_those_of_the_papers(p, rounds):
    # Narayanan et al. 2021: (p - 1)(F + B) for 1F1B, a v-th of it interleaved; Qi et al. 2023,
    # table 1: (p - 1)(F + B - W) for ZB-H1, where B is the part towards the input, with enough
    # micro-batches.
    m = p * rounds
    assert pipeline(p, 1, m, 10, 20, 0, "1f1b") == m * 30 + (p - 1) * 30
    for v in (2, 4):
        if p > 1:
            assert pipeline(p, v, m, 10, 20, 0, "1f1b") == v * m * 30 + (p - 1) * 30
    if rounds > 1:
        assert pipeline(p, 1, m, 10, 10, 10, "zero-bubble") == m * 30 + (p - 1) * 10


def test_every_turn_comes_once():
    for p, v, m, schedule in (
        (4, 1, 3, "1f1b"),
        (4, 2, 8, "1f1b"),
        (4, 1, 2, "zero-bubble"),
        (3, 1, 7, "zero-bubble"),
    ):
        for stage in range(p):
            turns = stage_order(p, v, m, stage, schedule)
            kinds = "FBW" if schedule == "zero-bubble" else "FB"
            assert sorted(turns) == sorted(
                (kind, k, c) for kind in kinds for k in range(m) for c in range(v)
            )


def test_matrix_products_are_quantised_in_waves():
    # Exactly one wave of 256 x 128 tiles on 132 multiprocessors, and one tile more: a second wave,
    # of smaller tiles at best.
    h100 = Roofline(load_gpu("h100"), UNCALIBRATED, "bf16")
    full = h100.gemm(12 * 256, 11 * 128, 8192)
    # A share of 0.83 is sustained.
    assert full == pytest.approx(2 * 132 * 256 * 128 * 8192 / (0.83 * 794.5e12))
    assert h100.gemm(12 * 256 + 1, 11 * 128, 8192) > 1.2 * full
    assert h100.gemm(12 * 256, 11 * 128, 1) > 2 * 132 * 256 * 128 / 3.35e12  # memory counts
    slower = Roofline(load_gpu("h100"), StepCalibration(rate=0.5), "bf16")
    assert slower.gemm(12 * 256, 11 * 128, 8192) == pytest.approx(2 * full)


def test_operations_of_a_step_are_counted_by_hand():
    # 6 operations a token and parameter of a matrix, and causal attention: 6 L h s^2 / 2 x 2
    # products a sequence.
    made = StepParts(design(tp=2, pp=2, shard="optimizer")).workload()
    h, layers, s, batch, v = 2048, 8, 2048, 32, 32000
    matrices = layers * 16 * h * h + v * h  # attention 4, gated MLP of 4 h: 12
    assert made.model_flops == pytest.approx(batch * s * (6 * matrices + 6 * layers * h * s))
    # Scores again.
    assert made.hardware_flops == pytest.approx(batch * s * (6 * matrices + 7 * layers * h * s))
    half = StepParts(design(tp=2, pp=2, recompute="operators")).workload()  # every second product
    assert half.hardware_flops == pytest.approx(
        batch * s * (6 * matrices + layers * 16 * h * h + 7 * layers * h * s)
    )
    full = StepParts(design(tp=2, pp=2, recompute="full")).workload()
    assert full.hardware_flops == pytest.approx(
        batch * s * (6 * matrices + 2 * layers * 16 * h * h + 9 * layers * h * s)
    )
    # Two of sixteen experts of 3 h x 1024, and the router; how tokens are spread over the experts
    # changes no count.
    matrices = layers * (4 * h * h + 2 * 3 * h * 1024 + 16 * h) + v * h
    for imbalance in (1.0, 1.3):
        experts = StepParts(
            design(ep=8, imbalance=imbalance, model={"experts": 16, "top_k": 2, "expert_ffn": 1024})
        ).workload()
        assert experts.model_flops == pytest.approx(batch * s * (6 * matrices + 6 * layers * h * s))


def test_a_layer_says_what_megatron_says():
    # 2 all_reduces of b s h elements in each direction; with sequence parallelism each is a
    # reduce_scatter and an all_gather.
    plain = layer_of(design(tp=8), moe=False)
    assert (
        plain.forward.inside
        == (Inside("all_reduce", "tp", 2048 * 2048 * 2, 2),)
        == plain.to_input.inside
    )
    split = layer_of(design(tp=8, sequence_parallel=True), moe=False)
    assert {(inner.kind, inner.count) for inner in split.forward.inside} == {
        ("all_gather", 2),
        ("reduce_scatter", 2),
    }
    assert split.forward.seconds < plain.forward.seconds


CASES = {
    "tp": {"tp": 8, "sequence_parallel": True},
    "pipeline of nodes": {"nodes": 2, "tp": 8, "pp": 2},
    "interleaved": {"nodes": 2, "tp": 8, "pp": 2, "virtual": 2},
    "zero bubble": {"nodes": 2, "tp": 8, "pp": 2, "schedule": "zero-bubble"},
    "data parallel": {"nodes": 2, "tp": 8},
    "optimizer sharded": {"nodes": 2, "tp": 8, "shard": "optimizer"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_tiers_agree_where_links_are_disjoint(name):
    asked = TrainingStep(design(**CASES[name]))
    one, two = (asked.clock(tier=tier) for tier in (1, 2))
    assert asked.time_fs(tier=1) == one.clock.time_fs == two.clock.time_fs
    assert sorted(map(astuple, one.clock.spans)) == sorted(map(astuple, two.clock.spans))


SHARED = {
    "fsdp": {"nodes": 2, "shard": "parameters"},
    "hybrid": {"nodes": 2, "shard": "parameters", "shard_group": 8},
    "experts": {
        "nodes": 2,
        "ep": 16,
        "imbalance": 1.3,
        "model": {"experts": 16, "top_k": 2, "expert_ffn": 1024, "global_batch": 16},
    },
    "context ring": {"nodes": 2, "tp": 4, "cp": 4},
    "context gathered": {"nodes": 2, "tp": 4, "cp": 4, "context": "all_gather"},
    "ulysses": {"nodes": 2, "cp": 4, "tp": 2, "context": "ulysses"},
    "overlapped": {"nodes": 2, "tp": 4, "pp": 2, "shard": "optimizer", "overlap_dp": True},
    "chunks overlapped": {
        "nodes": 2,
        "tp": 4,
        "pp": 2,
        "shard": "optimizer",
        "overlap_dp": True,
        "buckets": "aligned",
    },
    "experts overlapped": {
        "nodes": 2,
        "ep": 8,
        "overlap_ep": True,
        "model": {"experts": 8, "top_k": 2, "global_batch": 16},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_every_parallelism_is_played(name):
    made = design(**{**SHARED[name], "model": {"layers": 2, **SHARED[name].get("model", {})}})
    result = step(made)
    free = {axis: each for axis, each in result.axes.items() if each.exposed_fs < 0}
    assert free == {}
    assert result.bound_fs <= result.time_fs
    assert result.time_fs <= result.compute_fs + result.bubble_fs + 3 * sum(
        axis.total_fs for axis in result.axes.values()
    )
    assert 0 < result.mfu <= result.hfu < 1


EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn": 1024, "dense_layers": 1, "moe_every": 2}
PRICED_ONCE = {
    "chunks": {"pp": 2, "virtual": 2, "shard": "optimizer", "overlap_dp": True},
    "chunks reduced whole": {
        "pp": 2,
        "virtual": 4,
        "shard": "gradients",
        "overlap_dp": True,
        "buckets": "chunk",
    },
    "experts": {
        "tp": 2,
        "pp": 2,
        "virtual": 2,
        "ep": 2,
        "shard": "parameters",
        "reshard": True,
        "model": EXPERTS,
    },
    "experts, and activations in parts": {
        "tp": 4,
        "pp": 2,
        "shard": "parameters",
        "reshard": True,
        "scatter_gather": True,
        "model": EXPERTS,
    },
    "offloaded": {"pp": 2, "virtual": 4, "offload": ("weights", "activations")},
    "zero bubble": {"pp": 2, "schedule": "zero-bubble", "shard": "optimizer", "overlap_dp": True},
}


@pytest.mark.parametrize("name", PRICED_ONCE)
def test_slots_that_are_priced_once_have_equal_operations(name):
    parts = StepParts(design(nodes=2, **PRICED_ONCE[name]))
    equal = parts.equal_slots
    assert len(equal.slots) < len(parts.script.slots)
    for slot, kind in zip(parts.script.slots, equal.number_of_slot, strict=True):
        assert parts.operation(slot) == parts.operation(equal.slots[kind]), slot
    kinds = Counter(equal.number_of_slot[row.slot] for row in parts.script.rows)
    assert equal.rows == tuple(kinds[kind] for kind in range(len(equal.slots)))


def test_a_remembered_end_is_that_of_the_same_times():
    """Of more times than are remembered, and twice each."""
    script = StepParts(design(pp=2, virtual=2, shard="optimizer", overlap_dp=True)).script
    others = list(range(1, len(script.slots)))
    several = [[*others, 10**6 * longer] for longer in range(1, 7)]
    for takes in [*several, *reversed(several)]:
        for overlap in (Fraction(0), Fraction(1, 2)):
            slowing = _Slowing(script, overlap) if overlap else None
            assert play_script(script, takes, overlap) == max(_play(script, takes, slowing))


def test_sharded_gradients_have_the_script_of_a_sharded_optimizer():
    names = ("none", "optimizer", "gradients", "parameters")
    keys = {"pp": 2, "reshard": True, "overlap_dp": True}
    scripts = {name: StepParts(design(shard=name, **keys)).script for name in names}
    assert scripts["gradients"] is scripts["optimizer"]
    assert len({script.slots for script in scripts.values()}) == 3


@pytest.mark.slow
def test_engines_agree_on_a_step():
    asked = TrainingStep(
        design(
            nodes=2,
            tp=4,
            pp=2,
            shard="optimizer",
            overlap_dp=True,
            model={"layers": 2, "global_batch": 8},
        )
    )
    program, _ = lower(asked.workload, asked.alone.plans)
    found = {
        emulate_program(
            program, asked.design.topology, data="none", engine=engine, quotient=quotient
        ).time_fs
        for engine, quotient in (("simpy", False), ("fast", False), ("auto", True))
    }
    assert len(found) == 1


def test_axes_that_share_a_nic_slow_each_other_down():
    """Both axes cross one link: together they need the sum, as formulas of a maximum do not see."""
    topology = crossbar(2, "10 GB/s")
    both = {"all": np.arange(2)}
    group = np.array([[0, 1]])
    size = 10**8
    operations = (
        CallOperation(id="a", kind="all_to_all", group="ep", size_bytes=size, stream="a"),
        CallOperation(id="b", kind="all_to_all", group="dp", size_bytes=size, stream="b"),
    )
    workload = Workload(2, both, {"ep": group, "dp": group}, operations)
    alone = alone_on(topology, uniform=False)
    one, two = (play_workload(workload, alone, tier=tier).clock.time_fs for tier in (1, 2))
    assert one == size // 2 * 10**5  # half of it leaves each rank: 5 ms
    assert two == 2 * one


def test_what_runs_beside_computation_is_hidden():
    topology = crossbar(2, "10 GB/s")
    size = 10**8  # an all_to_all takes 5 ms
    # With a quarter of the multiprocessors taken, 5 ms beside a computation cost 1.25 ms of its
    # work, unless it waits longer anyway.
    for hidden, share, expected in (
        (0, 0, 15),
        (3, 0, 12),
        (5, 0, 10),
        (9, 0, 10),
        (9, 0.25, 11.25),
        (4, 0.25, 11.25),
        (3, 0.25, 12),
        (0, 0.25, 15),
    ):
        inner = Inside("all_to_all", "ep", size, 1, 1.0, hidden * MS, share)
        work = ComputeOperation(id="c", on="all", time_fs=10 * MS, inside=(inner,))
        # Shares the link: nothing is memoised.
        beside = CallOperation(id="other", kind="all_to_all", group="dp", size_bytes=2, stream="x")
        workload = Workload(
            2,
            {"all": np.arange(2)},
            {"ep": np.array([[0, 1]]), "dp": np.array([[0, 1]])},
            (beside, work),
        )
        for tier in (1, 2):
            found = play_workload(
                workload, alone_on(topology, uniform=False), tier=tier
            ).clock.time_fs
            assert found == pytest.approx(expected * MS, rel=1e-4)


@pytest.mark.parametrize("buckets", ["chunk", "aligned"])
def test_whole_chunks_are_reduced_at_once(buckets):
    """Aligned, stage s, which is s turns ahead of the first, reduces s turns later; the same bytes
    move as layer by layer.
    """
    model = {"layers": 24, "global_batch": 24}
    asked = {
        "nodes": 6,
        "tp": 4,
        "pp": 3,
        "virtual": 4,
        "dp": 4,
        "shard": "optimizer",
        "overlap_dp": True,
        "model": model,
    }
    moved = []
    for each, count in (("layer", 24 + 2), (buckets, 3 * 4)):
        made = TrainingStep(design(**asked, buckets=each))
        calls = [
            o
            for o in made.workload.operations
            if isinstance(o, CallOperation) and o.kind == "reduce_scatter"
        ]
        assert len(calls) == count
        moved.append(
            [sum(o.size_bytes for o in calls if o.on == (f"stage{stage}",)) for stage in range(3)]
        )
    assert moved[0] == moved[1]
    script = made.parts.script
    for stage in range(3):
        slots = [(script.slots[row.slot], row) for row in script.rows]
        turns = [
            n
            for n, (slot, _) in enumerate(slots)
            if (slot.does, slot.stage, slot.work) == ("turn", stage, "BW")
        ]
        final = {
            slots[n][0].chunk: place
            for place, n in enumerate(turns)
            if slots[n][1].micro == made.design.micro_batches - 1
        }
        late = {
            slot.chunk: turns.index(row.needs[0]) - final[slot.chunk]
            for slot, row in slots
            if (slot.does, slot.stage) == ("reduce_scatter", stage)
        }
        turns_later = stage if buckets == "aligned" else 0
        # After the last chunk no turns are left.
        assert late == {3: turns_later, 2: turns_later, 1: turns_later, 0: 0}


def test_interleaved_sends_overlap_while_passes_alternate():
    """Megatron-LM fills with (p - s - 1) * 2 + (v - 1) * p forward passes on stage s and waits for
    their sends, as when it drains.
    """
    asked = {"nodes": 2, "tp": 8, "pp": 2, "virtual": 2, "model": {"layers": 4, "global_batch": 8}}
    # Stage 0 fills with 4 passes and drains with 5, of which the middle two send; stage 1 fills
    # with 2 and drains with 3, the last of which nothing waits for.
    alternating = {("F", 0): 4, ("F", 1): 2, ("B", 0): 2, ("B", 1): 2}
    # 16 passes a stage each way; the last chunk sends nothing forward, the first nothing backward.
    never = {("F", 0): 16, ("F", 1): 8, ("B", 0): 8, ("B", 1): 15}
    times = []
    for overlap, expected in (
        ({"overlap_pp": True}, {}),
        ({}, alternating),
        ({"overlap_pp": False}, never),
    ):
        made = TrainingStep(design(**asked, **overlap))
        slots = [(made.parts.script.slots[row.slot], row) for row in made.parts.script.rows]
        waited = Counter(
            (slots[at][0].work, slot.stage)
            for slot, row in slots
            if slot.does == "turn"
            for at in row.needs
            if (slots[at][0].does, slots[at][0].stage) == ("send", slot.stage)
        )
        assert waited == expected
        times.append(made.time_fs(tier=1))
    assert times[0] < times[1] < times[2]


def test_what_an_axis_exposes_is_what_is_saved_without_it():
    result = step(design(nodes=2, tp=8, pp=2, shard="optimizer"), tier=1)
    assert set(result.axes) == {"tp", "pp"}
    rest = result.time_fs - sum(axis.exposed_fs for axis in result.axes.values())
    assert rest <= result.compute_fs + result.bubble_fs  # together they save at least as much
    # Nothing hides it, and the bubble has it, too.
    assert result.axes["tp"].exposed_fs >= result.axes["tp"].total_fs


@pytest.mark.slow
def test_a_slow_rank_slows_its_group():
    usual, slow = (
        step(design(nodes=2, tp=8, topology={"slow": ranks}), tier=2, exposed=False).time_fs
        for ranks in ({}, {"3": 1.1})
    )
    work = step(design(nodes=2, tp=8), tier=1, exposed=False).compute_fs
    assert slow - usual == pytest.approx(work * 0.1, rel=0.01)
    assert step(
        design(nodes=2, tp=8, topology={"slow": {"3": 1.1}}), tier=1, exposed=False
    ).time_fs == pytest.approx(slow, rel=0.01)


def test_what_slow_ranks_take_longer_is_no_bubble():
    usual, slow = (
        step(design(nodes=2, tp=8, topology={"slow": ranks}), tier=1, exposed=False)
        for ranks in ({}, {"0-3": 2})
    )
    assert (usual.slower_fs, usual.bubble_fs, slow.bubble_fs) == (0, 0, 0)
    assert slow.compute_fs == usual.compute_fs
    assert slow.slower_fs == pytest.approx(usual.compute_fs, rel=1e-9)


def test_a_fast_rank_is_refused():
    with pytest.raises(ConfigError, match=r"rank 3: expected how many times .* 1 to 100, got 0.5"):
        design(tp=8, topology={"slow": {"3": 0.5}})


@pytest.mark.parametrize(
    ("topology", "names"),
    [
        ({"name": "dgx-a100"}, "GPU 'h100' on topology 'dgx-a100', whose GPUs are A100"),
        ({"name": "dgx-h200"}, "whose GPUs are H200; name h200, or state .*traits.gpu=H100"),
    ],
)
def test_a_gpu_in_the_machine_of_another_is_refused(topology, names):
    with pytest.raises(ConfigError, match=names):
        design(topology=topology)


def test_a_machine_may_be_said_to_have_another_gpu():
    changed = design(topology={"name": "dgx-h200", "set": {"traits.gpu": "H100"}})
    assert changed.topology.traits["gpu"] == "H100"


def test_numbers_of_nodes_that_contradict_are_refused():
    with pytest.raises(ConfigError, match="nodes is 1 here and 2 in set; leave one out"):
        design(topology={"set": {"nodes": 2}})


def test_a_gpu_in_the_machine_of_an_unknown_one_is_said():
    mixed = step(design(topology={"name": "alps-gh200", "nodes": 2}), tier=1, exposed=False)
    assert "computation is that of h100, and topology alps-gh200 is one of gh200" in mixed.notes
    assert not any(
        "computation is that of" in note for note in step(design(), tier=1, exposed=False).notes
    )


@pytest.mark.parametrize("shard", ["optimizer", "gradients", "parameters"])
def test_shards_of_one_rank_are_replicas_alone(shard):
    first, second = (
        step(design(tp=2, shard=shard, shard_group=1), tier=tier, exposed=False) for tier in (1, 2)
    )
    # Gathering beside computation, they share links.
    assert second.time_fs == pytest.approx(first.time_fs, rel=0.01)
    assert first.axes["replica"].total_fs > 0 == first.axes["shard"].total_fs


def test_a_calibration_of_another_gpu_is_said():
    said = "the calibration is of a100, not of h100"
    notes = {
        name: step(
            replace(design(), calibration=shipped_calibration(name)), tier=1, exposed=False
        ).notes
        for name in ("megatron-a100", "fsdp-h100", "megatron-experts")
    }
    assert [name for name, told in notes.items() if said in told] == ["megatron-a100"]


@pytest.mark.slow
def test_degraded_links_count():
    usual = step(design(nodes=2), tier=1, exposed=False).time_fs
    nic = load_topology("dgx-h100", nodes=2).path(0, 8)[0]
    slow = step(design(nodes=2, topology={"degraded": {nic: 0.1}}), tier=1, exposed=False).time_fs
    assert slow > usual


def test_a_design_that_does_not_fit_is_said_not_to():
    result = step(
        design(
            model={"global_batch": 512, "layers": 96, "hidden": 8192, "heads": 64}, micro_batch=64
        ),
        tier=1,
        exposed=False,
    )
    assert not result.fits
    assert any(note.startswith("does not fit: stage 0 needs") for note in result.notes)


def test_host_time_is_a_floor():
    base = design()
    launches = replace(base, calibration=StepCalibration(host_layer_us=10_000))
    # 32 / 8 micro-batches of 8 layers: 10 ms forward, 20 ms backward.
    found = (
        step(launches, tier=1, exposed=False).time_fs - step(base, tier=1, exposed=False).time_fs
    )
    assert 4 * 8 * 25 * MS < found < 4 * 8 * 30 * MS


def test_the_host_launches_what_no_graph_does():
    model = {"experts": 16, "top_k": 2, "global_batch": 16}
    host = StepCalibration(host_layer_us=10_000, host_expert_us=5_000)
    for graphs, floor in (("none", 10 + 8 * 5), ("layer", 8 * 5), ("step", 0)):
        base = design(ep=2, graphs=graphs, model=model)
        found = StepParts(replace(base, calibration=host)).costs.turn("F", 0, 0).least_fs
        assert found == floor * base.model.layers * MS, graphs
    dense = StepParts(replace(design(), calibration=host)).costs.turn("F", 0, 0)
    assert dense.least_fs == 10 * design().model.layers * MS


def test_a_layer_with_experts_takes_the_host_its_least_time_without_a_graph_of_the_step():
    """Published: 623 ms, and 484 with graphs, for 24 layers and three times both passes of a stage;
    in 8 bits eight experts of a rank take longer, unless they are fused.
    """
    model = {"experts": 16, "top_k": 2, "global_batch": 16}
    casts = 8 * 0.028
    for keys, dtype, floor in (
        ({"graphs": "none"}, "bf16", 2.884),
        ({"graphs": "layer"}, "bf16", 2.241),
        ({"graphs": "none"}, "fp8", 2.884 + casts),
        ({"graphs": "layer"}, "fp8", 2.241 + casts),
        ({"graphs": "layer", "fused_experts": True}, "fp8", 2.241),
        ({"graphs": "step"}, "fp8", 0),
    ):
        costs = StepParts(design(ep=2, model={**model, "dtype": dtype}, **keys)).costs
        for kind, launches in (("F", 1), ("BW", 2)):
            host_ms = costs.turn(kind, 0, 0).least_fs / MS
            assert host_ms == pytest.approx(launches * floor * design().model.layers), (keys, kind)
    assert StepParts(design()).costs.turn("F", 0, 0).least_fs == 0


def test_exchanges_overlap_only_beside_a_pass_of_the_other_direction():
    """Megatron-LM's combined_1f1b.py, by its own example: of four micro-batches without a pipeline
    the first forward pass and the last backward pass are alone.
    """
    model = {"experts": 8, "top_k": 2, "global_batch": 32}
    beside = design(ep=8, overlap_ep=True, graphs="step", model=model)
    script = StepParts(beside).script
    turns = [script.slots[row.slot] for row in script.rows if script.slots[row.slot].does == "turn"]
    assert [(turn.work, turn.alone) for turn in turns] == [
        ("F", True),
        *([("BW", False), ("F", False)] * 3),
        ("BW", True),
    ]
    costs = StepParts(beside).costs
    inside = {alone: costs.turn("F", 0, 0, alone=alone).inside for alone in (False, True)}
    assert [inner.hidden_fs > 0 for inner in inside[False]] == [True]
    assert [inner.hidden_fs for inner in inside[True]] == [0]
    # Nothing is beside anything where exchanges do not overlap, and in DualPipe everything is.
    for keys in ({}, {"overlap_ep": True, "schedule": "zero-bubble", "pp": 2}):
        plain = StepParts(design(2, ep=8, model={**model, "global_batch": 32}, **keys)).script
        assert not any(slot.alone for slot in plain.slots)


def test_overlapped_exchanges_take_multiprocessors_from_the_computation():
    model = {"experts": 8, "top_k": 2, "global_batch": 16}
    units = {
        units: design(ep=8, overlap_ep=True, exchange_units=units, graphs="step", model=model)
        for units in (0, 33)
    }
    inner = {name: StepParts(each).costs.turn("F", 0, 0).inside for name, each in units.items()}
    assert [each.share for each in inner[33]] == [0.25]
    assert [each.share for each in inner[0]] == [0]
    assert TrainingStep(units[33]).time_fs(tier=1) > TrainingStep(units[0]).time_fs(tier=1)


def test_work_is_slower_while_a_collective_is_under_way():
    # Half as fast: ten units of work from 0 on, beside a collective from 4 to 8, do 4, then 2 of
    # the next 4, then the last 4.
    assert _stretch(0, 10, [(4, 8)], Fraction(1)) == 12
    assert _stretch(0, 10, [(4, 8), (9, 30)], Fraction(1)) == 15
    assert _stretch(5, 10, [(0, 5), (20, 25)], Fraction(1)) == 10
    assert _stretch(0, 10, [(0, 100)], Fraction("0.35")) == 13


@pytest.mark.slow
def test_collectives_beside_computation_slow_it_in_both_tiers():
    base = design(nodes=2, tp=8, shard="optimizer", overlap_dp=True)
    usual = TrainingStep(base).time_fs(tier=1)
    slowed = TrainingStep(replace(base, calibration=StepCalibration(overlap=0.5)))
    found = slowed.time_fs(tier=1)
    assert found == slowed.time_fs(tier=2) == slowed.clock(tier=1).clock.time_fs
    hidden = step(base, tier=1).axes["dp"]
    # Of what is hidden, a third is lost: at half the speed more, 1.5 units of time do the work of
    # one.
    assert 0 < found - usual <= (hidden.total_fs - hidden.exposed_fs) // 3
    assert slowed.time_fs(tier=1, without=("dp",)) == TrainingStep(base).time_fs(
        tier=1, without=("dp",)
    )


@pytest.mark.parametrize("moved", ["activations", "weights", "optimizer"])
def test_what_is_offloaded_takes_its_time(moved):
    def timed(rate, *offload):
        made = design(nodes=2, tp=8, pp=2, offload=offload)
        gpu = replace(made.gpu, values={**made.gpu.values, "host.bandwidth": rate})
        return TrainingStep(replace(made, gpu=gpu))

    usual = timed(1.0).time_fs(tier=1)
    # A host that is fast enough costs nothing.
    assert timed(1e18, moved).time_fs(tier=1) == pytest.approx(usual, rel=1e-8)
    slow = timed(1e8, moved)
    found = slow.time_fs(tier=1)
    assert found == slow.clock(tier=2, spans=False).clock.time_fs
    weights, activations = offloaded_bytes(slow.design, 0, 0)
    state = memory_by_stage(slow.design)[0].host if moved == "optimizer" else 0
    # 32 micro-batches: the first stage moves all activations but those of the last, which it uses
    # at once, out and then in, and weights in twice for each; the link is busy nearly all the time.
    bytes_of = {"activations": 31 * activations, "weights": 64 * weights, "optimizer": state}[moved]
    assert bytes_of > 0
    assert 0.99 * bytes_of / 1e8 < found / 1e15 < 1.1 * (bytes_of / 1e8 + usual / 1e15)


def test_play_classes_keeps_streams_in_order():
    operations = (
        ComputeOperation(id="a", on="x", time_fs=5),
        ComputeOperation(id="b", on="y", time_fs=7),
        SendOperation(id="s", source="x", target="y", size_bytes=0, after=("a", "b")),
        ComputeOperation(id="c", on="x", time_fs=1, stream="other"),
        ComputeOperation(id="d", on="x", time_fs=1, after=("s", "c")),
    )
    workload = Workload(2, {"x": np.array([0]), "y": np.array([1])}, {}, operations)
    clock = play_classes(workload, Free())
    assert [(span.operation, span.begin_fs, span.end_fs) for span in clock.spans] == [
        (0, 0, 5),
        (1, 0, 7),
        (2, 7, 7),
        (2, 7, 7),
        (3, 0, 1),
        (4, 7, 8),
    ]
    with pytest.raises(ConfigError, match="tier 3"):
        play_workload(workload, alone_on(crossbar(2, "1 GB/s"), uniform=False), tier=3)


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    path = tmp_path / "small.toml"
    path.write_text(
        "[model]\nlayers = 2\nhidden = 1024\nheads = 8\nvocabulary = 1024\nsequence = 512\n"
        "global_batch = 8\n"
        "[topology]\nname = 'dgx-h100'\n[parallel]\ntp = 4\n"
    )
    folder = tmp_path / "out"
    assert main(["step", str(path), "-o", str(folder), "--tier", "1"]) == 0
    text = capsys.readouterr().out
    assert all(
        f"\n{name}" in text for name in ("step ", "MFU, HFU", "tp ", "dp ", "bound", "memory")
    )
    assert not any(word in text for word in ("# played", "# model FLOPs", "trace "))
    found = json.loads((folder / "step.json").read_text())
    assert found["time_fs"] > found["compute_fs"] > 0
    events = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {
        "compute",
        "reduce",
        "gather",
    }
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends) == pytest.approx(found["time_fs"] / 1e9)
    assert (folder / "step.svg").read_bytes().startswith(b"<?xml")
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    capsys.readouterr()
    assert main(["step", str(path), "-o", str(folder), "--tier", "1", "-v"]) == 0
    text = capsys.readouterr().out
    assert (
        f"\n# design {found['design_hash']}, played: {found['path']}, trace "
        f"{found['trace_hash'] or '-'}\n" in text
    )
    assert "\n# model FLOPs: " in text
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == first
    path.write_text(path.read_text() + "pp = 3\n")
    assert main(["step", str(path)]) == 2
    assert "small.toml" in capsys.readouterr().err


def test_casts_to_8_bits_are_counted_by_hand():
    # Attention out and the second matrix of the MLP cast their input; all four cast weights and the
    # gradients of their output: 2 bytes read, and 1 written twice. A norm writes 8 bits by itself.
    rows, h, inner = 2048, 2048, 4 * 2048
    rate = 0.8 * 3.35e12
    weights = 4 * h * h + 3 * h * inner
    made = {
        gathered: layer_of(design(model={"dtype": "fp8"}, gathered=gathered), moe=False)
        for gathered in ("bf16", "fp8")
    }
    cast = made["bf16"].forward.seconds - made["fp8"].forward.seconds
    assert cast == pytest.approx(4 * weights / rate)
    assert made["bf16"].to_input == made["fp8"].to_input
    asked = design(model={"dtype": "fp8"}, gathered="fp8")
    roof = Roofline(asked.gpu, UNCALIBRATED, "fp8")
    matrices = [(h, 3 * h), (h, h), (h, 2 * inner), (inner, h)]
    products = sum(roof.gemm(rows, outputs, inputs) for inputs, outputs in matrices)
    back = sum(roof.gemm(rows, inputs, outputs) for inputs, outputs in matrices)
    # The same layer in 16 bits has no casts: what is left of both, beside products, differs by them
    # alone.
    plain = layer_of(design(), moe=False)
    wide = Roofline(asked.gpu, UNCALIBRATED, "bf16")
    left = plain.forward.seconds - sum(
        wide.gemm(rows, outputs, inputs) for inputs, outputs in matrices
    )
    assert made["fp8"].forward.seconds - products - left == pytest.approx(
        4 * rows * (h + inner) / rate
    )
    left = plain.to_input.seconds - sum(
        wide.gemm(rows, inputs, outputs) for inputs, outputs in matrices
    )
    assert made["fp8"].to_input.seconds - back - left == pytest.approx(
        4 * rows * (3 * h + h + 2 * inner + h) / rate
    )


def test_tensor_parallelism_beside_products_in_both_tiers():
    apart, beside = (
        TrainingStep(design(tp=8, sequence_parallel=True, overlap_tp=each))
        for each in (False, True)
    )
    layer = layer_of(beside.design, moe=False)
    roof = Roofline(load_gpu("h100"), UNCALIBRATED, "bf16")
    qkv, out, up, down = (2048, 3 * 256), (256, 2048), (2048, 2 * 1024), (1024, 2048)

    def seconds(rows, columns, depth):
        return roof.gemm(rows, columns, depth)

    # Forward: rows come around a ring beside seven eighths of a product, since a rank has an eighth
    # of them. Sums of four parts, each beside the next part, on 116 of 132 multiprocessors; the
    # last one is beside nothing.
    gathered = [seconds(2048, outputs, inputs) * 7 / 8 for inputs, outputs in (qkv, up)]
    summed = [seconds(2048, outputs, inputs) * 132 / 116 for inputs, outputs in (out, down)]
    hidden = [gathered[0], 0, summed[0] / 4, gathered[1], 0, summed[1] / 4]
    assert [inner.hidden_fs * 1e-15 for inner in layer.forward.inside] == pytest.approx(hidden)
    quarter = 2048 * 2048 * 2 // 4
    assert [(inner.size_bytes, inner.count) for inner in layer.forward.inside] == [
        (4 * quarter, 1), (quarter, 1), (quarter, 3)
    ] * 2  # fmt: skip
    plain = layer_of(apart.design, moe=False)
    assert layer.forward.seconds - plain.forward.seconds == pytest.approx(sum(summed) * 16 / 132)
    # Backward: gradients come around beside the product for the input, and are summed beside the
    # product for the weights.
    back = [seconds(2048, inputs, outputs) * 7 / 8 for inputs, outputs in (out, down)]
    assert [inner.hidden_fs * 1e-15 for inner in layer.to_input.inside] == pytest.approx(back)
    assert {inner.kind for inner in layer.to_input.inside} == {"all_gather"}
    weights = [inner.hidden_fs * 1e-15 for inner in layer.to_weights.inside]
    micro_batches = beside.design.micro_batches > 1  # whose gradients are added
    sums = [6 * h * w * micro_batches / roof.memory_rate for h, w in (qkv, up)]
    products = [seconds(inputs, outputs, 2048) for inputs, outputs in (qkv, up)]
    assert weights == pytest.approx([one + more for one, more in zip(products, sums, strict=True)])
    assert {inner.share for inner in layer.to_weights.inside} == {16 / 132}
    for made in (apart, beside):
        assert made.time_fs(tier=1) == made.time_fs(tier=2)
    free = beside.time_fs(tier=1, without=("tp",))
    assert free <= beside.time_fs(tier=1) < apart.time_fs(tier=1)
    with pytest.raises(ConfigError, match="overlap_tp needs sequence_parallel"):
        design(tp=4, overlap_tp=True)


def test_zero_bubble_does_not_wait_for_products_of_weights():
    keys = {"tp": 2, "pp": 2, "sequence_parallel": True, "overlap_tp": True}
    layer = layer_of(design(**keys, schedule="zero-bubble"), moe=False)
    assert not layer.to_weights.inside
    assert sum(inner.kind == "reduce_scatter" for inner in layer.to_input.inside) == 2


def test_biases_of_experts_are_added_by_separate_kernels():
    """TEGroupedMLP._apply_bias of Megatron-LM: 28 bytes of an element of the experts' outputs, 40
    of its gradient.
    """
    experts = {"experts": 8, "top_k": 2}
    plain, biased = (
        layer_of(design(model={**experts, "expert_bias": each}, micro_batch=2), moe=True)
        for each in (False, True)
    )
    outputs = 2 * SMALL["sequence"] * 2 * SMALL["hidden"]
    for way, nbytes in (("forward", 28), ("to_input", 40)):
        more = getattr(biased, way).seconds - getattr(plain, way).seconds
        assert more == pytest.approx(outputs * nbytes / (0.8 * 3.35e12))


def test_scaled_rotary_embeddings_are_computed_by_separate_kernels():
    """_apply_rotary_pos_emb_bshd of Megatron-LM: of queries and keys, two products (8 bytes an
    element), half of them negated (2), joined (4), a sum (6), and joined with nothing (4); gradients
    are not joined with anything.
    """
    plain, scaled = (
        layer_of(design(model={"kv_heads": 2, "yarn": each}), moe=False) for each in (False, True)
    )
    width = SMALL["hidden"] // SMALL["heads"]
    elements = SMALL["sequence"] * (SMALL["heads"] + 2) * width
    for way, nbytes in (("forward", 24), ("to_input", 20)):
        more = getattr(scaled, way).seconds - getattr(plain, way).seconds
        assert more == pytest.approx(elements * nbytes / (0.8 * 3.35e12))


def test_halves_of_experts_are_clamped_and_joined_by_separate_kernels():
    """weighted_bias_quick_geglu_impl of Megatron-LM: two halves are read and written by clamp, and
    both again by cat; gradients are masked by what was clamped, and joined.
    """
    experts = {"experts": 8, "top_k": 2, "expert_ffn": 512}
    inner = 2048 * 2 * 512
    for modules in ([], ["moe_act"]):
        plain, clamped = (
            layer_of(
                design(model={**experts, "expert_clamp": each}, recompute_modules=modules), moe=True
            )
            for each in (False, True)
        )
        for way, nbytes in (("forward", 16), ("to_input", 20), ("again", 16 if modules else 0)):
            more = getattr(clamped, way).seconds - getattr(plain, way).seconds
            assert more == pytest.approx(inner * nbytes / (0.8 * 3.35e12), abs=1e-12)


def test_clamped_experts_keep_both_copies_unless_they_are_computed_again():
    experts = {"experts": 8, "top_k": 2, "expert_ffn": 512}
    more = []
    for modules in ([], ["moe_act"]):
        plain, clamped = (
            memory_by_stage(
                design(model={**experts, "expert_clamp": each}, recompute_modules=modules)
            )[0].activations
            for each in (False, True)
        )
        more.append(clamped - plain)
    assert more == [8 * 2048 * 2 * 512 * 2 * 2, 0]  # layers x tokens x experts x two halves


@pytest.mark.parametrize(
    ("dtype", "measured"),
    [
        ("fp8", {512: 0.60, 768: 0.73, 1024: 0.81, 1536: 0.90, 2048: 0.94, 4096: 1.0}),
        ("bf16", {512: 0.85, 768: 0.93, 1024: 0.96, 1536: 0.99, 2048: 1.0}),
    ],
)
def test_short_products_reach_the_measured_share_of_the_rate(dtype, measured):
    """Medians of cuBLAS on six kinds of GPU (ai-dynamo/aiconfigurator 095f58a)."""
    roof = Roofline(load_gpu("gb200"), UNCALIBRATED, dtype)
    deep = 8192
    for depth, share in measured.items():
        plain, short = (
            roof.gemm(65536, 8192, depth, batch=2, short=each) for each in (False, True)
        )
        assert plain / short == pytest.approx(share, rel=0.07), depth
    assert roof.gemm(65536, 8192, deep, short=True) == roof.gemm(65536, 8192, deep)


def test_norms_of_queries_and_keys_read_and_write_them():
    plain, normed = (
        layer_of(design(model={"kv_heads": 2, "qk_norm": each}), moe=False)
        for each in (False, True)
    )
    elements = SMALL["sequence"] * (SMALL["heads"] + 2) * SMALL["hidden"] // SMALL["heads"]
    for way, nbytes in (("forward", 4), ("to_input", 6)):
        more = getattr(normed, way).seconds - getattr(plain, way).seconds
        assert more == pytest.approx(elements * nbytes / (0.8 * 3.35e12))


def test_kernels_of_a_layer_with_experts_begin_and_end():
    """Of 463,348 kernels of a published step, 64 micro-batches of 48 layers with 8 experts of a
    rank, 48 are products on four streams; in 8 bits an expert has four casts, if it is not fused.
    """
    assert 463_348 // (64 * 48) - 6 * 8 == 102
    experts = {"experts": 64, "top_k": 2, "expert_ffn": 512, "dtype": "fp8"}
    starts = []
    for floor in (0.0, 2.5e-6):
        for fused in (False, True):
            base = design(ep=8, fused_experts=fused, model=experts)
            gpu = replace(base.gpu, values={**base.gpu.values, "kernel.floor": floor})
            passes = layer_of(replace(base, gpu=gpu), moe=True)
            starts.append(passes.forward.seconds + passes.to_input.seconds)
    assert starts[2] - starts[0] == pytest.approx(2.5e-6 * (103 + 8 * 6 / 4 + 8 * 4))
    assert starts[3] - starts[1] == pytest.approx(2.5e-6 * 103)


@pytest.mark.parametrize(
    ("gpu", "sequence", "backward_ms"),
    [
        ("gb200", 4096, 2.080),
        ("gb200", 8192, 7.427),
        ("gb300", 4096, 1.871),
        ("gb300", 8192, 6.648),
    ],
)
def test_backward_attention_of_8_bits_takes_as_long_with_a_window(gpu, sequence, backward_ms):
    """NVIDIA/cudnn-frontend 3929da2, sdpa_benchmark_training, GPT-OSS in MXFP8: two sequences, 128
    heads of 64, a window of 128, one kernel alone.
    """
    machine = load_gpu(gpu)
    alone = replace(machine, values={**machine.values, "sustained.share": 1.0})
    flops = 2.5 * 2 * 128 * sequence**2 * (64 + 64)
    seconds = Roofline(alone, UNCALIBRATED, "fp8").attention(
        flops, width=64, backward=True, kernel="fp8"
    )
    assert seconds * 1e3 == pytest.approx(backward_ms, rel=0.2)
    model = {"dtype": "fp8", "sequence": 4096}
    for kernel, same in (("fused", False), ("fp8", True)):
        whole, windowed = (
            layer_of(
                replace(design(model={**model, "window": window}, attention=kernel), gpu=machine),
                moe=False,
            )
            for window in (0, 128)
        )
        assert whole.forward.seconds > windowed.forward.seconds
        assert (whole.to_input.seconds == windowed.to_input.seconds) is same


def test_attention_of_8_bits_needs_a_rate():
    with pytest.raises(ConfigError, match="'h100' has no rate of attention in 8 bits"):
        step(design(attention="fp8", model={"dtype": "fp8"}), tier=1)


def test_a_head_of_8_bits_is_faster_by_its_products_and_slower_by_its_casts():
    sizes = {"vocabulary": 128_000, "hidden": 4096, "dtype": "fp8"}
    wide, narrow = (ends_of(design(model=sizes, head=head)).head for head in ("bf16", "fp8"))
    assert [a.seconds > b.seconds for a, b in zip(wide, narrow, strict=True)] == [True, True]
    sixteen = {**sizes, "dtype": "bf16"}
    assert ends_of(design(model=sixteen, head="fp8")) == ends_of(design(model=sixteen))


def test_fused_experts_have_no_kernels_of_their_own_between_products():
    experts = {"experts": 8, "top_k": 2, "expert_ffn": 512, "dtype": "fp8"}
    plain, biased = (
        layer_of(
            design(
                model={**experts, "expert_bias": each, "expert_clamp": each}, fused_experts=True
            ),
            moe=True,
        )
        for each in (False, True)
    )
    assert plain == biased
    unfused = layer_of(design(model=experts), moe=True)
    # Activation functions, three reads and writes of 2 bytes, and the cast of what they write.
    inner = 2048 * 2 * 512 * (6 + 4) / (0.8 * 3.35e12)
    starts = (8 * 6 / 4 + 8 * 4) / 3 * 2.5e-6
    assert unfused.forward.seconds - plain.forward.seconds == pytest.approx(inner + starts)


@pytest.mark.parametrize(("width", "share"), [(128, 1), (192, 1), (96, 0.85), (64, 0.7), (32, 0.7)])
def test_narrow_heads_reach_a_share_of_the_rate(width, share):
    """FlashAttention-3, figure 5, 4k: 408 of 609 and 476 of 638 TFLOPS, so 0.67 and 0.75."""
    roof = Roofline(load_gpu("h100"), UNCALIBRATED, "bf16")
    wide = roof.attention(1e12)
    assert wide / roof.attention(1e12, width=width) == pytest.approx(share)
    assert roof.attention(1e12, width=width, kernel="flash2") == roof.attention(
        1e12, kernel="flash2"
    )


def test_eager_kernels_and_older_attention_are_constants():
    fused = layer_of(design(), moe=False).forward.seconds
    roof = Roofline(load_gpu("h100"), UNCALIBRATED, "bf16")
    flops = 16 * 2048**2 * 2 * 128
    slow = layer_of(
        replace(design(), calibration=StepCalibration(attention=0.5)), moe=False
    ).forward.seconds
    assert slow - fused == pytest.approx(roof.attention(flops))
    # Norms 2 x 4, residuals 2 x 6 and heads 12 bytes a row and width, and 3 x 2 of the gated MLP,
    # which is four times as wide.
    moved = 2048 * 2048 * (8 + 12 + 12 + 4 * 6)
    eager = layer_of(
        replace(design(), calibration=StepCalibration(unfused=2.0)), moe=False
    ).forward.seconds
    assert eager - fused == pytest.approx(moved / (0.8 * 3.35e12))


@pytest.mark.parametrize(
    ("nodes", "ep", "copies"),
    [
        (
            4,
            32,
            4 * (1 - Fraction(24 * 23, 32 * 31)),
        ),  # 8 of 32 experts a node: neither of two is there
        (2, 8, 8 * (1 - Fraction(28 * 27, 32 * 31))),  # one node, 4 experts a rank
        (1, 4, 4 * (1 - Fraction(24 * 23, 32 * 31))),
    ],
)
def test_tokens_go_once_to_every_node_of_their_experts(nodes, ep, copies):
    experts = {"experts": 32, "top_k": 2, "expert_ffn": 512, "global_batch": 64}
    sizes = [
        inner.size_bytes
        for each in ("copies", "once")
        for inner in layer_of(design(nodes, experts, ep=ep, dispatch=each), moe=True).forward.inside
        if inner.kind == "all_to_all"
    ]
    assert sizes == [2048 * 2048 * 2 * 2, round(2048 * 2048 * 2 * copies)]


@pytest.mark.parametrize(
    ("gpu", "limit", "copies"),
    [
        ("h100", 1, 1),  # both experts on one rank
        ("h100", 2, 2 * (1 - Fraction(4 * 3, 8 * 7))),  # on two of the eight ranks
        ("h100", 8, 8 * (1 - Fraction(28 * 27, 32 * 31))),
        ("b200", 1, 1 / 0.84),  # at the measured rate within NVLink
    ],
)
def test_tokens_go_to_few_ranks_by_the_limit_and_at_the_rate_of_the_exchange(gpu, limit, copies):
    experts = {"experts": 32, "top_k": 2, "expert_ffn": 512, "global_batch": 64}
    base = design(1, experts, ep=8, dispatch="once", node_limit=limit)
    inside = layer_of(replace(base, gpu=load_gpu(gpu)), moe=True).forward.inside
    (size,) = (inner.size_bytes for inner in inside if inner.kind == "all_to_all")
    assert size == round(2048 * 2048 * 2 * copies)


def test_experts_split_over_tensor_ranks_gather_their_tokens():
    """As Megatron-LM without ``expert_tensor_parallel_size``: as much computation, a part of the
    weights, and expert parallelism over other ranks.
    """
    experts = {"experts": 8, "top_k": 2, "expert_ffn": 512, "global_batch": 64}
    whole, split = (
        design(4, experts, tp=4, ep=8, sequence_parallel=True, split_experts=each)
        for each in (False, True)
    )
    routed_bytes = 2048 * 2 * 2048 * 2  # tokens x experts x hidden, in 16 bits
    calls = [
        [
            (inner.kind, inner.size_bytes, inner.count)
            for inner in layer_of(each, moe=True).forward.inside
        ]
        for each in (whole, split)
    ]
    attention = [("all_gather", routed_bytes // 2, 1), ("reduce_scatter", routed_bytes // 2, 1)]
    exchange = ("all_to_all", routed_bytes // 4, 2)  # of a part of the sequence
    assert calls[0] == [*attention, exchange]
    gathers = [("all_gather", routed_bytes, 1), ("reduce_scatter", routed_bytes, 1)]
    assert calls[1] == [*attention, exchange, *gathers]

    flops = [layer_of(each, moe=True).forward.flops for each in (whole, split)]
    assert flops[0] == pytest.approx(flops[1])
    counts = [stage_parameters(each, 0) for each in (whole, split)]
    assert counts[0] == (counts[1][0], 4 * counts[1][1])
    groups = [StepParts(each).groups["ep"][0].tolist() for each in (whole, split)]
    assert groups == [list(range(8)), list(range(0, 32, 4))]


def test_split_experts_need_the_sequence_split_too():
    with pytest.raises(ConfigError, match="split_experts needs sequence_parallel"):
        Parallel(tp=2, split_experts=True, sequence_parallel=False)


@pytest.mark.slow
def test_links_carry_no_more_than_their_capacity_where_racks_are_uneven():
    """A ring between 72 and 8 ranks has one way out of each rack; the library's time is shorter
    than its bytes would take there.
    """
    uneven = design_from(
        {
            "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 160},
            "gpu": {"name": "gb200"},
            "topology": {"name": "gb200-nvl72", "nodes": 36, "gpus": 80},
            "parallel": {"shard": "parameters", "micro_batch": 1},
        }
    )
    result = step(uneven, tier=1)
    assert any(note.startswith("nodes hold 8 to 72 ranks") for note in result.notes)
    assert result.bound_fs <= result.time_fs
    assert all(0 < share <= 1 for _, share in result.link_use)


def test_more_gpus_than_memory_holds_together_are_refused_before_they_are_played(monkeypatch):
    monkeypatch.setattr("simcoll.training.steps.FEW_TOGETHER", 4)
    monkeypatch.setattr("simcoll.training.steps.BYTES_TOGETHER", 1 << 50)
    small = design(tp=8)
    with pytest.raises(
        ConfigError,
        match=r"collectives of 8 GPUs together \(tier 2\) takes .* is available; tier 1 times each",
    ):
        step(small)
    assert step(small, tier=1).time_fs > 0
