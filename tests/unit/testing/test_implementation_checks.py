"""Implementations under test: a right one passes, faulty ones shrink to the least case."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.collective import KINDS
from simcoll.testing import (
    Case,
    CaseOperation,
    ProcessRunner,
    assert_collective,
    cases,
    programs,
)
from simcoll.testing.collective_cases import MEMORIES, legal_totals
from tests.support.thread_collectives import ForgetsRemainder, ForgetsRoot, ThreadLibrary, Waits

QUIET = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def least_failure(implementation, strategy, **options):
    """The message of the least case that fails."""

    @settings(QUIET, max_examples=400)
    @given(strategy)
    def check(case):
        assert_collective(implementation, case, **options)

    with pytest.raises(AssertionError) as error:
        check()
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_library_passes(kind):
    @settings(QUIET, max_examples=60)
    @given(cases([kind], memories=MEMORIES))
    def check(case):
        assert_collective(ThreadLibrary, case)

    check()


@pytest.mark.slow
def test_a_right_library_passes_in_a_world_of_sixteen():
    @settings(QUIET, max_examples=20)
    @given(cases(nranks=st.just(16)))
    def check(case):
        assert_collective(ThreadLibrary, case)

    check()


@pytest.mark.slow
def test_a_lost_remainder_shrinks_to_two_ranks_and_one_element():
    text = least_failure(ForgetsRemainder, cases())
    assert text.splitlines()[0] == "2 ranks: all_reduce n=2, ranks [0, 1], counts 1, int32, sum"


@pytest.mark.slow
def test_a_lost_root_shrinks_to_two_ranks_and_one_element():
    text = least_failure(ForgetsRoot, cases())
    assert text.splitlines()[0] == "2 ranks: broadcast n=2 root=1, ranks [0, 1], counts 1, int32"


def one(kind, n=2, **options):
    """A case of one operation of all ranks."""
    count = options.pop("counts", 1)
    collective = simcoll.Collective(kind, n, **options.pop("collective", {}))
    return Case(n, (CaseOperation(collective, tuple(range(n)), count, **options),))


def test_a_hang_names_the_ranks():
    begin = time.monotonic()
    with pytest.raises(AssertionError, match=r"rank 2 did not end within 0\.3 s"):
        assert_collective(Waits, one("gather", 3), deadline_s=0.3)
    assert time.monotonic() - begin < 5


def test_a_message_replays_the_case():
    case = one("all_reduce", counts=3, seed=5, dtype="float32")
    with pytest.raises(AssertionError) as error:
        assert_collective(ForgetsRemainder, case)
    text = str(error.value)
    assert re.search(r"rank 1: element 2 is \S+, expected \S+ \(1 of 3 elements are wrong\)", text)
    line = text.splitlines()[-1].removeprefix("replay: ")
    names = {
        "assert_collective": assert_collective,
        "ForgetsRemainder": ForgetsRemainder,
        "Case": Case,
        "CaseOperation": CaseOperation,
        "Collective": simcoll.Collective,
    }
    with pytest.raises(AssertionError) as again:
        exec(line, names)
    assert str(again.value) == text


@pytest.mark.parametrize("memory", MEMORIES)
def test_writes_outside_of_a_buffer_are_found(memory):
    def run(call):
        call.output[...] = call.input
        base = call.output
        while base.base is not None:
            base = base.base
        base[-1] += 1

    with pytest.raises(AssertionError, match="rank 0: operation 0: wrote outside of its buffers"):
        assert_collective(run, one("all_reduce", 1, counts=4, memory=memory))


def test_a_changed_input_is_found():
    def run(call):
        call.output[...] = call.input
        call.input[...] += 1

    with pytest.raises(AssertionError, match="rank 0: operation 0: changed its input"):
        assert_collective(run, one("all_reduce", 1))


def test_an_error_is_told_with_its_place():
    def run(call):
        raise ValueError("no memory")

    with pytest.raises(AssertionError, match=r"rank 1: ValueError: no memory \(.*test_impl"):
        assert_collective(run, one("barrier", 2, counts=0))


def test_one_rank_alone_must_not_refuse():
    def run(call):
        if call.rank == 1:
            raise NotImplementedError("not on rank 1")

    with pytest.raises(AssertionError, match="rank 1 refuses what others execute: not on rank 1"):
        assert_collective(run, one("barrier", 2, counts=0))


def test_a_refusal_of_all_ranks_is_no_failure():
    def run(call):
        raise NotImplementedError("no barrier")

    with pytest.raises(NotImplementedError, match="no barrier"):
        assert_collective(run, one("barrier", 2, counts=0))


class Later:
    """Work that is done when it is waited for."""

    def __init__(self, work):
        self.wait = work


class LateLibrary(ThreadLibrary):
    """Asynchronous operations send and receive when they are waited for."""

    def run(self, call):
        if not call.asynchronous:
            return super().run(call)
        plain = type(call)(
            call.world,
            replace(call.operation, asynchronous=False),
            call.index,
            call.rank,
            call.input,
            call.output,
        )
        return Later(lambda: super(LateLibrary, self).run(plain))


@pytest.mark.slow
def test_programs_of_several_operations_pass():
    counts = {"asynchronous": 0, "subgroups": 0, "reversed": 0}

    @settings(QUIET, max_examples=80)
    @given(programs())
    def check(case):
        counts["asynchronous"] += any(part.asynchronous for part in case.operations)
        counts["subgroups"] += any(len(part.ranks) < case.nranks for part in case.operations)
        counts["reversed"] += case.reverse_waits
        assert_collective(LateLibrary, case)

    check()
    assert min(counts.values()) > 3, counts


@pytest.mark.slow
def test_cases_may_have_several_operations_in_flight():
    counts = {"one": 0, "several": 0, "reversed": 0}

    @settings(QUIET, max_examples=60)
    @given(cases(["all_reduce", "all_gather", "send_recv"], in_flight=4))
    def check(case):
        number = len(case.operations)
        counts["one"] += number == 1
        counts["several"] += number > 1
        counts["reversed"] += case.reverse_waits
        assert number <= 4
        assert all(part.asynchronous == (number > 1) for part in case.operations)
        assert_collective(LateLibrary, case)

    check()
    assert min(counts.values()) > 3, counts
    with pytest.raises(simcoll.ConfigError, match="in_flight=0"):
        cases(in_flight=0)


def test_rounded_sums_have_the_results_of_all_orders():
    operation = CaseOperation(
        simcoll.Collective("all_reduce", 3), (0, 1, 2), 50, "float32", values="rounded", seed=1
    )
    a, b, c = operation.inputs()
    totals = legal_totals(operation)
    for total in ((a + b) + c, a + (b + c), (a + c) + b):
        assert any(np.array_equal(total, legal) for legal in totals)
    wrong = (a + b) + c
    wrong[7] = np.nextafter(wrong[7], np.float32(np.inf)) * np.float32(1.01)
    assert all(wrong[7] != legal[7] for legal in totals)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_rounded_data_accepts_another_order_and_refuses_a_wrong_sum(kind):
    class Backwards(ThreadLibrary):
        def total(self, call, mail, _, values):
            parts = [mail.receive(peer) for peer in range(call.nranks)]
            result = parts[-1].copy()
            for part in parts[-2::-1]:
                result += part
            values[...] = result

    class Rough(Backwards):
        def total(self, call, mail, reduction, values):
            super().total(call, mail, reduction, values)
            values += np.abs(values) / 1000

    case = one(kind, 4, counts=9, dtype="float32", values="rounded", seed=3)
    assert_collective(Backwards, case)
    with pytest.raises(AssertionError, match=r"or another of \d+ orders' results"):
        assert_collective(Rough, case)


def copies_its_input(call):
    """An implementation for one rank, found in other processes by this file."""
    if call.output is not None and call.input is not None:
        call.output[...] = call.input


class MeetsInAFolder:
    """Exchanges vectors through files of the folder that all ranks see."""

    def setup(self, world):
        self.world, self.turn, self.folder = world, 0, Path(world.folder)

    def run(self, call):
        if call.kind != "all_gather":
            raise NotImplementedError(call.kind)
        self.turn += 1
        name = f"{self.turn}-{self.world.rank}"
        np.save(self.folder / f"new-{name}.npy", np.ascontiguousarray(call.input))
        (self.folder / f"new-{name}.npy").rename(self.folder / f"{name}.npy")
        parts = [self.receive(f"{self.turn}-{rank}.npy") for rank in call.ranks]
        call.output[...] = np.concatenate(parts)

    def receive(self, name):
        while not (self.folder / name).exists():
            time.sleep(0.001)
        return np.load(self.folder / name)


@pytest.mark.slow
def test_processes_play_cases_and_are_ended_when_they_hang():
    with ProcessRunner() as runner:
        for count in (1, 5):
            case = one("all_gather", 2, counts=count)
            assert_collective(MeetsInAFolder, case, runner)
        with pytest.raises(NotImplementedError, match="gather"):
            assert_collective(MeetsInAFolder, one("gather", 2), runner)
        outside = Case(2, (CaseOperation(simcoll.Collective("all_gather", 1), (1,)),))
        assert_collective(copies_its_input, outside, runner)
        with pytest.raises(AssertionError, match="rank 1: element 0 is"):
            assert_collective(copies_its_input, one("all_reduce", 2, seed=1), runner)


class Dies:
    """Rank 1 ends its process."""

    def run(self, call):
        if call.rank == 1:
            os._exit(3)
        time.sleep(60)


@pytest.mark.slow
def test_a_process_that_dies_and_one_that_waits_for_it_are_told():
    with ProcessRunner() as runner, pytest.raises(AssertionError) as error:
        assert_collective(Dies, one("barrier", 2, counts=0), runner, deadline_s=0.5)
    assert "rank 0 did not end within 0.5 s" in str(error.value)
    assert "rank 1: the process has ended" in str(error.value)


def test_what_cannot_be_sent_to_processes_is_refused():
    with ProcessRunner() as runner, pytest.raises(simcoll.ConfigError, match="top level"):
        assert_collective(lambda _: None, one("barrier", 2, counts=0), runner)
    with pytest.raises(simcoll.ConfigError, match=r"expected \{n\}.* or mpiexec or torchrun"):
        ProcessRunner("srun")


def test_ranks_without_a_message_need_not_refuse():
    def run(call):
        if call.source is not None or call.destination is not None:
            raise NotImplementedError("no messages")

    with pytest.raises(NotImplementedError, match="no messages"):
        assert_collective(run, one("send_recv", 3, collective={"pairs": ((1, 2),)}))


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("values", ["exact", "rounded"])
def test_averages_may_multiply_by_the_reciprocal(dtype, values):
    """As XLA and NCCL do; a result that is neither of both is wrong."""
    if values == "rounded" and dtype.startswith("complex"):
        pytest.skip("no rounded data")
    operation = CaseOperation(
        simcoll.Collective("all_reduce", 3), (0, 1, 2), 40, dtype, "avg", values=values, seed=4
    )
    case = Case(3, (operation,))
    inputs = operation.inputs()

    def reciprocal(call):
        total = inputs[0] + inputs[1] + inputs[2]
        call.output[...] = total * total.dtype.type(1 / 3)

    def off(call):
        reciprocal(call)
        call.output[...] = call.output * call.output.dtype.type(1.3)

    assert_collective(reciprocal, case)
    with pytest.raises(AssertionError, match="elements are wrong"):
        assert_collective(off, case)


def test_a_failure_shows_nothing_of_the_kit():
    @settings(QUIET, max_examples=100, print_blob=False)
    @given(cases(["all_reduce"], dtypes=["int32"], ops=["sum"]))
    def check(case):
        assert_collective(ForgetsRemainder, case)

    with pytest.raises(AssertionError) as error:
        check()
    notes = "\n".join(error.value.__notes__)
    assert "simcoll" not in notes
    assert "case=Case(nranks=2, operations=(CaseOperation(" in notes
    assert "memory=" not in notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ["allreduce"]}, "unknown kind 'allreduce'"),
        ({"memories": ["stride"]}, "unknown memory 'stride'"),
        ({"dtypes": ["float33"]}, "unknown dtype 'float33'"),
        ({"ops": ["summ"]}, "summ"),
        ({"nranks": 3}, "hypothesis.strategies.just"),
    ],
)
def test_wrong_arguments_of_cases_are_told(options, message):
    with pytest.raises(simcoll.ConfigError, match=message):
        cases(**options)


def test_wrong_cases_are_refused():
    two = simcoll.Collective("all_reduce", 2)
    with pytest.raises(simcoll.ConfigError, match="expected 2 different ranks"):
        CaseOperation(two, (0, 0))
    with pytest.raises(simcoll.ConfigError, match="rank 5 of a group"):
        Case(2, (CaseOperation(two, (0, 5)),))
    with pytest.raises(simcoll.ConfigError, match="rounded"):
        CaseOperation(two, (0, 1), values="rounded")
    with pytest.raises(simcoll.ConfigError, match="memory='dense'"):
        CaseOperation(two, (0, 1), memory="dense")
