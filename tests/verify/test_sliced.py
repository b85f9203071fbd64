"""The full proof by slices of chunks: the plain proof's answer on what it serves, none on anything else or anything wrong."""

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.core.compiled import COMPILED
from simcoll.core.hashing import mix, mix_in_place
from simcoll.core.schedule import Step
from simcoll.errors import ScheduleError
from simcoll.proving import loops, verify
from simcoll.proving.sliced import verify_sliced

COLUMNS = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")


def sliced(schedule, cells=40):
    """The answer of numpy, and the same of the compiled loops where numba is."""
    found = verify_sliced(schedule, fewest_ranks=1, cells=cells, compiled=False)
    if COMPILED:
        assert verify_sliced(schedule, fewest_ranks=1, compiled=True) == found
    return found


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("cells", [1, 50, 10**6])
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("ring", {}),
        ("ring", {"channels": 3}),
        ("ring", {"channels": 2, "box": 2}),
        ("bidirectional_ring", {"channels": 2}),
    ],
)
def test_it_is_the_plain_proof(name, params, cells, n):
    if n % params.get("box", 1):
        return
    schedule = simcoll.schedule("all_reduce", name, nranks=n, **params)
    assert sliced(schedule, cells) == verify(schedule)


def test_large_rings_take_it():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=600)
    assert verify(schedule) == verify_sliced(schedule)
    assert verify_sliced(simcoll.schedule("all_reduce", "ring", nranks=500)) is None


@pytest.mark.skipif(not COMPILED, reason="needs numba")
def test_very_large_rings_are_followed_by_compiled_loops(monkeypatch):
    called = []
    played = loops.play_turns
    monkeypatch.setattr(loops, "play_turns", lambda *given: called.append(1) or played(*given))
    schedule = simcoll.schedule("all_reduce", "ring", nranks=2048, channels=2)
    assert verify(schedule) == verify_sliced(schedule, compiled=False)
    assert called
    assert verify_sliced(schedule, compiled=False) == verify_sliced(schedule, compiled=True)


@pytest.mark.parametrize(
    ("kind", "name", "params"),
    [
        ("all_reduce", "tree", {}),
        ("all_reduce", "rabenseifner", {}),
        ("all_reduce", "two_shot", {}),
        ("all_reduce", "ring", {"pieces": 2}),
        ("all_reduce", "ring", {"in_place": True}),
        ("all_gather", "ring", {}),
        ("reduce_scatter", "ring", {}),
        ("all_to_all", "pairwise", {}),
    ],
)
def test_it_leaves_the_rest_to_the_plain_proof(kind, name, params):
    schedule = simcoll.schedule(kind, name, nranks=8, **params)
    assert sliced(schedule) is None
    assert verify(schedule).kind == "full"


def mutants():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=6, channels=2)
    blocks = list(schedule.source())
    for at, block in enumerate(blocks):
        for values in (
            {"dst_rank": 3},
            {"src_rank": 2},
            {"op": 1},
            {"op": 0},
            {"src_chunk": 14},
            {"dst_chunk": 15},
            {"channel": 1},
            {"count": 2},
        ):
            step = block if isinstance(block, Step) else block.steps[0]
            columns = {name: getattr(step, name).copy() for name in COLUMNS}
            for name, value in values.items():
                columns[name][4] = value
            changed = Step(*columns.values())
            made = changed if isinstance(block, Step) else replace(block, steps=(changed,))
            yield replace(schedule, source=lambda made=made, at=at: [*blocks[:at], made, *blocks[at + 1 :]])
        if not isinstance(block, Step):
            for change in ({"count": 4}, {"stride": 1}, {"stride": 2}, {"modulus": 5}, {"base": block.base + 1}):
                made = replace(block, **change)
                yield replace(schedule, source=lambda made=made, at=at: [*blocks[:at], made, *blocks[at + 1 :]])
        yield replace(schedule, source=lambda at=at: blocks[:at] + blocks[at + 1 :])


def test_it_passes_no_mutant_that_the_plain_proof_refuses():
    refused = 0
    for mutant in mutants():
        try:
            plain = verify(mutant)
        except ScheduleError:
            refused += 1
            assert sliced(mutant) is None
        else:
            assert sliced(mutant) in (plain, None)
    assert refused > 20


def test_mixing_in_place_is_mixing():
    words = np.arange(1, 100, dtype=np.uint64) * np.uint64(0x123456789ABCDEF)
    wanted = mix(words)
    mix_in_place(words, np.empty_like(words))
    assert np.array_equal(words, wanted)
