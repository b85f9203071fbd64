"""What collectives mean, written down sequentially: the data of every step, the result of every
member, and the call that makes it.
"""

import numpy as np

import simcoll.distributed as dist

KINDS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
    "ring",
)
OPS = {"SUM": np.add, "MAX": np.maximum, "BXOR": np.bitwise_xor}


def data(step, rank, size):
    return (np.arange(size, dtype=np.int64) * 7 + rank * 1001 + step * 31) % 97


def expected(kind, number, members, here, count, op, root):
    """What the member at position ``here`` holds afterwards."""
    size = len(members)
    total = data(number, members[0], count * size)
    for member in members[1:]:
        total = OPS[op](total, data(number, member, count * size))
    whole = {member: data(number, member, count * size) for member in members}
    block = slice(count * here, count * (here + 1))
    match kind:
        case "all_reduce":
            return total
        case "reduce":
            return total if here == root else whole[members[here]]
        case "broadcast":
            return whole[members[root]]
        case "reduce_scatter":
            return total[block]
        case "all_gather":
            return np.concatenate([data(number, member, count) for member in members])
        case "all_to_all":
            return np.concatenate([whole[member][block] for member in members])
        case "gather":
            return (
                np.concatenate([data(number, member, count) for member in members])
                if here == root
                else np.zeros(0, np.int64)
            )
        case "scatter":
            return whole[members[root]][block]
        case "ring":
            return data(number, members[here - 1], count)
    return np.zeros(0, np.int64)


def issue(kind, number, members, here, count, op, root, group):
    """Start a collective; returns its works and its result."""
    size, kw = len(members), {"group": group, "async_op": True}
    x = data(number, members[here], count * size)
    part, whole = data(number, members[here], count), np.zeros(count * size, np.int64)
    split = [whole[count * i : count * (i + 1)] for i in range(size)]
    reduction = {"op": getattr(dist.ReduceOp, op)}
    match kind:
        case "all_reduce":
            return [dist.all_reduce(x, **reduction, **kw)], x
        case "reduce":
            return [dist.reduce(x, group_dst=root, **reduction, **kw)], x
        case "broadcast":
            return [dist.broadcast(x, group_src=root, **kw)], x
        case "reduce_scatter":
            out = np.zeros(count, np.int64)
            return [dist.reduce_scatter_tensor(out, x, **reduction, **kw)], out
        case "all_gather":
            return [dist.all_gather(split, part, **kw)], whole
        case "all_to_all":
            return [dist.all_to_all_single(whole, x, **kw)], whole
        case "gather":
            mine = here == root
            return [
                dist.gather(part, split if mine else None, group_dst=root, **kw)
            ], whole if mine else np.zeros(0, np.int64)
        case "scatter":
            out = np.zeros(count, np.int64)
            return [
                dist.scatter(
                    out,
                    list(x.reshape(size, count)) if here == root else None,
                    group_src=root,
                    **kw,
                )
            ], out
        case "ring":
            out = np.zeros(count, np.int64)
            ops = [
                dist.P2POp(dist.isend, part, group=group, group_peer=(here + 1) % size),
                dist.P2POp(dist.irecv, out, group=group, group_peer=(here - 1) % size),
            ]
            return dist.batch_isend_irecv(ops), out
    return [dist.barrier(**kw)], np.zeros(0, np.int64)
