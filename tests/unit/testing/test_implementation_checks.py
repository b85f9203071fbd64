"""Implementations under test: a right one passes, faulty ones shrink to the least case."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
    ThreadRunner,
    assert_collective,
    cases,
    programs,
)
from simcoll.testing.collective_cases import MEMORIES, legal_totals
from simcoll.testing.object_values import OBJECT
from simcoll.testing.wrong_calls import MISTAKES
from tests.support.thread_collectives import (
    ForgetsRemainder,
    ForgetsRoot,
    ThreadLibrary,
    Trusting,
    Waits,
)

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


@pytest.mark.slow
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


class Together(LateLibrary):
    """Starts operations from the last to the first, and waits for them in their order."""

    def run_coalesced(self, calls):
        messages = [call for call in calls if call.kind == "send_recv"]
        for call in messages:
            self.run(call)
        for call in [call for call in calls if call not in messages]:
            self.run(call)


@pytest.mark.slow
def test_cases_may_be_coalesced():
    counts = {"coalesced": 0, "one": 0}

    @settings(QUIET, max_examples=60)
    @given(cases(["all_reduce", "all_gather", "send_recv"], coalesced=True))
    def check(case):
        counts["coalesced"] += case.coalesced
        counts["one"] += len(case.operations) == 1
        if case.coalesced:
            assert len(case.operations) == 2
            assert len({(part.ranks, part.dtype, part.op) for part in case.operations}) == 1
        assert_collective(Together, case)

    check()
    assert min(counts.values()) > 5, counts
    case = Case(2, one("all_reduce").operations * 2, coalesced=True)
    assert "2 ranks, coalesced: all_reduce" in str(case)
    with pytest.raises(NotImplementedError, match=r"no method run_coalesced\(calls\)"):
        assert_collective(ThreadLibrary, case)


@pytest.mark.slow
def test_cases_may_have_objects():
    counts = {"objects": 0, "numbers": 0}

    @settings(QUIET, max_examples=60)
    @given(cases(["broadcast", "scatter", "all_gather", "send_recv"], dtypes=["int32", "object"]))
    def check(case):
        counts["objects" if case.operations[0].dtype == OBJECT else "numbers"] += 1
        assert_collective(ThreadLibrary, case)

    check()
    assert min(counts.values()) > 5, counts


def test_objects_that_are_changed_or_confused_are_found():
    class Mutates(ThreadLibrary):
        def run(self, call):
            super().run(call)
            next(value for value in call.input if isinstance(value, dict)).clear()

    class Textual(ThreadLibrary):
        def run(self, call):
            super().run(call)
            call.output[...] = [str(value) for value in call.output]

    case = one("all_gather", counts=12, dtype=OBJECT)
    assert_collective(ThreadLibrary, case)
    with pytest.raises(AssertionError, match="operation 0: changed its input"):
        assert_collective(Mutates, case)
    with pytest.raises(AssertionError, match=r"element \d+ is \S+, expected \S+ \(20 of 24"):
        assert_collective(Textual, case)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_calls_must_raise(mistake):
    options = {"kinds": MISTAKES[mistake].kinds, "dtypes": ["int32", "float32", "complex64"]}
    counts = {"wrong": 0, "alone": 0, "right": 0}

    @settings(QUIET, max_examples=50)
    @given(cases(ops=["sum"], mistakes=[mistake], **options))
    def check(case):
        wrong = case.operations[0].mistake
        counts["wrong"] += bool(wrong)
        counts["alone"] += bool(wrong) and len(case.operations) == 1
        counts["right"] += not wrong
        assert_collective(ThreadLibrary, case)

    check()
    assert min(counts.values()) > 3, counts


@pytest.mark.slow
def test_a_wrong_call_without_an_error_shrinks():
    several = st.sampled_from((2, 3))
    text = least_failure(Trusting, cases(["all_gather"], nranks=several, mistakes=["dtype"]))
    title, *faults = text.splitlines()[:3]
    assert title == (
        "2 ranks: all_gather n=2, ranks [0, 1], counts 1, int32, "
        "with an output of another dtype than the input"
    )
    for rank, fault in enumerate(faults):
        assert f"rank {rank}: no error for an output of another dtype than the input" in fault
        assert "expected TypeError or ValueError or RuntimeError" in fault


def test_another_error_than_the_due_one_is_told():
    def run(call):
        raise KeyError(call.root)

    case = one("broadcast", mistake="root", collective={"root": 0})
    with pytest.raises(AssertionError, match=r"rank 0: KeyError: 2; expected ValueError or Runt"):
        assert_collective(run, case)


def test_what_follows_a_wrong_call_must_be_right():
    class Breaks(ThreadLibrary):
        def run(self, call):
            if call.index:
                call.output[...] = 0
            else:
                super().run(call)

    wrong = one("broadcast", mistake="root", collective={"root": 0}, seed=1).operations[0]
    case = Case(2, (wrong, replace(wrong, mistake="")))
    assert_collective(ThreadLibrary, case)
    with pytest.raises(AssertionError, match="operation 1, rank 0: element 0 is 0, expected"):
        assert_collective(Breaks, case)


def test_operations_in_flight_are_waited_for_when_a_later_one_is_refused():
    waits = []

    class Refuses:
        def run(self, call):
            if call.index:
                raise NotImplementedError("one at a time")
            return Later(lambda: waits.append(call.rank))

    part = one("all_reduce", asynchronous=True).operations[0]
    case = Case(2, (part, part))
    with pytest.raises(AssertionError, match="operation 0, rank 0: element 0 is"):
        assert_collective(Refuses, case)
    assert sorted(waits) == [0, 1]
    with pytest.raises(NotImplementedError, match="one at a time"):
        assert_collective(Refuses, Case(2, (replace(part, counts=0), part)))


class Counter:
    """Counts its lives, and tells the ranks how many ranks there are."""

    lives = 0
    ended = 0

    def setup(self, nranks, folder):
        Counter.lives += 1
        assert Path(folder).is_dir()
        return {"ranks": nranks}

    def teardown(self):
        Counter.ended += 1


def asks_the_server(call):
    """An all_reduce of ones, found in other processes by this file."""
    call.output[...] = call.input * call.world.server["ranks"]


def test_a_server_lives_around_the_threads_of_a_case():
    Counter.lives = Counter.ended = 0

    def run(call):
        assert (Counter.lives, Counter.ended) == (1, 0)
        asks_the_server(call)
        raise NotImplementedError("only asks")

    with pytest.raises(NotImplementedError, match="only asks"):
        assert_collective(run, one("all_reduce"), ThreadRunner(Counter))
    assert (Counter.lives, Counter.ended) == (1, 1)


@pytest.mark.slow
def test_a_server_lives_as_long_as_the_processes_of_a_world():
    Counter.lives = Counter.ended = 0
    alone = one("all_reduce", 1, counts=3)
    with ProcessRunner(server=Counter) as runner:
        assert_collective(asks_the_server, alone, runner)
        assert_collective(asks_the_server, replace(alone), runner)
        assert (Counter.lives, Counter.ended) == (1, 0)
        with pytest.raises(AssertionError, match="element 0 is"):
            assert_collective(asks_the_server, one("all_reduce", seed=1), runner)
        assert (Counter.lives, Counter.ended) == (2, 0)
    assert (Counter.lives, Counter.ended) == (2, 2)


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


class SpinsForever:
    """Writes the number of its process, and never returns."""

    def run(self, call):
        Path(call.world.server, str(os.getpid())).touch()
        while True:
            pass


class Folder:
    """A directory that outlives a world."""

    path = ""

    def setup(self, *_):
        return self.path

    def teardown(self):
        pass


LAUNCHER = """
import subprocess, sys
ranks = []
for rank in range(int(sys.argv[1])):
    command = ["env", f"RANK={rank}", *sys.argv[2:]]
    ranks.append(subprocess.Popen(command, start_new_session=True))
