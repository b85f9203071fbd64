"""How far a call walks: functions entered, rooms visited and returns to a room, in the first 400
calls inside simcoll.

``python benchmarks/walks.py [WALK ...]`` prints a line for each walk. A room is a module. *Stays*:
calls within the room of the caller. *Returns*: calls into a room that the walk had left before. Few
rooms and returns mean that a reader can follow.
"""

import argparse
import inspect
import sys
from pathlib import Path
from types import FrameType

import numba  # noqa: F401 - the compiled loops play from the first run on

import simcoll
from simcoll.topology import load_topology

FIRST = 400
HOUSE = str(Path(simcoll.__file__).parent)


class Walk:
    """Calls inside simcoll, up to :data:`FIRST`, by their rooms."""

    def __init__(self) -> None:
        self.rooms: list[str] = []
        self.names: list[str] = []
        self.generators: set[FrameType] = set()

    def __call__(self, frame, event, _argument) -> None:
        """Count the call of a function that has a name; of a generator, the first entry."""
        code = frame.f_code
        if event != "call" or len(self.rooms) >= FIRST or not code.co_filename.startswith(HOUSE):
            return
        resumed = code.co_flags & inspect.CO_GENERATOR and frame in self.generators
        if not code.co_name.startswith("<") and not resumed:
            self.rooms.append(code.co_filename.removeprefix(HOUSE))
            self.names.append(code.co_name)
            if code.co_flags & inspect.CO_GENERATOR:
                self.generators.add(frame)

    def counts(self) -> tuple[int, int, int, int]:
        """Calls, stays, rooms and returns."""
        seen, stays, returns, before = set(), 0, 0, None
        for room in self.rooms:
            if room == before:
                stays += 1
            elif room in seen:
                returns += 1
            seen.add(room)
            before = room
        return len(self.rooms), stays, len(seen), returns


def walked(call) -> Walk:
    """The walk of a call."""
    walk = Walk()
    sys.setprofile(walk)
    try:
        call()
    finally:
        sys.setprofile(None)
    return walk


def walks():
    """Name and call of each walk; what is imported on first use has been imported."""
    machine = load_topology("dgx-h100", nodes=2)

    def plan(**params):
        return simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=16, **params), 1 << 20)

    quiet = {"data": "none", "bound": False}
    for name, how in (
        ("a plan into emulate", {}),
        ("a plan into emulate, fast", {"engine": "fast"}),
        ("a plan into emulate, simpy", {"engine": "simpy"}),
    ):
        simcoll.emulate(plan(), machine, **quiet, **how)
        one = plan()
        yield name, lambda one=one, how=how: simcoll.emulate(one, machine, **quiet, **how)
    simcoll.verify(simcoll.schedule("all_reduce", "ring", nranks=64))
    for nranks in (8, 64):
        made = simcoll.schedule("all_reduce", "ring", nranks=nranks)
        yield f"a schedule of {nranks} ranks into verify", lambda made=made: simcoll.verify(made)


def main() -> None:
    """Walk and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("walks", nargs="*", help="beginnings of names; default: all")
    chosen = tuple(parser.parse_args().walks)
    print(f"{'walk':36} {'calls':>6} {'stays':>6} {'rooms':>6} {'returns':>8}")
    for name, call in walks():
        if not chosen or name.startswith(chosen):
            print(
                f"{name:36}"
                + "".join(
                    f"{count:>{width}}"
                    for count, width in zip(walked(call).counts(), (7, 7, 7, 9), strict=True)
                )
            )


if __name__ == "__main__":
    main()
