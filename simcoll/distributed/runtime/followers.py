"""Followers in an operation: they enter with their leaders, and a leader continues when its whole
class has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.core.reduction import Reduction
from simcoll.distributed.runtime.images import Family, family_of
from simcoll.distributed.runtime.plans_in_flight import (
    Emulator,
    Ended,
    Playing,
    RunningTake,
    is_small,
    note_take,
)
from simcoll.distributed.runtime.rank_classes import RankClasses
from simcoll.distributed.runtime.takes import Take

__all__ = ["AlikeCalls", "Followers"]

KEPT_FAMILIES = 1024
"""Families remembered by a run, each with the links of its messages."""


@dataclass(slots=True, eq=False)
class _Class:
    """The ranks of a class still in an operation, which its leader waits for."""

    missing: int = 0
    first_fs: int = -1
    values: Array | None = None


class Followers:
    """One operation of a group, and the same operation of the corresponding groups of followers.

    Parameters
    ----------
    calls
        The operations of the run.
    classes
        Group ranks that enter with each leader, by the leader's group rank.
    leave
        Called with the group rank of every leader whose class has left, and the leader's output.

    Attributes
    ----------
    family
        The plans of the groups, the leaders' first.
    players
        For every group, the number of the one that is played for it, possibly itself.
    playing
        The played groups by number.
    """

    family: Family
    players: tuple[int, ...]

    def __init__(
        self,
        calls: AlikeCalls,
        classes: Mapping[int, Sequence[int]],
        leave: Callable[[int, Array | None], None],
    ) -> None:
        self.calls = calls
        self.classes = classes
        self.leave = leave
        self.playing: dict[int, Playing] = {}
        self._label = ("", 0, "")
        self._open = 0
        self._on_end: Callable[[], object] | None = None
        self._classes = {leader: _Class() for leader in classes}
        self.takes: tuple[Take, ...] = ()
        self.begin_fs = calls.emulator.calendar.now
        self.stopped = False

    @cached_property
    def _leader(self) -> dict[int, int]:
        """The leader of every group rank."""
        return {rank: leader for leader, ranks in self.classes.items() for rank in ranks}

    def play(
        self,
        family: Family,
        label: tuple[str, int, str],
        *,
        fake: bool,
        together: bool = False,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        """Start the operation in the leaders' group and in corresponding ones; ``on_end`` is called
        when the leaders' has ended.
        """
        self.family, self._label, self._on_end = family, label, on_end
        if together and fake and self._replay():
            return
        self.players = self.calls.begin(self)
        for group in dict.fromkeys(self.players):
            if group:
                self._add(group, None)
        leaders = Playing(
            self.calls.emulator,
            family.plans[0],
            label,
            self._leave_group,
            partial(self._end, 0),
            fake=fake,
            together=together,
        )
        self._wait_for(0, leaders)
        self._assign_images()

    def _assign_images(self) -> None:
        for group, player in enumerate(self.players):
            if group != player:
                self.playing[player].images.append(self.family.plans[group])

    def stop(self) -> None:
        """Let no rank of the leaders' group leave any more: the operation has failed."""
        self.stopped = True
        if 0 in self.playing:
            self.playing[0].stop()

    def enter(self, leader: int, sources: Sequence[Array], op: Reduction | None = None) -> None:
        """Let a leader enter with its input, and its followers."""
        ranks = self.classes[leader]
        if self.takes:
            return
        for rank in ranks:
            self.playing[0].enter(rank, sources, op)
        for group, playing in self.playing.items():
            if group:
                for rank in ranks:
                    playing.enter(rank, ())

    # Replays of operations that all ranks enter together while nothing else is in flight

    def _replay(self) -> bool:
        """Follow known takes as a whole, without events of ranks; returns whether they are known
        and nothing else is in flight.
        """
        calls, emulator = self.calls, self.calls.emulator
        if calls.in_flight or emulator.playing or emulator.following or not emulator.steady:
            return False
        self.takes = calls.takes_of(self.family)
        if not self.takes:
            return False
        self.players = calls.begin(self)
        end_fs = max(take.log[-1][0] for take in self.takes)
        emulator.calendar.at(self.begin_fs + end_fs, self._end_replay, None)
        return True

    def _end_replay(self, _nothing: None) -> None:
        """End the operation in all groups, and let its leader go on."""
        if not self.takes or self.stopped:
            return
        emulator, rank_classes = self.calls.emulator, self.calls.rank_classes
        first_fs = min(take.log[take.plan.nranks][0] for take in self.takes)
        skew_fs = emulator.calendar.now - self.begin_fs - first_fs
        rank_classes.skew_fs = max(rank_classes.skew_fs, skew_fs)
        take_of_group = dict(zip(dict.fromkeys(self.players), self.takes, strict=True))
        for group, plan in enumerate(self.family.plans):
            note_take(
                emulator, self._label, plan, take_of_group[self.players[group]], self.begin_fs
            )
        self.calls.end(self)
        if self._on_end is not None:
            self._on_end()
        self.leave(next(iter(self.classes)), None)

    def go_on_by_ranks(self) -> None:
        """Go on with a replay rank by rank, as something else begins."""
        takes, self.takes = self.takes, ()
        now_fs = self.calls.emulator.calendar.now
        first_fs = self.begin_fs + min(take.log[take.plan.nranks][0] for take in takes)
        if first_fs < now_fs:
            for entry in self._classes.values():
                entry.first_fs = first_fs
        for group, take in zip(dict.fromkeys(self.players), takes, strict=True):
            self._add(group, RunningTake(take, self.begin_fs, now_fs))
        self._assign_images()

    # Groups that are images of others

    def agrees(self, players: Sequence[int]) -> bool:
        """Whether the groups that are to be played can take over from those that are: they include
        them, and each has been in the state of those that it is to be played for.
        """
        present = self.players
        return set(present) <= set(players) and all(
            present[group] == present[player] for group, player in enumerate(players)
        )

    def take_over(self, players: tuple[int, ...]) -> list[Playing]:
        """Let other groups be played from now on; returns those that join."""
        previous, joining = self.players, []
        for group, player in enumerate(players):
            plan, stand_in = self.family.plans[group], self.playing[previous[group]]
            if group == player and group not in self.playing:
                stand_in.images.remove(plan)
                joining.append(self._add(group, stand_in))
        for group, player in enumerate(players):
            if group != player and player != previous[group]:
                plan = self.family.plans[group]
                self.playing[previous[group]].images.remove(plan)
                self.playing[player].images.append(plan)
        self.players = players
        return joining

    def past(self, group: int) -> Ended:
        """The run of a group that was not played."""
        return self.playing[self.players[group]].past(self.family.plans[group])

    def _add(self, group: int, model: Playing | RunningTake | None) -> Playing:
        """Play a group of followers, from now on if it was an image of its ``model``."""
        playing = Playing(
            self.calls.emulator,
            self.family.plans[group],
            self._label,
            self._leave_follower,
            partial(self._end, group),
            fake=True,
            model=model,
        )
        self._wait_for(group, playing)
        return playing

    def _wait_for(self, group: int, playing: Playing) -> None:
        """Wait for the ranks of a group that have not left."""
        self.playing[group] = playing
        self._open += 1
        for rank in playing.remaining():
            self._classes[self._leader[rank]].missing += 1

    # Ends

    def _leave_group(self, rank: int, values: Array | None) -> None:
        """Record that a rank of the leaders' group has left."""
        if rank == self._leader[rank]:
            self._classes[rank].values = values
        self._leave_follower(rank, None)

    def _leave_follower(self, rank: int, _values: Array | None) -> None:
        """Record that a follower has left; the last one of a class releases its leader."""
        leader, now = self._leader[rank], self.calls.emulator.calendar.now
        entry = self._classes[leader]
        if entry.first_fs < 0:
            entry.first_fs = now
        entry.missing -= 1
        if not entry.missing:
            rank_classes = self.calls.rank_classes
            rank_classes.skew_fs = max(rank_classes.skew_fs, now - entry.first_fs)
            # Ranks leave as seen from their players; the leader goes on after these.
            self.calls.emulator.calendar.at(now, partial(self._go_on, leader), None)

    def _go_on(self, leader: int, _nothing: None) -> None:
        self.leave(leader, self._classes[leader].values)

    def _end(self, group: int) -> None:
        """Note that all ranks of a group have left."""
        self._open -= 1
        if not self._open:
            self.calls.end(self)
        if not group and self._on_end is not None:
            self._on_end()


