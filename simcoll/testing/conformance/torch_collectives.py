"""Statements on collectives beyond their results: errors, shapes, operators, barriers."""

from __future__ import annotations

import pickle
import time
import warnings
from datetime import timedelta
from typing import Any

from simcoll.testing.conformance.torch_session import TorchSession, states

WRONG = (ValueError, RuntimeError, TypeError)


@states("BC-02")
def shapes_of_broadcasts(s: TorchSession) -> None:
    """Shapes may differ where the numbers of elements agree."""
    vector = s.numbers(6) if s.rank == 0 else s.numbers(6).reshape(2, 3)
    s.dist.broadcast(vector, 0)
    s.same(vector.flatten(), s.numbers(6, 0))


@states("AR-02")
def documented_sum(s: TorchSession) -> None:
    """The documentation's int64 example."""
    vector = s.torch.arange(2) + 1 + 2 * s.rank
    s.dist.all_reduce(vector, op=s.dist.ReduceOp.SUM)
    pairs = [s.torch.arange(2) + 1 + 2 * rank for rank in range(s.size)]
    s.same(vector, sum(pairs))


@states("AR-09")
def gradients(s: TorchSession) -> None:
    """A tensor that requires gradients keeps the requirement."""
    vector = s.numbers().float().requires_grad_()
    s.dist.all_reduce(vector)
    s.same(vector.requires_grad, True)
    s.same(vector.detach(), sum(s.everyone()).float())


@states("AR-05")
def strided_sum(s: TorchSession) -> None:
    """Views with strides are reduced in place, and nothing around them changes."""
    for shape in ((4, 6), (6, 4)):
        matrix = s.numbers(24).reshape(shape).float()
        total = sum(s.everyone(24)).reshape(shape).float()
        transposed = matrix.clone().t()
        s.dist.all_reduce(transposed)
        s.same(transposed, total.t())
        copy = matrix.clone()
        s.dist.all_reduce(copy[:, ::2])
        expected = matrix.clone()
        expected[:, ::2] = total[:, ::2]
        s.same(copy, expected)


@states("AG-05")
def wrong_lists_of_all_gather(s: TorchSession) -> None:
    """The output is a list of the right dtype."""
    s.raises(WRONG, s.dist.all_gather, s.numbers(), s.numbers())
    floats = [part.float() for part in s.everyone()]
    s.raises(WRONG, s.dist.all_gather, floats, s.numbers())


@states("AT-02")
def stacked_gather(s: TorchSession) -> None:
    """A stacked output holds the same."""
    result = s.torch.zeros(s.size, 3, dtype=s.torch.int64)
    s.dist.all_gather_into_tensor(result, s.numbers())
    s.same(result, s.torch.stack(s.everyone()))


@states("AT-04")
def wrong_outputs_of_gather(s: TorchSession) -> None:
    """Outputs of another size or dtype."""
    short = s.torch.zeros(3 * s.size - 1, dtype=s.torch.int64)
    s.raises(WRONG, s.dist.all_gather_into_tensor, short, s.numbers())
    floats = s.torch.zeros(3 * s.size)
    s.raises(WRONG, s.dist.all_gather_into_tensor, floats, s.numbers())


@states("GA-02")
def lists_of_gather(s: TorchSession) -> None:
    """A list elsewhere than at the destination."""
    s.needs(2)
    if s.rank:
        s.raises(ValueError, s.dist.gather, s.numbers(), s.everyone(), 0)
    else:
        s.raises(ValueError, s.dist.gather, s.numbers(), None, 0)


@states("GA-04")
def documented_gather(s: TorchSession) -> None:
    """The documentation's example."""
    parts = [s.torch.zeros(2) for _ in range(s.size)] if s.rank == 0 else None
    s.dist.gather(s.torch.ones(2) * s.rank, parts, dst=0)
    if parts is not None:
        s.same(parts, [s.torch.ones(2) * rank for rank in range(s.size)])


@states("SC-02", "SC-06")
def lists_of_scatter(s: TorchSession) -> None:
    """The source passes a list of the right length, others do not."""
    s.needs(2)
    if s.rank == 0:
        s.raises(WRONG, s.dist.scatter, s.numbers(), None, 0)
        s.raises(WRONG, s.dist.scatter, s.numbers(), s.everyone()[:-1], 0)
    else:
        s.raises(ValueError, s.dist.scatter, s.numbers(), s.everyone(), 0)


@states("RS-02", "RS-03", "RS-04")
def forum_example(s: TorchSession) -> None:
    """Vectors that are reduced, cut, and gathered again."""
    source = [s.torch.arange(2) + rank + s.rank for rank in range(s.size)]
    result = s.torch.zeros(2, dtype=s.torch.int64)
    s.dist.reduce_scatter(result, source)
    ranks = s.size * (s.size - 1) // 2
    s.same(result, s.size * (s.torch.arange(2) + s.rank) + ranks)
    parts = [s.torch.zeros(2, dtype=s.torch.int64) for _ in range(s.size)]
    s.dist.all_gather(parts, result)
    s.same(parts[-1], s.size * (s.torch.arange(2) + s.size - 1) + ranks)


@states("RT-02")
def stacked_scatter(s: TorchSession) -> None:
    """A stacked input gives the same."""
    matrix = s.numbers(3 * s.size).reshape(s.size, 3)
    result = s.torch.zeros(3, dtype=s.torch.int64)
    s.dist.reduce_scatter_tensor(result, matrix)
    s.same(result, sum(s.everyone(3 * s.size)).reshape(s.size, 3)[s.rank])


