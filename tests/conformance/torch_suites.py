"""PyTorch's own distributed tests, played on the backend ``simcoll``, beside gloo on this machine.

``python -m tests.conformance.torch_suites --ranks 4`` runs
``torch.testing._internal.distributed.distributed_test``, which ships with PyTorch, four times: on
gloo between processes; on simcoll under gloo's name, so that nothing is skipped because of the
name; on simcoll under its own; and so with GPUs, as scripts find them. Every test has a process of
its own, so that a crash or a hang is one test's. It prints a line for every difference, and a
table. Profiling is on, as the tests have it. PyTorch skips tests by the name of the backend or for
want of a GPU; ``--skipped`` plays only those that a name alone keeps out. The last line counts
tests that PyTorch marks for gloo's name also under simcoll's, but for those whose code knows some
names only. Nothing else that ships has tests of process groups: the multi-threaded suites are base
classes without tests, and those of RPC need agents that no process group has.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest
from collections import Counter
from pathlib import Path

LIMIT_S = 300
"""A test that takes longer hangs."""
RUNS = (
    ("gloo", "gloo"),
    ("simcoll", "gloo"),
    ("simcoll", "simcoll"),
    ("simcoll with GPUs", "simcoll"),
)
"""Who plays the tests, and under which name."""
KNOWN = {
    "test_ddp_apply_optim_in_backward": "at 3 ranks a third before and after the sum differs by "
    "1.6e-6; 1.3e-6 is allowed",
    "test_ddp_buffer_hook_allreduce_return_future": "the model changes a buffer that is being "
    "reduced, as a comment of the test says, and the run finds it",
}
"""Why tests fail that fail, by the beginnings of their names."""
SMALLER = {"test_ddp_uneven_inputs": (1000, 40)}
"""Numbers that tests are played with, for PyTorch's: convolutions of 1000 x 1000 images on 4 ranks
are 10^15 operations, hours on a CPU.
"""
FOR_NAMES = "test_accumulate_gradients_no_sync"
"""The beginning of the tests whose code, and not only a mark, is for some names."""
KNOWN_SKIPPED = {
    FOR_NAMES: "makes its model only for the names nccl and gloo",
    "test_SyncBatchNorm_process_group": "needs torchvision",
    "test_all_to_all_cuda": "needs a GPU",
    "test_all_to_all_full_group_cuda": "needs a GPU",
    "test_all_to_all": "gloo takes no unequal parts",
    "test_batch_isend_irecv_mixed_backend_err": "asks for NCCL",
    "test_batch_isend_irecv_op_err": "needs a GPU",
    "test_new_subgroups_with_group_param": "needs four ranks",
}
"""The same of tests that PyTorch skips."""


def _suite():
    """The module of the suite, its test class, and the exit statuses that mean "skipped"."""
    from torch.testing._internal.common_distributed import TEST_SKIPS, DistTestCases

    for feature in ("ddp", "subgroup"):  # where PyTorch lists the backends that have it
        DistTestCases.backend_feature[feature].add(os.environ["BACKEND"])
    from torch.testing._internal.distributed import distributed_test

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        """The suite as PyTorch's test_distributed_spawn has it."""

    return distributed_test, Suite, {skip.exit_code for skip in TEST_SKIPS.values()}


def _names(module, suite):
    """The tests of the suite and, with their classes, those of its module that need no ranks."""
    names = unittest.TestLoader().getTestCaseNames
    own = [
        each
        for each in vars(module).values()
        if getattr(each, "__module__", None) == module.__name__
    ]
    alone = [
        each for each in own if isinstance(each, type) and each.__bases__ == (unittest.TestCase,)
    ]
    return [*names(suite), *(f"{each.__name__}.{name}" for each in alone for name in names(each))]


class _ProcessOfRank:
    """``os`` for the tests, which tell ranks apart by their process ids."""

    def __getattr__(self, name):
        return getattr(os, name)

    def getpid(self):
        """An id for each rank."""
        return f"{os.getpid()}.{os.environ['RANK']}"


