"""Dispatch and combine of a mixture of experts, where a token crosses to each node only once.

As in DeepEP (deepseek-ai/DeepEP, its normal kernels): between nodes a token travels along the rail
of its source, to the rank with the same number in the node, which forwards it to the experts there;
on the way back that rank adds what the experts of its node return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.hashing import mix
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

__all__ = ["Routing", "combine", "combine_by_node", "dispatch", "dispatch_by_node"]


@dataclass(frozen=True, slots=True)
class Routing:
    """Which ranks need which tokens.

    Attributes
    ----------
    nranks
        World size.
    tokens
        Source rank, and the ranks of its experts (ascending), of every token; all tokens of rank 0
        come first, then those of rank 1, ...
    ranks_per_node
        Ranks of a node, which divide the world size.

    Examples
    --------
    >>> Routing.drawn(4, 2, tokens=1, experts=2).tokens
    ((0, (0, 3)), (1, (0, 1)), (2, (2, 3)), (3, (1, 2)))
    """

    nranks: int
    tokens: tuple[tuple[int, tuple[int, ...]], ...]
    ranks_per_node: int

    def __repr__(self) -> str:
        return (
            f"<Routing: {len(self.tokens)} tokens of {self.nranks} ranks, {self.ranks_per_node} in "
            "a node>"
        )

    def __post_init__(self) -> None:
        if self.ranks_per_node < 1 or self.nranks % self.ranks_per_node:
            raise ConfigError(
                f"ranks_per_node={self.ranks_per_node}: expected a divisor of {self.nranks} ranks"
            )
        tokens = tuple(
            (int(source), tuple(sorted(map(int, ranks)))) for source, ranks in self.tokens
        )
        object.__setattr__(self, "tokens", tokens)
        sources = [source for source, _ in tokens]
        if sources != sorted(sources):
            raise ConfigError("tokens must be listed by their source, in ascending order")
        for number, (source, ranks) in enumerate(tokens):
            if len(set(ranks)) != len(ranks) or not ranks:
                raise ConfigError(f"token {number}: expected different ranks, got {list(ranks)}")
            if not all(0 <= rank < self.nranks for rank in (source, *ranks)):
                raise ConfigError(f"token {number}: its ranks must lie in 0..{self.nranks - 1}")

    @staticmethod
    def drawn(
        nranks: int, ranks_per_node: int, *, tokens: int = 4, experts: int = 2, seed: int = 0
    ) -> Routing:
        """A routing in which every token of every rank goes to different random ranks, a function
        of the arguments alone.
        """
        if not 1 <= experts <= nranks:
            raise ConfigError(f"experts={experts}: expected 1 to {nranks}, the number of ranks")
        drawn = []
        for number in range(nranks * tokens):
            keys = mix(np.arange(nranks, dtype=np.uint64) + np.uint64((seed * 977 + number) * 8191))
            drawn.append((number // tokens, tuple(np.argsort(keys)[:experts].tolist())))
        return Routing(nranks, tuple(drawn), ranks_per_node)

    def relay(self, source: int, rank: int) -> int:
        """The rank of a node on the rail of a source.

        >>> Routing(8, (), 4).relay(1, 6)
        5
        """
        return rank // self.ranks_per_node * self.ranks_per_node + source % self.ranks_per_node


def _routing(nranks: int, routing: Routing | None) -> Routing:
    if routing is None:
        half = nranks // 2 if nranks % 2 == 0 else nranks
        return Routing.drawn(nranks, half, experts=min(2, nranks))
    if routing.nranks != nranks:
        raise ConfigError(f"the routing has {routing.nranks} ranks; expected {nranks}")
    return routing


def dispatch(nranks: int, *, routing: Routing | None = None) -> Collective:
    """Every rank gets the tokens that are routed to it, in ascending order.

    >>> small = Routing(2, [(0, [0, 1]), (1, [0])], 1)
    >>> dispatch(2, routing=small).definition.outputs
    (((0,), (1,)), ((0,),))
    """
    tokens = _routing(nranks, routing).tokens
    inputs: list[list[int]] = [[] for _ in range(nranks)]
    outputs: list[list[int]] = [[] for _ in range(nranks)]
    for number, (source, ranks) in enumerate(tokens):
        inputs[source].append(number)
        for rank in ranks:
            outputs[rank].append(number)
    return Collective.custom("dispatch", inputs, outputs)


def combine(nranks: int, *, routing: Routing | None = None) -> Collective:
    """Every token's source gets the sum of what the token's experts return.

    The inputs of a rank are its results in the order of the outputs of :func:`dispatch`.

    >>> small = Routing(2, [(0, [0, 1]), (1, [0])], 1)
    >>> combine(2, routing=small).definition.outputs
    (((0, 1),), ((2,),))
    """
    tokens = _routing(nranks, routing).tokens
    inputs: list[list[int]] = [[] for _ in range(nranks)]
    outputs: list[list[list[int]]] = [[] for _ in range(nranks)]
    count = 0
    for source, ranks in tokens:
        outputs[source].append(list(range(count, count + len(ranks))))
        for rank in ranks:
            inputs[rank].append(count)
            count += 1
    return Collective.custom("combine", inputs, outputs)


class _SlotCounter:
    """Numbers the slots of ranks as they are asked for."""

    def __init__(self, nranks: int) -> None:
        self.used = [0] * nranks

    def next(self, rank: int) -> int:
        """The next slot of a rank."""
        self.used[rank] += 1
        return self.used[rank] - 1


class _Hop(NamedTuple):
    """One block from rank to rank, with the slots at both ends."""

    sender: int
    source_slot: int
    receiver: int
    target_slot: int
    adds: bool = False


def _hop_step(
    hops: Sequence[_Hop], source: Callable[[Ints], Ints], target: Callable[[Ints], Ints]
) -> Step:
    """The transfers of hops, given the chunks of slots at both ends."""
    columns = np.array(hops, np.int64).T
    return transfers(
        columns[0], source(columns[1]), columns[2], target(columns[3]), op=columns[4] * REDUCE
    )


def _by_node(routing: Routing, ranks: Sequence[int]) -> dict[int, list[int]]:
    """The ranks of each node."""
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(rank // routing.ranks_per_node, []).append(rank)
    return nodes


def dispatch_by_node(collective: Collective, *, routing: Routing | None = None) -> Schedule:
    """A token goes once to each node of its experts, along its rail, and on from there.

    >>> import simcoll
    >>> print(simcoll.verify(dispatch_by_node(dispatch(8))))
    proved (full, exact): 114 transfers in 2 steps
    """
    plan = _routing(collective.nranks, routing)
    if collective != dispatch(collective.nranks, routing=plan):
        raise ConfigError(f"dispatch_by_node serves dispatch of its routing, not {collective}")
    source_slot, target_slot, relayed = (_SlotCounter(plan.nranks) for _ in range(3))
    across: list[_Hop] = []
    local: list[_Hop] = []
    for source, ranks in plan.tokens:
        token = source_slot.next(source)
        landing = {rank: target_slot.next(rank) for rank in ranks}
        for members in _by_node(plan, ranks).values():
            relay = plan.relay(source, members[0])
            waiting = relayed.next(relay)
            across.append(_Hop(source, token, relay, waiting))
            local += [_Hop(relay, waiting, rank, landing[rank]) for rank in members]
    layout = Layout(collective, scratch=[0] * max(relayed.used))

    def steps() -> Iterator[Step]:
        yield _hop_step(across, layout.input, layout.scratch_at)
        yield _hop_step(local, layout.scratch_at, layout.output)

    return Schedule("dispatch_by_node", layout, steps)


def combine_by_node(collective: Collective, *, routing: Routing | None = None) -> Schedule:
    """The results of a node are added at the rank on the token's rail, which sends one sum to the
    source.

    >>> import simcoll
    >>> print(simcoll.verify(combine_by_node(combine(8))))
    proved (full, exact): 114 transfers in 2 steps, reduction order position-independent
    """
    plan = _routing(collective.nranks, routing)
    if collective != combine(collective.nranks, routing=plan):
        raise ConfigError(f"combine_by_node serves combine of its routing, not {collective}")
    result_slot, token_slot, relayed = (_SlotCounter(plan.nranks) for _ in range(3))
    across: list[_Hop] = []
    local: list[_Hop] = []
    for source, ranks in plan.tokens:
        token = token_slot.next(source)
        result = {rank: result_slot.next(rank) for rank in ranks}
        for place, members in enumerate(_by_node(plan, ranks).values()):
            relay = plan.relay(source, members[0])
            waiting = relayed.next(relay)
            local += [
                _Hop(rank, result[rank], relay, waiting, rank != members[0]) for rank in members
            ]
            across.append(_Hop(relay, waiting, source, token, place > 0))
    layout = Layout(collective, scratch=[0] * max(relayed.used))

    def steps() -> Iterator[Step]:
        yield _hop_step(local, layout.input, layout.scratch_at)
        yield _hop_step(across, layout.scratch_at, layout.output)

    return Schedule("combine_by_node", layout, steps)
