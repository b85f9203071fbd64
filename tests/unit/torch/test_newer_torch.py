"""What PyTorch 2.14 adds; with 2.13, only what does not depend on it."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from fractions import Fraction

import pytest

from simcoll.errors import ConfigError
from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


def needs_newer():
    if not hasattr(dist, "gather_single"):
        pytest.skip("needs PyTorch 2.14")


def run(body, ranks=3, name="nccl"):
    def program(rank, world_size):
        dist.init_process_group(name)
        return body(rank, world_size)

    return backend.spawn(program, ranks).returns


@pytest.mark.parametrize("shape", [(6,), (3, 2)])
def test_gather_into_one_tensor(shape):
    needs_newer()

    def body(rank, world_size):
        output = torch.zeros(shape) if rank == 1 else None
        dist.gather_single(torch.full((2,), float(rank)), output, dst=1)
        return output if output is None else output.flatten().tolist()

    assert run(body) == (None, [0, 0, 1, 1, 2, 2], None)


def test_the_tensor_that_gathers_has_room_for_all():
    needs_newer()

    def body(rank, world_size):
        output = torch.zeros(5) if rank == 0 else None
        dist.gather_single(torch.zeros(2), output)

    with pytest.raises(ValueError, match="has 5 elements; expected 3 times the 2"):
        run(body)


def test_hooks_see_operations_before_and_after_they_are_issued():
    def body(rank, world_size):
        group, calls = dist.group.WORLD, []
        group.register_pre_hook(4, lambda call: calls.append((call.op_id, call.async_op)))
        group.register_post_hook(4, lambda call: calls.append(type(call.work).__name__))
        data = torch.ones(2)
        dist.all_reduce(data)
        dist.all_reduce(data, async_op=True).wait()
        group.unregister_pre_hook(4)
        group.unregister_post_hook(4)
        dist.all_reduce(data)
        return calls

    assert run(body) == ([(0, False), "RankWork", (1, True), "RankWork"],) * 3


def test_hooks_are_called_with_the_buffers_and_the_root():
    def body(rank, world_size):
        calls = []
        dist.group.WORLD.register_pre_hook(
            0,
            lambda call: calls.append(
                (
                    str(call.name).rpartition(".")[2],
                    [tensor.tolist() for tensor in call.input_tensors],
                    len(call.output_tensors),
                    call.root,
                )
            ),
        )
        data = torch.full((1,), float(rank))
        dist.all_reduce(data)
        dist.broadcast(data, 1)
        dist.all_gather([torch.zeros(1) for _ in range(world_size)], data)
        dist.barrier()
        return calls

    assert run(body)[2] == [
        ("ALLREDUCE", [[2.0]], 0, -1),
        ("BROADCAST", [[3.0]], 0, 1),
        ("ALLGATHER", [[3.0]], 3, -1),
        ("BARRIER", [], 0, -1),
    ]


def test_a_check_for_nan():
    needs_newer()
    from torch._C._distributed_c10d import NanCheckHook

    before = NanCheckHook.attach

    def body(rank, world_size):
        hook = NanCheckHook.attach(dist.group.WORLD)
        dist.all_reduce(torch.ones(2))
        if rank == 0:
            with contextlib.suppress(RuntimeError):
                dist.all_reduce(torch.tensor([1.0, float("nan")]))
                raise AssertionError("NaN passed")
        hook.remove()
        data = torch.tensor([float("nan")])
        dist.all_reduce(data)
        return bool(data.isnan())

    assert run(body) == (True,) * 3
    assert NanCheckHook.attach is before


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("new_window", (), "new_window gives one-sided access"),
        ("reconfigure", (None,), "replace ranks of a group"),
        ("get_reconfigure_handle", (), "replace ranks of a group"),
        ("register_abort_hook", (0, print), "called by a watchdog"),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(method, arguments, words):
    def body(rank, world_size):
        with pytest.raises(ConfigError, match=words):
            getattr(dist.group.WORLD, method)(*arguments)
        return dist.group.WORLD.supports_window, dist.group.WORLD.supports_reconfigure

    assert run(body, 1) == ((False, False),)


@pytest.mark.parametrize("name", ["nccl2", "nccl-legacy", "nccl-lazy"])
def test_names_of_nccl(name):
    needs_newer()

    def body(rank, world_size):
        group = dist.new_group(list(range(world_size)), backend=name)
        data = torch.ones(1)
        dist.all_reduce(data, group=group)
        return data.item()

    assert run(body) == (3.0,) * 3


def test_a_timeout_of_ten_minutes_is_kept_where_it_is_not_the_default():
    def body(rank, world_size):
        dist.init_process_group("gloo", timeout=timedelta(minutes=10))
        if rank == 0:
            dist.recv(torch.zeros(1), 1)
        else:
            dist.distributed_c10d._get_default_store().wait(["key"], timedelta(hours=1))

    with pytest.raises(RuntimeError, match="Timed out waiting 600000ms"):
        backend.spawn(body, 2)


def test_object_collectives_that_load_data_alone():
    needs_newer()
    from pickle import UnpicklingError

    def body(rank, world_size):
        objects = [None] * world_size
        dist.all_gather_object(objects, {"rank": rank}, weights_only=True)
        with pytest.raises(UnpicklingError):
            dist.all_gather_object([None] * world_size, Fraction(1, 2), weights_only=True)
        return objects

    assert run(body, 2) == ([{"rank": 0}, {"rank": 1}],) * 2


def test_older_versions_are_refused_and_newer_ones_said():
    from simcoll.torch.accepted_versions import check_version

    with pytest.raises(
        ImportError, match=r"needs PyTorch 2.13, 2.14 or 2.15: .* \(this is 2.12.1\)"
    ):
        check_version("2.12.1")
    with pytest.warns(UserWarning, match="this is 2.16.0"):
        check_version("2.16.0")
