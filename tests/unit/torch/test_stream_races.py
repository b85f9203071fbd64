"""Accesses on streams of a simulated GPU that nothing orders."""

from __future__ import annotations

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore:streams:UserWarning")]


def findings(body, nprocs=2, **options):
    def program(rank, world_size):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        body(torch.ones(8, device="cuda"), torch.cuda.Stream(), torch.cuda.current_stream())
        dist.destroy_process_group()

    result = backend.spawn(program, nprocs, cuda_is_cpu=True, **options)
    return [said for said in result.findings if said.startswith("streams: ")]


def wait_on_a_side_stream_and_read_elsewhere(t, side, main):
    work = dist.all_reduce(t, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
    t.sum()


def collective_on_a_stream_that_does_not_wait(t, side, main):
    with torch.cuda.stream(side):
        dist.all_reduce(t)
    main.wait_stream(side)


def asynchronous_collective_of_a_stream_that_does_not_wait(t, side, main):
    with torch.cuda.stream(side):
        work = dist.all_reduce(t, async_op=True)
    work.wait()


def message_from_a_stream_that_does_not_wait(t, side, main):
    received = torch.zeros(8, device="cuda")
    peer = 1 - dist.get_rank()
    side.wait_stream(main)
    t.add_(1)
    with torch.cuda.stream(side):
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, t, peer), dist.P2POp(dist.irecv, received, peer)]
        ):
            work.wait()


def operator_on_a_stream_that_does_not_wait(t, side, main):
    with torch.cuda.stream(side):
        t * 2


def write_after_a_read_of_another_stream(t, side, main):
    side.wait_stream(main)
    with torch.cuda.stream(side):
        t * 2
    t.zero_()


def event_recorded_too_early(t, side, main):
    side.wait_stream(main)
    event = torch.cuda.Event()
    with torch.cuda.stream(side):
        event.record()
        t.mul_(2)
    main.wait_event(event)
    t.sum()


def event_never_waited_for(t, side, main):
    t.mul_(2)
    main.record_event()
    with torch.cuda.stream(side):
        t.sum()


def wait_in_the_wrong_direction(t, side, main):
    main.wait_stream(side)
    with torch.cuda.stream(side):
        t.sum()


def copy_from_pinned_memory_that_nobody_waits_for(t, side, main):
    batch = torch.ones(8).pin_memory()
    with torch.cuda.stream(side):
        on_gpu = batch.to("cuda", non_blocking=True)
    on_gpu.sum()


def value_read_on_another_stream(t, side, main):
    with torch.cuda.stream(side):
        t.tolist()


WRONG = {
    wait_on_a_side_stream_and_read_elsewhere: (
        ("sum", "reads", "the default stream"),
        ("all_reduce", "writes", "the stream of collectives of group 0"),
    ),
    collective_on_a_stream_that_does_not_wait: (
        ("all_reduce", "writes", "stream 0x10"),
        ("ones", "writes", "the default stream"),
    ),
    asynchronous_collective_of_a_stream_that_does_not_wait: (
        ("all_reduce", "writes", "the stream of collectives of group 0"),
        ("ones", "writes", "the default stream"),
    ),
    message_from_a_stream_that_does_not_wait: (
        ("isend", "reads", "the stream of messages of group 0"),
        ("add_", "writes", "the default stream"),
    ),
    operator_on_a_stream_that_does_not_wait: (
        ("mul", "reads", "stream 0x10"),
        ("ones", "writes", "the default stream"),
    ),
    write_after_a_read_of_another_stream: (
        ("zero_", "writes", "the default stream"),
        ("mul", "reads", "stream 0x10"),
    ),
    event_recorded_too_early: (
        ("sum", "reads", "the default stream"),
        ("mul_", "writes", "stream 0x10"),
    ),
    event_never_waited_for: (
        ("sum", "reads", "stream 0x10"),
        ("mul_", "writes", "the default stream"),
    ),
    wait_in_the_wrong_direction: (
        ("sum", "reads", "stream 0x10"),
        ("ones", "writes", "the default stream"),
    ),
    copy_from_pinned_memory_that_nobody_waits_for: (
        ("sum", "reads", "the default stream"),
        ("clone", "writes", "stream 0x10"),
    ),
    value_read_on_another_stream: (
        ("tolist", "reads", "stream 0x10"),
        ("ones", "writes", "the default stream"),
    ),
}
"""The later and the earlier access of each wrong program: operator, kind and stream."""