class AlikeCalls:
    """The operations of a run with alike ranks, and the groups that are played for others.

    Attributes
    ----------
    in_flight
        Operations in which ranks remain.
    since_idle
        All that have begun since none was in flight.
    """

    def __init__(self, rank_classes: RankClasses, emulator: Emulator) -> None:
        self.rank_classes = rank_classes
        self.emulator = emulator
        self.in_flight: dict[Followers, None] = {}
        self.since_idle: list[Followers] = []
        self._families: dict[tuple[int, ...], tuple[Family, object]] = {}

    def family(
        self,
        plan: Plan,
        members: Sequence[tuple[int, ...]],
        plan_of: Callable[[tuple[int, ...]], Plan],
    ) -> Family:
        """The family of the leaders' plan and the plans of other groups."""
        key = id(plan), id(members)
        if key not in self._families:
            if len(self._families) >= KEPT_FAMILIES:
                self._families.clear()
            plans = [plan, *map(plan_of, members)]
            emulator = self.emulator
            family = family_of(plans, emulator.topology, emulator.open_uBps, is_small)
            self._families[key] = family, members  # which keeps the address in use
        return self._families[key][0]

    def takes_of(self, family: Family) -> tuple[Take, ...]:
        """The takes of the groups of a family that are played, if all are known, of ranks that
        enter together, and the groups share no link; else none.
        """
        emulator, plan = self.emulator, family.plans[0]
        if not family.links:
            alone = len(family.plans) == 1 and plan.proof and not is_small(plan)
            take = emulator.rehearsals.of(plan) if alone else None
            return () if take is None else (take,)
        players = tuple(dict.fromkeys(family.cluster.players(family)))
        takes = []
        for group in players:
            candidates = emulator.takes.of(family.plans[group])
            take = next((take for take in reversed(candidates) if take.together), None)
            if take is None:
                return ()
            takes.append(take)
        return tuple(takes) if family.are_disjoint(players) else ()

    def begin(self, operation: Followers) -> tuple[int, ...]:
        """Begin an operation; returns the group that is played for each."""
        family = operation.family
        for call in self.in_flight:
            if call.takes:
                call.go_on_by_ranks()
        sharing = [call for call in self.in_flight if call.family.shares_links(family)]
        everyone = tuple(range(len(family.plans)))
        self.in_flight[operation] = None
        self.since_idle.append(operation)
        if not (self.emulator.steady and family.links):
            self._play_all(sharing)
            return everyone
        strangers = [call for call in sharing if not call.family.links]
        clusters = {id(call.family.cluster): call.family.cluster for call in sharing}
        for cluster in clusters.values():
            if cluster is not family.cluster and cluster.families[0].links:
                family.cluster.merge(cluster)
        mates = [
            call
            for call in self.in_flight
            if call is not operation and call.family.cluster is family.cluster
        ]
        if strangers or not self._regroup(mates):
            self._play_all(mates)
            return everyone
        return family.cluster.players(family)

    def _regroup(self, mates: Sequence[Followers]) -> bool:
        """Let the groups be played that their cluster now has to play; False if they cannot take
        over.
        """
        changes = [
            (mate, players)
            for mate in mates
            if mate.players != (players := mate.family.cluster.players(mate.family))
        ]
        if any(not mate.agrees(players) for mate, players in changes):
            return False
        self._join(changes)
        return True

    def _play_all(self, operations: Iterable[Followers]) -> None:
        """Play all groups of some operations from now on."""
        changes = [(mate, tuple(range(len(mate.players)))) for mate in operations]
        self._join([(mate, players) for mate, players in changes if mate.players != players])

    def _join(self, changes: Sequence[tuple[Followers, tuple[int, ...]]]) -> None:
        """Let further groups be played: what they and the groups that shared links with them have
        done since the links were idle is simulated.
        """
        islands: set[tuple[int, int]] = set()
        joining: list[Playing] = []
        for mate, players in changes:
            cluster = mate.family.cluster
            for group in set(players) - set(mate.playing):
                islands.add((id(cluster), cluster.island(mate.family, group)))
            joining += mate.take_over(players)
        if not joining:
            return
        ended = [
            operation.past(group)
            for operation in self.since_idle
            if operation not in self.in_flight
            for group in range(len(operation.players))
            if group not in operation.playing
            and (
                id(operation.family.cluster),
                operation.family.cluster.island(operation.family, group),
            )
            in islands
        ]
        self.emulator.catch_up(joining, ended)

    def end(self, operation: Followers) -> None:
        """End an operation."""
        del self.in_flight[operation]
        if not self.in_flight:
            self.since_idle.clear()
