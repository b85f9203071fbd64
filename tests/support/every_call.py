"""A rank program that uses all of the interface: ``every_call.py RANKS FILE`` runs it and writes
what all ranks ended with.

The same file runs on the emulator and, with SIMCOLL_BACKEND=mpi under mpiexec, on processes.
"""

import sys
from datetime import timedelta
from pathlib import Path

import ml_dtypes
import numpy as np

import simcoll.distributed as dist
from simcoll.distributed.runtime.objects import encode

DTYPES = (
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    np.int32,
    np.uint8,
    np.int64,
)


def data(rank, size, dtype=np.float64, seed=0):
    """Numbers whose sums depend on the order of adding."""
    values = np.random.default_rng([seed, rank]).normal(size=size) * 10 ** (rank % 3)
    return (
        values.astype(np.complex128).astype(dtype)
        if np.dtype(dtype).kind == "c"
        else values.astype(dtype)
    )


def reductions(rank, n):
    for dtype in DTYPES:
        with np.errstate(all="ignore"):
            x = data(rank, 37, dtype)
        dist.all_reduce(x)
        yield x
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT, dist.ReduceOp.AVG, dist.premul_sum(0.3)):
        x = data(rank, 5)
        dist.all_reduce(x, op)
        yield x
    bits = np.array([1 << rank, 255], np.uint16)
    dist.all_reduce(bits, dist.ReduceOp.BXOR)
    flags = np.array([rank == 0, True])
    dist.all_reduce(flags, dist.ReduceOp.BAND)
    wave = data(rank, 6, np.complex64)
    dist.all_reduce(wave, dist.ReduceOp.AVG)
    yield from (bits, flags, wave)
    for algorithm in ("ring", "rabenseifner", "recursive_doubling"):
        x = data(rank, 501, np.float32)
        dist.all_reduce(x, algorithm=algorithm)
        yield x
    several = [data(rank, 3), data(rank, 4, seed=1)]
    dist.all_reduce_coalesced(several)
    yield from several
    matrix = data(rank, 24).reshape(4, 6)
    dist.all_reduce(matrix.T[1:4])
    x = data(rank, 9)
    dist.reduce(x, n - 1)
    yield from (matrix, x)
    for size in (0, 1):
        x = data(rank, size).reshape(() if size else (0,))
        dist.all_reduce(x)
        yield x


def movements(rank, n):
    x = data(rank, 11)
    dist.broadcast(x, n // 2)
    yield x
    outputs = [np.zeros(r + 1) for r in range(n)]
    dist.all_gather(outputs, data(rank, rank + 1))
    yield np.concatenate(outputs)
    lists = [[np.zeros(2), np.zeros(3)] for _ in range(n)]
    dist.all_gather_coalesced(lists, [data(rank, 2), data(rank, 3)])
    yield np.concatenate([array for arrays in lists for array in arrays])
    whole = np.zeros((n, 3))
    dist.all_gather_into_tensor(whole, data(rank, 3))
    yield whole
    outputs = [np.zeros(4, np.int16) for _ in range(n)] if rank == 1 else None
    dist.gather(np.full(4, rank, np.int16), outputs, dst=1)
    yield np.zeros(0) if outputs is None else np.concatenate(outputs)
    mine = np.zeros(2)
    dist.scatter(mine, [data(r, 2, seed=7) for r in range(n)] if rank == 0 else None)
    yield mine
    mine = np.zeros(rank + 1)
    dist.reduce_scatter(mine, [data(rank, r + 1, seed=r) for r in range(n)])
    yield mine
    mine = np.zeros(2, np.float32)
    dist.reduce_scatter_tensor(mine, data(rank, 2 * n, np.float32))
    yield mine
    outputs = [np.zeros(r + rank) for r in range(n)]
    dist.all_to_all(outputs, [data(rank, rank + r, seed=r) for r in range(n)])
    yield np.concatenate(outputs)
    mine = np.zeros(sum(range(1, n + 1)))
    dist.all_to_all_single(mine, data(rank, (rank + 1) * n), list(range(1, n + 1)), [rank + 1] * n)
    yield mine
    mine = np.zeros((n, 2))
    dist.all_to_all_single(mine, data(rank, 2 * n).reshape(n, 2))
    yield mine
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=60))


def in_flight(rank, n):
    """Operations of two groups, begun in another order on odd ranks, and of one group, waited for
    backwards.
    """
    one, two = dist.new_group(), dist.new_group(algorithm="ring")
    x, y = data(rank, 100), data(rank, 100, seed=1)
    pairs = [(one, x), (two, y)]
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        for group, tensor in (pairs, pairs[::-1])[rank % 2]
    ]
    dist.compute(1e-4)
    for work in works[::-1]:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
    z = data(rank, 3)
    future = dist.all_reduce(z, async_op=True).get_future()
    future.then(lambda done: done.value()[0].__imul__(2.0)).wait()
    # A message beside a collective that its receiver has not called yet.
    late = dist.all_reduce(np.ones(1), async_op=True) if rank == 0 else None
    note = np.array([41.0 if rank == 0 else 0.0])
    if rank == 0:
        dist.send(note, 1)
    elif rank == 1:
        dist.recv(note, 0)
    ones = np.ones(1)
    if late is None:
        dist.all_reduce(ones)
    else:
        late.wait()
    yield from (x, y, z, note)


