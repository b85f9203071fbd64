"""Ctrl-C at any moment of a command: status 130 and one line at most, never a traceback."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

from simcoll import stopping
from simcoll.command_line import run_app, status_of

SCRIPT = "import sys; from {} import program; program()"  # what the scripts do that pip installs
PERF = ["perf", "all_reduce", "--nodes", "64"]
LOCAL = ["perf", "all_reduce", "-t", "local", "-g", "64", "-b", "1M", "-e", "64M"]
COMMANDS = {
    "simcoll": ["-c", SCRIPT.format("simcoll.__main__"), *PERF],
    "python -m simcoll": ["-m", "simcoll", *PERF],
    "realcoll": ["-c", SCRIPT.format("realcoll.__main__"), *LOCAL],
    "python -m realcoll": ["-m", "realcoll", *LOCAL],
    "realcoll launch": ["-m", "realcoll", "launch", "-n", "2", "sleeps.py"],
    "simcoll.distributed.run": ["-m", "simcoll.distributed.run", "-n", "16", "loops.py"],
    "simcoll.distributed.launch": [
        "-m",
        "simcoll.distributed.launch",
        "--nproc-per-node",
        "2",
        "sleeps.py",
    ],
    "simcoll.torch": ["-m", "simcoll.torch", "-n", "2", "loops.py"],
}
DELAYS_MS = (0, 10, 50, 100, 200, 400, 800)
LATER_MS = (2_000, 5_000, 12_000, 30_000)
"""For a machine so busy that Python has not begun to import simcoll by then."""
LOOPS = """
def program(rank, world_size):
    import numpy as np
    import simcoll.distributed as dist
    while True:
        dist.all_reduce(np.ones(10))
if __name__ == "__main__" and "torch" in __import__("sys").modules:
    while True: pass
"""
FIRST = {
    "simcoll/__init__.py",
    "simcoll/lazy.py",
    "simcoll/moved.py",
    "simcoll/stopping.py",
    "realcoll/__init__.py",
    "realcoll/__main__.py",
}
"""The modules that are imported until Ctrl-C is in our hands; what comes before is Python's own
start.
"""


def interrupted(words, delay_ms, folder):
    """Status and output of a command that gets SIGINT some time after its start."""

    def as_in_a_terminal():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a job in the background would ignore

    with subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        preexec_fn=as_in_a_terminal,  # noqa: PLW1509  # nothing here runs in threads
    ) as run:
        try:
            time.sleep(delay_ms / 1000)
            run.send_signal(signal.SIGINT)
            output = run.communicate(timeout=120)[0]
        finally:
            run.kill()
    return run.returncode, output


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_any_moment(name, tmp_path):
    if name == "simcoll.torch":
        pytest.importorskip(
            "torch", reason="PyTorch is not installed: pip install 'simcoll[torch]'"
        )
    (tmp_path / "loops.py").write_text(LOOPS)
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(60)\n")
    ended = []
    for delay_ms in DELAYS_MS + LATER_MS:
        if delay_ms in LATER_MS and ended:
            break
        status, output = interrupted(COMMANDS[name], delay_ms, tmp_path)
        if status != 130:  # Python had not yet begun to import simcoll
            assert status in {-signal.SIGINT, 1}, (delay_ms, output)
            files = set(re.findall(r'File ".*?((?:simcoll|realcoll)/[^"]*)"', output))
            assert files <= FIRST, (delay_ms, output)
            continue
        ended.append(delay_ms)
        assert "Traceback" not in output, (delay_ms, output)
        assert len([line for line in output.splitlines() if "stopped" in line]) <= 1
    assert ended


@pytest.mark.slow
def test_a_second_ctrl_c_ends_what_does_not_end():
    # Where the tests run in the background, SIGINT may be ignored, which children inherit.
    program = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from simcoll.stopping import leave_to_program, raise_again, run_program
def main():
    raise_again()
    leave_to_program()
    while True:
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            pass
run_program(main)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as run:
        for _ in range(2):
            assert run.stdout.readline() == "ready\n"
            run.send_signal(signal.SIGINT)
        assert run.wait(120) == 130


@pytest.mark.parametrize(
    "place", ["weakref.ref(item, interrupt)", "weakref.finalize(item, interrupt, 0)"]
)
def test_ctrl_c_in_a_callback_is_not_lost(place):
    """Python drops what a callback of a weak reference raises, and goes on."""
    program = f"""
