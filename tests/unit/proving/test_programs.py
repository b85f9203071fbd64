"""Per-rank programs: matching, deadlock, races, data and order. Expected values are worked out by
hand.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import simcoll
from simcoll.core.collective import Collective
from simcoll.core.rank_program import Instruction, Lane, RankProgram
from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats import load_msccl_xml
from simcoll.proving import program_schedule, verify_program
from simcoll.topology import crossbar

DATA = Path(__file__).parents[1] / "formats" / "data"
GATHER = Collective("all_gather", 2)
# Memory of an all_gather of two ranks, one chunk a block: input 0, outputs 1 and 2, scratch from 3.
INPUT, FIRST, SECOND, SCRATCH = 0, 1, 2, 3


def gather(rank0, rank1, scratch=0, **facts):
    """An all_gather program from the lanes of two ranks: lists of instructions, on channel 0."""
    lanes = tuple(tuple(Lane(0, tuple(code)) for code in lanes) for lanes in (rank0, rank1))
    return RankProgram("two", 2, lanes, (1, 2, scratch), GATHER, **facts)


def direct(rank):
    """Copy the own block, send it, receive the other."""
    other = 1 - rank
    return [
        [Instruction("copy", INPUT, FIRST + rank), Instruction("send", INPUT, send_to=other)],
        [Instruction("recv", dst=FIRST + other, recv_from=other)],
    ]


def edited(program, rank, lane, position, instruction):
    """A program with one instruction replaced (None: dropped)."""
    code = list(program.lanes[rank][lane].instructions)
    code[position : position + 1] = [] if instruction is None else [instruction]
    lanes = list(program.lanes[rank])
    lanes[lane] = replace(lanes[lane], instructions=tuple(code))
    ranks = list(program.lanes)
    ranks[rank] = tuple(lanes)
    return replace(program, lanes=tuple(ranks))


def test_a_right_program():
    proof = verify_program(gather(direct(0), direct(1)))
    assert (proof.data, proof.order, proof.steps, proof.messages, proof.lanes) == (
        True,
        "",
        6,
        2,
        4,
    )
    assert (proof.least_depth, proof.depth, proof.depth_used) == (0, None, 1)


@pytest.mark.parametrize(
    ("name", "steps", "messages", "least", "used", "order"),
    [
        # A full ring of one-message FIFOs: nobody can take a message before passing one on.
        ("ring_all_reduce", 15, 12, 2, 2, "run-consistent"),
        ("one_shot_all_reduce", 21, 6, 1, 1, "any"),
        ("swap_all_to_all", 10, 2, 1, 1, ""),
        ("all_gather", 6, 2, 0, 1, ""),
        ("sends_first_2", 10, 4, 2, 2, ""),
    ],
)
def test_right_files(name, steps, messages, least, used, order):
    proof = verify_program(load_msccl_xml(DATA / f"{name}.xml"))
    assert (proof.steps, proof.messages, proof.order) == (steps, messages, order)
    assert (proof.least_depth, proof.depth_used) == (least, used)
    assert proof.data


@pytest.mark.parametrize("sends", [3, 9])
def test_more_sends_than_the_fifo_holds_deadlock(sends):
    program = load_msccl_xml(DATA / f"sends_first_{sends}.xml")
    with pytest.raises(ScheduleError) as caught:
        verify_program(program)
    message = str(caught.value)
    assert (
        f"deadlock at FIFO depth 2 (Simple); depth {sends} is enough: 2 lanes are blocked"
        in message
    )
    for rank in range(2):
        assert f"rank {rank} lane 0 step 2 (send" in message
    assert caught.value.step == 2
    # With a deeper FIFO the same program is right.
    deep = verify_program(replace(program, fifo_depth=sends), depths=(sends - 1, sends))
    assert (deep.least_depth, deep.depth_used) == (sends, sends)


def test_a_circle_of_waits_is_a_deadlock_at_any_depth():
    lanes = direct(0)
    lanes[0][0] = replace(lanes[0][0], waits=((1, 0),))
    rank1 = direct(1)
    rank1[0][0] = replace(rank1[0][0], waits=((1, 0),))
    with pytest.raises(
        ScheduleError, match=r"deadlock at unbounded FIFOs; no FIFO is deep enough: 4 lanes"
    ) as caught:
        verify_program(gather(lanes, rank1))
    assert (
        "rank 0 lane 0 step 0 (copy input[0] to output[0]) waits for step 0 of rank 0 lane 1"
        in str(caught.value)
    )


def test_rendezvous_chains_through_forwarding_ranks():
    forward = RankProgram(
        "chain",
        3,
        (
            (Lane(0, (Instruction("copy", 0, 1), Instruction("send", 0, send_to=1))),),
            (Lane(0, (Instruction("recv_copy_send", dst=1, recv_from=0, send_to=2),)),),
            (Lane(0, (Instruction("recv", dst=1, recv_from=1),)),),
        ),
        (1, 1, 0),
        Collective("broadcast", 3),
    )
    assert verify_program(forward).least_depth == 0
    # Every rank forwards what it gets, and nobody begins.
    ring = tuple(
        (
            Lane(
                0,
                (Instruction("recv_copy_send", dst=1, recv_from=(r + 2) % 3, send_to=(r + 1) % 3),),
            ),
        )
        for r in range(3)
    )
    with pytest.raises(ScheduleError, match="no FIFO is deep enough"):
        verify_program(replace(forward, lanes=ring))


def test_leftover_and_missing_messages():
    program = gather(direct(0), direct(1))
    with pytest.raises(
        ScheduleError, match=r"rank 1 -> 0 channel 0: 1 sends but 0 receives[\s\S]*never received"
    ):
        verify_program(edited(program, 0, 1, 0, None))
    with pytest.raises(
        ScheduleError, match=r"rank 0 -> 1 channel 0: 0 sends but 1 receives[\s\S]*never sent"
    ):
        verify_program(edited(program, 0, 0, 1, None))


def test_message_sizes_must_agree():
    program = gather(direct(0), direct(1))
    with pytest.raises(ScheduleError, match="a message of 1 chunks meets a receive of 2"):
        verify_program(
            edited(program, 1, 1, 0, Instruction("recv", dst=FIRST, count=2, recv_from=0))
        )


def through_scratch(waits):
    """Rank 0 receives into scratch in one lane and copies from there in another."""
    return [
        [Instruction("copy", INPUT, FIRST), Instruction("send", INPUT, send_to=1)],
        [Instruction("recv", dst=SCRATCH, recv_from=1)],
        [Instruction("copy", SCRATCH, SECOND, waits=waits)],
    ]


def test_a_dropped_wait_is_a_race():
    assert verify_program(gather(through_scratch(((1, 0),)), direct(1), 1)).data
    with pytest.raises(ScheduleError, match=r"race on rank 0 scratch\[0\]") as caught:
        verify_program(gather(through_scratch(()), direct(1), 1))
    assert "rank 0 lane 1 step 0 (recv scratch[0] from rank 1) writes it" in str(caught.value)
    assert "rank 0 lane 2 step 0 (copy scratch[0] to output[1]) reads it" in str(caught.value)
    assert (caught.value.rank, caught.value.chunk) == (0, SCRATCH)


def test_messages_order_and_full_fifos_do_not():
    """An answer to a first message does not order the read of a second send, unless the second is
    what it answers.
    """
    ours = [
        [
            Instruction("copy", INPUT, FIRST),
            Instruction("recv", dst=SECOND, recv_from=1),
            Instruction("recv", dst=SCRATCH, recv_from=1),
        ],
        [Instruction("send", INPUT, send_to=1)],
    ]
    theirs = [
        [
            Instruction("copy", INPUT, SECOND),
            Instruction("send", INPUT, send_to=0),
            Instruction("send", SECOND, send_to=0),
        ],
        [Instruction("recv", dst=FIRST, recv_from=0)],
    ]
    assert verify_program(gather(ours, theirs, 1, fifo_depth=1)).data
    # Now rank 1 overwrites what its second send reads, once rank 0 has answered its first message.
    answer = [[*ours[0][:2], Instruction("send", INPUT, send_to=1), ours[0][2]]]
    overwrites = [
        [
            Instruction("copy", INPUT, SECOND),
            Instruction("copy", INPUT, SCRATCH),
            Instruction("send", INPUT, send_to=0),
            Instruction("send", SCRATCH, send_to=0),
        ],
        [Instruction("recv", dst=FIRST, recv_from=0), Instruction("copy", FIRST, SCRATCH)],
    ]
    with pytest.raises(ScheduleError, match=r"race on rank 1 scratch\[0\]"):
        verify_program(gather(answer, overwrites, 1))
    # Answered after the second message, the read comes first.
    ordered = [[*ours[0], Instruction("send", INPUT, send_to=1)]]
    assert verify_program(gather(ordered, overwrites, 1)).data


def test_write_after_write_and_write_after_read():
    twice = [*direct(0), [Instruction("copy", INPUT, SECOND)]]
    with pytest.raises(ScheduleError, match=r"race on rank 0 output\[1\]"):
        verify_program(gather(twice, direct(1)))
    before = [
        [
            Instruction("copy", INPUT, SCRATCH),
            Instruction("copy", SCRATCH, FIRST),
            Instruction("send", INPUT, send_to=1),
        ],
        [
            Instruction("recv", dst=SECOND, recv_from=1),
            Instruction("copy", SECOND, SCRATCH, waits=((0, 0),)),
        ],
    ]
    with pytest.raises(ScheduleError, match=r"race on rank 0 scratch\[0\]"):
        verify_program(gather(before, direct(1), 1))
    before[1][1] = replace(before[1][1], waits=((0, 1),))
    assert verify_program(gather(before, direct(1), 1)).data


def test_overlapping_copy_races_with_itself():
    lanes = [[*direct(0)[0], Instruction("copy", FIRST, SECOND, count=2)], direct(0)[1]]
    with pytest.raises(ScheduleError, match="races with itself"):
        verify_program(gather(lanes, direct(1), 1))


def test_data_faults_name_the_place():
    wrong = edited(
        gather(direct(0), direct(1)),
        0,
        1,
        0,
        Instruction("recv", dst=FIRST, recv_from=1, waits=((0, 1),)),
    )
    with pytest.raises(
        ScheduleError,
        match=r"rank 0 output\[0\] is wrong at the end[\s\S]*missing: rank 0 input\[0\]",
    ):
        verify_program(wrong)
    empty = edited(
        gather(direct(0), direct(1)), 0, 0, 0, Instruction("copy", SECOND, FIRST, waits=())
    )
    with pytest.raises(ScheduleError, match=r"race|holds nothing yet"):
        verify_program(empty)
    unread = edited(gather(direct(0), direct(1), 1), 0, 0, 0, Instruction("copy", SCRATCH, FIRST))
    with pytest.raises(
        ScheduleError, match=r"reads scratch\[0\] of rank 0, which holds nothing yet"
    ):
        verify_program(unread)
    overwrites = edited(
        gather(direct(0), direct(1)),
        0,
        1,
        0,
        Instruction("recv", dst=INPUT, recv_from=1, waits=((0, 1),)),
    )
    with pytest.raises(
        ScheduleError, match=r"overwrites input\[0\] of rank 0: inputs are read-only"
    ):
        verify_program(overwrites)


def test_the_interpreter_adds_the_local_source():
    with pytest.raises(
        ScheduleError,
        match=r"reads scratch\[0\] of rank 0, which holds nothing yet|wrong at the end",
    ):
        verify_program(load_msccl_xml(DATA / "foreign_source.xml"))


def test_double_counting():
    program = RankProgram(
        "double",
        2,
        (
            (Lane(0, (Instruction("copy", 0, 1), *[Instruction("send", 0, send_to=1)] * 2)),),
            (
                Lane(
                    0,
                    (
                        Instruction("copy", 0, 1),
                        *[Instruction("recv_reduce_copy", 1, 1, recv_from=0)] * 2,
                    ),
                ),
            ),
        ),
        (1, 1, 0),
        Collective("reduce", 2, root=1),
    )
    with pytest.raises(ScheduleError, match=r"counted more than once: rank 0 input\[0\]"):
        verify_program(program)


def test_a_bomb_of_reductions_stays_small():
    doubling = [Instruction("copy", 0, 1), *[Instruction("reduce", 1, 1)] * 200]
    program = RankProgram(
        "bomb", 1, ((Lane(0, tuple(doubling)),),), (1, 1, 0), Collective("all_reduce", 1)
    )
    with pytest.raises(ScheduleError, match="counted more than once"):
        verify_program(program)


def test_shared_connections_and_depths_are_refused():
    lanes = [*direct(0), [Instruction("send", INPUT, send_to=1)]]
    with pytest.raises(
        ScheduleError, match="lanes 0 and 2 of rank 0 share the connection to rank 1 on channel 0"
    ):
        verify_program(gather(lanes, direct(1)))
    for depth in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="FIFO depth"):
            verify_program(gather(direct(0), direct(1)), depths=(depth,))


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        (Instruction("sned", 0), "did you mean 'send'"),
        (Instruction("send", 0, send_to=2), "rank 2, which does not exist"),
        (Instruction("send", 0, send_to=0), "its own rank"),
        (Instruction("send", 0, 3, 9, send_to=1), "a rank has 3 chunks"),
        (Instruction("copy", 0, 1, -1), "negative"),
        (Instruction("copy", 0, 1, waits=((4, 0),)), "lane 4 step 0, which does not exist"),
        (Instruction("copy", 0, 1, waits=((0, 0),)), "waits for step 0 of its own lane"),
    ],
)
def test_instructions_that_make_no_sense(instruction, reason):
    with pytest.raises(ScheduleError, match=reason) as caught:
        gather([[instruction]], [[]])
    assert "rank 0 lane 0 step 0" in str(caught.value)


def test_no_collective_means_no_post_condition():
    program = replace(gather(direct(0), direct(1)), collective=None)
    proof = verify_program(program)
    assert not proof.data
    assert "only matching, deadlock and races were checked" in str(proof)
    with pytest.raises(ConfigError, match="no collective is known"):
        program_schedule(program)


# -- as a schedule
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ring_all_reduce", "connections"),
        ("one_shot_all_reduce", "connections"),
        ("swap_all_to_all", "buffered"),
        ("all_gather", "blocks"),
        ("sends_first_2", "connections"),
    ],
)
def test_programs_as_schedules(name, kind):
    program = load_msccl_xml(DATA / f"{name}.xml")
    schedule = program_schedule(program)
    assert dict(schedule.params)["lanes"] == kind
    assert simcoll.verify(schedule, exact=True).order == verify_program(program).order
    for pieces in (1, 5):
        plan = simcoll.bind(schedule, schedule.layout.chunks * pieces, "float32")
        result = simcoll.emulate(plan, crossbar(schedule.nranks, "10 GB/s", "1 us"))
        assert result.wrong == 0
    with pytest.raises(ConfigError, match="multiple"):
        simcoll.bind(program_schedule(load_msccl_xml(DATA / "ring_all_reduce.xml")), 4)


def test_thread_blocks_keep_their_order():
    """In ``blocks``, two transfers of a thread block never share a step, and come in the order of
    the file.
    """
    schedule = program_schedule(load_msccl_xml(DATA / "all_gather.xml"))
    for step in schedule.steps():
        ends = np.concatenate(
            [
                step.src_rank * 100 + step.channel,
                (step.dst_rank * 100 + step.channel)[step.src_rank != step.dst_rank],
            ]
        )
        assert len(np.unique(ends)) == len(ends)


# -- broken on purpose
# ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_dropped_step_and_every_moved_destination_is_found():
    found, missed = 0, []
    for name in (
        "ring_all_reduce",
        "one_shot_all_reduce",
        "swap_all_to_all",
        "all_gather",
        "sends_first_2",
    ):
        program = load_msccl_xml(DATA / f"{name}.xml")
        for rank, lanes in enumerate(program.lanes):
            for number, lane in enumerate(lanes):
                for position, instruction in enumerate(lane.instructions):
                    broken = []
                    if instruction.op != "nop":
                        broken.append(replace(instruction, op="nop"))
                    if instruction.dst >= 0:
                        broken.append(replace(instruction, dst=instruction.dst + 1))
                    for mutant in broken:
                        try:
                            verify_program(edited(program, rank, number, position, mutant))
                        except ScheduleError:
                            found += 1
                        else:
                            missed.append((name, rank, number, position, mutant))
    assert missed == []
    assert found > 90


def test_dropped_dependencies_are_found():
    program = load_msccl_xml(DATA / "one_shot_all_reduce.xml")
    found = 0
    for rank, lanes in enumerate(program.lanes):
        for position, instruction in enumerate(lanes[2].instructions):
            if instruction.waits:
                with pytest.raises(ScheduleError, match="race"):
                    verify_program(
                        edited(program, rank, 2, position, replace(instruction, waits=()))
                    )
                found += 1
    assert found == 6
