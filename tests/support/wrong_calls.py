"""Rank programs that cannot end well, one run after the other: ``wrong_calls.py RANKS FOLDER``
writes what every rank was told.

They run on the emulator, on threads and on MPI processes. At least three ranks; rank 1 is at fault.
"""

import sys
from datetime import timedelta
from pathlib import Path

import numpy as np

import simcoll.distributed as dist
from simcoll.distributed.runtime.objects import encode

SHORT = timedelta(milliseconds=400)
LONG_S = 1.0


def other_size(rank):
    dist.all_reduce(np.zeros(3 if rank == 1 else 2))


def other_function(rank):
    if rank == 1:
        dist.broadcast(np.zeros(2), 0)
    else:
        dist.all_reduce(np.zeros(2))


def other_dtype(rank):
    dist.all_reduce(np.zeros(2, np.float32 if rank == 1 else np.float64))


def other_op(rank):
    dist.all_reduce(np.zeros(2), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)


def other_algorithm(rank):
    choose = {"all_reduce": "ring" if rank == 1 else "tree"}
    dist.all_reduce(np.zeros(2), algorithm=choose)


def other_splits(rank):
    n = dist.get_world_size()
    sends = [2] * n if rank == 1 else [1] * n
    dist.all_to_all_single(np.zeros(n), np.zeros(sum(sends)), [1] * n, sends)


def other_group(rank):
    dist.new_group([0, 2] if rank == 1 else [0, 1])
    dist.barrier()


def other_mesh(rank):
    n = dist.get_world_size()
    dist.DeviceMesh("cpu", list(range(n))[:: -1 if rank == 1 else 1])


def late(rank):
    dist.init_process_group(timeout=SHORT)
    if rank == 1:
        dist.compute(LONG_S)
    dist.barrier()


def late_for_wait(rank):
    work = None
    if rank == 1:
        dist.compute(LONG_S)
    else:
        work = dist.all_reduce(np.zeros(2), async_op=True)
        work.wait(SHORT)


def late_for_roll(rank):
    if rank == 1:
        dist.compute(LONG_S)
    else:
        dist.monitored_barrier(timeout=SHORT)


def no_send(rank):
    if rank == 1:
        dist.compute(LONG_S)
    elif rank == 0:
        dist.irecv(np.zeros(2), 1).wait(SHORT)


def ended(rank):
    if rank != 1:
        dist.barrier()


def raised(rank):
    if rank == 1:
        raise ValueError("enough")
    dist.barrier()


def raised_before_message(rank):
    if rank == 1:
        raise ValueError("enough")
    if rank == 0:
        dist.recv(np.zeros(2), 1)


def ended_before_message(rank):
    if rank == 0:
        dist.send(np.zeros(2), 1)


def other_message(rank):
    if rank == 1:
        dist.recv(np.zeros(3), 0)
    elif rank == 0:
        dist.send(np.zeros(2), 1)


def touched(rank):
    x = np.zeros(4)
    work = dist.all_reduce(x, async_op=True)
    if rank == 1:
        x[0] = 5
    work.wait()


CASES = (
    other_size,
    other_function,
    other_dtype,
    other_op,
    other_algorithm,
    other_splits,
    other_group,
    other_mesh,
    late,
    late_for_wait,
    late_for_roll,
    no_send,
    ended,
    raised,
    raised_before_message,
    ended_before_message,
    other_message,
    touched,
)


def told(case, run):
    """What every rank's own call raised, by rank, and what the run raised here."""
    own = {}

    def program(rank, _world_size):
        try:
            case(rank)
        except Exception as error:
            own[rank] = f"{type(error).__name__}: {error}"
            raise

    try:
        run(program)
    except Exception as error:  # noqa: BLE001
        return own, f"{type(error).__name__}: {error}"
    return own, ""


if __name__ == "__main__":
    found = {
        case.__name__: told(case, lambda program: dist.spawn(program, int(sys.argv[1])))
        for case in CASES
    }
    final = dist.spawn(lambda rank, _: rank, int(sys.argv[1]))
    Path(sys.argv[2], str(min(final.own_ranks))).write_bytes(encode(found))