def groups(rank, n):
    odd = dist.new_group(range(1, n, 2))
    x = data(rank, 13)
    if rank % 2:
        dist.all_reduce(x, group=odd)
        assert dist.get_rank(odd) == rank // 2
    else:
        assert odd is dist.GroupMember.NON_GROUP_MEMBER
    mine, _ = dist.new_subgroups(2)
    dist.broadcast(x, group=mine, group_src=1)
    backwards = dist.new_group([1, 0], sort_ranks=False)
    y = np.zeros((2, 2))
    if rank < 2:
        dist.all_gather_into_tensor(y, data(rank, 2), group=backwards)
        local = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(y, group=local)
    yield from (x, y)
    mesh = dist.init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("dp", "tp"))
    for name in ("dp", "tp"):
        z = data(rank, 8)
        dist.all_reduce(z, group=mesh.get_group(name))
        yield z
    flat = dist.DeviceMesh("cpu", list(range(n)))
    dist.all_reduce(z, group=flat.get_group())
    yield z


def objects(rank, n):
    everyone = [None] * n
    dist.all_gather_object(everyone, {"rank": rank, "data": list(range(rank))})
    gathered = [None] * n if rank == 0 else None
    dist.gather_object(("from", rank), gathered)
    shared = ["text", {1: 2.5}, [rank]] if rank == 1 else [None] * 3
    dist.broadcast_object_list(shared, 1)
    part = [None]
    dist.scatter_object_list(part, [f"part {r}" * r for r in range(n)] if rank == 0 else None)
    letter = ["to", (rank + 1) % n] if rank == 0 else [None, None]
    if rank == 0:
        dist.send_object_list(letter, 1)
    elif rank == 1:
        assert dist.recv_object_list(letter) == 0
    yield np.frombuffer(encode([everyone, gathered, shared, part, letter]), np.uint8)


def messages(rank, n):
    x = np.zeros(3, ml_dtypes.bfloat16)
    ops = [
        dist.P2POp(dist.isend, data(rank, 3, ml_dtypes.bfloat16), (rank + 1) % n),
        dist.P2POp(dist.irecv, x, (rank - 1) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    yield x
    a, b, c = np.zeros(2), np.zeros(2), np.zeros(2)
    if rank == 0:
        works = [dist.isend(np.full(2, float(tag)), 1, tag=tag) for tag in (5, 6, 5)]
    elif rank == 1:
        works = [dist.irecv(b, 0, tag=6), dist.irecv(a, 0, tag=5), dist.irecv(c, tag=5)]
    else:
        works = []
    for work in works:
        work.wait()
    yield from (a, b, c)
    table = np.zeros((n, 2))
    if rank == 0:
        for _ in range(1, n):
            row = np.zeros(2)
            table[dist.recv(row)] = row
    else:
        dist.send(data(rank, 2), 0)
    yield table
    own, back = np.array([rank + 0.5]), np.zeros(1)
    sent = dist.isend(own, rank)
    received = dist.irecv(back, rank)
    assert received.wait()
    assert sent.wait()
    assert received.source_rank() == rank
    yield back
    group = dist.new_group([n - 1, 0])
    if rank in (0, n - 1):
        peer = np.zeros(1, np.int8)
        other = 1 - dist.get_rank(group)
        receive = dist.irecv(peer, group=group, group_src=other)
        dist.send(np.array([dist.get_rank(group)], np.int8), group=group, group_dst=other)
        receive.wait()
        assert receive.source_rank() == other
        yield peer


def again(rank, n):
    """A second default group, by the name of another backend."""
    dist.destroy_process_group()
    dist.init_process_group("gloo", timeout=timedelta(minutes=5), algorithm="ring")
    x = data(rank, 64, np.float32)
    dist.all_reduce(x)
    assert dist.get_backend() == "gloo"
    yield x


PARTS = (reductions, movements, in_flight, groups, objects, messages, again)


def program(rank, world_size):
    """What the ranks end with: by part the dtype, shape and bytes of each array."""
    ended = {}
    for part in PARTS:
        arrays = [np.asarray(array) for array in part(rank, world_size)]
        ended[part.__name__] = [
            [array.dtype.name, list(array.shape), array.tobytes()] for array in arrays
        ]
    return ended


if __name__ == "__main__":
    result = dist.spawn(program, nprocs=int(sys.argv[1]), topology="dgx-h100")
    if 0 in result.own_ranks:
        Path(sys.argv[2]).write_bytes(encode(list(result.returns)))
