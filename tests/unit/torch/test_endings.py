"""How errors of ranks are told: their chains, and which lines."""

from __future__ import annotations

import os
import queue
import threading

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend, endings = Deferred("simcoll.torch"), Deferred("simcoll.torch.endings")

pytestmark = needs_torch


def failed(body, *, rank=1, **options):
    """The report of a run in which one rank calls ``body``."""

    def program(number, _world_size):
        dist.init_process_group("nccl")
        if number == rank:
            body()
        dist.barrier()

    with pytest.raises(BaseException) as caught:
        backend.spawn(program, 2, **options)
    assert endings.is_of_rank(caught.value)
    return endings.report_of(caught.value)


def test_causes_and_notes_are_told_and_no_line_is_ours():
    def body():
        try:
            {}["missing"]
        except KeyError as error:
            wrong = ValueError("bad config")
            wrong.add_note("see the manual")
            raise wrong from error

    said = failed(body)
    assert "[rank1]: KeyError: 'missing'" in said
    assert "[rank1]: The above exception was the direct cause" in said
    assert said.index("ValueError: bad config") < said.index("see the manual")
    assert "simcoll/torch/" not in said.replace("tests/unit/torch/", "")
    assert said.endswith("simcoll.torch: raised by the program of rank 1 at 0 s, with status 1\n")


def test_the_last_line_of_pytorch_is_told_where_it_raises():
    said = failed(lambda: torch.nn.Linear(3, 4)(torch.ones(2, 5)))
    assert "torch/nn/modules/linear.py" in said
    assert "torch/nn/modules/module.py" not in said
    assert "torch/_ops.py" not in said
    said = failed(lambda: torch.nn.MultiheadAttention(5, 2))
    assert "embed_dim must be divisible by num_heads" in said
    assert "torch/nn/modules/activation.py" in said


@pytest.mark.slow
def test_exceptions_that_are_no_errors_end_the_run_too():
    class Stop(BaseException):
        pass

    def stop():
        raise Stop("early")

    said = failed(stop)
    assert "Stop: early" in said
    assert "Traceback (most recent call last)" in said

    def leave():
        raise SystemExit(5)

    assert failed(leave).endswith("with status 5\n")

    def leave_with_more_than_a_byte():
        raise SystemExit(300)

    assert failed(leave_with_more_than_a_byte).endswith("with status 44\n")


def test_groups_of_exceptions_are_told_whole():
    def body():
        raise ExceptionGroup("many", [ValueError("first"), KeyError("second")])

    said = failed(body)
    assert "ExceptionGroup: many (2 sub-exceptions)" in said
    assert "ValueError: first" in said
    assert "KeyError: 'second'" in said


def test_a_hang_that_timeouts_end_is_told_with_all_ranks():
    from datetime import timedelta

    def program(rank, world_size):
        dist.init_process_group("gloo", timeout=timedelta(minutes=10))
        x = torch.ones(4)
        if rank < 2:
            dist.send(x, 1 - rank)
        elif rank == 2:
            dist.distributed_c10d._get_default_store().wait(["key"], timedelta(hours=1))

    with pytest.raises(RuntimeError, match="Timed out waiting 600000ms") as caught:
        backend.spawn(program, 4)
    said = endings.report_of(caught.value)
    for line in (
        "Hang at 0 s: no event is left, and 3 ranks wait",
        "rank 0: send to rank 1",
        "rank 1: send to rank 0",
        f"rank 2: a key of a store that no rank has set ({__file__}:",
        "ended: rank 3",
        "at 600 s",
    ):
        assert line in said


def test_places_are_those_of_the_program_and_name_the_caller():
    from typing_extensions import deprecated

    @deprecated("old")
    def step(x):
        dist.all_reduce(x)

    def body():
        with pytest.warns(DeprecationWarning, match="old"):
            step(torch.ones(1))

    said = failed(body)
    line = next(line for line in said.splitlines() if "rank 1: all_reduce" in line)
    assert "typing_extensions" not in line
    assert line.count("test_endings.py:") == 2
    assert ", called at " in line


def test_waits_for_locks_and_futures_have_places():
    def program(rank, world_size):
        dist.init_process_group("gloo")
        lock = threading.Lock()
        if rank == 0:
            lock.acquire()
            lock.acquire()
        elif rank == 1:
            queue.Queue().get()
        else:
            torch.futures.Future().wait()

    with pytest.raises(RuntimeError, match="3 ranks wait") as caught:
        backend.spawn(program, 3)
    lines = [line for line in str(caught.value).splitlines() if line.startswith("  rank ")]
    assert len(lines) == 3
    assert all("test_endings.py:" in line for line in lines)


def test_an_error_that_cannot_be_printed_is_told():
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def body():
        raise MuteError

    said = failed(body)
    assert "MuteError: <exception str() failed>" in said
    assert said.endswith("with status 1\n")


def test_os_exit_in_a_thread_ends_the_run():
    def body():
        thread = threading.Thread(target=os._exit, args=(3,))
        thread.start()
        thread.join()

    assert failed(body).endswith("raised by the program of rank 1 at 0 s, with status 3\n")


def test_functions_that_a_mode_sees_are_told_by_their_own_lines():
    def program(rank, world_size):
        torch._assert(rank == 0, "no")

    with pytest.raises(AssertionError, match="no") as caught:
        backend.spawn(program, 2, cuda_is_cpu=True)
    said = endings.report_of(caught.value)
    assert "torch/__init__.py" in said
    assert "torch/overrides.py" not in said


def test_groups_print_their_ranks():
    def program(rank, world_size):
        dist.init_process_group()
        return repr(dist.new_group([0, 2]))

    shown = backend.spawn(program, 3).returns
    assert "rank 1 of the ranks [0, 2]>" in shown[2]
    assert "[0, 2]" not in shown[1]


def test_a_keyboard_interrupt_of_the_program_is_told_like_another_error():
    def stop():
        raise KeyboardInterrupt

    said = failed(stop)
    assert "    raise KeyboardInterrupt" in said
    assert said.endswith("raised by the program of rank 1 at 0 s, with status 130\n")


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_wrappers_of_deprecated_functions_are_not_told():
    said = failed(lambda: dist.all_gather_into_tensor(torch.empty(3), torch.ones(1)))
    assert "dist.all_gather_into_tensor(torch.empty(3)" in said
    assert "typing_extensions" not in said
    assert "warnings.py" not in said


def test_the_line_that_raises_is_told_below_a_function_that_is_replaced():
    def body():
        x = torch.ones(2, requires_grad=True)
        x.register_hook(torch.nn.Module().forward)  # PyTorch's own, which raises
        x.sum().backward()

    said = failed(body, cuda_is_cpu=True)
    assert "in _forward_unimplemented" in said
    assert "NotImplementedError: Module [Module] is missing" in said