@pytest.mark.slow
@pytest.mark.parametrize("body", WRONG, ids=lambda body: body.__name__)
def test_accesses_that_nothing_orders_are_findings(body):
    later, earlier = WRONG[body]
    (said,) = findings(body)
    accesses, remedy = said.split(" it: ")
    text, former = accesses.split(", which does not wait for ")
    assert text.startswith(f"streams: {later[0]} at ")
    assert f" {later[1]} a float32 tensor of shape [8] on {later[2]}" in text
    assert former.startswith(f"{earlier[2]}, where {earlier[0]} at ")
    assert former.endswith(f" {earlier[1]}")
    assert "test_stream_races.py:" in text
    assert "test_stream_races.py:" in former
    assert "wait" in remedy


def wait_on_the_stream_that_reads(t, side, main):
    work = dist.all_reduce(t, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
        t.mul_(2)
    main.wait_stream(side)
    t.sum()


def waits_on_both_streams(t, side, main):
    work = dist.all_reduce(t, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
        t * 2
    work.wait()
    t.sum()


def wait_stream_before_and_after(t, side, main):
    side.wait_stream(main)
    with torch.cuda.stream(side):
        dist.all_reduce(t)
    main.wait_stream(side)
    t.sum()


def events(t, side, main):
    ready, over = torch.cuda.Event(), torch.cuda.Event()
    ready.record()
    with torch.cuda.stream(side):
        ready.wait()
        t.mul_(2)
        over.record()
    main.wait_event(over)
    t.zero_()


def a_chain_of_three_streams(t, side, main):
    third = torch.cuda.Stream()
    side.wait_stream(main)
    third.wait_stream(side)
    with torch.cuda.stream(third):
        t.mul_(2)
    main.wait_event(third.record_event())
    t.sum()


def synchronization_of_the_device(t, side, main):
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        work = dist.all_reduce(t, async_op=True)
    torch.cuda.synchronize()
    t.sum()
    work.wait()


def synchronization_of_streams_and_events(t, side, main):
    main.synchronize()
    with torch.cuda.stream(side):
        t.mul_(2)
    side.record_event().synchronize()
    t.sum()


def values_that_the_host_waits_for(t, side, main):
    t.sum().item()
    with torch.cuda.stream(side):
        t.mul_(2).tolist()
    t[t > 1]


def copies_that_the_host_waits_for(t, side, main):
    copy = torch.ones(8).cuda()
    with torch.cuda.stream(side):
        (copy * 2).cpu()
    copy.zero_()


def barrier(t, side, main):
    dist.barrier()
    with torch.cuda.stream(side):
        t.mul_(2)
        dist.barrier()
    t.sum()


def prefetched_batches(t, side, main):
    for _ in range(3):
        batch = torch.ones(8).pin_memory()
        with torch.cuda.stream(side):
            on_gpu = batch.to("cuda", non_blocking=True)
        main.wait_stream(side)
        on_gpu.record_stream(main)
        on_gpu.sum()


def reads_on_two_streams(t, side, main):
    side.wait_stream(main)
    with torch.cuda.stream(side):
        t * 2
    t * 3


def other_parts_of_the_storage(t, side, main):
    side.wait_stream(main)
    with torch.cuda.stream(side):
        t[:4].mul_(2)
        t[5::2].mul_(2)
    t[4::2].mul_(3)


def memory_without_contents(t, side, main):
    buffer = torch.empty(8, device="cuda")
    with torch.cuda.stream(side):
        buffer.fill_(1)


def new_tensors_in_the_memory_of_old_ones(t, side, main):
    for _ in range(20):
        with torch.cuda.stream(side):
            torch.ones(8, device="cuda").mul_(2)
        torch.ones(8, device="cuda").mul_(2)


def storage_freed_and_filled_again(t, side, main):
    storage = t.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    with torch.cuda.stream(side):
        t.fill_(1)


def tensors_of_the_host(t, side, main):
    on_host = torch.ones(8)
    with torch.cuda.stream(side):
        on_host.mul_(2)
    on_host.sum()


def backward_pass_of_a_side_stream(t, side, main):
    layer = torch.nn.Linear(8, 8).cuda()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        loss = layer(t).sum()
    loss.backward()
    layer.weight.grad.sum()


def futures_and_polls(t, side, main):
    work = dist.all_reduce(t, async_op=True)
    with torch.cuda.stream(side):
        work.get_future().wait()
    t.sum()
    work = dist.all_reduce(t, async_op=True)
    while not work.is_completed():
        pass
    with torch.cuda.stream(side):
        t.sum()


RIGHT = (
    wait_on_the_stream_that_reads,
    waits_on_both_streams,
    wait_stream_before_and_after,
    events,
    a_chain_of_three_streams,
    synchronization_of_the_device,
    synchronization_of_streams_and_events,
    values_that_the_host_waits_for,
    copies_that_the_host_waits_for,
    barrier,
    prefetched_batches,
    reads_on_two_streams,
    other_parts_of_the_storage,
    memory_without_contents,
    new_tensors_in_the_memory_of_old_ones,
    storage_freed_and_filled_again,
    tensors_of_the_host,
    backward_pass_of_a_side_stream,
    futures_and_polls,
)


@pytest.mark.slow
@pytest.mark.parametrize("body", RIGHT, ids=lambda body: body.__name__)
def test_accesses_in_order_are_none(body):
    assert findings(body) == []


def by_an_operator(t):
    t.add_(1)


def by_an_operator_of_many(t):
    torch._foreach_add_([t], 1)


def by_a_collective(t):
    dist.all_reduce(t)


def and_asked_for_a_value(t):
    t.add_(1)
    t.sum().item()


def and_listed(t):
    t.add_(1)
    t.tolist()


def and_selected_by_a_mask(t):
    t.add_(1)
    t[t > 0]


def and_copied(t):
    t.add_(1)
    t.cpu()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "count"),
    [
        (by_an_operator, 1),
        (by_an_operator_of_many, 1),
        (by_a_collective, 1),
        (and_asked_for_a_value, 0),
        (and_listed, 0),
        (and_selected_by_a_mask, 0),
        (and_copied, 0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_writes_before_the_program_makes_a_stream(body, count):
    def program(rank, world_size):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        t = torch.ones(8, device="cuda")
        torch.cuda.synchronize()
        body(t)
        with torch.cuda.stream(torch.cuda.Stream()):
            t.sum()

    assert len(backend.spawn(program, 2, cuda_is_cpu=True).findings) == count


@pytest.mark.parametrize(
    ("body", "count"),
    [(wait_stream_before_and_after, 0), (events, 0), (operator_on_a_stream_that_does_not_wait, 1)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_with_a_time_model(body, count):
    assert len(findings(body, compute="roofline", gpu="h100")) == count


def test_a_pair_of_lines_is_reported_once():
    def body(t, side, main):
        for _ in range(5):
            t.add_(1)
            with torch.cuda.stream(side):
                t.sum()

    said = findings(body)
    # The read after the write, and the write of the next round after the read.
    assert len(said) == 2
    assert len({text.split(", which")[0] for text in said}) == 2


def freed_while_another_stream_reads(t, side, main):
    x = t * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        x.sum()
    del x
    torch.empty(8, device="cuda")


def freed_and_copied_over_by_a_loader(t, side, main):
    for _ in range(2):
        with torch.cuda.stream(side):
            batch = torch.ones(8).pin_memory().to("cuda", non_blocking=True)
        main.wait_stream(side)
        batch.sum()
        del batch


def freed_after_record_stream(t, side, main):
    x = t * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        x.sum()
    x.record_stream(side)
    del x
    torch.empty(8, device="cuda")


def freed_memory_that_waits(t, side, main):
    x = t * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        x.sum()
    del x
    main.wait_stream(side)
    torch.empty(8, device="cuda")


def freed_memory_of_the_stream_that_reads(t, side, main):
    with torch.cuda.stream(side):
        x = torch.zeros(8, device="cuda")
        x.sum()
    del x
    torch.empty(8, device="cuda")


def freed_memory_of_another_size(t, side, main):
    x = t * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        x.sum()
    del x
    torch.empty(8000, device="cuda")


def freed_after_the_host_has_waited(t, side, main):
    x = t * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        x.sum()
    del x
    side.synchronize()
    torch.empty(8, device="cuda")


@pytest.mark.slow
def test_memory_that_is_freed_while_another_stream_uses_it():
    for body, words in {
        freed_while_another_stream_reads: ("sum at", "on stream 0x10 that was made on the default"),
        freed_and_copied_over_by_a_loader: ("sum at", "the default stream that was made on stream"),
    }.items():
        (said,) = findings(body)
        assert all(word in said for word in words)
        assert "call record_stream() before it is freed" in said
    for body in (
        freed_after_record_stream,
        freed_memory_that_waits,
        freed_memory_of_the_stream_that_reads,
        freed_memory_of_another_size,
        freed_after_the_host_has_waited,
    ):
        assert findings(body) == [], body


def value_of_a_copy_to_pinned_memory(t, pinned):
    pinned.copy_(t, non_blocking=True)
    pinned[0].item()


def copy_to_the_host_that_numpy_reads(t, pinned):
    t.to("cpu", non_blocking=True).numpy()


def copy_to_the_host_that_is_printed(t, pinned):
    repr(t.to("cpu", non_blocking=True))


def buffer_written_while_it_is_copied_to_the_gpu(t, pinned):
    pinned.cuda(non_blocking=True)
    pinned.fill_(2)


HASTY = {
    value_of_a_copy_to_pinned_memory: ("_local_scalar_dense", "reads", "host", "writes"),
    copy_to_the_host_that_numpy_reads: ("numpy", "reads", "host", "writes"),
    copy_to_the_host_that_is_printed: ("__repr__", "reads", "host", "writes"),
    buffer_written_while_it_is_copied_to_the_gpu: ("fill_", "writes", "GPU", "reads"),
}
"""The access of the host, and the copy that may still be under way."""


@pytest.mark.slow
@pytest.mark.parametrize("body", HASTY, ids=lambda body: body.__name__)
def test_the_host_may_not_touch_what_a_copy_uses(body):
    access, verb, target, copy_verb = HASTY[body]
    (said,) = findings(lambda t, *_: body(t, torch.empty(8, pin_memory=True)), 1)
    assert said.startswith(f"streams: {access} at ")
    assert f" {verb} a tensor on the host that copy to the {target} at " in said
    assert f" {copy_verb} on the default stream, for which the host has not waited" in said
    assert said.count("test_stream_races.py:") >= 2


def test_copies_that_the_host_has_waited_for_are_in_order():
    def body(t, side, main):
        pinned, event = torch.empty(8, pin_memory=True), torch.cuda.Event()
        for wait in (torch.cuda.synchronize, main.synchronize, t[0].item):
            pinned.copy_(t, non_blocking=True)
            wait()
            pinned.tolist()
        pinned.copy_(t, non_blocking=True)
        event.record()
        while not event.query():
            pass
        pinned.add_(1)
        pinned.cuda(non_blocking=True).cpu()
        pinned.zero_()
        torch.empty(8).copy_(t, non_blocking=True).tolist()  # in memory that is not pinned
        pinned.copy_(t, non_blocking=True)
        pinned.cuda(non_blocking=True)  # a copy on the same stream

    assert findings(body, 1) == []
