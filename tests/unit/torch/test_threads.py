"""Threads and processes that a rank's program starts: they belong to the rank, or are refused in
words.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.pool
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, nn, dist = Deferred("torch"), Deferred("torch.nn"), Deferred("torch.distributed")
checkpoint = Deferred("torch.distributed.checkpoint")
data = Deferred("torch.utils.data")
fsdp = Deferred("torch.distributed.fsdp")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def on_ranks(body, nprocs=3, **options):
    def program(rank, world_size):
        dist.init_process_group("simcoll")
        return body(rank, world_size)

    return backend.spawn(program, nprocs, **options)


@pytest.mark.slow
def test_an_asynchronous_checkpoint_has_every_shard(tmp_path):
    def body(rank, world_size):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
        want = [parameter.detach().clone() for parameter in model.parameters()]
        fsdp.fully_shard(model)
        checkpoint.async_save(
            {"model": model.state_dict()}, checkpoint_id=tmp_path / "saved"
        ).result()
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        loaded = {"model": model.state_dict()}
        checkpoint.load(loaded, checkpoint_id=tmp_path / "saved")
        return [
            torch.equal(got.full_tensor(), all_)
            for got, all_ in zip(loaded["model"].values(), want, strict=True)
        ]

    assert on_ranks(body, 4).returns == ([True] * 4,) * 4
    assert len(list((tmp_path / "saved").glob("__*.distcp"))) == 4


def test_a_loader_thread_calls_collectives_in_simulated_time():
    others = threading.active_count()  # such as those that a hung library of an earlier test left

    def body(rank, world_size):
        batches, lock = queue.Queue(), threading.Lock()

        def load():
            for step in range(3):
                batch = torch.full((2,), float(rank + step))
                with lock:  # the others wait for it in simulated time
                    dist.all_reduce(batch)
                time.sleep(1e-3)
                batches.put(batch)
            batches.put(None)

        loader = threading.Thread(target=load)
        loader.start()
        found = []
        while (batch := batches.get()) is not None:
            with lock:
                found.append(batch[0].item())
        loader.join()
        return found, backend.emulated_time()

    begin = time.process_time()
    for found, seconds in on_ranks(body).returns:
        assert found == [3.0, 6.0, 9.0]
        assert 3e-3 < seconds < 3.1e-3
    assert time.process_time() - begin < 60
    assert threading.active_count() <= others


def test_executors_events_and_groups_of_threads():
    def body(rank, world_size):
        made, told = threading.Event(), []

        def make():
            told.append(dist.new_group([0, 2]))
            made.set()

        with ThreadPoolExecutor(2) as pool:
            where = list(pool.map(lambda _: (dist.get_rank(), dist.get_world_size()), range(4)))
            pool.submit(make)
            assert made.wait(5)
        value = torch.tensor([rank])
        if rank != 1:
            torch.ops._c10d_functional.wait_tensor(
                torch.ops._c10d_functional.all_reduce_(value, "sum", told[0].group_name)
            )
        # As Python does at exit, the rank waits for it.
        late = ThreadPoolExecutor(1).submit(dist.barrier)
        assert not threading.Event().wait(0.5)
        return where, value.item(), late.done(), backend.emulated_time()

    for rank, (where, value, late, seconds) in enumerate(on_ranks(body).returns):
        assert where == [(rank, 3)] * 4
        assert value == (2, 1, 2)[rank]
        assert late
        assert 0.5 <= seconds < 0.501


def test_daemons_end_with_their_rank():
    others = threading.active_count()  # such as those that a hung library of an earlier test left

    def body(rank, world_size):
        def watch():
            while True:
                time.sleep(10)

        threading.Thread(target=watch, daemon=True).start()
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        dist.barrier()

    assert on_ranks(body).time < 1
    assert threading.active_count() <= others


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_hang_of_a_thread_is_found():
    def body(rank, world_size):
        def watch():
            while True:
                time.sleep(10)

        threading.Thread(target=watch, daemon=True).start()
        thread = threading.Thread(target=lambda: rank and dist.barrier(), name="late")
        thread.start()
        thread.join()

    with pytest.raises(
        RuntimeError,
        match=r"2 ranks wait.\n(.*\n)*  rank 1: the end of thread 'late' .*\n(.*\n)*  rank 1: barrier",
    ):
        on_ranks(body)


def test_groups_of_another_rank_are_refused():
    groups = {}

    def body(rank, world_size):
        groups[rank] = dist.group.WORLD
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            groups[1].barrier()

    with pytest.raises(RuntimeError, match=r"thread 'rank 0' uses a process group of rank 1"):
        on_ranks(body)


@pytest.mark.slow
def test_forked_processes_compute_and_are_refused_collectives():
    def ask(pipe):
        try:
            dist.barrier()
        except RuntimeError as error:
            pipe.send(str(error))

    def body(rank, world_size):
        loader = data.DataLoader(data.TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=1)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=ask, args=(theirs,))
        process.start()
        said = ours.recv()
        process.join()
        return [batch.sum().item() for (batch,) in loader], said, process.exitcode

    for rank, (sums, said, status) in enumerate(on_ranks(body, 2).returns):
        assert sums == [6.0, 22.0]
        assert f"forked from rank {rank}, calls torch.distributed" in said
        assert status == 0


def test_threads_of_multiprocessing_take_no_turns():
    def ask(_):
        with pytest.raises(RuntimeError) as caught:
            dist.get_rank()
        return str(caught.value)

    def body(rank, world_size):
        with multiprocessing.pool.ThreadPool(1) as pool:
            return pool.map(ask, [0])[0]

    for rank, said in enumerate(on_ranks(body, 2).returns):
        assert (
            f"which rank {rank} has started, calls torch.distributed; threads of multiprocessing"
            in said
        )


def test_clocks_show_simulated_time():
    def body(rank, world_size):
        clocks = (
            time.time,
            time.monotonic,
            time.perf_counter,
            lambda: time.perf_counter_ns() / 1e9,
        )
        begin = [clock() for clock in clocks]
        time.sleep(2)
        backend.compute(1.0)
        assert time.perf_counter() != time.perf_counter()  # a rate is never divided by zero
        return [clock() - first for clock, first in zip(clocks, begin, strict=True)]

    for passed in on_ranks(body, 2).returns:
        assert passed == pytest.approx([3.0] * 4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="interrupts are ignored here"
)
def test_a_rank_that_computes_for_ever_is_interrupted(tmp_path):
    loop = tmp_path / "loop.py"
    loop.write_text("print('ready', flush=True)\nwhile True: pass\n")
    words = [sys.executable, "-m", "simcoll.torch", "-n", "2", str(loop)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout.readline() == "ready\n"
            run.send_signal(signal.SIGINT)
            assert run.communicate(timeout=60) == ("", "python -m simcoll.torch: stopped\n")
        finally:
            run.kill()
    assert run.returncode == 130


def test_a_file_is_removed_after_the_others_have_read_it(tmp_path):
    """As on a machine, where all ranks read a file within the same moment after a barrier."""
    path = tmp_path / "shared"

    def body(rank, _world_size):
        if rank == 0:
            path.write_text("weights")
        dist.barrier()
        text = path.read_text()
        if rank == 0:
            path.unlink()
        return text

    assert on_ranks(body, 4).returns == ("weights",) * 4
    assert not path.exists()


@pytest.mark.slow
def test_event_loops_wait_in_simulated_time():
    """Also for executors whose threads call collectives, and for a queue to which no process
    writes.
    """

    def body(rank, _world_size):
        def reduced():
            x = torch.ones(2)
            dist.all_reduce(x)
            return x[0].item()

        async def main():
            begin = time.time()
            await asyncio.sleep(0.05)
            slept = time.time() - begin
            with ThreadPoolExecutor(1) as pool:
                total = await asyncio.get_running_loop().run_in_executor(pool, reduced)
            return round(slept, 4), total, await asyncio.to_thread(lambda: rank)

        result = asyncio.run(main())
        begin = time.time()
        with pytest.raises(queue.Empty):
            multiprocessing.get_context("fork").Queue().get(timeout=0.02)
        subprocess.run([sys.executable, "-c", ""], timeout=60, check=True)
        return *result, round(time.time() - begin, 4)

    assert on_ranks(body).returns == tuple((0.05, 3.0, rank, 0.02) for rank in range(3))


@pytest.mark.parametrize("compute", ["none", "roofline"])
def test_threads_have_their_own_current_device_and_stream(compute):
    def current():
        return torch.cuda.current_device(), torch.cuda.current_stream().stream_id

    def body(rank, _world_size):
        torch.cuda.set_device(rank)
        side, seen = torch.cuda.Stream(), {}

        def work():
            seen["a new thread"] = current()
            torch.cuda.set_stream(torch.cuda.Stream(1 - rank))
            seen["the same"] = current()

        with torch.cuda.stream(side):
            thread = threading.Thread(target=work)
            thread.start(), thread.join()
            seen["meanwhile"] = current()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(torch.cuda.set_stream, side).result()
            seen["a pool's"] = pool.submit(current).result()
        return [*seen.values(), current()]

    options = {} if compute == "none" else {"compute": compute, "gpu": "h100"}
    run = backend.spawn(body, 2, cuda_is_cpu=True, **options)
    for rank, seen in enumerate(run.returns):
        assert seen == [(0, 0), (1 - rank, 2), (rank, 1), (rank, 1), (rank, 0)]
