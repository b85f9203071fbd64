"""The LogGOPS model as LogGOPSim plays it, for GOAL programs: an oracle for the order that a
program states.

A send occupies its processor for o and its NIC for g + (s - 1) G; L later its message arrives, and
occupies the receiver for o + (s - 1) G. Whole numbers, as there (T. Hoefler, T. Schneider, A.
Lumsdaine, LogGOPSim, LSAP 2010). Eager messages, no O.
"""

import heapq
from collections import defaultdict
from itertools import count

from simcoll.formats.goal.language import CALC, SEND


def last_end(goal, *, L, o, g, G):
    """When the last operation ends."""
    rank, serial = goal.rank.tolist(), count()
    waits, after = defaultdict(int), defaultdict(list)
    for later, earlier, begun in zip(
        goal.later.tolist(), goal.earlier.tolist(), goal.at_start.tolist(), strict=True
    ):
        waits[later] += 1
        after[earlier, begun].append(later)
    cpu, sending, receiving = defaultdict(int), defaultdict(int), defaultdict(int)
    posted, arrived = defaultdict(list), defaultdict(list)
    events, end = [], 0
    for operation in range(len(rank)):
        if not waits[operation]:
            heapq.heappush(events, (0, next(serial), "run", operation))

    def release(operation, when, begun):
        nonlocal end
        end = max(end, when)
        for later in after[operation, begun]:
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(events, (when, next(serial), "run", later))

    while events:
        now, _, what, at = heapq.heappop(events)
        size, peer, tag = int(goal.size[at]), int(goal.peer[at]), int(goal.tag[at])
        if what == "arrive":
            here = peer
            if max(cpu[here], receiving[here]) > now:
                heapq.heappush(events, (max(cpu[here], receiving[here]), next(serial), what, at))
                continue
            cpu[here], receiving[here] = now + o + (size - 1) * G, now + g + (size - 1) * G
            key = (rank[at], here, tag)
            if posted[key]:
                release(posted[key].pop(0), cpu[here], False)
            else:
                arrived[key].append(cpu[here])
        elif goal.kind[at] == CALC:
            start = max(now, cpu[rank[at]])
            cpu[rank[at]] = start + size
            release(at, start, True)
            release(at, start + size, False)
        elif goal.kind[at] == SEND:
            here = rank[at]
            if max(cpu[here], sending[here]) > now:
                heapq.heappush(events, (max(cpu[here], sending[here]), next(serial), what, at))
                continue
            cpu[here], sending[here] = now + o, now + g + (size - 1) * G
            heapq.heappush(events, (now + o + L, next(serial), "arrive", at))
            release(at, now, True)
            release(at, now + o, False)
        else:
            release(at, now, True)
            key = (peer, rank[at], tag)
            if arrived[key]:
                release(at, max(now, arrived[key].pop(0)), False)
            else:
                posted[key].append(at)
    assert not any(posted.values())
    return end
