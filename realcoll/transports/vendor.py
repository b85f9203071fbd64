"""Native collectives of the libraries below transports: baselines of measurements, oracles of
tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from realcoll.transports.interface import View
from simcoll.core.plan import Plan

__all__ = ["mpi_collective", "nccl_collective"]

_MPI_OPS = {
    "sum": "SUM",
    "product": "PROD",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}
_MPI_CHARS = "bBhHiIlLqQfdFD"
"""numpy's type codes of the types that every MPI library supports."""
_NCCL_OPS = {"sum": "NCCL_SUM", "product": "NCCL_PROD", "min": "NCCL_MIN", "max": "NCCL_MAX"}
_NCCL_TYPES = {
    "int8": "NCCL_INT8",
    "uint8": "NCCL_UINT8",
    "int32": "NCCL_INT32",
    "uint32": "NCCL_UINT32",
    "int64": "NCCL_INT64",
    "uint64": "NCCL_UINT64",
    "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "bfloat16": "NCCL_BFLOAT16",
}


def mpi_collective(
    mpi: Any, comm: Any, plan: Plan, source: View, target: View
) -> Callable[[], object] | None:
    """MPI's own collective for a plan whose rank r is rank r of the communicator; ``None`` if MPI
    has none.

    Parameters
    ----------
    mpi
        The module ``mpi4py.MPI``.
    comm
        Communicator of the ranks of the plan.
    source, target
        Input and output of this rank, of one element where it has none.
    """
    kind, dtype, root = plan.collective.kind, plan.dtype, plan.collective.root
    if kind == "barrier":
        barrier: Callable[[], object] = comm.Barrier
        return barrier
    if dtype.char not in _MPI_CHARS or not isinstance(plan.sizes, int):
        return None
    if plan.collective.spec.reduces and plan.reduction.name not in _MPI_OPS:
        return None
    op = getattr(mpi, _MPI_OPS.get(plan.reduction.name, ""), None)

    def broadcast() -> None:
        if comm.Get_rank() == root:
            target[...] = source
        comm.Bcast(target, root)

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: comm.Allreduce(source, target, op),
        "reduce": lambda: comm.Reduce(source, target, op, root),
        "reduce_scatter": lambda: comm.Reduce_scatter_block(source, target, op),
        "broadcast": broadcast,
        "all_gather": lambda: comm.Allgather(source, target),
        "gather": lambda: comm.Gather(source, target, root),
        "scatter": lambda: comm.Scatter(source, target, root),
        "all_to_all": lambda: comm.Alltoall(source, target),
    }
    return calls.get(kind)


def nccl_collective(
    nccl: Any, comm: Any, stream: int, plan: Plan, source: int, target: int
) -> Callable[[], object] | None:
    """A call that starts NCCL's own collective for a plan with one rank a GPU; ``None`` if CuPy has
    none.

    Parameters
    ----------
    nccl
        The module ``cupy.cuda.nccl``.
    comm
        ``NcclCommunicator`` of the ranks of the plan.
    stream, source, target
        Pointers: the stream, this rank's input and output.
    """
    kind, root, sizes = plan.collective.kind, plan.collective.root, plan.sizes
    name = _NCCL_TYPES.get(plan.dtype.name)
    if name is None or not isinstance(sizes, int):
        return None
    dtype = getattr(nccl, name)
    if plan.collective.spec.reduces and plan.reduction.name not in _NCCL_OPS:
        return None
    op = getattr(nccl, _NCCL_OPS.get(plan.reduction.name, ""), None)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: comm.allReduce(source, target, sizes, dtype, op, stream),
        "reduce": lambda: comm.reduce(source, target, sizes, dtype, op, root, stream),
        "reduce_scatter": lambda: comm.reduceScatter(source, target, sizes, dtype, op, stream),
        "broadcast": lambda: comm.broadcast(source, target, sizes, dtype, root, stream),
        "all_gather": lambda: comm.allGather(source, target, sizes, dtype, stream),
    }
    return calls.get(kind)
