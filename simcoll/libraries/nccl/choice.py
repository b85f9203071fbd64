"""NCCL's choice for one call: algorithm, protocol, channels, threads, and its own estimate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from simcoll.core.vocabulary import CollectiveKind, NcclAlgorithm, NcclProtocol, PredictedAlgorithm
from simcoll.errors import ConfigError
from simcoll.libraries.nccl.communicator import CommunicatorFacts, call_channels, nvls_channels
from simcoll.libraries.nccl.tuning_table import TuningEntry, tuning_table

__all__ = ["NcclCall", "NcclChoice", "estimate_us", "nccl_choice", "supports"]

WARP = 32
MAX_THREADS = 640
LOSSY = 1024
"""Factor on the time of a ring that would add more than eight numbers of 8 bits in a row."""
_SWITCHES_ORDER = frozenset({"int32", "uint32", "int64", "uint64", "float16", "bfloat16"})
"""Types of which switches also find the least and the greatest."""
_SWITCHES_ADD = _SWITCHES_ORDER | {"float32", "float64"}


@dataclass(frozen=True, slots=True)
class NcclCall:
    """A collective of one size.

    Attributes
    ----------
    collective, size_bytes
        The collective, and its size as in nccl-tests: of the whole buffer.
    dtype, op
        Type of the elements and reduction, such as ``"float32"`` and ``"sum"``.
    """

    collective: CollectiveKind
    size_bytes: int
    dtype: str = "float32"
    op: str = "sum"


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """The choice of NCCL for a call.

    Attributes
    ----------
    algorithm, protocol
        The choice.
    channels
        Number of channels that have work.
    threads
        Number of threads of the block of a channel.
    estimate_us
        NCCL's own estimate of the time, by which it chooses.
    """

    algorithm: NcclAlgorithm
    protocol: NcclProtocol
    channels: int
    threads: int
    estimate_us: float

    @property
    def key(self) -> tuple[NcclAlgorithm, NcclProtocol]:
        """Algorithm and protocol."""
        return self.algorithm, self.protocol


LoggedCosts = tuple[tuple[str, str, float, float], ...]
"""Algorithm, protocol, latency in microseconds and rate in GB/s, as NCCL logs them."""


@lru_cache(maxsize=2**16)
def nccl_choice(
    communicator: CommunicatorFacts, call: NcclCall, logged: LoggedCosts = ()
) -> NcclChoice:
    """The choice of NCCL for a call.

    Parameters
    ----------
    logged
        The tuning table of the machine's own NCCL for this collective, by which it then chooses.

    Raises
    ------
    ConfigError
        When the variables leave nothing to run: NCCL then fails, too.

    Examples
    --------
    >>> from simcoll.libraries.library import load_library
    >>> from simcoll.libraries.nccl.graphs import graphs_of
    >>> from simcoll.topology import load_topology
    >>> graphs = graphs_of(load_topology("dgx-h100"), (2, 27))
    >>> node = CommunicatorFacts(load_library("nccl-2.27"), graphs, 8, 90, "intel")
    >>> nccl_choice(node, NcclCall("all_reduce", 2**28))
    NcclChoice(algorithm='nvls', protocol='Simple', channels=16, threads=640, estimate_us=1031.6...)
    """
    table = tuning_table(communicator, call.collective)
    if logged:
        table = _with_log(table, logged) or table
    entries = [entry for entry in table if supports(entry.algorithm, call)]
    if not entries:
        raise ConfigError(
            f"NCCL's variables leave nothing to run {call.collective} of {call.dtype} with: NCCL "
            "fails with 'invalid usage'; allow an algorithm and a protocol that it has, such as "
            f"NCCL_ALGO=Ring for {call.collective}"
        )
    estimates = [estimate_us(communicator, entry, call) for entry in entries]
    fastest = min(range(len(entries)), key=estimates.__getitem__)
    entry = entries[fastest]
    channels, threads = _channels_and_threads(communicator, entry, call)
    return NcclChoice(
        entry.algorithm,
        entry.protocol,
        _working_channels(communicator, entry, call, channels),
        threads,
        estimates[fastest],
    )


def _with_log(table: tuple[TuningEntry, ...], logged: LoggedCosts) -> tuple[TuningEntry, ...]:
    """The entries that a log has, too, with its numbers."""
    numbers = {(algorithm, protocol): costs for algorithm, protocol, *costs in logged}
    return tuple(
        replace(entry, latency_us=costs[0], rate_GBps=costs[1])
        for entry in table
        if (costs := numbers.get((entry.algorithm, entry.protocol))) and costs[1] > 0
    )


def supports(algorithm: PredictedAlgorithm, call: NcclCall) -> bool:
    """Whether an algorithm takes the type and reduction of a call."""
    if algorithm in {"nvls", "nvls_tree"} and call.collective != "all_gather":
        return call.dtype in (_SWITCHES_ADD if call.op == "sum" else _SWITCHES_ORDER) and (
            call.op in {"sum", "min", "max"}
        )
    if algorithm == "pat" and call.collective == "reduce_scatter":
        return call.op not in {"avg", "premul_sum"}
    return True


def estimate_us(communicator: CommunicatorFacts, entry: TuningEntry, call: NcclCall) -> float:
    """NCCL's estimate of the time of a call by one algorithm and protocol, in microseconds."""
    size, all_reduce = call.size_bytes, call.collective == "all_reduce"
    latency, rate = entry.latency_us, entry.rate_GBps
    if all_reduce:
        rate *= _correction(communicator, entry, size)
    if all_reduce and (entry.algorithm, entry.protocol) == ("ring", "Simple"):
        share = size // (call_channels(communicator) * communicator.ranks)
        if communicator.nodes > 1 and share >= 64:
            generation = f"generation.{communicator.generation}"
            latency *= communicator.library.number(f"{generation}.plateau")
    time_us = latency + size / (1000 * rate)
    is_lossy = entry.algorithm == "ring" and communicator.ranks > 8
    return time_us * LOSSY if is_lossy and call.dtype.startswith("float8") else time_us


