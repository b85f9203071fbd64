"""Test files of PyTorch's repository, played on the emulator, beside gloo on this machine.

``python -m tests.conformance.torch_test_files FOLDER/test_dtensor.py ...`` plays every test of the
files three times: as PyTorch does on a computer without a GPU (gloo between processes, its own
threads for its multi-threaded cases), on simcoll without GPUs, and on simcoll where the tests find
GPUs. FOLDER is ``test/distributed`` in the sources of the PyTorch that is installed; they are not
part of its wheel, nor of this project. Every test has a process of its own, so that a crash or a
hang is one test's. Where PyTorch counts GPUs before it plays a test on CPUs, gloo is told that there
are as many as the test needs.

The ranks of a test are those that its class asks for. They enter where PyTorch's own processes and
threads would: ``_run``, ``_worker_loop`` and ``run_test_with_threaded_pg`` of
``torch.testing._internal.common_distributed``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
import unittest
from collections import Counter
from pathlib import Path

PLAYERS = ("gloo", "simcoll", "simcoll with GPUs")
PASS, SKIP = "pass", "skip"
_SHARES = 10
"""A test's time on the clock, in units of its processor time."""


class _Pipe:
    """What a test's process sends to PyTorch's runner: the text of its error."""

    def __init__(self):
        self.text = ""

    def send(self, text):
        self.text = text

    def close(self): ...


def _skips():
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return {skip.exit_code for skip in TEST_SKIPS.values()}


def _outcome(body, pipe=None):
    """``pass``, ``skip``, or the error of a rank."""
    try:
        body()
    except unittest.SkipTest:
        return SKIP
    except SystemExit as end:
        if end.code in _skips():
            return SKIP
        if not end.code:
            return PASS
        return (pipe.text if pipe else "") or f"sys.exit({end.code})"
    except BaseException:  # noqa: BLE001  # whatever a test raises is its result
        return traceback.format_exc()
    return PASS


def _kinds():
    from torch.testing._internal import common_distributed

    names = ("MultiProcessTestCase", "MultiProcContinuousTest", "MultiThreadedTestCase")
    return tuple(getattr(common_distributed, name, ()) for name in names)


def _holds_all_ranks(case):
    """Whether PyTorch plays the class in one process, whose tensors hold those of every rank."""
    local = getattr(case, "is_local_tensor_enabled", None)
    return isinstance(local, property) and local.fget(case)


def _size(case, name):
    """The ranks of a test: none for a test without ranks."""
    if _holds_all_ranks(case):
        return 0
    processes, continuous, threads = _kinds()
    if continuous and issubclass(case, continuous):
        kind = case.device_type
        kind = kind.fget(case) if isinstance(kind, property) else kind
        return int(case._get_world_size(kind() if callable(kind) else kind))
    return int(case(name).world_size) if issubclass(case, (processes, threads)) else 0


def _tests(module):
    """The tests of a file with their numbers of ranks, and whether PyTorch expects them to fail."""
    names = unittest.TestLoader().getTestCaseNames
    cases = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, unittest.TestCase)
        and value.__module__ == module.__name__
    ]
    tests = {}
    for case in cases:
        for name in names(case):
            try:
                size = _size(case, name)
            except unittest.SkipTest:
                size = 1
            fails = getattr(getattr(case, name), "__unittest_expecting_failure__", False)
            tests[f"{case.__name__}.{name}"] = size, fails
    return tests


def _set_tolerances(case):
    """Set the tolerances of a class, which PyTorch sets in the thread that imports its module."""
    tolerances = getattr(case, "_tls", None)
    if tolerances is not None:
        tolerances.precision, tolerances.rel_tol = case._precision, case._rel_tol


def _rank(case, name, rank, size, path):
    """A rank of a test, as PyTorch's processes and threads play it; returns its outcome."""
    from torch import distributed as dist
    from torch.testing._internal import common_distributed

    _set_tolerances(case)
    processes, continuous, _ = _kinds()
    common_distributed.MultiProcessTestCase._event_listener = staticmethod(lambda *_: None)
    pipe = _Pipe()
    if continuous and issubclass(case, continuous):

        def body():
            case.rank, case.world_size, case.rdvz_file = rank, size, path
            case._init_pg(rank, size, path)
            case._run_test_given_id(name)
            dist.barrier()  # PyTorch's processes outlive a test, and gloo's messages need both ends
            dist.destroy_process_group()

    elif issubclass(case, processes):

        def body():
            case._run(rank, name, path, pipe)

    else:

        def body():
            test = case(name)
            test.rank = rank
            kind = str(getattr(test, "device_type", "cpu"))
            backend = "nccl" if kind.startswith("cuda") else "gloo"
            dist.init_process_group(backend, rank=rank, world_size=size)
            test.perThreadSetUp()
            try:
                getattr(test, name)()
            finally:
                dist.destroy_process_group()
                test.perThreadTearDown()

    return _outcome(body, pipe)


