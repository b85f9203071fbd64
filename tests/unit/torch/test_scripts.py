"""``python -m simcoll.torch``: scripts as torchrun runs them, with modules of their own on every
rank.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import simcoll
from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend, command, own_modules = (
    Deferred("simcoll.torch"),
    Deferred("simcoll.torch.__main__"),
    Deferred("simcoll.torch.own_modules"),
)

pytestmark = needs_torch


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write files and run the first of them: exit status, standard output, standard error."""

    def run(capsys, text, *words, options=("-n", "4"), **modules):
        monkeypatch.chdir(tmp_path)
        for name, content in {"train": text, **modules}.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(content))
        before = (
            dict(os.environ),
            sys.argv,
            sys.path[:],
            sys.stdin,
            set(sys.modules),
            threading.active_count(),
        )
        status = command.main([*options, "train.py", *words])
        # Nothing is left behind; what the run itself has imported, as every first run does, is not
        # the script's.
        assert (dict(os.environ), sys.argv, sys.path[:], sys.stdin) == before[:4]
        assert not {"train", *modules} & set(sys.modules)
        assert threading.active_count() == before[5]
        return status, *capsys.readouterr()

    return run


TRAIN = """
    import argparse, os, sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import parallel_state

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    steps = parser.parse_args().steps
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    parallel_state.initialize(2)
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2).to(device), device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for step in range(steps):
        x = torch.full((2, 4), float(dist.get_rank()), device="cuda").cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    end.record()
    torch.cuda.synchronize()
    assert end.elapsed_time(begin) < 0
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total, group=parallel_state.tensor_group())
    print(__name__, sys.argv, local, os.environ["GROUP_RANK"], os.environ["LOCAL_WORLD_SIZE"], total.item())
"""

PARALLEL_STATE = """
    import torch.distributed as dist

    _TENSOR_GROUP = None

    def initialize(size):
        global _TENSOR_GROUP
        assert _TENSOR_GROUP is None, "already initialized"
        for begin in range(0, dist.get_world_size(), size):
            group = dist.new_group(range(begin, begin + size))
            if begin <= dist.get_rank() < begin + size:
                _TENSOR_GROUP = group

    def tensor_group():
        return _TENSOR_GROUP
"""


@pytest.mark.slow
def test_a_script_for_gpus_runs_unchanged(script, capsys, tmp_path):
    options = ("-n", "10", "--topology", "dgx-h100", "--trace", str(tmp_path / "t.json.gz"))
    status, out, err = script(
        capsys, TRAIN, "--steps", "3", options=options, parallel_state=PARALLEL_STATE
    )
    assert status == 0, err
    lines = sorted(line for line in out.splitlines() if not line.startswith("#"))
    told, head, *rows = (line for line in out.splitlines() if line.startswith("#"))
    pairs = [2 * (rank - rank % 2) + 1 for rank in range(10)]
    assert lines == sorted(
        f"__main__ ['train.py', '--steps', '3'] {rank % 8} {rank // 8} {8 if rank < 8 else 2} "
        f"{pairs[rank]}"
        for rank in range(10)
    )
    assert told.startswith("# 10 ranks (dgx-h100): ")
    assert head.startswith("# ranks  total ")
    # A line for each pair's group.
    assert [row.split("  ")[0] for row in rows] == ["# 0-1", "# 2-3", "# 4-5", "# 6-7", "# 8-9"]
    assert "; 3 optimizer steps on rank 0, the first " in out
    with gzip.open(tmp_path / "t.json.gz") as file:
        assert json.load(file)["traceEvents"]


NESTED = """
    import torch

    class Both(torch.optim.Optimizer):
        def __init__(self, *parts):
            super().__init__([{"params": [p for part in parts for group in part.param_groups for p in group["params"]]}], {})
            self.parts = parts

        def step(self):
            for part in self.parts:
                part.step()

    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    both = Both(*(torch.optim.SGD([weight], lr=0.1) for weight in weights))
    for _ in range(3):
        both.step()
"""


TWO_OPTIMIZERS = """
    import torch
    import simcoll.torch

    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=0.1) for weight in weights]
    for _ in range(3):
        simcoll.torch.compute("2 ms")
        for optimizer in optimizers:
            simcoll.torch.compute("1 us")
            optimizer.step()
"""


