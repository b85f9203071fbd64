"""Classes of symmetric ranks: the program of one rank, the leader, runs for its whole class.

The other ranks of a class, the followers, make each call of their leader at the same time: in the
leader's group, or in the corresponding group of their own. All their transfers are played, but for
groups that are images of another one (:mod:`simcoll.distributed.runtime.images`). A call completes
on the leader when it has completed on the whole class; the largest spread is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simcoll.errors import ConfigError

__all__ = ["RankClasses", "read_classes"]


class RankClasses:
    """The classes of symmetric ranks of a run, and the groups that its programs made.

    Attributes
    ----------
    leader
        The leader of every rank: the lowest of its class.
    skew_fs
        The largest difference between the completion times of one call within a class; 0 for exact
        symmetry.
    """

    def __init__(self, leader: Sequence[int]) -> None:
        self.leader = tuple(leader)
        self.skew_fs = 0
        self._classes: dict[int, list[int]] = {}
        for rank, leading in enumerate(self.leader):
            self._classes.setdefault(leading, []).append(rank)
        self._groups: dict[tuple[int, ...], None] = {}
        self._like: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self._pairs_like: dict[tuple[int, int], list[tuple[int, int]]] = {}

    @property
    def leaders(self) -> list[int]:
        """The ranks whose programs run."""
        return list(self._classes)

    def leaders_of(self, ranks: Iterable[int]) -> list[int]:
        """The leaders among some ranks."""
        return [rank for rank in ranks if self.leader[rank] == rank]

    def note_group(self, members: Sequence[int]) -> None:
        """Record a group that the programs make, possibly one without a leader."""
        if (group := tuple(members)) not in self._groups:
            self._groups[group] = None
            self._like.clear()

    def classes_of(self, members: Sequence[int]) -> dict[int, Sequence[int]]:
        """The group ranks of a group by the group rank of their leaders.

        Raises
        ------
        RuntimeError
            When the leader of a member is not in the group, so that no program would make the
            member's calls.
        """
        place = {member: number for number, member in enumerate(members)}
        classes: dict[int, list[int]] = {}
        for number, member in enumerate(members):
            leading = self.leader[member]
            if leading not in place:
                raise RuntimeError(
                    f"rank {member} does what rank {leading} does, which is not in the group "
                    f"{list(members)}; "
                    "a group of ranks that are alike must have their leaders as members"
                )
            classes.setdefault(place[leading], []).append(number)
        return dict(classes)

    def like(self, members: Sequence[int]) -> list[tuple[int, ...]]:
        """The leaderless groups of the same mesh dimension whose members have the same classes,
        rank by rank; the same list while no group is made.
        """
        key = tuple(members)
        if key not in self._like:
            pattern = [self.leader[member] for member in members]
            self._like[key] = [
                group
                for group in self._dimension(key)
                if not self.leaders_of(group)
                and [self.leader[member] for member in group] == pattern
            ]
        return self._like[key]

    def _dimension(self, members: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The disjoint groups of equal size that were made consecutively with a group."""
        dimension: list[tuple[int, ...]] = []
        grouped_ranks: set[int] = set()
        for group in self._groups:
            if not grouped_ranks.isdisjoint(group) or (
                dimension and len(dimension[0]) != len(group)
            ):
                if members in dimension:
                    break
                dimension, grouped_ranks = [], set()
            dimension.append(group)
            grouped_ranks.update(group)
        return dimension if members in dimension else []

    def pairs_like(self, source: int, target: int) -> list[tuple[int, int]]:
        """The pairs of followers that exchange the same message, matched by position in their
        classes.
        """
        pair = self._classes[self.leader[source]], self._classes[self.leader[target]]
        key = (source, target)
        if key not in self._pairs_like:
            places = tuple(ranks.index(rank) for ranks, rank in zip(pair, key, strict=True))
            unlike = pair[0] is pair[1] or len(pair[0]) != len(pair[1]) or places[0] != places[1]
            self._pairs_like[key] = (
                [] if unlike else [(a, b) for a, b in zip(*pair, strict=True) if a != source]
            )
        return self._pairs_like[key]


def read_classes(alike: str | Sequence[Sequence[int]], nranks: int) -> RankClasses:
    """Read classes of ranks: ``"all"``, or lists of ranks; an unlisted rank forms its own class.

    Raises
    ------
    ConfigError
        For a rank that does not exist or is in two classes.
    """
    if isinstance(alike, str):
        if alike != "all":
            raise ConfigError(
                f'alike {alike!r}: expected "all", or lists of ranks such as [range(0, 8), '
                "range(8, 16)]"
            )
        return RankClasses([0] * nranks)
    leader = list(range(nranks))
    class_of: dict[int, int] = {}
    for number, ranks in enumerate(map(list, alike)):
        for rank in ranks:
            if rank not in range(nranks):
                raise ConfigError(
                    f"alike: rank {rank!r} of class {number} does not exist; expected 0 to "
                    f"{nranks - 1}"
                )
            if rank in class_of:
                raise ConfigError(
                    f"alike: rank {rank} is in classes {class_of[rank]} and {number}; expected one "
                    "class each"
                )
            class_of[rank], leader[rank] = number, min(ranks)
    return RankClasses(leader)