def _set_up(case, name):
    """What PyTorch's runner prepares before it starts ranks, the environment for one."""
    processes, _, _ = _kinds()
    if issubclass(case, processes):
        test = case(name)
        test._spawn_processes = test._start_processes = lambda *_: None
        test.setUp()


def _forget_launcher():
    """Remove what a launcher sets for ranks, and PyTorch's runners do not."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


def _test_of(module, test):
    case, _, name = test.partition(".")
    return getattr(importlib.import_module(module), case), name


def _count_gpus(size):
    """Tell PyTorch's runners that there are enough devices, where the tests' are CPUs."""
    import torch

    torch.accelerator.device_count = torch.cpu.device_count = lambda: max(size, 1)


def _on_simcoll(module, test, size, path, *, gpus):
    import simcoll.torch

    outcomes = {}

    def program(rank, _):
        if not gpus:
            _count_gpus(size)
        _forget_launcher()
        case, name = _test_of(module, test)
        if rank == 0:
            _set_up(case, name)
        outcomes[rank] = _rank(case, name, rank, size, path)
        if outcomes[rank] not in (PASS, SKIP):
            raise RuntimeError(outcomes[rank])

    run = simcoll.torch.spawn
    said = _outcome(lambda: run(program, max(size, 1), cuda_is_cpu=gpus, own_modules=True))
    return [*outcomes.values(), said]


def _alone_on_simcoll(module, test, *, gpus):
    import simcoll.torch

    def program(_rank, _size):
        _forget_launcher()
        case, name = _test_of(module, test)
        _set_tolerances(case)
        # A suite prepares the class, too.
        return _outcome(unittest.TestSuite([case(name)]).debug)

    run = simcoll.torch.spawn
    outcomes = []
    said = _outcome(
        lambda: outcomes.extend(run(program, 1, cuda_is_cpu=gpus, own_modules=True).returns)
    )
    return [*outcomes, said]


def _on_gloo(module, test, size, path):
    _count_gpus(size)
    case, name = _test_of(module, test)
    _, _, threads = _kinds()
    if not size or issubclass(case, threads):
        return [_outcome(unittest.TestSuite([case(name)]).debug)]
    _set_up(case, name)
    children = []
    for rank in range(size):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = _rank(case, name, rank, size, path)
            os.write(write, said.encode()[-4000:])
            os._exit(0)
        os.close(write)
        children.append((pid, read))
    outcomes = []
    for pid, read in children:
        said = os.read(read, 1 << 16).decode()
        _, status = os.waitpid(pid, 0)
        outcomes.append(said or f"crash: signal {status & 127}")
    return outcomes


def _in_a_process(body, limit_s):
    """The JSON that ``body`` returns in a process of its own, or the word "hang" or "crash". The
    limit is of processor time, so that other programs on the machine do not count.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit_s), math.ceil(limit_s)))
        quiet = os.open(os.environ.get("OUTPUT_OF_TESTS", os.devnull), os.O_WRONLY | os.O_APPEND)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            said = body()
        except BaseException:  # noqa: BLE001  # the parent tells it, as the outcome of a file
            said = traceback.format_exc()
        with os.fdopen(write, "w") as out:
            json.dump(said, out)
        os._exit(0)
    os.close(write)
    text = b""
    wall_s = _SHARES * limit_s
    while select.select([read], [], [], wall_s)[0] and (part := os.read(read, 1 << 16)):
        text += part
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # ours: the test and its ranks
    _, status = os.waitpid(pid, 0)
    os.close(read)
    if text:
        return json.loads(text)
    out_of_time = status & 127 in (signal.SIGKILL, signal.SIGXCPU)
    return "hang" if out_of_time else f"crash: status {status}"


