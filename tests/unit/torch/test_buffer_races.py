"""Accesses to buffers in flight, and buffers of one call that overlap."""

from __future__ import annotations

import io
import pickle
import threading

import ml_dtypes
import numpy as np
import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
flex = Deferred("torch.nn.attention.flex_attention")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def on_ranks(body, nprocs=2):
    def program(rank, world_size):
        dist.init_process_group("gloo")
        return body(rank, world_size)

    return backend.spawn(program, nprocs)


DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "uint8", "bool", "complex64")
ACCESSES = {
    "writes": lambda t: t.fill_(1),
    "writes a part": lambda t: t[2:].zero_(),
    "copies": lambda t: t.copy_(torch.zeros(8)),
    "reads": lambda t: t == 1,
    "reads a view": lambda t: t.view(2, 4).sum(),
    "asks for a value": lambda t: t[3].item(),
    "prints": repr,
    "lists": lambda t: t.tolist(),
    "leaves for numpy": lambda t: t.numpy(),
    "leaves by DLPack": np.from_dlpack,
    "is pickled": pickle.dumps,
    "is saved": lambda t: torch.save(t, io.BytesIO()),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("access", ["writes", "reads"])
def test_every_dtype_is_watched(dtype, access):
    def body(rank, world_size):
        t = torch.ones(8, dtype=getattr(torch, dtype))
        work = dist.broadcast(t, 0, async_op=True)
        ACCESSES[access](t)
        work.wait()

    with pytest.raises(RuntimeError, match=rf"{access} the output buffer of broadcast \(issued at"):
        on_ranks(body)


@pytest.mark.slow
@pytest.mark.parametrize("access", ACCESSES)
def test_outputs_may_not_be_touched_before_wait(access):
    def body(rank, world_size):
        t = torch.ones(8)
        work = dist.all_reduce(t, async_op=True)
        ACCESSES[access](t)
        work.wait()

    with pytest.raises(RuntimeError) as caught:
        on_ranks(body)
    said = str(caught.value)
    assert "buffer of all_reduce (issued at" in said
    assert said.count("test_buffer_races.py:") >= 2
    assert "while the operation is in flight; call wait() before touching it" in said


def test_the_mean_of_gradients_divided_too_early():
    def body(rank, world_size):
        gradient = torch.full((4,), float(rank))
        work = dist.all_reduce(gradient, async_op=True)
        gradient.div_(world_size)
        work.wait()

    with pytest.raises(RuntimeError, match=r"div_ at .* writes the output buffer of all_reduce"):
        on_ranks(body)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_inputs_may_be_read_and_not_written():
    def reads(rank, world_size):
        t, all_of_them = torch.ones(4), torch.zeros(8)
        work = dist.all_gather_into_tensor(all_of_them, t, async_op=True)
        double = t * 2
        work.wait()
        return double.tolist(), all_of_them.tolist()

    def writes(rank, world_size):
        t, all_of_them = torch.ones(4), torch.zeros(8)
        dist.all_gather_into_tensor(all_of_them, t, async_op=True)
        t.mul_(2)

    def sends(rank, world_size):
        t = torch.ones(4)
        work = dist.isend(t, 1) if rank == 0 else dist.irecv(t, 0)
        if rank == 0:
            t.zero_()
        work.wait()

    assert on_ranks(reads).returns == (([2.0] * 4, [1.0] * 8),) * 2
    with pytest.raises(RuntimeError, match=r"mul_ at .* writes the input buffer of all_gather"):
        on_ranks(writes)
    with pytest.raises(RuntimeError, match=r"zero_ at .* writes the input buffer of send"):
        on_ranks(sends)


def test_a_wait_a_future_or_a_later_call_of_the_group_ends_the_watch():
    def body(rank, world_size):
        t, later = torch.ones(4), torch.ones(4)
        dist.all_reduce(t, async_op=True).wait()
        future = dist.all_reduce(t, async_op=True).get_future()
        means = future.then(lambda future: future.value()[0].div_(world_size)).wait()
        first = dist.all_reduce(t, async_op=True)
        dist.all_reduce(later, async_op=True).wait()
        sums = t.tolist()
        first.wait()
        return means.tolist(), sums

    assert on_ranks(body).returns == (([4.0] * 4, [4.0] * 4),) * 2


def test_other_parts_of_the_storage_are_free():
    def body(rank, world_size):
        t = torch.ones(4, 4)
        work = dist.all_reduce(t[0], async_op=True)
        t[1:].add_(1)
        columns = torch.ones(4, 2)
        copy = dist.broadcast(columns[:, 0], 0, async_op=True)
        columns[:, 1].add_(1)
        work.wait(), copy.wait()
        return t[0].sum().item() + columns.sum().item()

    assert on_ranks(body).returns == (20.0, 20.0)


def test_one_tensor_in_two_groups_at_once():
    def body(rank, world_size):
        second, t = dist.new_group(), torch.ones(4)
        dist.all_reduce(t, async_op=True)
        dist.all_reduce(t, group=second, async_op=True)

    with pytest.raises(RuntimeError, match=r"all_reduce at .* the output buffer of all_reduce"):
        on_ranks(body)


def findings(body):
    with pytest.warns(UserWarning, match="share"):
        result = on_ranks(body)
    return result.findings


def test_buffers_of_a_call_that_overlap_are_findings():
    def outputs(rank, world_size):
        x = torch.zeros(4)
        dist.all_gather([x, x], torch.ones(4))

    def exchanged(rank, world_size):
        x = torch.zeros(8)
        dist.all_to_all_single(x, x)

    (said,) = findings(outputs)
    assert "all_gather at " in said
    assert "outputs share memory with each other" in said
    (said,) = findings(exchanged)
    assert "all_to_all_single at " in said
    assert "an input shares memory with an output" in said


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_calls_in_place_are_no_findings():
    def body(rank, world_size):
        x = torch.ones(8)
        mine = x[4 * rank : 4 * rank + 4]
        dist.all_gather_into_tensor(x, mine)
        dist.reduce_scatter_tensor(mine, x)
        parts = list(x.chunk(2))
        dist.all_gather(parts, parts[rank])
        dist.all_reduce(x)
        dist.reduce(x, 0)

    assert on_ranks(body).findings == ()


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_collectives_of_nccl_run_in_the_order_of_their_calls():
    """On one stream, so that the second may use the buffer of the first before wait()."""

    def body(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        t, part = torch.full((4,), rank + 1.0, device="cuda"), torch.empty(2, device="cuda")
        works = [
            dist.all_reduce(t, async_op=True),
            dist.broadcast(t, 0, async_op=True),
            dist.reduce_scatter_tensor(part, t, async_op=True),
            dist.group.WORLD.allgather_into_tensor_coalesced([t], [part]),
        ]
        for work in works:
            work.wait()
        return t.tolist()

    result = backend.spawn(body, 2, cuda_is_cpu=True)
    assert result.returns == ([6.0] * 4,) * 2  # twice the sum of 1 and 2
    assert result.findings == ()


def test_collectives_of_gloo_may_run_at_once():
    def body(rank, world_size):
        t = torch.ones(4)
        works = [dist.all_reduce(t, async_op=True), dist.broadcast(t, 0, async_op=True)]
        for work in works:
            work.wait()

    with pytest.raises(
        RuntimeError, match=r"broadcast at .* the output buffer of all_reduce \(iss"
    ):
        on_ranks(body)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex128"])
def test_an_array_of_the_same_memory_is_divided_too_early(dtype):
    def body(rank, world_size):
        t = torch.ones(4, dtype=getattr(torch, dtype))
        if dtype == "bfloat16":
            alias = t.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        else:
            alias = t.numpy()
        work = dist.all_reduce(t, async_op=True)
        with np.errstate(invalid="ignore"):
            alias /= 2
        work.wait()

    with pytest.raises(RuntimeError, match=r"output buffer of all_reduce .* was changed while"):
        on_ranks(body)


def test_a_thread_of_the_rank_divides_too_early():
    def body(rank, world_size):
        t = torch.ones(4)
        work = dist.all_reduce(t, async_op=True)
        thread = threading.Thread(target=t.div_, args=(2,))
        thread.start()
        thread.join()
        work.wait()

    with pytest.raises(RuntimeError, match=r"output buffer of all_reduce .* was changed while"):
        on_ranks(body)


def test_a_wait_for_the_gpu_ends_its_collectives():
    """``torch.cuda.synchronize`` waits for all streams, that of NCCL included."""

    def body(rank, world_size):
        dist.init_process_group()
        torch.cuda.set_device(rank)
        t = torch.full((4,), rank + 1.0, device="cuda")
        begin = backend.emulated_time()
        dist.all_reduce(t, async_op=True)
        torch.cuda.synchronize()
        return t.tolist(), backend.emulated_time() > begin

    result = backend.spawn(body, 2, cuda_is_cpu=True)
    assert result.returns == (([3.0] * 4, True),) * 2
    assert result.findings == ()


def test_a_poll_that_answers_true_is_a_wait():
    def body(rank, world_size):
        t = torch.ones(4)
        work = dist.all_reduce(t, async_op=True)
        while not work.is_completed():
            pass
        return t.tolist()

    result = on_ranks(body)
    assert result.returns == ([2.0] * 4,) * 2
    assert result.findings == ()


def test_a_waiting_collective_of_gloo_is_not_behind_one_in_flight():
    """Gloo has several threads: real runs add other values to parts of the tensor."""

    def body(rank, world_size):
        t = torch.ones(4)
        work = dist.all_reduce(t, async_op=True)
        dist.all_reduce(t)
        work.wait()

    with pytest.raises(RuntimeError, match=r"all_reduce at .* output buffer of all_reduce \(issu"):
        on_ranks(body)


@pytest.mark.parametrize("name", ["gloo", "nccl"])
def test_messages_of_two_ranks_into_one_buffer_are_a_race(name):
    def body(rank, world_size):
        dist.init_process_group(name)
        t = torch.full((4,), float(rank))
        if rank:
            dist.isend(t, 0).wait()
            return
        works = [dist.irecv(t, 1), dist.irecv(t, 2)]
        for work in works:
            work.wait()

    with pytest.raises(RuntimeError, match=r"irecv at .* writes the output buffer of recv \(issue"):
        backend.spawn(body, 3)


def test_messages_of_one_pair_are_in_order_and_a_tensor_may_go_to_several_ranks():
    def body(rank, world_size):
        t = torch.full((4,), float(rank))
        if rank == 0:
            works = [dist.isend(t, peer) for peer in (1, 2, 1)]
        else:
            works = [dist.irecv(t, 0) for _ in range(3 - rank)]
        for work in works:
            work.wait()
        return t.tolist()

    result = on_ranks(body, 3)
    assert result.returns == ([0.0] * 4,) * 3
    assert result.findings == ()


def test_a_shift_round_a_ring_in_one_buffer_names_the_message_that_overwrites():
    def body(rank, world_size):
        t = torch.full((4,), float(rank))
        shift = [
            dist.P2POp(dist.isend, t, (rank + 1) % world_size),
            dist.P2POp(dist.irecv, t, (rank - 1) % world_size),
        ]
        for work in dist.batch_isend_irecv(shift):
            work.wait()

    with pytest.raises(RuntimeError, match=r"irecv at .* writes the input buffer of send \(issued"):
        on_ranks(body, 3)


def test_a_tensor_in_flight_may_take_other_memory():
    def body(rank, world_size):
        t = torch.ones(4)
        work = dist.all_reduce(t, async_op=True)
        t.detach().set_(torch.zeros(4))
        work.wait()
        return t.tolist()

    assert on_ranks(body).returns == ([2.0] * 4,) * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_operators_without_a_schema_are_watched():
    """FlexAttention is of higher order; a pipeline calls it while its receives are in flight."""

    def body(rank, world_size, touches):
        queries, keys, values = (torch.ones(1, 1, 16, 8, device="cuda") for _ in range(3))
        received = torch.ones(1, 1, 16, 8, device="cuda")
        work = dist.broadcast(received, 0, async_op=True)
        y = flex.flex_attention(received if touches else queries, keys, values)
        work.wait()
        assert torch.equal(y, torch.ones_like(y))

    def run(touches):
        def program(rank, world_size):
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            body(rank, world_size, touches)

        backend.spawn(program, 2, cuda_is_cpu=True)

    run(touches=False)
    with pytest.raises(RuntimeError, match=r"flex_attention at .* reads the output buffer"):
        run(touches=True)
