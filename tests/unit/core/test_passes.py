"""A source yields the same steps at every pass, whenever, wherever and in which thread; digests
tell by values, not by bytes.
"""

import itertools
import threading
import time

import numpy as np
import pytest

import simcoll
from simcoll.core import digests
from simcoll.core.digests import LongDigest, digest
from simcoll.core.schedule import Layout, Repeat, Schedule
from simcoll.core.step import COLUMNS, MULTICAST, LongStep, Step, transfers
from simcoll.errors import ConfigError, ScheduleError

N = 4
RANK = np.arange(N)
LAYOUT = Layout(simcoll.Collective("all_gather", N))
RIGHT = [transfers(RANK, LAYOUT.input(), (RANK + k) % N, LAYOUT.output(RANK)) for k in range(N)]
WRONG = [
    *RIGHT[:-1],
    transfers(RANK, LAYOUT.input(), (RANK + 3) % N, LAYOUT.output((RANK + 1) % N)),
]
TURN = transfers(RANK, 1, (RANK + 1) % N, 1)
"""One turn of a repeat over the outputs."""


def of_passes(*passes, **params):
    """A schedule whose source yields other steps at each call; the last ones from then on."""
    left = iter(passes)
    last = [None]

    def source():
        last[0] = next(left, last[0])
        return iter(last[0])

    return Schedule("changing", LAYOUT, source, **params)


def changed(column, row=0, by=1):
    values = {name: getattr(RIGHT[-1], name).copy() for name in COLUMNS}
    values[column][row] += by
    return [*RIGHT[:-1], Step(**values)]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("by", [1, -1, 2**6, -(2**7)])
def test_a_pass_that_differs_in_one_number_is_refused(column, by):
    schedule = of_passes(RIGHT, changed(column, 2, by))
    assert len(list(schedule.blocks())) == N
    with pytest.raises(ScheduleError, match="yields other steps, from step or repeat number 3 on"):
        list(schedule.blocks())


EMPTY = transfers([], [], [], [])
HALVES = [RIGHT[0].rows(slice(2)), RIGHT[0].rows(slice(2, 4))]


@pytest.mark.parametrize(
    ("other", "number"),
    [
        (RIGHT[:-1], 3),
        (RIGHT[:0], 0),
        ([*RIGHT, RIGHT[0]], 4),
        (RIGHT[::-1], 0),
        ([RIGHT[0], *RIGHT], 1),
        (WRONG, 3),
        ([*RIGHT, EMPTY], 4),
        ([EMPTY, *RIGHT], 0),
        ([Repeat((RIGHT[0],), 1, 0, 0, 1), *RIGHT[1:]], 0),
        ([*RIGHT[:2], Repeat(tuple(RIGHT[2:]), 1, 0, 0, 1)], 2),
        ([*HALVES, *RIGHT[1:]], 0),
    ],
)
def test_a_pass_of_other_length_order_or_parts_is_refused(other, number):
    for first, second in ((RIGHT, other), (other, RIGHT)):
        schedule = of_passes(first, second)
        list(schedule.blocks())
        with pytest.raises(ScheduleError, match=f"from step or repeat number {number} on"):
            list(schedule.blocks())


@pytest.mark.parametrize(
    "other",
    [
        Repeat((TURN,), 4, 1, 0, 8),
        Repeat((TURN,), 3, 2, 0, 8),
        Repeat((TURN,), 3, 1, 4, 8),
        Repeat((TURN,), 3, 1, 0, 4),
        Repeat((TURN, TURN), 3, 1, 0, 8),
        Repeat((TURN,), 3, 1, 0, 8, np.arange(8)),
        Repeat((TURN.rows(slice(3)),), 3, 1, 0, 8),
        TURN,
    ],
)
def test_a_repeat_that_differs_is_refused(other):
    first = Repeat((TURN,), 3, 1, 0, 8)
    assert digest(other) != digest(first) == digest(Repeat((TURN,), 3, 1, 0, 8))
    schedule = of_passes([first], [other])
    list(schedule.blocks())
    with pytest.raises(ScheduleError, match="from step or repeat number 0 on"):
        list(schedule.blocks())


@pytest.mark.parametrize("when", range(1, 12))
def test_whichever_pass_turns_wrong_the_schedule_does_not_run_it(when):
    schedule = of_passes(*[RIGHT] * when, WRONG)

    def run():
        for count in range(1, 20):
            plan = simcoll.bind(schedule, 12 * count)
            for step in plan.steps():
                assert step.dst_offset.tolist() == (12 * count * step.src_rank).tolist()

    with pytest.raises(ScheduleError, match="yields other steps"):
        run()


def test_a_pass_that_was_not_finished_counts():
    schedule = of_passes(RIGHT, [RIGHT[1], *RIGHT[1:]])
    assert len(next(schedule.blocks())) == N
    with pytest.raises(ScheduleError, match="number 0 on"):
        list(schedule.blocks())


