"""Statements on collectives and messages that mpi4py shows by its own calls, and the reasons of
those that MPI cannot play.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np

from simcoll.arrays import Array
from simcoll.testing.conformance.rank_session import RankSession, checks_of, states

__all__ = ["MPI_REASONS", "MpiSession", "mpi_checks"]

ERRORS = (RuntimeError, ValueError)
"""mpi4py's Exception is a RuntimeError."""


class MpiSession(RankSession):
    """One rank among all of the world's communicator."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend.world.rank, backend.world.nranks)
        self.mpi, self.comm = backend.mpi, backend.comm
        self.source, self.target = (self.rank - 1) % self.size, (self.rank + 1) % self.size

    def equal(self, result: Any, expected: Any) -> bool:
        """Whether a result, which may be an array, is what it must be."""
        if isinstance(expected, np.ndarray):
            return bool(np.array_equal(result, expected))
        return super().equal(result, expected)

    def numbers(self, count: int = 3, rank: int | None = None) -> Array:
        """A vector that is different on every rank."""
        origin = self.rank if rank is None else rank
        return np.arange(count, dtype=np.int64) + 100 * (origin + 1)

    def total(self, count: int = 3) -> Array:
        """The sum of the vectors of all ranks."""
        ranks = np.arange(self.size, dtype=np.int64)
        return np.arange(count, dtype=np.int64) * self.size + 100 * int((ranks + 1).sum())


@states("PP-05")
def receive_from_any(s: MpiSession) -> None:
    """A receive without a source; the status has it."""
    s.needs(2)
    if s.rank:
        s.comm.Send(s.numbers(), 0)
        return
    status = s.mpi.Status()
    for _ in range(1, s.size):
        vector = s.numbers()
        s.comm.Recv(vector, s.mpi.ANY_SOURCE, status=status)
        s.same(vector, s.numbers(rank=status.source))


@states("PP-09")
def message_to_itself(s: MpiSession) -> None:
    """Isend and Irecv may name the rank itself."""
    vector = s.numbers(rank=7)
    requests = [s.comm.Irecv(vector, s.rank), s.comm.Isend(s.numbers(), s.rank)]
    s.mpi.Request.Waitall(requests)
    s.same(vector, s.numbers())


@states("PP-11")
def destination_outside_of_the_world(s: MpiSession) -> None:
    """A destination that is no rank of the world."""
    s.raises(ERRORS, s.comm.Send, s.numbers(), s.size)
    s.raises(ERRORS, s.comm.Irecv, s.numbers(), s.size)


@states("PP-16")
def pending_receive(s: MpiSession) -> None:
    """A receive is not complete before its partner exists."""
    s.needs(2)
    vector = s.numbers()
    request = s.comm.Irecv(vector, s.source)
    s.comm.Barrier()
    s.same(request.Test(), False)
    s.comm.Barrier()
    s.comm.Send(s.numbers(), s.target)
    request.Wait()
    s.same(vector, s.numbers(rank=s.source))


@states("PP-19")
def source_of_a_receive(s: MpiSession) -> None:
    """A receive knows its source."""
    status = s.mpi.Status()
    requests = [s.comm.Irecv(s.numbers(), s.source), s.comm.Isend(s.numbers(), s.target)]
    requests[0].Wait(status)
    requests[1].Wait()
    s.same(status.source, s.source)


@states("PP-20")
def shapes_of_messages(s: MpiSession) -> None:
    """Shapes may differ where the numbers of elements agree."""
    matrix = s.numbers(6).reshape(2, 3)
    s.comm.Sendrecv(s.numbers(6), s.target, recvbuf=matrix, source=s.source)
    s.same(matrix, s.numbers(6, s.source).reshape(2, 3))


@states("PP-21")
def longer_receive(s: MpiSession) -> None:
    """What a short message does not reach stays."""
    vector = s.numbers(5)
    s.comm.Sendrecv(s.numbers(2), s.target, recvbuf=vector, source=s.source)
    s.same(vector, np.concatenate([s.numbers(2, s.source), s.numbers(5)[2:]]))


@states("PP-22")
def shorter_receive(s: MpiSession) -> None:
    """A message that is longer than the receive buffer is an error."""
    memory = np.zeros(6, np.int64)
    request = s.comm.Isend(s.numbers(4), s.target)
    s.raises(ERRORS, s.comm.Recv, memory[:2], s.source)
    request.Wait()
    s.same(memory[2:], np.zeros(4, np.int64))


@states("PP-25", "A1-09")
def strided_buffers(s: MpiSession) -> None:
    """Arrays that are not contiguous are refused."""
    s.raises((BufferError, ValueError), s.comm.Send, s.numbers(6)[::2], s.target)
    source, result = s.numbers(2 * s.size)[::2], s.numbers(s.size)
    s.raises((BufferError, ValueError), s.comm.Alltoall, source, result)


@states("PP-26")
def wrong_buffers(s: MpiSession) -> None:
    """A list is no buffer."""
    s.raises(TypeError, s.comm.Send, [1, 2], s.target)


@states("PP-38")
def objects_from_any(s: MpiSession) -> None:
    """Objects from any rank."""
    s.needs(2)
    if s.rank:
        s.comm.send([s.rank], 0)
        return
    status = s.mpi.Status()
    for _ in range(1, s.size):
        s.same(s.comm.recv(source=s.mpi.ANY_SOURCE, status=status), [status.source])


@states("PP-40")
def objects_without_pickle(s: MpiSession) -> None:
    """Objects that no pickle has."""
    s.raises(Exception, s.comm.send, lambda: 0, s.target)


@states("WK-03", "WK-04")
def waits_twice(s: MpiSession) -> None:
    """Wait returns True, also again, and the request is complete."""
    result = s.numbers()
    request = s.comm.Iallreduce(s.numbers(), result)
    s.same((request.Wait(), request.Wait(), request.Test()), (True, True, True))
    s.same(result, s.total())


@states("BC-02")
def shapes_of_broadcasts(s: MpiSession) -> None:
    """Shapes may differ where the numbers of elements agree."""
    vector = s.numbers(6) if s.rank == 0 else s.numbers(6).reshape(2, 3)
    s.comm.Bcast(vector, 0)
    s.same(vector.ravel(), s.numbers(6, 0))


@states("AR-02")
def documented_sum(s: MpiSession) -> None:
    """The documentation's int64 example."""
    vector = np.arange(2) + 1 + 2 * s.rank
    s.comm.Allreduce(s.mpi.IN_PLACE, vector, s.mpi.SUM)
    s.same(vector, sum(np.arange(2) + 1 + 2 * rank for rank in range(s.size)))


