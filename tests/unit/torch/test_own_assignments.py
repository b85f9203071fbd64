"""Functions that programs replace in Python's and PyTorch's modules and classes."""

import builtins
import contextlib
import copy
import ctypes
import dataclasses
import enum
import importlib
import io
import math
import pickle
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


def test_a_class_of_pytorch_has_what_its_rank_assigned():
    """As with monkey patches of models: in processes, each wraps the standard function once."""

    def body(rank):
        standard, calls = torch.nn.Linear.forward, []

        def add_rank(self, x):
            calls.append(rank)
            return standard(self, x) + rank

        torch.nn.Linear.forward = add_rank
        torch.Tensor.owner = property(lambda _: rank)
        dist.barrier()
        with mock.patch.object(torch.optim.SGD, "zero_grad", return_value=rank):
            dist.barrier()
            mocked = torch.optim.SGD([torch.ones(1)], lr=0.1).zero_grad()
        if rank == 1:
            del torch.Tensor.owner
        dist.barrier()
        ones, layer = torch.ones(1, 1), torch.nn.Linear(1, 1, bias=False)
        difference = layer(ones) - ones @ layer.weight.T
        return round(difference.item(), 3), calls, mocked, getattr(ones, "owner", None)

    before = torch.nn.Linear.forward, torch.optim.SGD.zero_grad, vars(torch.nn.Linear).keys()
    assert on_ranks(body) == ((0, [0], 0, 0), (1, [1], 1, None), (2, [2], 2, 2))
    after = torch.nn.Linear.forward, torch.optim.SGD.zero_grad, vars(torch.nn.Linear).keys()
    assert before == after
    assert not hasattr(torch.Tensor, "owner")


def test_errors_of_assignments_to_classes_are_pythons():
    """And metaclasses in Python, C and pybind11 keep what they do themselves."""

    class Counting(type):
        def __setattr__(cls, name, value):
            super().__setattr__(name, 2 * value)

    class Doubled(metaclass=Counting):
        pass

    def program(_rank, _size):
        errors = []
        for change in (
            lambda: setattr(int, "mine", 1),
            lambda: delattr(torch.nn.Linear, "mine"),
            lambda: setattr(enum.IntEnum("Side", "LEFT"), "LEFT", 3),
        ):
            with pytest.raises((TypeError, AttributeError)) as error:
                change()
            errors.append((type(error.value), str(error.value)))
        Doubled.mine = 4
        mine = ctypes.c_int._type_, Doubled.mine
        dist.ReduceOp.mine = 3
        fields = type("Pair", (ctypes.Structure,), {})
        fields._fields_ = [("left", ctypes.c_int)]
        return errors, mine, dist.ReduceOp.mine, fields(5).left

    outside = program(0, 1)
    del dist.ReduceOp.mine
    assert backend.spawn(program, 2).returns == (outside, outside)
    assert not hasattr(dist.ReduceOp, "mine")


def test_classes_of_ranks_and_of_loading_modules_are_left_alone(tmp_path, monkeypatch):
    (tmp_path / "patching.py").write_text(
        "import torch\n\ntorch.nn.Linear.patched = True\n\nclass Mine:\n    pass\n\nMine.a = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def program(rank, _size):
        dist.init_process_group("gloo")
        patching = importlib.import_module("patching")  # the first rank loads it for all

        @dataclasses.dataclass
        class Local:
            value: int = rank

        Local.doubled = property(lambda self: 2 * self.value)
        dist.barrier()
        return torch.nn.Linear.patched, patching.Mine.a, Local().doubled

    try:
        assert backend.spawn(program, 2).returns == ((True, 1, 0), (True, 1, 2))
    finally:
        del torch.nn.Linear.patched
        sys.modules.pop("patching", None)


SAVER = """
import pickle

def dumps(value):
    return pickle.dumps(value)

def dumps_in_python(value):
    pickler = pickle._Pickler(out := __import__("io").BytesIO())
    pickler.dump(value)
    return out.getvalue()
"""


@pytest.mark.parametrize("name", ["dill._dill", "joblib.externals.cloudpickle.cloudpickle"])
@pytest.mark.parametrize("function", ["dumps", "dumps_in_python"])
def test_libraries_that_pickle_modules_by_name_do(name, function):
    saver = types.ModuleType(name)
    exec(SAVER, vars(saver))

    def body(_rank):
        return pickle.loads(getattr(saver, function)(math)) is math

    assert on_ranks(body) == (True,) * 3


def test_other_pickles_and_copies_of_modules_are_refused_as_by_python():
    def refusals():
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError) as refusal:
                attempt(io)
            yield str(refusal.value)

    expected = list(refusals())
    assert on_ranks(lambda _rank: list(refusals())) == (expected,) * 3
