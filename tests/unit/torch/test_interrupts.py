"""Ctrl-C while ranks run: the first one ends the run, wherever it comes."""

from __future__ import annotations

import _thread
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend, handling = Deferred("simcoll.torch"), Deferred("simcoll.torch.interrupts")
torch_state = Deferred("simcoll.torch.torch_state")

pytestmark = needs_torch

COMMUNICATES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("ready", flush=True)
while True:
    dist.all_reduce(torch.ones(1000))
"""
CATCHES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("ready", flush=True)
while True:
    try:
        for _ in range(1000): dist.all_reduce(torch.ones(1000))
    except Exception: pass
    finally:
        for _ in range(1000): pass
"""
LOSES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
class Lost:
    def __del__(self):
        for _ in range(10000): pass
print("ready", flush=True)
while True:
    Lost()
    dist.all_reduce(torch.ones(10))
"""
SERVES = """
import threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
def serve():
    try:
        while True: time.sleep(1)
    finally: raise ConnectionResetError("the peer has ended")
threading.Thread(target=serve, daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(1)
    dist.all_reduce(torch.ones(10))
"""

CALLS = """
import torch.distributed as dist
dist.init_process_group("gloo")
print("ready", flush=True)
if dist.get_rank() == 1:
    import os, subprocess
    CALL
dist.barrier()
"""
WAITS_FOR_ITS_PROCESS = CALLS.replace("CALL", 'subprocess.run(["sleep", "100"])')
READS_OF_ITS_PROCESS = CALLS.replace("CALL", 'subprocess.check_output("sleep 100; :", shell=True)')
READS_FOR_EVER = CALLS.replace("CALL", "os.read(os.pipe()[0], 1)")


@pytest.mark.slow
@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="interrupts are ignored here"
)
@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        (COMMUNICATES, 0),
        (CATCHES, 0.1),
        (LOSES, 0.7),
        (SERVES, 0.1),
        (WAITS_FOR_ITS_PROCESS, 0.5),
        (READS_OF_ITS_PROCESS, 0.5),
        (READS_FOR_EVER, 0.5),
    ],
    ids=["communicates", "catches", "loses", "serves", "waits", "reads", "for ever"],
)
def test_the_first_interrupt_ends_a_run(text, wait_s, tmp_path):
    program = tmp_path / "loop.py"
    program.write_text(text)
    words = [sys.executable, "-m", "simcoll.torch", "-n", "3", str(program)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            for _ in range(3):
                assert run.stdout.readline() == "ready\n"
            time.sleep(wait_s)
            run.send_signal(signal.SIGINT)
            said = run.communicate(timeout=90)[1]  # before the process of a rank would end
        finally:
            run.kill()
    assert run.returncode == 130
    assert said.endswith("python -m simcoll.torch: stopped\n")
    assert "Traceback" not in said.partition("Exception ignored in")[0]


@pytest.fixture
def usual():
    """Python's own handler, whatever the tests were started with."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("usual")
def test_a_run_in_a_program_raises_it_and_leaves_the_handler():
    def body(rank, _world_size):
        dist.init_process_group("simcoll")
        for turn in range(1000):
            dist.all_reduce(torch.ones(1))
            if (rank, turn) == (1, 3):
                _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        backend.spawn(body, 3)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert backend.spawn(lambda rank, _: rank, 2).returns == (0, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("usual")
def test_a_run_goes_on_without_a_rank_that_hears_nothing():
    """It is in a system call; afterwards another run is as usual, and the thread ends with it."""
    source, sink = os.pipe()
    threads = []

    def interrupt_later():
        time.sleep(0.3)
        _thread.interrupt_main()

    def body(rank, _world_size):
        dist.init_process_group("simcoll")
        if rank == 1:
            threads.append(threading.current_thread())
            _thread.start_new_thread(interrupt_later, ())  # takes no turns
            os.read(source, 1)
        dist.barrier()

    with pytest.raises(KeyboardInterrupt):
        backend.spawn(body, 2)
    assert threads[0].is_alive()
    assert backend.spawn(lambda rank, _: rank, 2).returns == (0, 1)
    os.write(sink, b"x")
    threads[0].join(60)
    assert not threads[0].is_alive()
    os.close(source), os.close(sink)


@pytest.mark.usefixtures("usual")
def test_a_handler_that_does_not_raise_ends_nothing():
    came = []

    def body(_rank, _world_size):
        dist.init_process_group("simcoll")
        _thread.interrupt_main()
        dist.barrier()
        return len(came)

    signal.signal(signal.SIGINT, lambda *_: came.append(1))
    assert max(backend.spawn(body, 2).returns) >= 1


@pytest.mark.usefixtures("usual")
def test_one_that_came_while_the_baton_was_on_its_way_is_not_lost():
    """The signal comes after the baton is back, before the wait has returned: it used to wait for
    the baton for ever.
    """
    interrupts, given, returned = (
        handling.Interrupts(),
        _thread.allocate_lock(),
        _thread.allocate_lock(),
    )
    given.acquire(), returned.acquire()
    answered = threading.Event()

    def rank():
        with contextlib.suppress(KeyboardInterrupt):
            given.acquire()
            returned.release()
            answered.wait(120)

    thread = threading.Thread(target=rank)
    thread.start()

    class Returned:
        @staticmethod
        def acquire(timeout):
            back = returned.acquire(timeout=timeout)
            if back:
                signal.getsignal(signal.SIGINT)(signal.SIGINT, None)
            return back

    interrupts._clock_turn = Returned
    with interrupts.noted():
        with pytest.raises(KeyboardInterrupt):
            interrupts.hand_over(thread, given)
        # And it is raised again by what follows, should it be lost.
        with pytest.raises(KeyboardInterrupt):
            interrupts.hand_over(thread, given)
    assert interrupts.came
    answered.set()
    thread.join(120)
    assert not thread.is_alive()


@pytest.mark.slow
def test_a_wait_in_real_time_is_told(capsys, monkeypatch):
    monkeypatch.setattr("simcoll.torch.interrupts.SILENCE_S", 0.5)
    locked = _thread.allocate_lock()
    locked.acquire()

    def release_later():
        time.sleep(3)
        locked.release()

    def body(rank, _world_size):
        if rank == 1:
            _thread.start_new_thread(release_later, ())
            locked.acquire()
        else:
            end = time.process_time() + 1
            while time.process_time() < end:  # computing is no wait
                pass

    backend.spawn(body, 2)
    said = capsys.readouterr().err
    assert "simcoll.torch: rank 1 has waited" in said
    assert "test_interrupts.py:" in said
    assert "rank 0" not in said


@pytest.mark.slow
def test_a_wait_for_a_process_is_told_by_the_line_of_the_program(capsys, monkeypatch):
    monkeypatch.setattr("simcoll.torch.interrupts.SILENCE_S", 0.5)

    def body(_rank, _world_size):
        subprocess.run([sys.executable, "-c", "import time; time.sleep(3)"], check=True)

    backend.spawn(body, 1)
    said = capsys.readouterr().err
    line = body.__code__.co_firstlineno + 1
    assert f" at {__file__}:{line}" in said
    assert subprocess.__file__ not in said


@pytest.mark.slow
@pytest.mark.usefixtures("usual")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised again
@pytest.mark.parametrize("kind", ["communicates", "computes"])
def test_an_interrupt_at_any_of_a_hundred_moments_ends_the_run(kind):
    moments = random.Random(kind)

    def body(_rank, _world_size):
        dist.init_process_group("simcoll")
        while True:
            if kind == "communicates":
                dist.all_reduce(torch.ones(8))
            else:
                torch.ones(8, 8).matmul(torch.ones(8, 8)).sum().item()
                sum(range(200))
                if moments.random() < 0.05:
                    dist.barrier()

    def start_with(timer):  # on a busy machine the interrupt may come before the run
        timer.start()
        backend.spawn(body, 3)

    backend.spawn(lambda rank, _: rank, 3)  # what is imported first would be left half done
    for _ in range(100):  # the ranks start in some milliseconds
        timer = threading.Timer(moments.uniform(0.002, 0.03), _thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):
            start_with(timer)
        timer.join()


@pytest.mark.slow
@pytest.mark.usefixtures("usual")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised again
def test_an_interrupt_while_pytorch_is_changed_leaves_nothing_behind():
    """It comes at 200 lines of what changes PyTorch and restores it, one after the other."""

    def state():
        seed, begin = torch.manual_seed, dist.init_process_group  # imports it
        return type.__setattr__, seed, begin, type(sys.modules["torch.distributed"])

    standard = state()
    line, lines, ended = 0, 10**9, 0

    def at_a_line(_frame, event, _argument):
        nonlocal line
        line += event == "line"
        if line == lines and event == "line":
            _thread.interrupt_main()
            sys.settrace(None)  # the other lines are not counted
        return at_a_line

    def run():
        nonlocal line
        line = 0
        sys.settrace(at_a_line)
        try:
            with torch_state.prepare_torch():
                pass
        finally:
            sys.settrace(None)

    run()
    run()  # the first one imports modules
    for lines in range(1, line, max(1, line // 200)):  # noqa: B007
        try:
            run()
        except KeyboardInterrupt:
            ended += 1
        assert state() == standard
    assert ended > 190
    assert backend.spawn(lambda rank, _: rank, 2).returns == (0, 1)