def _outcome(body, skips):
    """``pass``, ``skip``, or the error."""
    try:
        body()
    except unittest.SkipTest:
        return "skip"
    except SystemExit as end:
        return "skip" if end.code in skips else "pass" if not end.code else f"sys.exit({end.code})"
    except BaseException as error:  # noqa: BLE001  # whatever a test raises is its result
        where = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "distributed_test" in frame.filename
        ]
        line = f" (line {where[-1].lineno})" if where else ""
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{line}"
    return "pass"


def _made_smaller(suite, name):
    """Replace the number of a test that would take hours."""
    if name in SMALLER:
        (theirs, ours), test = SMALLER[name], inspect.unwrap(getattr(suite, name))
        constants = test.__code__.co_consts
        assert constants.count(theirs) == 1
        changed = tuple(ours if each == theirs else each for each in constants)
        test.__code__ = test.__code__.replace(co_consts=changed)


def _prepared(suite, name, rank, path):
    test = suite(name)
    test.rank, test.file_name = rank, path
    return test


def _steps(module, test, name, backend, destroy):
    """What PyTorch's harness does on a rank."""
    import torch.distributed as dist
    from torch.testing._internal import common_utils

    timeout = module.timedelta(
        seconds=module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)
    )
    size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, test.init_method, timeout, size, test.rank)
    test._barrier()
    common_utils.set_rng_seed()
    getattr(test, name)()
    test._barrier()
    if destroy:
        dist.destroy_process_group()


def _on_simcoll(name, backend, path, *, gpus=False):
    """The outcomes of a test's ranks, in one simulated run; with ``gpus`` they find one each."""
    import simcoll.torch

    module, suite, skips = _suite()
    module.os = _ProcessOfRank()
    barrier = threading.Barrier(int(os.environ["WORLD_SIZE"]))
    # The standard one waits in real time.
    module.Barrier.sync = classmethod(lambda *_, **__: barrier.wait())
    _made_smaller(suite, name)
    outcomes = {}

    def program(rank, _):
        test = _prepared(suite, name, rank, path)
        outcomes[rank] = _outcome(lambda: _steps(module, test, name, backend, destroy=True), skips)
        if outcomes[rank] not in ("pass", "skip"):
            raise RuntimeError(outcomes[rank])

    size = int(os.environ["WORLD_SIZE"])
    failure = _outcome(lambda: simcoll.torch.spawn(program, size, cuda_is_cpu=gpus), skips)
    return list(outcomes.values()) or [failure]


def _on_gloo(name, backend, path):
    """The outcomes of a test's ranks, each in a process."""
    module, suite, skips = _suite()
    module.Barrier.init()
    children = []
    for rank in range(int(os.environ["WORLD_SIZE"])):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            test = _prepared(suite, name, rank, path)
            said = _outcome(
                lambda test=test: _steps(module, test, name, backend, destroy=False), skips
            )
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        children.append((pid, read))
    found = []
    for pid, read in children:
        said = os.read(read, 1 << 16).decode()
        _, status = os.waitpid(pid, 0)
        found.append(said or f"crash: signal {status & 127}")
    return found


def _alone(name, _backend, _path):
    """The outcome of a test that needs no ranks."""
    module, _, skips = _suite()
    kind, _, method = name.partition(".")
    return [_outcome(getattr(module, kind)(method).debug, skips)]


def _summary(outcomes):
    failed = [text for text in outcomes if text not in ("pass", "skip")]
    return failed[0] if failed else "skip" if "skip" in outcomes else "pass"