def _correction(communicator: CommunicatorFacts, entry: TuningEntry, size_bytes: int) -> float:
    """Share of its rate that a tree reaches at a size; 1 for other algorithms."""
    if entry.algorithm == "tree":
        place = f"tree_correction.{entry.protocol}"
    elif entry.algorithm == "nvls_tree" and communicator.capability >= 100 and communicator.has_x86:
        place = "tree_correction.nvls_tree"
    else:
        return 1.0
    table = communicator.library.numbers(place)
    row = (size_bytes >> 6).bit_length() - 1
    return table[row] if 0 <= row < len(table) else 1.0


def _channels_and_threads(
    communicator: CommunicatorFacts, entry: TuningEntry, call: NcclCall
) -> tuple[int, int]:
    """The most channels that a call may use, and its threads: fewer for little work."""
    size, threads = call.size_bytes, entry.threads
    if entry.algorithm in {"nvls", "nvls_tree"}:
        return nvls_channels(communicator), threads
    channels, thread_bytes = call_channels(communicator), entry.thread_bytes
    while size < channels * threads * thread_bytes and channels >= 2:
        channels -= 1
    while size < channels * threads * thread_bytes and threads % 128 == 0:
        threads //= 2
    if entry.algorithm in {"tree", "pat"}:
        return channels, MAX_THREADS
    extra_warp = WARP if entry.protocol == "Simple" else 0
    return channels, max(threads + extra_warp, 3 * WARP)


def _working_channels(
    communicator: CommunicatorFacts, entry: TuningEntry, call: NcclCall, channels: int
) -> int:
    """Number of channels that have work, after the data is cut into cells."""
    library, ranks = communicator.library, communicator.ranks
    least_traffic = int(library.number("rules.cell_bytes"))
    per_rank = call.collective in {"all_gather", "reduce_scatter"}
    traffic_per_byte = 2 if call.collective == "all_reduce" else ranks if per_rank else 1
    if entry.protocol == "LL":
        traffic_per_byte *= 4
    count_bytes = call.size_bytes // ranks if per_rank else call.size_bytes
    traffic = max(least_traffic, count_bytes * traffic_per_byte)
    cell = _ceil(_ceil(least_traffic, traffic_per_byte), 16) * 16
    cells = _ceil(count_bytes, cell)
    if library.number("rules.traffic_in_lines"):
        per_channel = _ceil(traffic // channels, 16) * 16
    else:
        per_channel = max(least_traffic, traffic // channels)
    cells_per_channel = min(cells, _ceil(per_channel, cell * traffic_per_byte))
    limit = (
        nvls_channels(communicator)
        if entry.algorithm.startswith("nvls")
        else call_channels(communicator)
    )
    if limit == 1 or not cells_per_channel:
        return 1
    return min(_ceil(cells, cells_per_channel), limit)


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