@states("AG-06", "AT-02")
def shapes_of_gathers(s: MpiSession) -> None:
    """A stacked output holds the same, and so does one of another shape."""
    stacked, pairs = np.zeros((s.size, 4), np.int64), np.zeros((s.size * 2, 2), np.int64)
    everyone = np.stack([s.numbers(4, rank) for rank in range(s.size)])
    for result in (stacked, pairs):
        s.comm.Allgather(s.numbers(4), result)
        s.same(result, everyone.reshape(result.shape))


@states("RT-02")
def stacked_scatter(s: MpiSession) -> None:
    """A stacked input gives the same."""
    result = np.zeros(3, np.int64)
    s.comm.Reduce_scatter_block(s.numbers(3 * s.size).reshape(s.size, 3), result)
    s.same(result, s.total(3 * s.size).reshape(s.size, 3)[s.rank])


@states("GA-04")
def documented_gather(s: MpiSession) -> None:
    """The documentation's example."""
    result = np.zeros((s.size, 2)) if s.rank == 0 else None
    s.comm.Gather(np.ones(2) * s.rank, result, root=0)
    if result is not None:
        s.same(result, np.repeat(np.arange(s.size), 2).reshape(s.size, 2))


@states("RS-02", "RS-03", "RS-04")
def forum_example(s: MpiSession) -> None:
    """Vectors that are reduced, cut, and gathered again."""
    source = np.concatenate([np.arange(2) + rank + s.rank for rank in range(s.size)])
    result, gathered = np.zeros(2, np.int64), np.zeros((s.size, 2), np.int64)
    s.comm.Reduce_scatter(source, result, [2] * s.size)
    offset = s.size * (s.size - 1) // 2
    s.same(result, s.size * (np.arange(2) + s.rank) + offset)
    s.comm.Allgather(result, gathered)
    s.same(gathered[-1], s.size * (np.arange(2) + s.size - 1) + offset)


@states("RS-07")
def transposes(s: MpiSession) -> None:
    """A reduce_scatter is the transpose of an all_gather: <A x, w> = <x, A' w>, over all ranks."""
    x = s.numbers().astype(np.float64)
    w = np.tile(x, s.size) * (s.rank + 2)
    gathered, scattered = np.empty_like(w), np.empty_like(x)
    s.comm.Allgather(x, gathered)
    s.comm.Reduce_scatter_block(w, scattered)
    products = np.array([gathered @ w, x @ scattered])
    s.comm.Allreduce(s.mpi.IN_PLACE, products)
    s.same(products[0], products[1])


@states("A1-04")
def sizes_without_splits(s: MpiSession) -> None:
    """Without splits, the world size divides the length."""
    s.needs(2)
    s.raises(ERRORS, s.comm.Alltoall, s.numbers(s.size + 1), s.numbers(s.size + 1))