def _one(player, name, backend):
    """The outcome of a test, in a process of its own."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        folder = tempfile.mkdtemp()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        on_simcoll = functools.partial(_on_simcoll, gpus=player.endswith("GPUs"))
        play = _alone if "." in name else _on_gloo if player == "gloo" else on_simcoll
        os.write(write, _summary(play(name, backend, f"{folder}/store")).encode())
        os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], LIMIT_S)
    said = os.read(read, 1 << 16).decode() if ready else "hang"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # ours: the test and its ranks
    _, status = os.waitpid(pid, 0)
    os.close(read)
    return said or f"crash: signal {status & 127}"


def play(player, backend, only=None, *, skipped=False):
    """The outcome of every test, by name, in this process, whose environment is set; with
    ``skipped`` of those that PyTorch skips.
    """
    module, suite, _ = _suite()
    module.initialize_temp_directories()
    if player != "gloo":
        import simcoll.torch  # noqa: F401  # once, before the tests fork
    found = {}
    for name in only or _names(module, suite):
        marked = getattr(getattr(suite, name, None), "__unittest_skip__", False)
        if skipped and not marked:
            continue
        found[name] = "skip" if marked and not skipped else _one(player, name, backend)
        sys.stderr.write(f"{player} as {backend}: {name}: {found[name]}\n")
    return found


def run(player, backend, ranks, only=(), *, skipped=False):
    """The outcome of every test, by name, in another process."""
    environment = os.environ | {
        "BACKEND": backend,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environment["MASTER_PORT"] = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"TEMP_DIR": folder, "TMPDIR": folder}
        words = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.conformance.torch_suites",
            "--play",
            player,
            *(["--skipped"] if skipped else []),
            *only,
        ]
        root = Path(__file__).parents[2]
        done = subprocess.run(words, env=environment, cwd=root, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def unmarked(under_gloo, under_own, ranks):
    """The outcomes under the own name, where what PyTorch plays under gloo's and marks as none of
    simcoll's is played, too.
    """
    left = [
        test for test, said in under_gloo.items() if said != "skip" and under_own[test] == "skip"
    ]
    left = [test for test in left if not test.startswith(FOR_NAMES)]
    return under_own | (run("simcoll", "simcoll", ranks, left, skipped=True) if left else {})


def counts(outcomes):
    """``pass / fail / skip`` and how many of the failures were crashes or hangs."""
    kinds = Counter("fail" if said not in ("pass", "skip") else said for said in outcomes.values())
    ended = sum(said.startswith(("crash", "hang")) for said in outcomes.values())
    return kinds["pass"], kinds["fail"], kinds["skip"], ended


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--play",
        choices=[player for player, _ in RUNS],
        help="play the tests here; the environment has the rest",
    )
    parser.add_argument("--no-gloo", action="store_true", help="only simcoll")
    parser.add_argument(
        "--skipped", action="store_true", help="only what PyTorch skips by the name of the backend"
    )
    parser.add_argument("only", nargs="*", help="names of tests; by default all")
    options = parser.parse_args()
    if importlib.util.find_spec("expecttest") is None:
        parser.error("PyTorch's tests need the package expecttest: pip install expecttest")
    if options.play:
        found = play(options.play, os.environ["BACKEND"], options.only, skipped=options.skipped)
        sys.stdout.write(json.dumps(found) + "\n")
        return
    rows = {}
    for player, name in RUNS[1 if options.no_gloo else 0 :]:
        begin = time.monotonic()
        rows[player, name] = run(player, name, options.ranks, options.only, skipped=options.skipped)
        sys.stderr.write(
            f"{player} as {name}: {counts(rows[player, name])}, {time.monotonic() - begin:.0f} s\n"
        )
    if not options.skipped:
        with_marks = rows["simcoll", "gloo"], rows["simcoll", "simcoll"]
        rows["simcoll", "simcoll, without marks by name"] = unmarked(*with_marks, options.ranks)
    for (player, name), outcomes in rows.items():
        for test, said in outcomes.items():
            if said not in ("pass", "skip"):
                reasons = KNOWN_SKIPPED if options.skipped else KNOWN
                reason = next(
                    (why for begin, why in reasons.items() if test.startswith(begin)), said
                )
                print(f"{player} as {name}: {test}: {reason}")
    print(
        f"| {options.ranks} ranks | pass | fail | skip | crashed or hung |\n"
        "|---|---:|---:|---:|---:|"
    )
    for (player, name), outcomes in rows.items():
        print(f"| {player}, called {name} |", " | ".join(map(str, counts(outcomes))), "|")


if __name__ == "__main__":
    main()
