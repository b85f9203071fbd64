"""Logs as NCCL and nccl-tests print them, written anew from their column widths."""

from __future__ import annotations

__all__ = ["blocks", "channels", "one_line", "table"]

PROTOCOLS = ("LL", "LL128", "Simple")


def table(algorithms, functions, first=1.0):
    """Made-up ``(function, algorithm, protocol) -> (latency, bandwidth)``; NVLS has Simple only, as
    in NCCL.
    """
    numbers = {}
    for f, function in enumerate(functions):
        for a, algorithm in enumerate(algorithms):
            for p, protocol in enumerate(PROTOCOLS):
                there = protocol == "Simple" or not algorithm.startswith("NVLS")
                numbers[function, algorithm, protocol] = (
                    first + 10 * f + a + p / 10,
                    100.0 * (a + 1) + p if there else 0.0,
                )
    return numbers


def cell(pair):
    return f"{pair[0]:8.1f}/{pair[1]:6.1f} |"


def one_line(numbers, prefix="node-1:11:22 [0] NCCL INFO "):
    """The layout before 2.19: all algorithms side by side."""
    functions, algorithms = (list(dict.fromkeys(key[place] for key in numbers)) for place in (0, 1))
    yield (
        prefix
        + "Latency/AlgBw |"
        + "".join(f" {a:>7}/{p:>6} |" for a in algorithms for p in PROTOCOLS)
    )
    yield prefix + " Max NThreads |" + f" {512:14d} |" * (3 * len(algorithms))
    for function in functions:
        yield (
            prefix
            + f"{function:>13} |"
            + "".join(cell(numbers[function, a, p]) for a in algorithms for p in PROTOCOLS)
        )


def blocks(numbers, prefix="node-1:11:22 [0] NCCL INFO "):
    """The layout since 2.19: three algorithms a block."""
    functions, algorithms = (list(dict.fromkeys(key[place] for key in numbers)) for place in (0, 1))
    for start in range(0, len(algorithms), 3):
        part = algorithms[start : start + 3]
        yield (
            prefix + "  Algorithm   |" + "".join(f" {'':>14}   {a:>14}   {'':>14} |" for a in part)
        )
        yield (
            prefix + "  Protocol    |" + "".join(f" {p:>14} |" for _ in range(3) for p in PROTOCOLS)
        )
        yield prefix + " Max NThreads |" + f" {640:14d} |" * (3 * len(part))
        for function in functions:
            yield (
                prefix
                + f"{function:>13} |"
                + "".join(cell(numbers[function, a, p]) for a in part for p in PROTOCOLS)
            )


def times(size, base_us=20.0, rate=100.0):
    """Microseconds of a size on a made-up machine (rate in GB/s)."""
    return base_us + size / rate / 1e3


def group(size, microseconds, factor, wrong="0", *, ms=False):
    """Time, algbw, busbw and #wrong with the widths of nccl-tests."""
    algbw = size / microseconds / 1e3
    shown = (
        f"{microseconds / 1e3:8.3f}"
        if ms
        else f"{microseconds:8.2f}"
        if microseconds < 1e4
        else f"{microseconds:8.0f}"
    )
    return f" {shown} {algbw:7.2f} {algbw * factor:7.2f} {wrong:>6}"