def test_steps_of_two_optimizers_are_one_step_of_the_program(script, capsys):
    status, out, err = script(capsys, TWO_OPTIMIZERS, options=("-n", "1"))
    assert status == 0, err
    text = "; 3 steps of 2 optimizers on rank 0, the first 2 ms, the others 2 ms (median)"
    assert text in out


def test_a_single_step_of_an_optimizer_has_no_others(script, capsys):
    step = TWO_OPTIMIZERS.replace("range(3)", "range(1)")
    _, out, _ = script(capsys, step, options=("-n", "1"))
    assert "; 1 step of 2 optimizers on rank 0, 2 ms" in out
    assert "others" not in out


def test_steps_of_an_optimizer_of_optimizers_count_once(script, capsys):
    status, out, err = script(capsys, NESTED, options=("-n", "1"))
    assert status == 0, err
    assert "; 3 optimizer steps on rank 0, " in out


GPUS = """
    import os
    import torch
    import torch.distributed as dist

    assert torch.cuda.is_available() and torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator()
    local = int(os.environ["LOCAL_RANK"])
    mine = torch.device(device.type, local)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=mine)
    assert torch.cuda.current_device() == 0
    torch.accelerator.set_device_index(local)
    assert torch.cuda.current_device() == local and torch.cuda.device_count() == (8 if dist.get_rank() < 8 else 2)
    assert torch.cuda.get_device_properties(local).total_memory >= 8e10 and torch.cuda.is_bf16_supported()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x = torch.ones(4, pin_memory=True).to(local, non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    x.record_stream(side)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    dist.all_reduce(x)
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) > 0
    assert torch.device(local) == torch.device("cuda", local)
    generator = torch.Generator(device="cuda").manual_seed(7)
    assert isinstance(generator, torch.Generator)
    model = torch.nn.Linear(4, 1).to(local)
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled() and model(x).dtype is torch.float16
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(model(x).sum()).backward()
    torch.save(model.state_dict(), f"of{local}.pt")
    torch.load(f"of{local}.pt", map_location={"cuda:0": f"cuda:{local}"})
    print(x.tolist(), model.weight.grad.tolist()[0][0] == 10 * scaler.get_scale())
"""


HOOK = """
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl")
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False).cuda())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    (model(torch.ones(1, 1).cuda()) * (1 + dist.get_rank() / 256)).sum().backward()
    print(model.module.weight.grad.item())
"""


@pytest.mark.slow
def test_gradients_are_sent_in_bfloat16(script, capsys):
    status, out, err = script(capsys, HOOK, options=("-n", "2"))
    assert status == 0, err
    assert out.splitlines()[:-1] == ["1.0", "1.0"]  # (1 + 257 / 256) / 2, each rounded to 8 bits


FOUND_AND_FAILED = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    dist.broadcast(torch.ones(2, 2, device="cuda")[:, 0], 0)
    {end}
