"""Training programs, unchanged, on gloo between processes and on simcoll: losses, and sums of
parameters on every rank.

``python -m tests.conformance.torch_programs --ranks 2 4`` plays every script of ``programs/`` on
both, and prints a table of the largest relative differences. Other scripts can be named instead; on
each rank they print its number, then numbers. They find GPUs on simcoll. With
``--algorithm tests.conformance.gloo_order:all_reduce`` all_reduces add in gloo's order: all of
them, or only those of the scripts named by ``--ordered``.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    Path(__file__).parent / "programs" / f"{name}.py"
    for name in ("gpt", "diffusion", "four_axes", "zero1", "worker_group")
]


def _forked(body, output):
    """Start a process that runs ``body`` and writes to a file; its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, 1)
        status = body() or 0
        sys.stdout.flush()
    except Exception:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)


def _ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _gloo(script, arguments, ranks, folder):
    """Run a script as torchrun does, one process a rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def rank_of(rank):
        sys.argv, sys.path[0] = [str(script), *arguments], str(script.parent)
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
        }
        os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        runpy.run_path(str(script), run_name="__main__")

    pids = [_forked(lambda rank=rank: rank_of(rank), folder / f"{rank}") for rank in range(ranks)]
    failed = [rank for rank, pid in enumerate(pids) if _ended(pid)]
    if failed:
        raise RuntimeError(f"{script.name} failed on gloo, on ranks {failed}")
    return "".join((folder / f"{rank}").read_text() for rank in range(ranks))


def _simcoll(script, arguments, ranks, folder, options=()):
    """Run it by ``python -m simcoll.torch``."""
    import simcoll.torch.__main__ as command

    output = folder / "output"
    if _ended(
        _forked(lambda: command.main(["-n", str(ranks), *options, str(script), *arguments]), output)
    ):
        raise RuntimeError(f"{script.name} failed on simcoll, on {ranks} ranks")
    return output.read_text()


def _numbers(text, ranks):
    """The numbers that each rank has printed."""
    lines = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    found = {int(words[0]): list(map(float, words[1:])) for words in lines}
    assert sorted(found) == list(range(ranks)), text
    return [found[rank] for rank in range(ranks)]


def play(player, scripts, ranks, algorithm=None, ordered=()):
    """For every script, the numbers of every rank, in this process."""
    # Once, before ranks are forked.
    for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim"):
        importlib.import_module(name)
    found = []
    for script in scripts:
        with tempfile.TemporaryDirectory() as made:
            (work := Path(made) / "work").mkdir()
            options = (
                ["--algorithm", algorithm] if algorithm and script in (ordered or scripts) else []
            )
            run = _gloo if player == "gloo" else functools.partial(_simcoll, options=options)
            found.append(_numbers(run(script, [str(work)], ranks, Path(made)), ranks))
    return found


def run(players, scripts, ranks, algorithm=None, ordered=()):
    """The same for every player, in a process of its own, which imports PyTorch once for all of
    them.
    """
    words = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.conformance.torch_programs",
        "--play",
        *players,
    ]
    words += [] if algorithm is None else ["--algorithm", algorithm]
    words += ["--ordered", *map(str, ordered)] if ordered else []
    words += ["--ranks", str(ranks), "--", *map(str, scripts)]
    # As the command of simcoll sets it before PyTorch imports Triton.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(words, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def difference(ours, theirs):
    """The largest relative difference; of numbers below 1 the absolute one."""
    worst = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            worst = max(worst, abs(a - b) / max(1.0, abs(b)))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument(
        "--play",
        nargs="+",
        choices=["gloo", "simcoll"],
        help="only play, here, and print the numbers",
    )
    parser.add_argument("--algorithm", help="what collectives run on simcoll, where it serves")
    parser.add_argument(
        "--ordered", type=Path, nargs="+", default=[], help="the scripts that use it; default all"
    )
    parser.add_argument("scripts", nargs="*", type=Path, help="instead of those of the project")
    options = parser.parse_args()
    scripts, ordered = (
        [each.resolve() for each in some] for some in (options.scripts or PROGRAMS, options.ordered)
    )
    if options.play:
        found = [
            play(one, scripts, options.ranks[0], options.algorithm, ordered) for one in options.play
        ]
        sys.stdout.write(json.dumps(found) + "\n")
        return
    print("| ranks |", " | ".join(each.stem for each in scripts), "|")
    print("|---:|" + "---:|" * len(scripts))
    for ranks in options.ranks:
        ours, theirs = run(("simcoll", "gloo"), scripts, ranks, options.algorithm)
        shown = [f"{difference(*pair):.1e}" for pair in zip(ours, theirs, strict=True)]
        print(f"| {ranks} |", " | ".join(shown), "|", flush=True)


if __name__ == "__main__":
    main()