for process in ranks:
    process.wait()
"""


@pytest.mark.slow
def test_processes_of_a_launcher_that_hang_are_ended_wherever_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(Folder, "path", str(tmp_path / "numbers"))
    Path(Folder.path).mkdir()
    (tmp_path / "launcher.py").write_text(LAUNCHER, encoding="utf-8")
    command = f"{sys.executable} {tmp_path / 'launcher.py'} {{n}}"
    with (
        ProcessRunner(command, server=Folder) as runner,
        pytest.raises(AssertionError, match=r"ranks 0, 1 did not end within 5 s"),
    ):
        assert_collective(SpinsForever, one("barrier", 2, counts=0), runner, deadline_s=5)
    numbers = [int(path.name) for path in Path(Folder.path).iterdir()]
    assert len(numbers) == 2
    end = time.monotonic() + 10
    while any(map(runs, numbers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(runs, numbers))


def runs(number):
    """Whether a process runs; one that has ended and is not yet reaped does not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


SCRIPT = """
from simcoll import Collective
from simcoll.testing import Case, CaseOperation, ProcessRunner, assert_collective

class Copies:
    def run(self, call):
        call.output[...] = call.input

if __name__ == "__main__":
    with ProcessRunner() as runner:
        alone = CaseOperation(Collective("all_reduce", 1), (0,))
        assert_collective(Copies, Case(1, (alone,)), runner)
    print("played")
"""


@pytest.mark.slow
def test_an_implementation_in_a_script_is_found(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.stdout == "played\n"


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


@pytest.mark.slow
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
        ({"mistakes": ["roots"]}, "unknown mistake 'roots'; did you mean 'root'"),
        ({"mistakes": ["root"], "kinds": ["barrier"]}, "expected one of broadcast, reduce"),
        ({"mistakes": ["reduction"], "dtypes": ["int32"]}, "no kind and dtype"),
        ({"kinds": ["reduce"], "dtypes": ["object"]}, "which reduce needs"),
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
    with pytest.raises(simcoll.ConfigError, match="reduces numbers, no objects"):
        CaseOperation(two, (0, 1), dtype="object")
    with pytest.raises(simcoll.ConfigError, match="mistake='rot'"):
        CaseOperation(two, (0, 1), mistake="rot")
    with pytest.raises(simcoll.ConfigError, match="mistake='root' in all_reduce: expected one of"):
        CaseOperation(two, (0, 1), mistake="root")
    one_rank = CaseOperation(simcoll.Collective("barrier", 1), (0,), 0)
    with pytest.raises(simcoll.ConfigError, match="coalesced case must have one group"):
        Case(2, (one_rank, replace(one_rank, ranks=(1,))), coalesced=True)


@pytest.mark.slow
def test_a_launcher_is_found_beside_python_and_a_missing_one_is_told(tmp_path, monkeypatch):
    """An environment need not be activated; a failed start is not hidden by its cleaning up."""
    beside = tmp_path / "bin"
    beside.mkdir()
    launcher = beside / "own-run"
    launcher.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    launcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    case = one("barrier", 2, counts=0)
    with pytest.raises(
        simcoll.ConfigError, match=r"0 of 2 ranks have started .* exit statuses: \[3\]"
    ):
        ProcessRunner("own-run -n {n}").play(Dies, case, 5)
    with pytest.raises(
        simcoll.ConfigError, match="launcher 'no-such-run' is neither on PATH nor in "
    ):
        ProcessRunner("no-such-run {n}").play(Dies, case, 5)
