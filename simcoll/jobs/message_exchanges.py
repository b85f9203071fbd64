"""Match groups of messages over the ranks: sends and receives that one kernel performs together.

The i-th message of a rank to another is the i-th that the other receives from it. Kernels that
share a message wait for each other, so they belong to one exchange, in which each rank waits for
its own partners.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcoll.errors import ConfigError
from simcoll.jobs.comm_records import RecordKind
from simcoll.units import format_size

if TYPE_CHECKING:
    from simcoll.jobs.meetings import TracedCall

__all__ = ["MessageExchange", "match_messages", "pair_of"]

_Kernel = tuple[int, int]
"""A kernel: the graph of its rank, and the number of its call."""


@dataclass(frozen=True, slots=True)
class MessageExchange:
    """Kernels of messages that wait for each other: by graph, its call and its partners."""

    calls: Mapping[int, int]
    partners: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _MessageEnd:
    """One end of a message."""

    kernel: _Kernel
    size_bytes: int


def pair_of(
    kind: RecordKind, peers: tuple[int, int], members: Sequence[int], rank: int
) -> tuple[int, int] | None:
    """Source and target of a message as global ranks; None if they are not recorded.

    A record has only the other end, as PyTorch writes it; older ones count in the group.
    """
    source, target = peers
    mine = source if kind == "send" else target
    in_group = tuple(
        members[number] if 0 <= number < len(members) else -1 for number in (source, target)
    )
    mine_at = 0 if kind == "send" else 1
    for ends in ((source, target), in_group):
        pair = [rank if mine < 0 and place == mine_at else end for place, end in enumerate(ends)]
        if pair[mine_at] == rank and pair[0] != pair[1] and set(pair) <= set(members):
            return pair[0], pair[1]
    return None


def match_messages(
    ranks: Sequence[int], calls: Sequence[Sequence[TracedCall]]
) -> list[MessageExchange]:
    """The exchanges of a job that has groups of messages; single messages are parts of them.

    Groups stay unmatched whose partners are not recorded or not traced, of which another number is
    sent than received, or that a rank takes part in twice.

    Raises
    ------
    ConfigError
        When both ends of a message state different sizes.
    """
    if not any(call.messages for rank_calls in calls for call in rank_calls):
        return []
    sent: dict[tuple[int, int], list[_MessageEnd]] = defaultdict(list)
    received: dict[tuple[int, int], list[_MessageEnd]] = defaultdict(list)
    incomplete: set[_Kernel] = set()
    for place, rank in enumerate(ranks):
        for number, call in enumerate(calls[place]):
            for kind, pair, size_bytes in _messages(call, rank):
                if pair is None:
                    incomplete.add((place, number))
                    continue
                message = _MessageEnd((place, number), size_bytes)
                (sent if kind == "send" else received)[pair].append(message)
    links: dict[_Kernel, set[_Kernel]] = defaultdict(set)
    for pair in {**sent, **received}:
        ends = sent.get(pair, []), received.get(pair, [])
        if len(ends[0]) != len(ends[1]):
            incomplete.update(message.kernel for message in (*ends[0], *ends[1]))
            continue
        for source, target in zip(*ends, strict=True):
            _refuse_unequal(source, target, pair)
            links[source.kernel].add(target.kernel)
            links[target.kernel].add(source.kernel)
    return list(_exchanges(links, incomplete))


def _messages(
    call: TracedCall, rank: int
) -> Iterator[tuple[RecordKind, tuple[int, int] | None, int]]:
    """Kind, ends and size of the messages of a call."""
    if call.kind in {"send", "recv"}:
        pair = pair_of(call.kind, call.peers, call.group.ranks, rank)
        yield call.kind, pair, call.size_bytes
    for record in call.messages:
        members = record.group.ranks or call.group.ranks
        yield record.kind, pair_of(record.kind, record.peers, members, rank), record.size_bytes


def _refuse_unequal(source: _MessageEnd, target: _MessageEnd, pair: tuple[int, int]) -> None:
    sizes = {source.size_bytes, target.size_bytes} - {-1}
    if len(sizes) > 1:
        raise ConfigError(
            f"rank {pair[0]} sends {format_size(source.size_bytes)} to rank {pair[1]}, which "
            f"receives {format_size(target.size_bytes)}: these are traces of different programs or "
            "jobs"
        )


def _exchanges(
    links: Mapping[_Kernel, set[_Kernel]], incomplete: set[_Kernel]
) -> Iterator[MessageExchange]:
    """The sets of kernels that are joined by messages, without those that are not complete."""
    visited: set[_Kernel] = set()
    for start in sorted(links):
        if start in visited:
            continue
        kernels = [start]
        visited.add(start)
        for kernel in kernels:
            following = sorted(links[kernel] - visited)
            visited.update(following)
            kernels += following
        places = [place for place, _ in kernels]
        if len(set(places)) < len(places) or not incomplete.isdisjoint(kernels):
            continue
        yield MessageExchange(
            dict(kernels),
            {
                kernel[0]: tuple(sorted(partner for partner, _ in links[kernel]))
                for kernel in kernels
            },
        )