import signal, time, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)
from simcoll.stopping import raise_again, run_program
class Item: pass
def interrupt(_):
    signal.raise_signal(signal.SIGINT)
def main():
    raise_again()
    item = Item()
    reference = {place}
    try:
        del item
        time.sleep(600)
    except KeyboardInterrupt:
        print("stopped")
        return 130
    return 0
run_program(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "stopped\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("resends", [True, False])
def test_ctrl_c_that_nobody_receives_comes_again(resends):
    """C code may drop an exception without a word. A program of the user's may catch one for
    good.
    """
    program = f"""
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from simcoll.stopping import leave_to_program, raise_again, receive, run_program
def dropped():
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        pass
def main():
    raise_again()
    {"" if resends else "leave_to_program()"}
    try:
        dropped()
        time.sleep({600 if resends else 0.2})
    except KeyboardInterrupt:
        receive()
        time.sleep(0.2)
        return 130
    return 0
run_program(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130 if resends else 0, "", "")


@pytest.mark.parametrize("run", ["run_app", "status_of"])
def test_an_error_that_ctrl_c_has_caused_is_no_error(run):
    """Compiled code that is being imported may make an ImportError of it."""
    program = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from simcoll.command_line import {run}
from simcoll.stopping import run_program
class App:
    name = ("app",)
    def __call__(self, *words, **options):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numba._devicearray failed to import") from None
run_program(lambda: {run}(App(), []))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "app: stopped\n")


def test_an_error_after_ctrl_c_was_handled_is_told():
    """Such as a full disk, when what was done before Ctrl-C is written."""
    program = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from simcoll.command_line import run_app
from simcoll.errors import ConfigError
from simcoll.stopping import receive, run_program
class App:
    name = ("app",)
    def __call__(self, *words, **options):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            receive()
        raise ConfigError("cannot write")
run_program(lambda: run_app(App(), []))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "app: cannot write\n")


def test_a_caught_interrupt_within_the_execution_of_text_keeps_the_status():
    """Python would kill itself with SIGINT: the status would be -2."""
    program = """
from simcoll.stopping import run_program
def main():
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        print("stopped")
        return 130
run_program(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "stopped\n", "")


def test_an_ignored_interrupt_stays_ignored():
    program = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from simcoll.stopping import raise_again, run_program
def main():
    raise_again()
    signal.raise_signal(signal.SIGINT)
    return 7
run_program(main)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7


class Interrupted:
    """An application whose command is interrupted."""

    name = ("app",)

    def __call__(self, *_words, **_options):
        raise KeyboardInterrupt


def test_command_lines_in_a_program_leave_its_handlers(capsys):
    before = signal.getsignal(signal.SIGINT)
    assert run_app(Interrupted(), []) == 130
    assert status_of(Interrupted(), []) == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == "app: stopped\napp: stopped\n"


@pytest.mark.parametrize(
    ("argv", "given", "starts"),
    [
        (["-m"], ["python", "-m", "simcoll.torch", "x.py"], True),
        (["-m"], ["python", "-X", "dev", "-msimcoll", "list"], True),
        (["-m"], ["python", "-m", "pytest", "tests"], False),
        (["simcoll"], ["python", "-m", "simcoll"], False),
        (["-c"], ["python", "-c", "import simcoll"], False),
    ],
)
def test_what_counts_as_a_program_that_starts(argv, given, starts, monkeypatch):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", given)
    assert stopping.started_as("simcoll", "realcoll") is starts