"""


@pytest.mark.parametrize(
    "end", ["torch.ones(2) @ torch.ones(3)", "dist.get_rank() or dist.barrier()", "exit(3)"]
)
def test_findings_follow_the_report_of_an_error(script, capsys, end):
    status, out, err = script(capsys, FOUND_AND_FAILED.format(end=end), options=("-n", "2"))
    assert (status, out) == (1, "")
    *report, last = err.splitlines()
    assert last.startswith("simcoll.torch: nccl: broadcast at ")
    assert "train.py:7: Tensors must be contiguous, and one is not" in last
    assert "with status" in report[-1]
    assert not any("nccl: broadcast" in line for line in report)


@pytest.mark.slow
def test_a_script_finds_the_gpus_of_its_node(script, capsys):
    status, out, err = script(capsys, GPUS, options=("-n", "10", "--topology", "dgx-h100"))
    assert status == 0, err
    assert out.splitlines()[:-1] == ["[10.0, 10.0, 10.0, 10.0] True"] * 10
    status, _, err = script(capsys, GPUS, options=("-n", "2", "--device", "cpu"))
    assert (status, "AssertionError" in err) == (1, True)


@pytest.mark.slow
def test_options_of_the_command_reach_the_run(script, capsys):
    text = BAD + "    dist.all_reduce(torch.ones(1 << 18))\n    print(rank)\n"
    status, out, err = script(
        capsys, text, options=("-n", "8", "--topology", "dgx-h100", "--library", "nccl")
    )
    assert status == 0, err
    ideal = script(capsys, text, options=("-n", "8", "--topology", "dgx-h100", "--alike", "all"))[1]
    assert [line for line in ideal.splitlines() if not line.startswith("#")] == ["0"]
    assert ideal.splitlines()[-1] != out.splitlines()[-1]


@pytest.mark.slow
def test_a_rank_stops_as_an_event_says(script, capsys):
    text = (
        BAD + "    try: dist.all_reduce(torch.ones(1 << 20))\n"
        "    except Exception as error: print(type(error).__name__)\n"
    )
    for name, error in (("gloo", "RuntimeError"), ("nccl", "DistBackendError")):
        given = ("-n", "4", "--fault", "t=1us rank 2 stops", "--policy", "abort")
        status, out, err = script(capsys, text.replace("gloo", name), options=given)
        assert (status, out.splitlines()[:-1]) == (0, [error] * 3)
        assert "rank 2 stopped at 1 us, as an event says" in err
    assert script(capsys, text, options=("-n", "4", "--fault", "t=1us rank 2 stps"))[0] == 2


OWN_STATE = """
    import atexit, logging, os, random, sys
    import numpy as np
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def work(rank, said):
        logging.basicConfig(stream=sys.stdout, format=f"{rank} %(message)s", level=logging.INFO, force=True)
        atexit.register(print, said, rank)
        os.makedirs(f"of{rank}", exist_ok=True)
        os.chdir(f"of{rank}")
        os.environ["MINE"] = str(rank)
        random.seed(rank), np.random.seed(rank), torch.manual_seed(rank)
        torch.set_default_dtype([torch.float32, torch.float64][rank])
        found = []
        for step in range(3):
            dist.barrier()
            found.append((random.random(), np.random.rand(), torch.rand(1).item()))
        random.seed(rank), np.random.seed(rank), torch.manual_seed(rank)
        assert found == [(random.random(), np.random.rand(), torch.rand(1).item()) for step in range(3)]
        assert os.environ["MINE"] == str(rank) and os.path.basename(os.getcwd()) == f"of{rank}"
        logging.getLogger("mine").info(str(torch.zeros(1).dtype))

    dist.init_process_group()
    mp.spawn(work, args=("bye",), nprocs=2)
"""


def test_ranks_have_the_state_of_a_process(script, capsys, tmp_path):
    status, out, err = script(capsys, OWN_STATE, options=("-n", "2"))
    assert status == 0, err
    assert out.splitlines()[:-1] == ["0 torch.float32", "bye 0", "1 torch.float64", "bye 1"]
    assert (Path.cwd(), torch.get_default_dtype()) == (tmp_path, torch.float32)


STARTED = """
    import multiprocessing
    import torch.distributed as dist

    def work(pipe):
        try:
            dist.init_process_group("gloo")
        except ValueError as error:
            pipe.send(str(error))

    if __name__ == "__main__":
        dist.init_process_group("gloo")
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=work, args=(theirs,))
        process.start()
        theirs.close()  # so that a process without an answer ends the wait
        print(ours.recv())
        process.join()
        dist.barrier()
