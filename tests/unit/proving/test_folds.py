"""Folds: several reductions into one chunk in one step, added in ascending order of their ranks."""

from __future__ import annotations

import numpy as np
import pytest

import simcoll
from simcoll.core.collective import Collective
from simcoll.core.protocol import ideal
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, joined, transfers
from simcoll.errors import ScheduleError
from simcoll.formats.schedules.schedule_json import dump_schedule, parse_schedule
from simcoll.proving.lowering import check_lowering
from simcoll.topology.families import crossbar

N = 5


def gathered(*, order=range(1, N), first=0, channels=(0,) * N, root=0):
    """A reduce whose root copies the vector of one rank and adds all others to it in the same
    step.
    """
    layout = Layout(Collective("reduce", N, root=root))
    at = {"first": first, "order": list(order)}

    def steps():
        copy = transfers(at["first"], layout.input(), root, layout.output(), channel=channels[0])
        added = [
            transfers(r, layout.input(), root, layout.output(), op=REDUCE, channel=channels[r])
            for r in at["order"]
        ]
        yield joined([*added, copy])

    return Schedule("gathered", layout, steps, max(channels) + 1)


def rounding(seed=3, count=17):
    """Vectors whose sum depends on the order."""
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 6, count)).astype(np.float32)
        for _ in range(N)
    ]


def in_rank_order(values, first=0):
    total = values[first].copy()
    for rank in range(N):
        if rank != first:
            total += values[rank]
    return total.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 2, 3, 1)])
@pytest.mark.parametrize("engine", ["simpy", "fast"])
@pytest.mark.parametrize("latency", ["0 us", "3 us"])
def test_the_bits_are_those_of_ascending_ranks_whatever_arrives_first(order, engine, latency):
    schedule, inputs = gathered(order=order), rounding()
    # The nearer the rank the later its data: its link is slower.
    topology = crossbar(N, "10 GB/s", latency)
    for rank in range(1, N):
        topology = topology.degrade(f"gpu{rank} <-> switch", f"{rank}/8")
    plan = simcoll.bind(schedule, len(inputs[0]))
    result = simcoll.emulate(plan, topology, data=inputs, engine=engine, bound=False)
    assert result.outputs[0].tobytes() == in_rank_order(inputs)


def test_the_order_in_which_transfers_are_written_does_not_matter():
    assert simcoll.verify(gathered()).order == simcoll.verify(gathered(order=(3, 1, 4, 2))).order


def test_operands_add_to_what_was_there():
    layout = Layout(Collective("reduce", N))
    rank = np.arange(N)

    def steps():
        yield transfers(rank, layout.input(), rank, layout.output())
        yield transfers(rank[:0:-1], layout.output(), 0, layout.output(), op=REDUCE)

    inputs = rounding()
    schedule = Schedule("added", layout, steps)
    result = simcoll.emulate(
        simcoll.bind(schedule, len(inputs[0])), crossbar(N, "10 GB/s"), data=inputs, bound=False
    )
    assert result.outputs[0].tobytes() == in_rank_order(inputs)
    assert simcoll.verify(schedule, exact=True).order == "position-independent"


def test_another_operand_in_front_is_another_order():
    layout = Layout(Collective("all_reduce", 3))
    rank = np.arange(3)

    def steps(first):
        for target in rank:
            start = target if first == "own" else 0
            yield joined(
                [
                    transfers(start, layout.input(), target, layout.output()),
                    transfers(
                        rank[rank != start], layout.input(), target, layout.output(), op=REDUCE
                    ),
                ]
            )

    assert simcoll.verify(Schedule("own first", layout, lambda: steps("own"))).order == "any"
    assert (
        simcoll.verify(Schedule("rank order", layout, lambda: steps("rank 0"))).order
        == "position-independent"
    )


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(0, COPY, 0), (1, COPY, 0)], "twice in one step"),
        ([(0, COPY, 0), (1, REDUCE, 0), (2, REDUCE, 1)], "on two channels"),
        ([(0, COPY, 0), (1, REDUCE, 0), (1, REDUCE, 0)], "one operand of each"),
    ],
)
def test_what_is_no_fold_is_refused(rows, words):
    layout = Layout(Collective("reduce", N))

    def steps():
        yield joined(
            [
                transfers(r, layout.input(), 0, layout.output(), op=op, channel=channel)
                for r, op, channel in rows
            ]
        )

    with pytest.raises(ScheduleError, match=words):
        simcoll.verify(Schedule("no fold", layout, steps, 2))


def test_an_operand_too_many_or_too_few_is_found():
    with pytest.raises(ScheduleError, match="missing"):
        simcoll.verify(gathered(order=(1, 2, 3)))
    with pytest.raises(ScheduleError, match="again"):
        simcoll.verify(gathered(order=(0, 1, 2, 3, 4)))


def test_ranges_that_overlap_in_part_fold_where_they_do():
    layout = Layout(Collective("reduce", 3), 4)

    def steps():
        yield transfers(0, layout.input(), 0, layout.output(), count=4)
        yield transfers(
            [2, 1, 2],
            layout.input(0, np.array([1, 0, 0])),
            0,
            layout.output(0, np.array([1, 0, 0])),
            count=[3, 4, 1],
            op=REDUCE,
        )

    schedule = Schedule("ranges", layout, steps)
    assert simcoll.verify(schedule).order == "position-independent"
    inputs = rounding(count=11)[:3]
    got = simcoll.emulate(
        simcoll.bind(schedule, 11), crossbar(3, "10 GB/s"), data=inputs, bound=False
    ).outputs[0]
    assert got.tobytes() == (inputs[0] + inputs[1] + inputs[2]).tobytes()


@pytest.mark.parametrize("root", [0, 2])
def test_the_lowering_orders_the_operands(root):
    plan = simcoll.bind(gathered(root=root), 100)
    assert check_lowering(plan).order == plan.proof.order


def test_another_channel_waits_for_all_operands():
    layout = Layout(Collective("all_reduce", 3))
    rank = np.arange(3)

    def steps():
        yield joined(
            [
                transfers(0, layout.input(), 0, layout.output()),
                transfers([1, 2], layout.input(), 0, layout.output(), op=REDUCE),
            ]
        )
        yield transfers(0, layout.output(), rank[1:], layout.output(), channel=1)

    plan = simcoll.bind(Schedule("two channels", layout, steps, 2), 6)
    assert plan.waits == {3: (0, 1, 2), 4: (0, 1, 2)}
    check_lowering(plan)
    assert simcoll.emulate(plan, crossbar(3, "10 GB/s")).wrong == 0


@pytest.mark.slow
def test_the_reductions_of_a_fold_take_their_time_one_after_the_other():
    # Four messages share the port of the root; then it reduces four times.
    size, alpha_fs, beta_fs, gamma_fs = 4_000_000, 2_000_000_000, 1_000, 7
    plan = simcoll.bind(gathered(), size // 4, protocol=ideal(reduce_as_per_byte=gamma_fs * 1000))
    for engine in ("simpy", "fast"):
        result = simcoll.emulate(
            plan, crossbar(N, "1 TB/s", alpha_fs), data="none", engine=engine, bound=False
        )
        assert result.time_fs == alpha_fs + 4 * size * (beta_fs + gamma_fs)


def test_a_file_holds_folds():
    schedule = gathered(order=(4, 3, 2, 1))
    again = parse_schedule(dump_schedule(schedule))
    assert again.content_hash() == schedule.content_hash()
    assert simcoll.verify(again) == simcoll.verify(schedule)