@states("A1-08")
def exchange_as_scatters(s: MpiSession) -> None:
    """The result is that of a loop of scatters."""
    source, result, parts = (s.numbers(2 * s.size) for _ in range(3))
    s.comm.Alltoall(source, result)
    for root, part in enumerate(np.split(parts, s.size)):
        s.comm.Scatter(source if s.rank == root else None, part, root)
    s.same(result, parts)


@states("BA-01")
def late_rank(s: MpiSession) -> None:
    """No rank leaves before the last has entered."""
    if s.rank == s.size - 1:
        time.sleep(0.2)
    entry = time.time()
    s.comm.Barrier()
    exit_time = time.time()
    s.same(exit_time >= s.comm.allreduce(entry, s.mpi.MAX), True)


@states("OB-04")
def default_root(s: MpiSession) -> None:
    """The root is rank 0 by default."""
    s.same(s.comm.gather(s.rank), list(range(s.size)) if s.rank == 0 else None)


@states("OB-09")
def scatters_objects_of_the_source(s: MpiSession) -> None:
    """The source must pass an object for each rank, others need not."""
    s.same(s.comm.scatter(list(range(s.size)) if s.rank == 0 else None), s.rank)


@states("OB-10")
def objects_block(s: MpiSession) -> None:
    """Collectives of objects have no nonblocking form."""
    names = ("ibcast", "igather", "iscatter", "iallgather", "ialltoall")
    s.same([name for name in names if hasattr(s.comm, name)], [])


@states("OB-11")
def arrays_in_objects(s: MpiSession) -> None:
    """Arrays inside of objects arrive."""
    received = s.comm.bcast({"values": s.numbers()} if s.rank == 0 else None)
    s.same(received["values"], s.numbers(rank=0))


@states("RO-09")
def operators_as_values(s: MpiSession) -> None:
    """Operators compare, copy and pickle."""
    operator = s.mpi.SUM
    s.same(pickle.loads(pickle.dumps(operator)), operator)  # noqa: S301  # made in this line
    s.same((operator == s.mpi.MAX, isinstance(operator, s.mpi.Op)), (False, True))


@states("RO-11")
def wrong_operators(s: MpiSession) -> None:
    """An operator is an MPI.Op."""
    s.raises(TypeError, s.comm.Allreduce, s.numbers(), s.numbers(), "sum")


def mpi_checks() -> dict[str, Any]:
    """The check of each statement that MPI plays by its own calls."""
    return checks_of(globals())


_ONE_NAME = "MPI names a rank by its number in the communicator alone"
_ITSELF = "MPI allows messages from a rank to itself"
_NO_BATCH = "MPI has no class for the operations of a batch"
_IGNORED = "MPI ignores that argument on other ranks than the root"
_NO_MONITOR = "MPI has no monitored barrier"
_NO_FUTURES = "MPI's requests have no futures"
_NO_TIMEOUT = "MPI has no timeouts"

MPI_REASONS = {
    "PP-03": _ONE_NAME,
    "PP-04": "mpi4py's signatures require the destination",
    "PP-06": _ONE_NAME,
    "PP-07": _ITSELF,
    "PP-08": _ITSELF,
    "PP-14": "MPI has tags",
    "PP-18": "MPI's requests are of another class",
    "PP-27": _NO_TIMEOUT,
    "PP-28": _NO_BATCH,
    "PP-29": _NO_BATCH,
    "PP-34": _NO_BATCH,
    "PP-39": _ITSELF,
    "WK-05": _NO_FUTURES,
    "WK-06": _NO_FUTURES,
    "WK-07": _NO_FUTURES,
    "WK-08": "a request of MPI tells no result",
    "WK-09": "is on a method of torch's works",
    "WK-10": _NO_TIMEOUT,
    "WK-11": _NO_TIMEOUT,
    "WK-15": "is on a class of torch",
    "WK-16": "is on gradients, which MPI does not know",
    "AR-09": "is on gradients, which MPI does not know",
    "AG-05": "MPI has one output, no list",
    "GA-02": _IGNORED,
    "SC-02": _IGNORED,
    "SC-06": "the source alone sees it, and the others would wait",
    "AA-04": "MPI has one buffer, no list",
    "BA-03": "MPI's barrier takes no devices",
    "OB-02": "mpi4py returns a list of objects, and fills none",
    "OB-06": _ONE_NAME,
    "OB-08": "mpi4py returns the object, and fills no list",
    "RO-10": "is on a name that torch has deprecated",
    "RO-13": "MPI has no sparse tensors",
    **{f"MB-{number:02d}": _NO_MONITOR for number in range(1, 11)},
}
"""Why MPI does not play a statement on collectives or messages."""