"""


@pytest.mark.slow
def test_a_process_that_is_started_anew_has_no_group_and_says_so(script, capsys, tmp_path):
    """It would wait for others until PyTorch's timeout. It finds the script by its file, as Python
    names that: absolutely.
    """
    status, out, err = script(capsys, "print(__file__)", options=("-n", "1"))
    assert (status, out.splitlines()[0]) == (0, str(tmp_path / "train.py")), err
    status, out, err = script(capsys, STARTED, options=("-n", "2"))
    assert status == 0, err
    for rank, line in enumerate(sorted(out.splitlines()[:2])):
        assert (
            f"a process that rank {rank} of a simulated run has started has no simulated clock"
            in line
        )


BAD = """
    import os, sys, threading
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        (
            "if rank == 2: raise KeyError('lost')",
            1,
            ["[rank2]: KeyError: 'lost'", '[rank2]:   File "train.py", line 8'],
        ),
        (
            "if rank == 2: sys.exit(7)",
            1,
            ["[rank2]: SystemExit: 7", "program of rank 2 at 0 s, with status 7"],
        ),
        (
            "if rank == 2: sys.exit('no data')",
            1,
            ["[rank2]: SystemExit: no data", "with status 1"],
        ),
        (
            "if rank == 2: os._exit(3)",
            1,
            ['[rank2]:   File "train.py", line 8', "SystemExit: 3", "with status 3"],
        ),
        ("if rank: os._exit(0)", 0, []),
        (
            "if rank == 2: os.abort()",
            1,
            ['[rank2]:   File "train.py", line 8', "SystemExit: 134", "with status 134"],
        ),
        (
            "if rank == 2: os.kill(os.getpid(), 15)",
            1,
            ['[rank2]:   File "train.py", line 8', "SystemExit: 143", "with status 143"],
        ),
        (
            "import signal; signal.signal(10, lambda *_: 1 / 0); rank or signal.raise_signal(10)",
            1,
            ["[rank0]: ZeroDivisionError", "with status 1"],
        ),
        ("import signal; signal.signal(15, signal.SIG_IGN); os.kill(os.getpid(), 15)", 0, []),
        (
            "if rank == 2: raise GeneratorExit('early')",
            1,
            ["[rank2]: GeneratorExit: early", "with status 1"],
        ),
        ("sys.exit(0)", 0, []),
        ("sys.exit(256)", 0, []),
        ("if rank: os._exit(256)", 0, []),
        ("if rank == 2: sys.exit(0.0)", 1, ["[rank2]: SystemExit: 0.0", "with status 1"]),
        (
            "if rank == 2: dist.barrier()",
            1,
            ["no event is left, and 1 rank waits", "train.py:8) waits for rank 0, 1, 3"],
        ),
        (
            "dist.all_reduce(torch.zeros(2 + rank // 3))",
            1,
            ["differ in number of elements", "rank 3: all_reduce [3]"],
        ),
        ("torch.cuda.CUDAGraph()", 1, ["torch.cuda.CUDAGraph has no meaning in a simulated run"]),
        (
            "torch.cuda.graph_pool_handle()",
            1,
            ["torch.cuda.graph_pool_handle has no meaning in a simulated run"],
        ),
        (
            "torch.zeros(1).to(5)",
            1,
            ["asks for device 5, and its node has 4, 0 .. 3; a rank's own is LOCAL_RANK"],
        ),
        ("torch.compile(torch.nn.Linear(1, 1))(torch.ones(1))", 0, ["torch.compile has no effect"]),
        (
            "torch.multiprocessing.spawn(print, nprocs=3)",
            1,
            ["nprocs=3, and the run has 4 ranks", "start it with -n 3"],
        ),
        (
            "torch.cuda._compile_kernel('', 'f')",
            1,
            ["_compile_kernel has no meaning in a simulated run"],
        ),
        ("input('name? ')", 1, ["reads standard input, which the ranks of a run share"]),
        (
            "open('out.txt', 'w').close()",
            0,
            ["out.txt was written by all ranks, each overwriting the previous"],
        ),
        (
            "if rank < 2: torch.save(1, 'out.pt')",
            0,
            ["out.pt was written by ranks 0, 1, each overwriting the previous"],
        ),
        (
            "t = threading.Thread(target=lambda: 1 / (rank - 2)); t.start(); t.join()",
            0,
            ["[rank2] thread 'Thread-", "ZeroDivisionError: division by zero"],
        ),
        (
            "rank or __import__('atexit').register(lambda: 1 / rank)",
            0,
            ["[rank0] atexit: ZeroDivisionError: division by zero"],
        ),
        (
            "sys.excepthook = lambda *error: os._exit(5); rank or 1 / rank",
            1,
            ["[rank0]: SystemExit: 5"],
        ),
        ("def f(: pass", 2, ["SyntaxError"]),
    ],
)
def test_scripts_end_with_one_report_and_their_status(script, capsys, line, status, said):
    found, _, err = script(capsys, BAD + f"    {line}\n")
    assert found == status, err
    assert all(text in err for text in said)
    assert bool(err) == bool(said)
    assert err.count("Traceback") <= 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_forks_of_a_script(script, capfd, backend):
    forked = (
        "    if os.fork() == 0: dist.barrier()\n    else: print(os.wait()[1] >> 8)\n"
        "    dist.barrier()\n"
    )
    text = BAD.replace("gloo", backend) + forked
    status, out, err = script(capfd, text, options=("-n", "2"))
    assert (status, out.splitlines()[:2]) == (0, ["1", "1"])
    assert err.count("forked from rank") == 2
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "2", "absent.py"], "absent.py: there is no such file"),
        (["-n", "2", "-m", "absent_module"], "cannot be read: No module named absent_module"),
        (["x.py"], "how many ranks? Give -n, or a --topology to fill"),
        (["-n", "2", "--nodes", "2", "x.py"], "--nodes is for a --topology"),
        (["-n", "99", "-t", "dgx-h100", "--nodes", "2", "x.py"], "has 16 ranks; 99 were asked for"),
    ],
)
def test_what_cannot_be_run(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text("")
    assert command.main(words) == 2
    assert said in capsys.readouterr().err


def test_the_command_runs_modules(capsys):
    assert command.main(["-n", "2", "-m", "this"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("# 2 ranks (crossbar): 0 operations, 0 s\n")
    assert out.count("Beautiful is better than ugly.") == 2


@pytest.mark.slow
def test_each_rank_imports_the_package_of_its_module(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("job").mkdir()
    Path("job/__init__.py").write_text("ranks = []\n")
    Path("job/state.py").write_text("from job import ranks\n")
    Path("job/train.py").write_text(
        "import os, job\nfrom .state import ranks\nranks.append(os.environ['RANK'])\n"
        "print(__name__, __package__, __spec__.name, job.ranks)\n"
    )
    Path("job/__main__.py").write_text("from . import train\n")
    for module, name in (("job.train", "__main__"), ("job", "job.train")):
        assert command.main(["-n", "2", "-m", module]) == 0
        told = capsys.readouterr().out.splitlines()
        assert sorted(told[:2]) == [f"{name} job job.train ['{rank}']" for rank in range(2)]
    assert command.main(["-n", "2", "-m", "job.absent"]) == 2
    assert "cannot be read: No module named job.absent" in capsys.readouterr().err


# Modules


PIPELINE = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    with FakeTensorMode():
        stage = PipelineStage(nn.Linear(64, 64), rank, n, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 2 * n, loss_fn=lambda y, target: (y - target).square().sum())
        given = (torch.ones(16, 64),) if rank == 0 else ()
        schedule.step(*given, **({"target": torch.zeros(16, 64)} if rank == n - 1 else {}))
    print("rank", rank, "has stepped")
"""


@pytest.mark.slow
def test_a_script_that_imports_pipelines_steps_them_on_fake_tensors(tmp_path):
    """In a process of its own, in which nothing has imported them."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PIPELINE))
    done = subprocess.run(
        [sys.executable, "-m", "simcoll.torch", "-n", "4", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("has stepped") == 4


@pytest.mark.slow
def test_ranks_have_their_own_modules(tmp_path, monkeypatch):
    (tmp_path / "counting").mkdir()
    (tmp_path / "counting" / "__init__.py").write_text(
        "from counting import inner\nimport torch.distributed as dist\ndist.barrier()\n"
    )
    (tmp_path / "counting" / "inner.py").write_text("class Counter:\n    seen = []\n")
    monkeypatch.syspath_prepend(tmp_path)

    def body(rank, world_size):
        dist.init_process_group()
        import counting.inner

        counting.inner.Counter.seen.append(rank)
        dist.barrier()
        import counting.inner as again

        everyone = [None] * world_size
        # Pickled by the name of its class.
        dist.all_gather_object(everyone, counting.inner.Counter())
        assert all(type(each) is again.Counter for each in everyone)
        return again.Counter.seen

    assert backend.spawn(body, 3, own_modules=["counting"]).returns == ([0], [1], [2])
    assert "counting" not in sys.modules
    assert backend.spawn(body, 3, own_modules=True).returns == ([0], [1], [2])


def test_modules_that_were_loaded_before_are_put_back(tmp_path, monkeypatch):
    (tmp_path / "loaded.py").write_text("seen = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    import loaded

    def body(rank, world_size):
        import loaded as here

        here.seen.append(rank)
        return here.seen

    assert backend.spawn(body, 2, own_modules=["loaded"]).returns == ([0], [1])
    assert sys.modules.pop("loaded") is loaded
    assert loaded.seen == []


def test_what_ranks_share(tmp_path, monkeypatch):
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    for name in ("compiled", "registering", "plain"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("seen = []\n")
    for number in range(2):
        (tmp_path / "compiled" / f"fast{number}{suffix}").write_bytes(b"")
    (tmp_path / "first.py").write_text("")
    looks = (
        "import contextlib, first\nwith contextlib.suppress(ImportError):\n"
        "    import not_there\nseen = []\n"
    )
    (tmp_path / "compiled" / "__init__.py").write_text(looks)
    (tmp_path / "registering" / "ops.py").write_text("torch.ops.load_library('a')\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = own_modules.OwnModules()
    source = "import compiled, registering, plain, json, torch.fx\n"

    def body(rank, world_size):
        found = {"__name__": "__main__"}
        exec(source, found)
        dist.init_process_group()
        dist.barrier()
        return [id(found[name]) for name in ("compiled", "registering", "json", "torch", "plain")]

    one, other = backend.spawn(body, 2, own_modules=own).returns
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * 4 + [False]
    assert own.shared == {"compiled": "C extensions", "registering": "registers with a C extension"}
    assert own.following == {"first": "compiled"}  # what is not there is not shared
    for name in ("compiled", "registering", "first"):
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs accelerate")
def test_accelerate_trains_as_on_processes(tmp_path):
    """The loss of every rank is that of the same steps without distribution."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import torch
            from accelerate import Accelerator

            accelerator = Accelerator(cpu=True)
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4) / 64)
            model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=2))
            for (x,) in loader:
                accelerator.backward(model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            print(accelerator.process_index, [p.double().sum().item() for p in model.parameters()])
        """)
    )
    environment = os.environ | {"PYTHONPATH": str(Path(simcoll.__file__).parents[1])}
    words = [sys.executable, "-W", "ignore", "-m", "simcoll.torch", "-n", "4", "train.py"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in (torch.arange(64.0).reshape(16, 4) / 64).split(8):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    sums = [parameter.double().sum().item() for parameter in model.parameters()]
    for rank, line in enumerate(sorted(done.stdout.splitlines())[1:]):
        number, _, listed = line.partition(" ")
        assert int(number) == rank
        assert json.loads(listed) == pytest.approx(sums, rel=1e-6)


@pytest.mark.slow
def test_compiled_code_that_ends_the_process_says_where(tmp_path):
    (tmp_path / "train.py").write_text(
        "import ctypes, os\nif os.environ['RANK'] == '1':\n    ctypes.CDLL(None).abort()\n"
    )
    words = [sys.executable, "-m", "simcoll.torch", "-n", "2", "train.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(simcoll.__file__).parents[1])}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == -6
    assert "Fatal Python error: Aborted" in done.stderr
    assert 'train.py", line 3 in <module>' in done.stderr


def test_a_package_with_one_extension_is_each_ranks_own(script, capsys, tmp_path):
    compiled = pytest.importorskip("markupsafe._speedups")  # it can be loaded under two names

    folder = tmp_path / "parallel"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "state.py").write_text(
        "GROUP = None\ndef init(value):\n    global GROUP\n    assert GROUP is None, 'twice'\n"
        "    GROUP = value\n"
    )
    (folder / Path(compiled.__file__).name).write_bytes(Path(compiled.__file__).read_bytes())
    text = """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        from parallel import state
        import parallel._speedups
        state.init(dist.get_rank())
        dist.barrier()
        print(state.GROUP, hasattr(parallel._speedups, "_escape_inner"))
    """
    status, out, err = script(capsys, text, options=("-n", "2"))
    assert status == 0, err
    lines = sorted(out.splitlines())
    assert lines[-2:] == ["0 True", "1 True"]
    assert "modules that all ranks share" not in err


def test_future_statements_are_the_scripts_own(script, capsys):
    text = """
        import dataclasses

        @dataclasses.dataclass
        class Config:
            steps: int = 1

        print([field.type("3") for field in dataclasses.fields(Config)])
    """
    status, out, err = script(capsys, text, options=("-n", "1"))
    assert status == 0, err
    assert out.startswith("[3]")
