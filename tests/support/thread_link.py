"""Ranks in threads that exchange control messages, for tests without MPI. Data is moved by the
emulator's own data plane.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import simcoll
import simcoll.distributed as dist
from simcoll.topology import crossbar


class Office:
    """What the threads share."""

    def __init__(self, size):
        self.size = size
        self.lock = threading.Lock()
        self.control = [[] for _ in range(size)]
        self.inputs = {}
        self.outputs = {}
        self.given_up = ""


class ThreadLink:
    name = "threads"

    def __init__(self, office, rank):
        self.office, self.rank, self.world_size = office, rank, office.size
        self.turns = {}

    def send_control(self, rank, message):
        with self.office.lock:
            self.office.control[rank].append((self.rank, message))

    def receive_control(self):
        with self.office.lock:
            mine, self.office.control[self.rank] = self.office.control[self.rank], []
        return mine

    def death_notice(self):
        return self.office.given_up

    def execute(self, plan, rank, data, stream, poll):
        assert plan.ranks[rank] == self.rank
        ends = (stream, tuple(plan.ranks.tolist()))
        turn = self.turns[ends] = self.turns.get(ends, 0) + 1
        key = (*ends, turn)
        with self.office.lock:
            arrived = self.office.inputs.setdefault(key, {})
            arrived[rank] = data.copy()
        while len(arrived) < plan.nranks:
            poll()
        with self.office.lock:
            if key not in self.office.outputs:
                inputs = [arrived[other] for other in range(plan.nranks)]
                place = crossbar(int(plan.ranks.max()) + 1, "50 GB/s", "1 us")
                self.office.outputs[key] = simcoll.emulate(
                    plan, place, data=inputs, bound=False
                ).outputs
            return self.office.outputs[key][rank]

    def give_up(self, reason):
        self.office.given_up = f"rank {self.rank} gave up: {reason}"


def on_threads(function, size):
    """What ``function(rank, run)`` returns on every thread; ``run(program)`` runs a rank program
    among them.
    """
    offices = []
    lock, turns = threading.Lock(), [0] * size

    def thread(rank):
        def run(program):
            with lock:
                if turns[rank] == len(offices):
                    offices.append(Office(size))
                office = offices[turns[rank]]
                turns[rank] += 1
            return dist.run_rank(
                program, rank, size, backend="threads", link=ThreadLink(office, rank)
            )

        return function(rank, run)

    with ThreadPoolExecutor(size) as pool:
        return [
            future.result(timeout=120)
            for future in [pool.submit(thread, rank) for rank in range(size)]
        ]
