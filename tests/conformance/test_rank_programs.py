"""One file of rank programs gives the same arrays and finds the same faults on the emulator, on
threads and on MPI processes.
"""

import re
import socket
from pathlib import Path

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.distributed.runtime.objects import decode
from tests.support import every_call, wrong_calls
from tests.support.mpi import PROGRAMS, needs_mpi, run_mpi
from tests.support.thread_link import on_threads


def emulated(n):
    return list(dist.spawn(every_call.program, n, topology="dgx-h100").returns)


def differences(got, expected):
    """Part, rank and place of every array that is not equal bit for bit."""
    return [
        (part, rank, index)
        for rank, (mine, theirs) in enumerate(zip(got, expected, strict=True))
        for part in theirs
        for index, (a, b) in enumerate(zip(mine[part], theirs[part], strict=True))
        if a != b
    ]


@pytest.mark.slow
def test_the_program_calls_everything_and_its_order_of_adding_shows():
    source = Path(every_call.__file__).read_text(encoding="utf-8")
    collectives = [
        name
        for name in dist.__all__
        if re.match(r"(all_|broadcast|gather|reduce|scatter|barrier|send|recv|isend|irecv)", name)
    ]
    same = {"all_gather_single", "reduce_scatter_single"}
    assert [name for name in collectives if f"dist.{name}" not in source and name not in same] == []
    other = dist.spawn(
        every_call.program, 4, algorithm={"all_reduce": "ring", "reduce": "chain"}
    ).returns
    assert {part for part, _, _ in differences(other, emulated(4))} >= {"reductions"}


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
def test_arrays_are_equal_on_threads(n):
    got = on_threads(lambda _, run: run(every_call.program), n)
    assert differences(got, emulated(n)) == []


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("n", [2, 6])
def test_arrays_are_equal_on_processes(n, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMCOLL_BACKEND", "mpi")
    done = run_mpi(n, "-W", "error", PROGRAMS / "every_call.py", n, tmp_path / "returns")
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.delenv("SIMCOLL_BACKEND")
    assert differences(decode((tmp_path / "returns").read_bytes()), emulated(n)) == []


MISMATCH = (
    "RuntimeError: Detected mismatch between collectives on ranks: call 0 on group 0 (default_pg): "
)
BUT_ONE = "; all but rank 1 agree\n"
TIMEOUT = r"RuntimeError: Operation timed out! Timed out waiting \d+ms for "
ENDED = "RuntimeError: rank 1 has ended its program\n  "
CLOSED = "RuntimeError: Connection closed by peer: rank 1 ended with ValueError: enough\n  "
# What each rank must be told, as a pattern of the beginning; no rank else is told anything.
TOLD = {
    "other_size": dict.fromkeys(
        (0, 1, 2),
        re.escape(f"{MISMATCH}they differ in number of elements{BUT_ONE}  rank 0: "),
    ),
    "other_function": dict.fromkeys(
        (0, 1, 2), re.escape(f"{MISMATCH}they differ in function, op, root{BUT_ONE}  rank 0: ")
    ),
    "other_dtype": dict.fromkeys((0, 1, 2), re.escape(f"{MISMATCH}they differ in dtype{BUT_ONE}")),
    "other_op": dict.fromkeys((0, 1, 2), re.escape(f"{MISMATCH}they differ in op{BUT_ONE}")),
    "other_algorithm": dict.fromkeys(
        (0, 1, 2), re.escape(f"{MISMATCH}they differ in the schedule{BUT_ONE}")
    ),
    "other_splits": dict.fromkeys(
        (0, 1, 2), re.escape(f"{MISMATCH}rank 1 sends 2 elements to rank 0, which expects 1\n")
    ),
    "other_mesh": dict.fromkeys(
        (0, 1, 2),
        r"RuntimeError: DeviceMesh \(number 1\) differs between ranks: rank \d asked for ",
    ),
    "late": dict.fromkeys(
        (0, 2), TIMEOUT + r"barrier operation to complete: barrier \(call 0 .* waits for rank 1$"
    ),
    "late_for_wait": dict.fromkeys((0, 2), TIMEOUT + r"all_reduce operation .* waits for rank 1$"),
    "late_for_roll": {
        0: r"RuntimeError: \[Rank 0\]: Rank 1 failed to pass monitoredBarrier in 400 ms\n Original "
        r"exception: .* rank 1$",
        2: "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors ",
    },
    "no_send": {
        0: r"RuntimeError: Timed out waiting \d+ms for recv operation .* recv from rank 1, .* "
        r"waits for a send$"
    },
    "ended": dict.fromkeys((0, 2), f"{ENDED}barrier .* waits for rank "),
    "raised": {
        1: "ValueError: enough",
        **dict.fromkeys((0, 2), f"{CLOSED}barrier .* waits for rank "),
    },
    "raised_before_message": {1: "ValueError: enough", 0: f"{CLOSED}recv from rank 1, tag 0"},
    "ended_before_message": {0: "RuntimeError: rank 1 has ended its program"},
    "other_message": dict.fromkeys(
        (0, 1),
        "RuntimeError: rank 0 sends 2 elements of float64 with tag 0; rank 1 receives 3 of "
        "float64$",
    ),
    "touched": {
        1: "RuntimeError: the output buffer of all_reduce .* was changed while the operation was "
        "in flight"
    },
}


def wrongly_told(found):
    """Cases and ranks that were not told what they must be; and ranks on which a run did not
    fail.
    """
    wrong = []
    for rank, cases in enumerate(found):
        assert set(cases) == {*TOLD, "other_group"}
        for case, expected in TOLD.items():
            own, run = cases[case]
            said = own.get(rank, "")
            if (
                not (re.match(expected[rank], said, re.DOTALL) if rank in expected else said == "")
                or not run
            ):
                wrong.append((case, rank, said, run))
    # Who is told first that the groups differ depends on who is first; somebody is, and nobody goes
    # on.
    groups = [cases["other_group"][0].get(rank, "") for rank, cases in enumerate(found)]
    assert any("new_group (number 1) differs between ranks: rank " in said for said in groups)
    assert all(groups)
    return wrong


@pytest.mark.slow
def test_faults_are_named_on_threads():
    def cases(_, run):
        return {case.__name__: wrong_calls.told(case, run) for case in wrong_calls.CASES}

    assert wrongly_told(on_threads(cases, 3)) == []


@pytest.mark.slow
@needs_mpi
def test_faults_are_named_on_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMCOLL_BACKEND", "mpi")

    def wrong():
        done = run_mpi(3, "-W", "error", PROGRAMS / "wrong_calls.py", 3, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return wrongly_told([decode((tmp_path / str(rank)).read_bytes()) for rank in range(3)])

    # Limits of 0.4 s pass by the clock here, so a rank that a busy machine keeps waiting is late as
    # well: only what goes wrong twice in a row is a fault of the messages.
    assert not wrong() or wrong() == []


@pytest.mark.parametrize("scheme", ["file", "tcp"])
def test_ranks_in_different_places_meet_at_the_store_of_their_url(scheme, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = {"file": f"file://{tmp_path}/meet", "tcp": f"tcp://127.0.0.1:{port}"}[scheme]

    def program(rank, world_size):
        with pytest.raises(RuntimeError, match="there is no default store"):
            dist.distributed_c10d._get_default_store()
        dist.init_process_group("gloo", url, rank=rank, world_size=world_size)
        store = dist.distributed_c10d._get_default_store()
        work = dist.all_reduce(np.ones(2), async_op=True)
        if rank == 1:
            # Rank 0 needs this rank's part of the sum before it sets the key, which this rank waits
            # for.
            assert store.get("key") == b"value"
            work.wait()
        else:
            work.wait()
            store.set("key", "value")
        dist.barrier()
        return type(store).__name__

    names = on_threads(lambda _, run: run(program), 2)
    assert names == [{"file": "FileStore", "tcp": "TCPStore"}[scheme]] * 2
    assert not (tmp_path / "meet").exists()
