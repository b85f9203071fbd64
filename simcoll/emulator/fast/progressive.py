"""Max-min fair rates of many flows at once, by the rounds of the textbook.

:mod:`simcoll.emulator.fast.rates` repairs levels one by one from the links that have changed. Where
many flows meet, each repair disturbs others, and a link is repaired again and again: all pairs of
64 ranks take 80 times as long as with rounds. Rounds visit every flow of a *component* (the links
that the changed ones reach by shared hops) once, whatever has changed; :func:`fill` therefore takes
over only when repairs have cost more than that. Both end at the only levels that satisfy the model,
so which of the two runs changes no integer.

**Rounds.** The share of a link is what its capacity leaves to each flow without a rate. The lowest
share of all is the level of its link, and the rate of that link's flows without one; each takes its
rate from its other links. Links of one share belong to one round: a flow with that very rate does
not count as limited elsewhere (:func:`simcoll.emulator.model.water_level`), so such links keep it.
A rate that a private hop allows is a share, too.

    Invariant: no share sinks while lower or equal rates are taken from its link. Hence the heap
    need not be reordered: an entry may be too low, and is put back with the share of now when it
    comes up.
"""

from __future__ import annotations

from simcoll.emulator.fast.compiled import part
from simcoll.emulator.fast.state import MAX, NOW, SETTLED, State

__all__ = ["fill", "private_share"]

FROZEN = -1
"""In place of the number of pending flows: the link has its level."""


@part
def private_share(s: State, e: int) -> int:
    """The rate that a private hop allows its flow."""
    n = s.weight[e]
    capacity: int = s.capacity[s.link[e]]
    return capacity if n == 1 else capacity // n


@part
def _push(s: State, size: int, key: int, slot: int) -> None:
    """Add a share to the heap of ``size`` entries."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if s.limits[parent] <= key:
            break
        s.limits[place], s.weights[place] = s.limits[parent], s.weights[parent]
        place = parent
    s.limits[place], s.weights[place] = key, slot


@part
def _sink(s: State, size: int, key: int, slot: int) -> None:
    """Put a share in place of the lowest one of the heap."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and s.limits[child + 1] < s.limits[child]:
            child += 1
        if key <= s.limits[child]:
            break
        s.limits[place], s.weights[place] = s.limits[child], s.weights[child]
        place = child
    s.limits[place], s.weights[place] = key, slot


@part
def _component(s: State, links: int, unrated: int) -> int:
    """Extend the first ``links`` entries of ``touched`` to their component, and count the flows on
    each link; return the number of flows, which are listed in ``moving``.

    The length of ``touched`` is left in ``moving`` behind the last flow.
    """
    flows = place = 0
    while place < links:
        l = s.touched[place]
        place += 1
        s.spare[l] = s.capacity[l]
        s.pending[l] = 0
        e = s.head[l]
        while e >= 0:
            s.pending[l] += s.weight[e]
            m = s.owner[e]
            if s.rated[m] != unrated:
                s.rated[m] = unrated
                s.moving[flows] = m
                flows += 1
                for hop in range(s.entry[m], s.entry[m] + s.hops[m]):
                    if s.shared[hop] and s.queued[s.link[hop]] == 0:
                        s.queued[s.link[hop]] = 1
                        s.touched[links] = s.link[hop]
                        links += 1
            e = s.next_flow[e]
    s.moving[flows] = links
    return flows


@part
def _take(s: State, m: int, rate: int) -> None:
    """Give a flow its rate, and take it from its links, except those of this round."""
    for hop in range(s.entry[m], s.entry[m] + s.hops[m]):
        l = s.link[hop]
        if s.shared[hop] and s.pending[l] > 0 and s.spare[l] // s.pending[l] > rate:
            s.spare[l] -= rate * s.weight[hop]
            s.pending[l] -= s.weight[hop]


@part
def _rounds(s: State, size: int, unrated: int) -> None:
    """Freeze links and flows in the order of their shares; ``spare`` of a frozen link is its
    level.
    """
    rated = unrated - 1
    while size > 0:
        share, slot = s.limits[0], s.weights[0]
        if slot < len(s.level):
            n = s.pending[slot]
            current_share = s.spare[slot] // n if n > 0 else share
            if current_share > share:
                _sink(s, size, current_share, slot)
                continue
            if n > 0:
                s.pending[slot] = FROZEN
                s.spare[slot] = share
                e = s.head[slot]
                while e >= 0:
                    m = s.owner[e]
                    if s.rated[m] == unrated:
                        s.rated[m] = rated
                        _take(s, m, share)
                    e = s.next_flow[e]
        elif s.rated[slot] == unrated:
            s.rated[slot] = rated
            _take(s, slot, share)
        size -= 1
        _sink(s, size, s.limits[size], s.weights[size])


@part
def fill(s: State, links: int, changed: int) -> int:
    """Level the components of the first ``links`` links in ``touched``, which are ``queued``.

    Links whose level differs from before, or whose timer fires now, are appended to the ``changed``
    ones that are listed so far. Uses ``limits`` and ``weights`` as a heap, and ``moving``, which is
    empty when rates are settled. Returns the number of listed links; the number of visited flows is
    left in the first entry of ``moving``.
    """
    unrated = -2 * s.reg[SETTLED] - 2  # differs from all stamps of settlements
    flows = _component(s, links, unrated)
    links = s.moving[flows]
    size = 0
    for place in range(links):
        l = s.touched[place]
        if s.head[l] >= 0 and s.shared[s.head[l]]:
            _push(s, size, s.spare[l] // s.pending[l], l)
            size += 1
    for place in range(flows):
        m = s.moving[place]
        if s.private_rate[m] < MAX:
            _push(s, size, s.private_rate[m], m)
            size += 1
    _rounds(s, size, unrated)
    for place in range(links):
        l = s.touched[place]
        s.queued[l] = 0
        e = s.head[l]
        if e < 0:
            continue
        level = s.spare[l] if s.pending[l] == FROZEN else MAX
        if s.shared[e] == 0:
            level = private_share(s, e)
        if level == s.level[l] and s.key[l] != s.reg[NOW]:
            continue
        s.level[l] = level
        if s.marked[l] == 0:
            s.marked[l] = 1
            s.changed[changed] = l
            changed += 1
    s.moving[0] = flows
    return changed