@states("RT-04")
def wrong_inputs_of_scatter(s: TorchSession) -> None:
    """Inputs of another size or dtype."""
    result = s.torch.zeros(3, dtype=s.torch.int64)
    s.raises(WRONG, s.dist.reduce_scatter_tensor, result, s.numbers(3 * s.size + 1))
    s.raises(WRONG, s.dist.reduce_scatter_tensor, result, s.numbers(3 * s.size).float())


@states("A1-05")
def wrong_splits(s: TorchSession) -> None:
    """A wrong number of splits, or a wrong sum."""
    source, result = s.numbers(s.size), s.numbers(s.size)
    splits = [1] * (s.size + 1)
    s.raises(WRONG, s.dist.all_to_all_single, result, source, splits, splits)
    sums = [2] * s.size
    s.raises(WRONG, s.dist.all_to_all_single, result, source, sums, sums)


@states("A1-08")
def exchange_as_scatters(s: TorchSession) -> None:
    """The result is that of a loop of scatters."""
    source = s.numbers(2 * s.size)
    result, parts = s.torch.zeros_like(source), s.torch.zeros_like(source)
    s.dist.all_to_all_single(result, source)
    for root, part in enumerate(parts.chunk(s.size)):
        chunks = list(source.chunk(s.size)) if s.rank == root else None
        s.dist.scatter(part, chunks, root)
    s.same(result, parts)


@states("A1-09")
def strided_exchange(s: TorchSession) -> None:
    """Tensors that are not contiguous are refused."""
    source = s.numbers(2 * s.size)[::2]
    s.raises(WRONG, s.dist.all_to_all_single, s.numbers(s.size), source)


@states("AA-04")
def lists_of_exchanges(s: TorchSession) -> None:
    """Both are lists, with an entry for each rank."""
    s.raises(WRONG, s.dist.all_to_all, s.numbers(), s.everyone())
    s.raises(WRONG, s.dist.all_to_all, s.everyone()[:-1], s.everyone()[:-1])


@states("BA-01")
def late_rank(s: TorchSession) -> None:
    """No rank leaves before the last has entered."""
    if s.rank == s.size - 1:
        time.sleep(0.2)
    entered = s.torch.tensor([time.time()], dtype=s.torch.float64)
    s.dist.barrier()
    exit_time = time.time()
    s.dist.all_reduce(entered, op=s.dist.ReduceOp.MAX)
    s.same(exit_time >= entered.item(), True)


@states("BA-03")
def devices_of_a_barrier(s: TorchSession) -> None:
    """Device ids on CPUs."""
    s.dist.barrier(device_ids=[0])


@states("RO-08")
def complex_order(s: TorchSession) -> None:
    """Complex numbers have no order and no bits."""
    for name in ("MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR"):
        vector = s.torch.ones(2, dtype=s.torch.complex64)
        s.raises(WRONG, s.dist.all_reduce, vector, getattr(s.dist.ReduceOp, name))


@states("RO-09")
def operators_as_values(s: TorchSession) -> None:
    """Operators compare, copy and pickle."""
    operator = s.dist.ReduceOp.SUM
    s.same(pickle.loads(pickle.dumps(operator)), operator)  # noqa: S301  # made in this line
    s.same(operator == s.dist.ReduceOp.MAX, False)
    s.same(isinstance(operator, s.dist.ReduceOp), True)


@states("RO-10")
def deprecated_operators(s: TorchSession) -> None:
    """The old name warns."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        s.same(s.dist.reduce_op.SUM, s.dist.ReduceOp.SUM)
    s.same([message.category for message in messages], [FutureWarning])


@states("RO-11")
def wrong_operators(s: TorchSession) -> None:
    """An operator is a ReduceOp."""
    s.raises(TypeError, s.dist.all_reduce, s.numbers(), "sum")


@states("MB-01")
def monitored_barrier(s: TorchSession) -> None:
    """A monitored barrier to which all come."""
    s.same(s.dist.monitored_barrier(), None)
    s.same(s.dist.monitored_barrier(wait_all_ranks=True), None)


def _absent(s: TorchSession, **options: Any) -> str:
    """The error of a monitored barrier to which the last rank does not come."""
    s.needs(2)
    group = s.dist.new_group(list(range(s.size)))
    text = ""
    if s.rank < s.size - 1:
        limit = timedelta(seconds=1)
        text = s.raises(
            RuntimeError, s.dist.monitored_barrier, group=group, timeout=limit, **options
        )
    s.dist.barrier()
    return text


@states("MB-03", "MB-06")
def names_the_missing_rank(s: TorchSession) -> None:
    """Rank 0 names the rank that has not come."""
    text = _absent(s)
    if s.rank == 0:
        s.same(f"Rank {s.size - 1} failed" in text or f"[{s.size - 1}]" in text, True)


@states("MB-05")
def names_all_missing_ranks(s: TorchSession) -> None:
    """One message for all missing ranks."""
    text = _absent(s, wait_all_ranks=True)
    if s.rank == 0:
        s.same(str(s.size - 1) in text, True)


@states("MB-10")
def timeouts_of_barriers(s: TorchSession) -> None:
    """An int as timeout is a TypeError."""
    s.raises(TypeError, s.dist.monitored_barrier, timeout=5)
