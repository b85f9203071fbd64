"""Functions that programs replace in Python's and PyTorch's modules."""

import builtins
import contextlib
import io
import math
import sys
import types
from unittest import mock

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def on_ranks(body, nprocs=3):
    def program(rank, _world_size):
        dist.init_process_group("gloo")
        return body(rank)

    return backend.spawn(program, nprocs).returns


def test_each_rank_counts_its_own_calls():
    """As a script does that counts or times the functions of torch.distributed."""

    def body(rank):
        calls, standard = [], dist.all_reduce

        def count_call(*args, **kwargs):
            calls.append(rank)
            return standard(*args, **kwargs)

        sys.modules["torch.distributed"].all_reduce = count_call
        dist.barrier()
        for _ in range(2):
            sys.modules["torch.distributed"].all_reduce(torch.ones(1))
        return calls

    original = dist.all_reduce
    assert on_ranks(body) == ([0, 0], [1, 1], [2, 2])
    assert dist.all_reduce is original


def test_only_the_first_rank_prints():
    """As in the reference scripts of torchvision: they replace builtins.print on every rank."""

    def body(rank):
        standard = builtins.print

        def print_on_master(*args, **kwargs):
            if rank == 0:
                standard(*args, **kwargs)

        builtins.print = print_on_master
        dist.barrier()
        print("rank", rank, file=said)

    said, original = io.StringIO(), builtins.print
    on_ranks(body)
    assert said.getvalue() == "rank 0\n"
    assert builtins.print is original


def test_output_is_redirected_for_one_rank():
    def body(rank):
        with contextlib.redirect_stdout(io.StringIO()) as mine:
            dist.barrier()
            sys.stdout.write(f"rank {rank}")
            dist.barrier()
        return mine.getvalue()

    assert on_ranks(body) == ("rank 0", "rank 1", "rank 2")


def test_a_mock_a_new_attribute_and_a_deletion_belong_to_the_rank():
    def body(rank):
        if rank:
            math.mine = rank
        with mock.patch("math.tau", rank):
            dist.barrier()
            values = math.tau, getattr(math, "mine", None)
        if rank == 1:
            del math.mine
        dist.barrier()
        return *values, getattr(math, "mine", None)

    original = math.tau
    assert on_ranks(body) == ((0, None, None), (1, 1, None), (2, 2, 2))
    assert (math.tau, hasattr(math, "mine")) == (original, False)
    assert type(math) is types.ModuleType


@pytest.mark.filterwarnings("ignore")
def test_assignments_before_and_outside_ranks_are_seen_by_all():
    def body(rank):
        dist.barrier()
        return math.mine

    math.mine = "run"
    try:
        assert on_ranks(body) == ("run",) * 3
    finally:
        del math.mine