def _list(player, module, gpus):
    import simcoll.torch

    if player == "gloo":
        _count_gpus(8)
        return _tests(importlib.import_module(module))
    tests = {}

    def program(rank, _):
        _forget_launcher()
        found = _tests(importlib.import_module(module))
        if rank == 0:
            tests.update(found)

    finds_gpus = player.endswith("GPUs")
    simcoll.torch.spawn(_communicate, 2, cuda_is_cpu=finds_gpus)
    simcoll.torch.spawn(program, gpus, cuda_is_cpu=finds_gpus, own_modules=True)
    return tests


def _communicate(rank, _size):
    """Load what communicating ranks load, once for all tests."""
    import torch
    from torch import distributed as dist

    dist.init_process_group("gloo")
    if rank == 0:
        importlib.import_module("torch._dynamo")
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


def _one(player, module, test, size, fails):
    path = f"{tempfile.mkdtemp()}/store"
    if player == "gloo":
        outcomes = _on_gloo(module, test, size, path)
    elif size:
        outcomes = _on_simcoll(module, test, size, path, gpus=player.endswith("GPUs"))
    else:
        outcomes = _alone_on_simcoll(module, test, gpus=player.endswith("GPUs"))
    failed = [text for text in outcomes if text not in (PASS, SKIP)]
    if fails and SKIP not in outcomes:
        return PASS if failed else "passes, and PyTorch expects it to fail"
    return failed[0] if failed else SKIP if SKIP in outcomes else PASS


def play(player, path, part, limit_s, gpus):
    """The outcome of every test of a file whose name has ``part``; ``gpus`` is the number of GPUs
    that the file finds when it is loaded.
    """
    sys.path.insert(0, str(path.parent))
    os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = (
        "0"  # so that an error's last line says what it is
    )
    import simcoll.torch  # noqa: F401  # once, before the tests fork

    if not player.endswith("GPUs"):  # they look for GPUs when they are imported
        import torch.testing._internal.common_distributed
        import torch.testing._internal.common_fsdp
        import torch.testing._internal.distributed._tensor.common_dtensor  # noqa: F401
    try:
        tests = _list(
            player, path.stem, gpus
        )  # here, so that no test imports the file's modules again
    except Exception:  # noqa: BLE001  # whatever a file raises is its result
        return {f"{path.name} as a whole": traceback.format_exc()}
    outcomes = {}
    for test, (size, fails) in tests.items():
        if part in test:
            said = _in_a_process(
                functools.partial(_one, player, path.stem, test, size, fails), limit_s
            )
            outcomes[test] = said
            last = said.strip().splitlines()[-1][:200]
            sys.stderr.write(f"{player}: {path.name}: {test} ({size}): {last}\n")
    return outcomes


def _counts(outcomes):
    kinds = Counter(said if said in (PASS, SKIP) else "fail" for said in outcomes)
    return kinds[PASS], kinds["fail"], kinds[SKIP]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--player", choices=PLAYERS, help="play the tests in this process")
    parser.add_argument("--players", choices=PLAYERS, nargs="+", default=PLAYERS)
    parser.add_argument("--test", default="", help="only tests whose names have this part")
    parser.add_argument(
        "--limit", type=float, default=300, help="seconds of processor time for a process of a test"
    )
    parser.add_argument("--gpus", type=int, default=4, help="GPUs that the files find")
    parser.add_argument("--errors", type=Path, help="write the errors there, as JSON")
    options = parser.parse_args()
    if options.player:
        file = options.files[0].resolve()
        said = play(options.player, file, options.test, options.limit, options.gpus)
        sys.stdout.write(json.dumps(said) + "\n")
        return
    rows = {}
    for file in options.files:
        for player in options.players:
            words = [sys.executable, "-W", "ignore", "-m", "tests.conformance.torch_test_files"]
            words += ["--player", player, "--test", options.test, "--limit", str(options.limit)]
            words += ["--gpus", str(options.gpus)]
            done = subprocess.run(
                [*words, str(file)],
                cwd=Path(__file__).parents[2],
                stdout=subprocess.PIPE,
                check=True,
            )
            rows[file.name, player] = json.loads(done.stdout.splitlines()[-1])
            if options.errors:
                saved = {" ".join(key): value for key, value in rows.items()}
                options.errors.write_text(json.dumps(saved, indent=1))
    print("| file | player | pass | fail | skip |\n|---|---|---:|---:|---:|")
    for (file, player), outcomes in rows.items():
        print(f"| {file} | {player} |", " | ".join(map(str, _counts(outcomes.values()))), "|")


if __name__ == "__main__":
    main()
