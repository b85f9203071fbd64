"""What a hasty or hostile caller hands in: one clear error, never numpy's or Python's."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import Collective
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import Layout, Repeat, Schedule, Step, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats.schedules.schedule_json import dump_schedule, parse_schedule
from simcoll.testing.examples import needed_params
from simcoll.topology import crossbar


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"src_rank": 0.7}, "src_rank must be whole numbers"),
        ({"src_rank": "a"}, "src_rank must be whole numbers"),
        ({"src_rank": 2**70}, "src_rank must be whole numbers"),
        ({"src_rank": [[0], [1, 2]]}, "src_rank must be whole numbers"),
        (
            {"src_rank": [0, 1], "dst_rank": [0, 1, 2]},
            "must broadcast together; got shapes src_rank",
        ),
        ({"op": 7}, "op 7 is unknown"),
        ({"op": 256}, "op 256 is unknown"),
        ({"op": -1}, "op -1 is unknown"),
        ({"op": "reduec"}, "did you mean 'reduce'"),
    ],
)
def test_transfers_refuse(arguments, says):
    with pytest.raises(ConfigError, match=says):
        transfers(**({"src_rank": 0, "src_chunk": 0, "dst_rank": 1, "dst_chunk": 1} | arguments))


@pytest.mark.parametrize(
    ("kind", "nranks", "arguments", "says"),
    [
        (
            "broadcast",
            3,
            (1, np.zeros((2, 2), int)),
            r"one such list for each of the 3 ranks; got shape \(2, 2\)",
        ),
        ("broadcast", 3, (1, np.zeros((3, 1, 1), int)), r"got shape \(3, 1, 1\)"),
        ("all_gather", 3, (1, 2), r"scratch must be a list .*; got shape \(\)"),
        (
            "all_gather",
            3,
            (1, [9]),
            "scratch must lie in 0..2, the blocks of the collective; got 9",
        ),
        ("all_gather", 3, (1, [0, -1]), "scratch must lie in 0..2, .*; got -1"),
        ("all_reduce", 3, (1, [1]), "scratch must lie in 0..0"),
        ("barrier", 3, (1, [1]), "scratch must lie in 0..0"),
        ("all_gather", 3, (1, [0.5]), "scratch must be whole numbers"),
        ("all_gather", 3, (1, ["0"]), "scratch must be whole numbers"),
        ("all_gather", 3, (1, [[0], [1, 2]]), "scratch must be whole numbers"),
        (
            "all_gather",
            3,
            (1, np.array([2**63], np.uint64)),
            "scratch must be whole numbers of 64 bits",
        ),
        (
            "all_gather",
            3,
            (2, [0], [2]),
            "scratch_pieces must lie in 0..1, the pieces of a block; got 2",
        ),
        ("all_gather", 3, (2, [0], [0.5]), "scratch_pieces must be whole numbers"),
        (
            "all_gather",
            3,
            (2, [0], [0, 1]),
            r"scratch_pieces must have the shape of scratch, \(1,\); got \(2,\)",
        ),
    ],
)
def test_layouts_that_cannot_be(kind, nranks, arguments, says):
    with pytest.raises(ConfigError, match=says):
        Layout(simcoll.Collective(kind, nranks), *arguments)


def test_layouts_hold_plain_numbers():
    given = [0, 1]
    layout = Layout(simcoll.Collective("all_gather", 2), np.int8(100), np.array(given, np.uint8))
    assert (layout.chunks, type(layout.chunks), layout.size) == (100, int, 100 + 2 * 100 + 2 * 100)
    assert Layout(simcoll.Collective("all_gather", 2), 1, [[0], [1]]).scratch_slots == 1
    for whose in ("all_gather", None):
        with pytest.raises(ConfigError, match="a layout needs a Collective, got"):
            Layout(whose)


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True, None, 2**60])
def test_channels_are_counted(number):
    with pytest.raises(ConfigError, match="mine: nchannels must be a whole number from 1 to"):
        Schedule(
            "mine", Layout(simcoll.Collective("broadcast", 2)), lambda: RIGHT, nchannels=number
        )


def test_a_schedule_has_a_layout():
    with pytest.raises(ConfigError, match="mine: expected a Layout, got None"):
        Schedule("mine", None, lambda: RIGHT)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"count": -1}, "count of a Repeat must be a whole number from 0"),
        ({"count": 1.5}, "count of a Repeat must be a whole number"),
        ({"modulus": 0}, "modulus of a Repeat must be a whole number from 1 to"),
        ({"modulus": 2**62}, "modulus of a Repeat"),
        ({"stride": "1"}, "stride of a Repeat must be a whole number"),
        ({"base": None}, "base of a Repeat must be a whole number"),
        ({"steps": transfers(0, 0, 1, 1)}, "steps of a Repeat are a tuple of steps"),
        ({"steps": [(0, 0, 1, 1)]}, "steps of a Repeat are a tuple of steps"),
        (
            {"order": [0, 1, 2], "modulus": 2},
            "order of a Repeat must list whole windows of 2 chunks, one of them at base; got 3",
        ),
        (
            {"order": [0, 1], "modulus": 2, "base": 1},
            "must list whole windows of 2 chunks, one of them at base; got 2 chunks and base 1",
        ),
        ({"order": []}, "must list whole windows of 1 chunks"),
        ({"order": [[0], [1]]}, "must list whole windows"),
        ({"order": [1, 1]}, "order of a Repeat must list distinct chunks from 0 on"),
        ({"order": [-1, 1]}, "order of a Repeat must list distinct chunks from 0 on"),
        ({"order": "01"}, "order of a Repeat"),
    ],
)
def test_repeats_that_cannot_be(change, says):
    with pytest.raises(ConfigError, match=says):
        Repeat(
            **({"steps": (RIGHT[0],), "count": 2, "stride": 0, "base": 0, "modulus": 1} | change)
        )


def test_a_repeat_that_lists_other_chunks_than_it_moves():
    layout = Layout(Collective("all_reduce", 2), 2)
    for order, says in (
        ([0, 2], "chunk 1 of a Repeat is not in its order"),
        ([1, 7], "chunks 7..7 on rank 0 do not lie"),
    ):
        turn = Repeat((transfers(0, 1, 1, 1),), 2, 1, 0, 2, order)
        with pytest.raises((ConfigError, ScheduleError), match=says):
            simcoll.verify(Schedule("lists", layout, lambda turn=turn: [turn]))


def test_columns_of_a_step_are_arrays():
    one = np.array([0])
    with pytest.raises(ConfigError, match=r"are numpy arrays, got \[0\]; transfers\(\) makes"):
        Step([0], one, one, one, one, one, one)


def test_operations_have_names():
    assert transfers(0, 0, 1, 1, op="reduce").op.tolist() == [1]


def test_steps_do_not_change():
    step = transfers(0, 0, 1, 1)
    with pytest.raises(ValueError, match="read-only"):
        step.src_rank[0] = 1


def broadcast(source):
    return Schedule("mine", Layout(simcoll.Collective("broadcast", 2)), source)


def test_an_operation_that_does_not_exist_is_refused():
    one = np.array([0])
    step = Step(one, one, one, one + 1, one + 1, np.array([9], np.int8), one)
    with pytest.raises(ScheduleError, match="operation 9 is unknown"):
        simcoll.verify(broadcast(lambda: [step]))


def test_a_source_that_can_be_read_once_is_refused():
    once = iter([transfers(0, 0, [0, 1], 1)])
    with pytest.raises(ScheduleError, match="must be a function that yields the same steps"):
        simcoll.bind(broadcast(lambda: once), 4)


def changing(*versions):
    """A source that yields something else each time."""
    passes = iter(versions)
    return lambda: next(passes)


RIGHT = [transfers(0, 0, [0, 1], 1)]


@pytest.mark.parametrize(
    ("second", "at"),
    [
        ([transfers(0, 0, 0, 1), transfers(0, 0, 1, 1)], 0),
        ([transfers(0, 0, [1, 0], 1)], 0),
        ([transfers(0, 0, [0, 1], 1, op="multicast")], 0),
        ([Repeat((RIGHT[0],), 1, 0, 0, 1)], 0),
        ([*RIGHT, transfers(0, 0, 1, 1)], 1),
        ([], 0),
    ],
)
def test_a_source_that_changes_is_refused(second, at):
    # Whichever pass it is, of the proof or of the plan: what it does is not what was proved.
    for right in range(1, 9):
        schedule = broadcast(changing(*[RIGHT] * right, *[second] * 9))

        def run(schedule=schedule):
            plan = simcoll.bind(schedule, 4)
            for _ in range(9):
                list(plan.steps())

        with pytest.raises(
            ScheduleError, match=rf"from step or repeat number {at} on; it must be a function"
        ):
            run()


def test_passes_that_stop_early_are_compared_too():
    two = [transfers(0, 0, 0, 1), transfers(0, 0, 1, 1)]
    schedule = broadcast(changing(two, [two[0], transfers(0, 0, 1, 1, op="multicast")], two))
    steps = schedule.steps()
    assert len(next(steps)) == 1  # knows one step
    assert len(list(schedule.steps())) == 2
    with pytest.raises(ScheduleError, match="number 1 on"):
        list(schedule.steps())


def test_a_changed_copy_is_not_known():
    good = simcoll.schedule("broadcast", "tree", nranks=2)
    simcoll.verify(good)
    bad = dataclasses.replace(good, source=lambda: [transfers(0, 0, 0, 1)])
    assert bad.content_hash() != good.content_hash()
    with pytest.raises(ScheduleError, match="rank 1 output chunk 0 is wrong"):
        simcoll.verify(bad)


@pytest.mark.parametrize("source", [[], None])
def test_a_source_is_a_function(source):
    with pytest.raises(ConfigError, match="source must be a function"):
        broadcast(source)


@pytest.mark.parametrize(
    ("result", "says"), [(None, "source returns None"), ([(0, 0, 1, 1)], "source yields")]
)
def test_a_source_yields_steps(result, says):
    with pytest.raises(ConfigError, match=says):
        simcoll.verify(broadcast(lambda: result))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.collective}-{a.name}")
def test_every_schedule_survives_its_file(algorithm):
    for n in (1, 2, 4, 8):
        try:
            extra = {"box": n} if algorithm.topologies == "boxes" else {}
            extra |= needed_params(algorithm.collective, algorithm.name, n)
            pairs = (
                tuple((rank, (rank + 1) % n) for rank in range(n))
                if algorithm.collective == "send_recv"
                else ()
            )
            collective = simcoll.Collective(algorithm.collective, n, pairs=pairs)
            schedule = simcoll.schedule(collective, algorithm.name, **extra)
        except ConfigError:
            continue
        again = parse_schedule(dump_schedule(schedule))
        assert again.content_hash() == schedule.content_hash()
        assert again.params == schedule.params


def displayed(name="mine", blocks=None, **fields):
    blocks = RIGHT if blocks is None else blocks
    return Schedule(
        name, Layout(simcoll.Collective("broadcast", 2)), lambda: iter(blocks), **fields
    )


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (0.5, 0.5),
        (True, True),
        (None, None),
        ("x", "x"),
        ((1, 2), (1, 2)),
        (("a", "b"), ("a", "b")),
        ([1], (1,)),
        ((("a", 1), (2,)), (("a", 1), (2,))),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.arange(2), (0, 1)),
    ],
)
def test_parameters_survive_the_file(value, read):
    schedule = displayed(params=(("alpha", value),))
    again = parse_schedule(dump_schedule(schedule))
    assert again.params == (("alpha", read),)
    assert type(again.params[0][1]) is type(read)
    assert again.content_hash() == schedule.content_hash()


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), b"x", {1}, {"a": 1}, object(), [[[1]]], 1j]
)
def test_parameters_that_no_file_holds(value):
    with pytest.raises(
        ConfigError, match=r"a schedule file cannot (keep the params .* of|hold) 'mine'"
    ):
        dump_schedule(displayed(params=(("alpha", value),)))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "a\nb"}, "up to 200 printable characters"),
        ({"name": "x" * 201}, "up to 200 printable characters"),
        ({"name": "\ud800"}, "cannot hold"),
        ({"name": 5}, "expected text"),
        ({"nchannels": 70_000}, "channels must lie in 1..65536, got 70000"),
        (
            {"blocks": [Repeat((RIGHT[0],), 2**25, 0, 0, 1)]},
            "repeats expand to more than 2,097,152 steps",
        ),
    ],
)
def test_schedules_that_no_file_holds(fields, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        dump_schedule(displayed(**fields), tmp_path / "mine.json")
    assert list(tmp_path.iterdir()) == []


def test_a_repeat_of_no_turns_survives_its_file():
    schedule = displayed(blocks=[Repeat((RIGHT[0],), 0, 0, 0, 1), *RIGHT])
    again = parse_schedule(dump_schedule(schedule))
    assert again.content_hash() == schedule.content_hash()
    assert simcoll.verify(again).transfers == 2


def test_a_file_names_the_step_after_its_repeats():
    blocks = [Repeat((RIGHT[0],), 3, 0, 0, 1), transfers(0, 0, 5, 1)]
    with pytest.raises(ScheduleError, match="step 3, rank 0 -> 5"):
        dump_schedule(displayed(blocks=blocks))


RING = json.loads(dump_schedule(simcoll.schedule("all_reduce", "ring", nranks=3)))


@pytest.mark.parametrize(
    "change",
    [
        {"chunks": 2**62},
        {"chunks": 2**63},
        {"name": "a\x00b"},
        {"name": "x" * 201},
        {"collective": {"kind": "all_reduce", "nranks": 2**63 - 1}},
        {"collective": {"kind": "all_reduce", "nranks": 2**24}},
        {"blocks": [{**RING["blocks"][1], "base": 2**62}]},
        {"blocks": [{**RING["blocks"][1], "modulus": 2**62}]},
        {
            "blocks": [
                {**RING["blocks"][1], "repeat": 2**24, "steps": RING["blocks"][1]["steps"] * 100}
            ]
        },
        *(
            {
                "blocks": [
                    {
                        "steps": [
                            {
                                "src_rank": [0],
                                "src_chunk": chunk,
                                "dst_rank": [1],
                                "dst_chunk": 3,
                                "count": count,
                            }
                        ]
                    }
                ]
            }
            for chunk, count in ((2**63 - 1, 1), (0, 2**63 - 1), (0, -(2**63)), (2**62, 2**62))
        ),
    ],
)
def test_files_with_huge_numbers(change):
    with pytest.raises((ConfigError, ScheduleError)):
        parse_schedule(json.dumps(RING | change))


def test_files_that_are_not_text():
    with pytest.raises(ConfigError, match="not a JSON file"):
        parse_schedule(b'{"name": "\xff"}')


@pytest.mark.parametrize(
    "arguments",
    [
        {"launch_fs": -1},
        {"launch_fs": 1.5},
        {"header_bytes": -1},
        {"fifo_depth": -1},
        {"wire_factor": 0},
        {"wire_factor": -1},
        {"wire_factor": "x"},
        {"hop_latency_fs": (("net", -1),)},
    ],
)
def test_protocols_that_cannot_be(arguments):
    with pytest.raises(ConfigError):
        Protocol("mine", **arguments)


def test_half_a_byte_on_the_wire():
    plan = simcoll.bind(
        simcoll.schedule("broadcast", "tree", nranks=2),
        1000,
        "int8",
        protocol=Protocol("half", wire_factor=0.5),
    )
    result = simcoll.emulate(plan, crossbar(2, "1 GB/s"))
    assert (result.time_us, result.bound.time_fs) == (0.5, 5 * 10**8)


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), "x", True])
def test_factors_that_are_not_numbers(factor):
    with pytest.raises(ConfigError, match="finite number"):
        simcoll.types.premul_sum(factor)


@pytest.mark.parametrize(
    ("factor", "dtype"),
    [(1e300, "float32"), (1000, "int8"), (1e39, "bfloat16"), (1e300, "complex64")],
)
def test_factors_that_do_not_fit(factor, dtype):
    schedule = simcoll.schedule("all_reduce", "ring", nranks=2)
    with pytest.raises(ConfigError, match="does not fit"):
        simcoll.bind(schedule, 4, dtype, simcoll.types.premul_sum(factor))


def test_what_is_said_twice():
    with pytest.raises(
        ConfigError,
        match=r"cannot be given together with a Collective .*; set them on the Collective",
    ):
        simcoll.schedule(simcoll.Collective("all_reduce", 4), "ring", nranks=5)


def test_arguments_of_other_types():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=4)
    plan, topology = simcoll.bind(schedule, 4), crossbar(4, "1 GB/s")
    for call, says in (
        (lambda: simcoll.emulate(schedule, topology), "takes a plan"),
        (lambda: simcoll.emulate(plan, "dgx-h100"), "takes a topology"),
        (lambda: simcoll.bind(schedule, 4, op=3), "op must be"),
        (lambda: simcoll.bind(schedule, 4, protocol=3), "protocol must be"),
        (lambda: simcoll.bind(schedule, 4, dtype=None), "dtype is None"),
        (lambda: simcoll.bind(schedule, 4, ranks=[0, 1, 2, 3.5]), "ranks must be whole"),
        (lambda: simcoll.bind(schedule, 4, ranks=[[0, 1], [2]]), "ranks must be whole"),
        (lambda: simcoll.bind(schedule, 4, ranks=[True, False, 2.0, 3.0]), "ranks must be whole"),
        (
            lambda: simcoll.bind(schedule, 4, ranks=np.array([[0, 1, 2, 3]])),
            r"has 4 ranks; got an array of shape \(1, 4\), not a list",
        ),
        (lambda: simcoll.bind(schedule, 4, ranks=5), r"got an array of shape \(\), not a list"),
        (lambda: simcoll.schedule("all_reduce", "ring", nranks=4, channels=10**9), "at most"),
        (lambda: simcoll.schedule("all_reduce", "ring", nranks=10**9), "at most"),
    ):
        with pytest.raises(ConfigError, match=says):
            call()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((None,), "unknown collective None"),
        ((["ring"],), "unknown collective"),
        (("all_reduce", 3), "unknown algorithm 3"),
        (("all_reduce", ""), "unknown algorithm ''"),
        (
            ("all_reduce", ["ring"]),
            r"unknown algorithm \['ring'\] for all_reduce; did you mean 'ring'",
        ),
    ],
)
def test_names_are_text(arguments, says):
    with pytest.raises(ConfigError, match=says):
        simcoll.schedule(*arguments, nranks=4)


def test_parameters_of_any_whole_type():
    plain = simcoll.schedule("all_reduce", "hierarchical", nranks=8, box=4)
    assert str(simcoll.schedule("all_reduce", nranks=8, box=np.int64(4), pieces=None)) == str(plain)
    torus = simcoll.schedule("all_reduce", "torus", nranks=6, dims=(2, 3))
    assert str(simcoll.schedule("all_reduce", "torus", nranks=6, dims=np.array([2, 3]))) == str(
        torus
    )
    assert simcoll.schedule("all_reduce", "ring", nranks=4, channels=None).nchannels == 1


def test_a_parameter_that_others_have():
    with pytest.raises(
        ConfigError,
        match=r"'rabenseifner' .* no parameter 'pieces'; valid: channels; ring, .* have it",
    ):
        simcoll.schedule("all_reduce", nranks=8, pieces=2)


@pytest.mark.parametrize("pairs", [5, None, "ab", {(0, 1)}])
def test_pairs_are_a_list(pairs):
    with pytest.raises(ConfigError, match="pair"):
        simcoll.Collective("send_recv", 4, pairs=pairs)


@pytest.mark.parametrize("place", ["no", 1, None])
def test_in_place_is_true_or_false(place):
    with pytest.raises(ConfigError, match="in_place must be True or False"):
        simcoll.schedule("all_reduce", nranks=4, in_place=place)


@pytest.mark.parametrize(
    ("name", "meant"), [("add", "sum"), ("mean", "avg"), ("prod", "product"), ("xor", "bxor")]
)
def test_reductions_by_their_other_names(name, meant):
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        simcoll.bind(simcoll.schedule("all_reduce", nranks=2), 4, "int32", name)


def test_a_schedule_that_leaves_its_buffer_is_not_even_bound_unproved():
    layout = Layout(simcoll.Collective("all_reduce", 2), 2, [0], [1])
    steps = [
        transfers(0, 0, 1, layout.scratch_at(0), count=2),
        transfers(0, layout.scratch_at(0), 1, 2, count=4),
    ]
    with pytest.raises(
        ScheduleError, match=r"destination chunks 4..5 on rank 1 do not lie in one buffer"
    ):
        simcoll.bind(Schedule("mine", layout, lambda: steps), 8, unproved=True)
