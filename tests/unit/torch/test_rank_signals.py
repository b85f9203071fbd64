"""Signals of ranks: handlers, alarms in simulated time, and locks of files, as in processes."""

from __future__ import annotations

import textwrap

import pytest

from tests.support.deferred import Deferred, needs_torch

command = Deferred("simcoll.torch.__main__")

pytestmark = [needs_torch, pytest.mark.slow]

PRELUDE = """
    import asyncio, fcntl, os, signal, threading, time, _thread
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank, seen = dist.get_rank(), []
    begin = time.time()
    def past(): return round(time.time() - begin, 3)
    def late(number, frame): raise TimeoutError(f"{number} at {past()}")
"""


def play(capsys, tmp_path, text):
    """The exit status, the lines that each of 2 ranks prints, and the report."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(text))
    status = command.main(["-n", "2", "--device", "cpu", str(script)])
    said = capsys.readouterr()
    printed = [line for line in said.out.splitlines() if not line.startswith("# 2 ranks")]
    return status, sorted(printed), said.err


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param(
            """
            assert signal.alarm(3) == 0
            signal.signal(signal.SIGALRM, late)
            try:
                dist.barrier()
                time.sleep(20)
            except TimeoutError as error:
                print(error, signal.alarm(0))
            """,
            ["14 at 3.0 0"],
            id="sleep",
        ),
        pytest.param(
            """
            signal.signal(signal.SIGALRM, lambda *_: seen.append(past()))
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.2)
            time.sleep(0.6)
            print(seen, signal.setitimer(signal.ITIMER_REAL, 0)[1], signal.getitimer(0))
            """,
            ["[0.1, 0.3, 0.5] 0.2 (0.0, 0.0)"],
            id="interval",
        ),
        pytest.param(
            """
            signal.signal(signal.SIGALRM, lambda *_: seen.append(past()))
            signal.alarm(1)
            print(threading.Event().wait(1.5), past(), seen, signal.alarm(0))
            """,
            ["False 1.5 [1.0] 0"],
            id="wait",
        ),
        pytest.param(
            """
            signal.signal(signal.SIGALRM, late)
            signal.alarm(5)
            print(signal.alarm(0))
            time.sleep(9)
            """,
            ["5"],
            id="cancelled",
        ),
        pytest.param(
            """
            signal.signal(signal.SIGUSR1, lambda number, _: seen.append(
                (type(number), threading.current_thread() is threading.main_thread())))
            sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1))
            sender.start()
            time.sleep(1)
            os.killpg(os.getpgrp(), signal.SIGUSR1)
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            print(seen)
            """,
            ["[(<class 'int'>, True), (<class 'int'>, True), (<class 'int'>, True)]"],
            id="main thread",
        ),
        pytest.param(
            """
            try:
                threading.Thread(target=_thread.interrupt_main).start()
                time.sleep(1)
            except KeyboardInterrupt:
                print("interrupted")
            """,
            ["interrupted"],
            id="interrupt_main",
        ),
        pytest.param(
            """
            async def main():
                asyncio.get_running_loop().add_signal_handler(15, print, "told")
                os.kill(os.getpid(), 15)
                await asyncio.sleep(0.1)
            loop = asyncio.get_event_loop()
            loop.run_until_complete(main())
            loop.close()
            """,
            ["told"],
            id="asyncio",
        ),
        pytest.param(
            """
            for number, handler in ((9, late), (10, 17), (1000, late)):
                try:
                    signal.signal(number, handler)
                except (OSError, TypeError, ValueError) as error:
                    seen.append(type(error).__name__)
            print(seen)
            """,
            ["['OSError', 'TypeError', 'ValueError']"],
            id="refused",
        ),
        pytest.param(
            """
            with open(os.path.join(os.path.dirname(__file__), "lock"), "a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                entered = past()
                time.sleep(1)  # it is the other rank's turn
                print(int(past() - entered >= 1), file=file, flush=True)
            dist.barrier()
            with open(file.name) as file:
                print(file.read().split())
            """,
            ["['1', '1']"],
            id="flock",
        ),
    ],
)
def test_ranks_handle_signals_and_locks_as_processes_do(capsys, tmp_path, text, lines):
    status, printed, report = play(capsys, tmp_path, text)
    assert (status, printed) == (0, lines * 2), report


def test_an_alarm_without_a_handler_ends_its_rank_alone(capsys, tmp_path):
    text = """
        rank or signal.alarm(2)
        time.sleep(3)
    """
    status, _printed, report = play(capsys, tmp_path, text)
    assert status == 1
    assert "[rank0]: SystemExit: 142" in report
    assert report.endswith("rank 0 at 2 s, with status 142\n")


def test_a_lock_that_a_waiting_rank_holds_is_a_hang(capsys, tmp_path):
    text = """
        with open(os.path.join(os.path.dirname(__file__), "lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            dist.barrier()
    """
    status, _printed, report = play(capsys, tmp_path, text)
    assert status == 1
    assert "the lock of a file, which a rank has" in report
    assert "barrier (call 0 on group 0 (default_pg)" in report
