"""Logs as NCCL and nccl-tests print them, written anew from their column widths."""

from __future__ import annotations

__all__ = ["blocks", "one_line", "table"]

PROTOCOLS = ("LL", "LL128", "Simple")


def table(algorithms, functions, first=1.0):
    """Made-up ``(function, algorithm, protocol) -> (latency, bandwidth)``; NVLS has Simple only, as in NCCL."""
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
    yield prefix + "Latency/AlgBw |" + "".join(f" {a:>7}/{p:>6} |" for a in algorithms for p in PROTOCOLS)
    yield prefix + " Max NThreads |" + f" {512:14d} |" * (3 * len(algorithms))
    for function in functions:
        yield (
            prefix + f"{function:>13} |" + "".join(cell(numbers[function, a, p]) for a in algorithms for p in PROTOCOLS)
        )


def blocks(numbers, prefix="node-1:11:22 [0] NCCL INFO "):
    """The layout since 2.19: three algorithms a block."""
    functions, algorithms = (list(dict.fromkeys(key[place] for key in numbers)) for place in (0, 1))
    for start in range(0, len(algorithms), 3):
        part = algorithms[start : start + 3]
        yield prefix + "  Algorithm   |" + "".join(f" {'':>14}   {a:>14}   {'':>14} |" for a in part)
        yield prefix + "  Protocol    |" + "".join(f" {p:>14} |" for _ in range(3) for p in PROTOCOLS)
        yield prefix + " Max NThreads |" + f" {640:14d} |" * (3 * len(part))
        for function in functions:
            yield prefix + f"{function:>13} |" + "".join(cell(numbers[function, a, p]) for a in part for p in PROTOCOLS)
