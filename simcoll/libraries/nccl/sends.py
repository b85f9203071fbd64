"""NCCL's channels of grouped sends and receives, as of an all_to_all."""

from __future__ import annotations

from functools import lru_cache
from math import gcd

from simcoll.libraries.nccl.communicator import CommunicatorFacts, call_channels

__all__ = ["channels_of_sends", "channels_to_a_peer", "send_channels"]

SENDS_OF_A_BATCH = 8
"""Number of sends that one batch of work holds (NCCL_MAX_DEV_WORK_P2P_PER_BATCH)."""
_CHUNK_BYTES = {"network": 131072, "nvlink": 524288, "pcie": 131072}
"""NCCL_P2P_NET_CHUNKSIZE, NCCL_P2P_NVL_CHUNKSIZE and NCCL_P2P_PCI_CHUNKSIZE."""


def send_channels(communicator: CommunicatorFacts) -> tuple[int, int]:
    """Number of channels of sends in total, and the most to one peer: powers of two."""
    channels, by_links = call_channels(communicator), communicator.graphs.p2p_channels_per_peer
    total = _power_of_two(channels)
    if communicator.nodes == 1:
        return total, min(_power_of_two(by_links), total)
    if not communicator.library.number("rules.sends_in_a_round"):
        # A second channel where the first NIC fills the link of a GPU, unless the ranks are many.
        minimum = 2 if 2 * communicator.ranks <= 4 * channels else 1
        return total, min(_power_of_two(max(by_links, minimum)), total)
    to_peer = min(_power_of_two(by_links), total)
    batches = -(-communicator.ranks // SENDS_OF_A_BATCH)
    while to_peer * batches > total and to_peer > 1:
        to_peer //= 2
    return total, to_peer


def _power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


def _chunk_bytes(communicator: CommunicatorFacts) -> int:
    """Bytes of a chunk of a send; the buffer has eight."""
    if communicator.nodes > 1:
        has_few_gpus = communicator.capability >= 100 and communicator.cpu == "arm"
        by_cpu = communicator.library.number("rules.send_chunks_by_cpu")
        chunk = _CHUNK_BYTES["network"] * (2 if has_few_gpus and by_cpu else 1)
    else:
        direct = communicator.graphs.ring.path_inside in {"LOC", "NVL", "NVB"}
        chunk = _CHUNK_BYTES["nvlink" if direct else "pcie"]
    buffer_bytes = communicator.environment.buffer_bytes
    return min(chunk, buffer_bytes // 8) if buffer_bytes else chunk


def channels_to_a_peer(communicator: CommunicatorFacts, piece_bytes: int) -> int:
    """Number of channels on which a rank sends a piece to one other rank.

    Few, so that sends to different ranks have separate channels, and twice as many while the part
    of a channel is too long.
    """
    total, limit = send_channels(communicator)
    few = limit
    while few * communicator.ranks > total and few > 1:
        few //= 2
    if piece_bytes == 0:
        return 1
    chunk, over_nodes = _chunk_bytes(communicator), communicator.nodes > 1
    shortest, longest = (chunk // 2, chunk) if over_nodes else (chunk // 8, chunk * 32)
    channels = min(few, -(-piece_bytes // shortest))
    part = max(shortest, -(-piece_bytes // channels))
    while part > longest and channels <= limit // 2:
        channels *= 2
        part = -(-piece_bytes // channels)
    return channels


@lru_cache(maxsize=4096)
def channels_of_sends(communicator: CommunicatorFacts, piece_bytes: int) -> int:
    """Number of channels that have work when a rank sends a piece to every rank.

    Examples
    --------
    >>> from simcoll.libraries.library import load_library
    >>> from simcoll.libraries.nccl.communicator import communicator_on
    >>> from simcoll.topology import load_topology
    >>> node = communicator_on(load_topology("dgx-h100"), load_library("nccl-2.30"))
    >>> [channels_of_sends(node, size // 8) for size in (8, 2**20, 2**30)]
    [8, 16, 32]
    """
    total, _ = send_channels(communicator)
    parts = range(channels_to_a_peer(communicator, piece_bytes))
    bases = {_base(communicator, position) for position in range(communicator.ranks)}
    bits = (total - 1).bit_length()
    if communicator.library.text("rules.send_order") == "parts":
        channels = {base + _in_reverse(part, bits) for base in bases for part in parts}
    else:
        channels = {_in_reverse(base, bits) + part for base in bases for part in parts}
    return len({channel % total for channel in channels})


def _base(communicator: CommunicatorFacts, position: int) -> int:
    """Number of the first channel of the peer at a position of the order of sends."""
    if communicator.nodes == 1:
        return position
    if communicator.library.text("rules.send_order") == "bases":
        group = gcd(communicator.graphs.least_node_ranks, SENDS_OF_A_BATCH)
    else:
        group = -(-communicator.ranks // communicator.nodes)
    batches = -(-group // SENDS_OF_A_BATCH)
    return position // group * batches + position % group // SENDS_OF_A_BATCH


def _in_reverse(number: int, bits: int) -> int:
    """A number with its lowest bits in the opposite order."""
    return int(f"{number & ((1 << bits) - 1):0{bits}b}"[::-1], 2) if bits else 0
