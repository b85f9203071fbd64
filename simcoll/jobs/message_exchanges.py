"""Match groups of messages over the ranks: sends and receives that one kernel performs together.

The i-th message of a rank to another is the i-th that the other receives from it. Kernels that
share a message wait for each other, so they belong to one exchange, in which each rank waits for
its own partners.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simcoll.errors import ConfigError
from simcoll.jobs.comm_records import RecordKind
from simcoll.units import format_size

__all__ = ["MessageEnd", "MessageExchange", "match_messages", "pair_of"]

_Kernel = tuple[int, int]
"""A kernel: the graph of its rank, and the number of its call."""


@dataclass(frozen=True, slots=True)
class MessageExchange:
    """Kernels of messages that wait for each other: by graph, its call and its partners."""

    calls: Mapping[int, int]
    partners: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """One end of a message.

    Attributes
    ----------
    kernel
        The graph of the rank, and the number of its call.
    kind
        ``"send"`` or ``"recv"``.
    pair
        Source and target; None if they are not recorded.
    size_bytes
        Its size; -1 if it is not recorded.
    """

    kernel: _Kernel
    kind: RecordKind
    pair: tuple[int, int] | None
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


def match_messages(ends: Sequence[MessageEnd]) -> list[MessageExchange]:
    """The exchanges of a job, from the ends of its messages in the order of each rank's calls.

    Kernels stay unmatched whose partners are not recorded or not traced, of which another number is
    sent than received, or that a rank takes part in twice.

    Raises
    ------
    ConfigError
        When both ends of a message state different sizes.
    """
    sent: dict[tuple[int, int], list[MessageEnd]] = defaultdict(list)
    received: dict[tuple[int, int], list[MessageEnd]] = defaultdict(list)
    incomplete: set[_Kernel] = set()
    for end in ends:
        if end.pair is None:
            incomplete.add(end.kernel)
        else:
            (sent if end.kind == "send" else received)[end.pair].append(end)
    links: dict[_Kernel, set[_Kernel]] = defaultdict(set)
    for pair in {**sent, **received}:
        sources, targets = sent.get(pair, []), received.get(pair, [])
        if len(sources) != len(targets):
            incomplete.update(end.kernel for end in (*sources, *targets))
            continue
        for source, target in zip(sources, targets, strict=True):
            _refuse_unequal(source, target, pair)
            links[source.kernel].add(target.kernel)
            links[target.kernel].add(source.kernel)
    return list(_exchanges(links, incomplete))


def _refuse_unequal(source: MessageEnd, target: MessageEnd, pair: tuple[int, int]) -> None:
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