def test_passes_side_by_side_are_compared():
    schedule = of_passes(RIGHT, WRONG)
    with pytest.raises(ScheduleError, match="number 3 on"):
        list(itertools.zip_longest(schedule.blocks(), schedule.blocks()))


def test_the_shape_of_the_numbers_does_not_matter():
    def narrow(step, dtype):
        return Step(
            *(
                c if n == "op" else c.astype(dtype)
                for n, c in zip(COLUMNS, step.columns, strict=True)
            )
        )

    schedule = of_passes(
        RIGHT, *([narrow(step, dtype) for step in RIGHT] for dtype in ("i1", ">u2", "u8"))
    )
    for _ in range(4):
        assert sum(map(len, schedule.blocks())) == N * N


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1169, 1170, 1171, 8191, 8192, 8193, 17000])
def test_digests_tell_every_number_at_every_length(size):
    rng = np.random.default_rng(size)
    given = {name: rng.integers(0, 100, size) for name in COLUMNS}
    base = digest(Step(**given))
    assert digest(Step(**{name: column.copy() for name, column in given.items()})) == base
    seen = {base}
    rows = {0, size - 1, size // 2, *rng.integers(0, size, 3).tolist()}
    for name, row in itertools.product(COLUMNS, rows):
        for by in (1, 8, -101) if name == "op" else (1, -1, 2**31, 2**32, 2**40, 2**62, -(2**63)):
            column = given[name].copy()
            column[row] += by
            seen.add(digest(Step(**{**given, name: column})))
    assert len(seen) == 1 + len(rows) * (6 * 7 + 3)


@pytest.mark.parametrize("size", [3, 100, 2000, 70000])
def test_digests_of_equal_values_are_equal_whatever_holds_them(size):
    full = Step(
        *(np.full(size, value) for value in range(1, 5)),
        np.full(size, 9),
        np.zeros(size, np.int8),
        np.full(size, 2**33),
    )
    slim = Step(*(np.broadcast_to(np.array([value]), size) for value in (1, 2, 3, 4, 9, 0, 2**33)))
    assert (
        digest(full)
        == digest(slim)
        == digest(transfers(np.full(size, 1), 2, 3, 4, count=9, channel=2**33))
    )


@pytest.mark.parametrize("size", [20000, 65536, 65537, 200_000])
@pytest.mark.parametrize("seed", range(3))
def test_the_digest_of_portions_is_that_of_the_whole(seed, size):
    rng = np.random.default_rng(seed)
    columns = [rng.integers(-100, 100, size) for _ in COLUMNS]
    columns[1][rng.integers(size, size=seed)] += 2**40  # upper halves, in some parts or in none
    columns[4] = np.broadcast_to(np.array([7]), size)
    step = Step(*columns)
    edges = [0, *np.sort(rng.integers(0, size, 5)).tolist(), size]
    sums, changed_sums = LongDigest(), LongDigest()
    for begin, end in itertools.pairwise(edges):
        portion = step.rows(slice(begin, end))
        sums.add(portion)
        changed_sums.add(portion if begin else portion.rows(np.arange(end)[::-1]))
    assert sums.value() == digest(step) != changed_sums.value()


def by_twos(step):
    """A step as one of portions of two transfers."""
    rows = range(0, len(step), 2)
    return LongStep(lambda: step, lambda: (step.rows(slice(r, r + 2)) for r in rows))


@pytest.fixture
def _any_step_is_long(monkeypatch):
    monkeypatch.setattr(digests, "FEW", 0)
    monkeypatch.setattr(digests, "JOINED", 0)


@pytest.mark.usefixtures("_any_step_is_long")
def test_a_long_step_comes_whole_or_in_portions():
    schedule = of_passes([RIGHT[0], EMPTY, by_twos(RIGHT[1]), *RIGHT[2:]])
    for _ in range(2):
        assert [len(step) for step in schedule.blocks()] == [N] * N
        numbered = [(number, len(step)) for number, step in schedule.portions()]
        assert numbered == [(0, 4), (1, 2), (1, 2), (2, 4), (3, 4)]
    proof = simcoll.verify(schedule)
    lowered = list(simcoll.core.schedule.lowered(schedule, portioned=True))
    assert (proof.folds, [number for number, _ in lowered]) == (False, [0, 1, 1, 2, 3])


@pytest.mark.usefixtures("_any_step_is_long")
@pytest.mark.parametrize("portions_first", [False, True])
@pytest.mark.parametrize(
    "portions", [[RIGHT[1]], [RIGHT[2].rows(slice(2))], [RIGHT[2], RIGHT[2]], []]
)
def test_portions_of_other_transfers_than_the_step_has_are_refused(portions, portions_first):
    false = LongStep(lambda: RIGHT[2], lambda: iter(portions))
    schedule = of_passes([*RIGHT[:2], false, RIGHT[3]])
    ways = [schedule.blocks, schedule.portions]
    list(ways[portions_first]())
    with pytest.raises(ScheduleError, match="from step or repeat number 2 on"):
        list(ways[not portions_first]())


def test_portions_are_steps_of_transfers_that_need_no_other():
    cast = transfers(0, 0, [1, 2], LAYOUT.output(), op=MULTICAST)
    for portion, words in ((cast, "operations of switches"), ("two", "'two'; expected steps")):
        schedule = of_passes([LongStep(lambda: cast, lambda portion=portion: iter([portion]))])
        with pytest.raises(ConfigError, match=words):
            list(schedule.portions())


def test_rows_that_change_places_or_columns_are_told():
    # Sums of numbers with known factors, or with the same ones for all columns and parts, would be
    # equal.
    size = 3 * digests.PART
    given = {name: np.zeros(size, np.int64) for name in COLUMNS}
    seen = set()
    for name, part, sign in itertools.product([n for n in COLUMNS if n != "op"], range(3), (1, -1)):
        column = np.zeros(size, np.int64)
        column[part * digests.PART + 5], column[part * digests.PART + 6] = sign, -sign
        seen.add(digest(Step(**{**given, name: column})))
    assert len(seen) == 6 * 3 * 2


def test_multiples_of_large_powers_of_two_are_told():
    # Modulo 2^64, two sums with random factors are both 0 with probability 1/4 for one multiple of
    # 2^63: their upper halves tell.
    size, seen = 5000, set()
    zeros = {name: np.zeros(size, np.int64) for name in COLUMNS}
    for row, power in itertools.product(range(0, size, 50), (61, 62, 63)):
        column = np.zeros(size, np.uint64)
        column[row] = 2**power
        seen.add(digest(Step(**{**zeros, "dst_chunk": column.view(np.int64)})))
    assert len(seen) == 300


@pytest.mark.slow
def test_every_process_draws_its_own_factors():
    import subprocess
    import sys

    code = (
        "import numpy as np; from simcoll.core.digests import digest; from simcoll.core.step "
        "import transfers;"
        "print(digest(transfers(np.arange(500), 0, 1, 2)).hex())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(made) == 2


def in_threads(count, action):
    """Results of the same action in threads that start together."""
    results, barrier = [None] * count, threading.Barrier(count)

    def run(index):
        barrier.wait()
        try:
            results[index] = action()
        except ScheduleError as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Slow(list):
    """A list whose length is old when it is told: another thread may have come in between."""

    def __len__(self):
        length = super().__len__()
        time.sleep(0.001)
        return length


@pytest.mark.slow
def test_first_passes_in_several_threads_agree():
    for _ in range(5):
        schedule = Schedule("together", LAYOUT, lambda: iter(RIGHT))
        schedule.known.digests = Slow()
        assert in_threads(4, lambda: sum(map(len, schedule.blocks()))) == [N * N] * 4  # noqa: B023
        assert list(schedule.known.digests) == [digest(step) for step in RIGHT]
        assert str(simcoll.verify(schedule)).startswith("proved")


@pytest.mark.slow
def test_proofs_and_plans_in_several_threads():
    for _ in range(10):
        schedule = simcoll.schedule("all_reduce", "ring", nranks=6, channels=2)
        plans = in_threads(4, lambda: simcoll.bind(schedule, 60))  # noqa: B023
        assert len({plan.proof.transfers for plan in plans}) == 1
        assert in_threads(4, schedule.content_hash) == [schedule.content_hash()] * 4
        sums = in_threads(4, lambda: sum(len(step) for step in plans[0].steps()))  # noqa: B023
        assert len(set(sums)) == 1


def test_of_two_threads_with_other_steps_one_is_refused():
    for _ in range(20):
        source = itertools.cycle([RIGHT, WRONG])
        schedule = Schedule("torn", LAYOUT, lambda: iter(next(source)))  # noqa: B023
        results = in_threads(2, lambda: len(list(schedule.blocks())))  # noqa: B023
        assert sorted(isinstance(result, ScheduleError) for result in results) == [False, True]


def test_only_steps_and_repeats_of_simcoll_are_taken():
    class Sly:
        steps = ()

        @property
        def __class__(self):
            return Step

    schedule = Schedule("sly", LAYOUT, lambda: [Sly()])
    assert isinstance(Sly(), Step)
    with pytest.raises(simcoll.ConfigError, match="expected steps, made by transfers"):
        list(schedule.blocks())
    with pytest.raises(simcoll.ConfigError, match="a tuple of steps, made by transfers"):
        Repeat((Sly(),), 1, 0, 0, 1)