def nccl_tests(
    sizes,
    factor,
    *,
    op="sum",
    root="-1",
    dtype="float",
    itemsize=4,
    share=1,
    prefix="",
    version=2,
    hosts=("node-1",),
    per_host=8,
    device="NVIDIA H100 80GB HBM3",
    name="all_reduce",
    inside=None,
    wrong=None,
    base_us=20.0,
    rate=100.0,
    end=True,
):
    """A run as nccl-tests prints it. Version 0: milliseconds, before 2019; 1: 2019 to 2021; 2:
    since; 3: with the collective's name.
    """
    if version == 3:
        yield prefix + "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807"
        yield prefix + f"# Collective test starting: {name}_perf"
    yield (
        prefix
        + f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: 2(factor) warmup "
        "iters: 5 iters: 20"
    )
    yield prefix + "#"
    yield prefix + "# Using devices"
    for rank in range(len(hosts) * per_host):
        host = hosts[rank // per_host]
        middle = f"Group  0 Pid {1000 + rank:6d} on {host:>10}" if version else f"on {host:>10}"
        yield (
            prefix
            + f"#  Rank {rank:2d} {middle} device {rank % per_host:2d} [0x0{rank % 8}] {device}"
        )
    yield prefix + "#"
    words = [
        "size",
        "count",
        "type",
        *(["redop"] if op is not None else []),
        *(["root"] if version > 1 else []),
    ]
    last = "#wrong" if version > 1 else "error"
    if version == 0:
        words, last = ["bytes", "N", "type", *(["op"] if op is not None else [])], "res"
    yield (
        prefix
        + "#"
        + " ".join(f"{word:>10}" for word in [*words, *["time", "algbw", "busbw", last] * 2])
    )
    if version:
        yield (
            prefix
            + "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
            "     (us)  (GB/s)  (GB/s)"
        )
    for size in sizes:
        own = times(size, base_us, rate)
        mark, ratio = inside(size) if inside else ("0", 1.0)
        zero = "0e+00" if version < 2 else "0"
        cells = [f"{size:12d}", f"{size // itemsize // share:12d}", f"{dtype:>9}"]
        cells += [f"{op:>8}"] if op is not None else []
        cells += [f"{root:>7}"] if version > 1 else []
        told = wrong(size) if wrong and version > 1 else zero
        yield (
            prefix
            + " ".join(cells)
            + group(size, own, factor, told, ms=version == 0)
            + group(size, own * ratio, factor, mark if version > 1 else zero, ms=version == 0)
        )
    if end:
        yield prefix + "# Out of bounds values : 0 OK"
        yield prefix + "# Avg bus bandwidth    : 42.4242"
        yield prefix + "#"


def channels(rings, trees, places, *, name="0xabc", old=False, whole=True, ways=()):
    """What the ranks of a communicator say of its channels, a list of lines for each rank.

    ``old``: as before 2.8, parents first and without ids; not ``whole``: rank 0 cuts the rings off,
    and each rank tells its place in them.
    """
    n, said = len(places), []
    for rank, (host, device) in enumerate(places):
        prefix = f"{host}:{100 + rank}:{200 + rank} [{device}] NCCL INFO "
        identity = (
            f"comm 0x{rank + 16:x} rank {rank} nranks {n} cudaDev 0 nvmlDev {device} busId "
            f"{device}000"
        )
        known = "" if old else f" commId {name}"
        lines = [] if old else [f"ncclCommInitRank {identity}{known} - Init START"]
        if rank == 0:
            for c, ring in enumerate(rings):
                shown = ring if whole else ring[: max(1, n - 1)]
                lines.append(
                    f"Channel {c:02}/{len(rings):02} : "
                    + " ".join(f"{each:4}" for each in shown)
                    + "..." * (not whole)
                )
        if not whole:
            for c, ring in enumerate(rings):
                at = ring.index(rank)
                lines.append(f"Ring {c:02} : {ring[at - 1]} -> {rank} -> {ring[(at + 1) % n]}")
        places_in_trees = []
        for c, tree in enumerate(trees):
            below = [each for each in range(n) if tree[each] == rank]
            down = "/".join(map(str, [*below, -1, -1, -1][:3]))
            places_in_trees.append(
                f"[{c}] {tree[rank]}->{rank}->{down}"
                if old
                else f"[{c}] {down}->{rank}->{tree[rank]}"
            )
        lines.append("Trees " + " ".join(places_in_trees))
        lines += [
            f"Channel 00/0 : {a}[{a}] -> {b}[{b}] via {way}" for a, b, way in ways if a == rank
        ]
        lines.append(f"{'' if old else 'ncclCommInitRank '}{identity}{known} - Init COMPLETE")
        said.append([prefix + line for line in lines])
    return said
