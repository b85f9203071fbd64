"""Events in programs: by hand, and on both engines at random."""

from dataclasses import replace
from fractions import Fraction

import pytest

import simcoll
from simcoll.core.protocol import IDEAL
from simcoll.emulator import emulate
from simcoll.errors import ConfigError
from simcoll.planning import Call, Compute, Program, Send
from simcoll.topology import crossbar
from simcoll.types import Slow, Stop
from tests.support.program_event_cases import compare

US = 10**9
ENGINES = pytest.mark.parametrize("engine", ["simpy", "fast"])
# 10 us of work, then 50 kB at 50 GB/s: 1 us, and 1 us of latency.
WORK_AND_SEND = Program(3, [Compute([0, 1, 2], 10 * US, "one"), Send([[0, 1]], 50_000, "one")])


def run(engine, *events, policy="stall", program=WORK_AND_SEND):
    place = crossbar(3, "50 GB/s", "1 us")
    return emulate(
        program, place, events=events, policy=policy, engine=engine, keep=True, quotient=False
    )


@ENGINES
def test_times_by_hand(engine):
    assert run(engine).time_fs == 12 * US
    assert run(engine, "t=0 gpu0 -> switch = 1/2").time_fs == 13 * US
    # Its latency passes meanwhile.
    assert run(engine, "t=5us gpu0 -> switch = 0 for 95us").time_fs == 101 * US
    assert run(engine, "t=0 gpu0 -> switch background 3/4").time_fs == 15 * US
    slow = run(engine, Slow(0, 3, at_fs=4 * US, for_fs=9 * US))  # 4 us of it, 3 in 9, and 3
    assert slow.end_fs(0).tolist() == [16 * US, 10 * US, 10 * US]
    assert slow.time_fs == 18 * US
    assert slow.cut is None


@ENGINES
def test_a_program_that_cannot_end_says_where_and_why(engine):
    cut = run(engine, "t=0 gpu0 -> switch = 0").cut
    assert str(cut) == (
        "stuck at 10 us: down: gpu0 -> switch; cut off: message 3 (rank 0 -> 1); waiting: rank 0, "
        "1; 0 B delivered, 50000 B dropped"
    )
    gave_up = run(engine, "t=0 gpu0 -> switch = 0", policy="stall 1us x 3")
    assert (gave_up.cut.kind, gave_up.time_fs) == ("aborted", 15 * US)
    assert gave_up.done_fs.tolist() == [10 * US] * 3 + [-1]
    with pytest.raises(
        ConfigError, match="a run that ended early has no times of operations: aborted at 15 us"
    ):
        gave_up.end_fs(0)
    stopped = run(engine, Stop(1, 3 * US))
    assert stopped.cut.stopped == (1,)
    assert stopped.done_fs.tolist() == [10 * US, -1, 10 * US, -1]


@pytest.mark.parametrize("keep", [False, True])
@ENGINES
def test_a_rank_that_stops_as_its_last_operation_ends_is_not_through(engine, keep):
    program = Program(3, [Compute([0, 1, 2], 10 * US, "one")])
    how = {"engine": engine, "keep": keep, "quotient": False}
    cut = emulate(program, crossbar(3, "50 GB/s", "1 us"), events=[Stop(2, 10 * US)], **how).cut
    assert (cut.kind, cut.time_fs, cut.stopped, cut.waiting) == ("stuck", 10 * US, (2,), (2,))


@ENGINES
@pytest.mark.parametrize("launch_fs", [0, 5])
def test_a_rank_that_only_came_late_is_not_the_last_message(engine, launch_fs):
    """Rank 1 begins at 7 fs and waits for rank 0, which has stopped: a launch is something that
    happened, a coming is not.
    """
    made = simcoll.schedule("all_reduce", "ring", nranks=2, in_place=True)
    plan = simcoll.bind(made, 8, protocol=replace(IDEAL, launch_fs=launch_fs))
    program = Program(3, [Call(plan, [[0, 1]])], starts_fs=[0, 7, 0])
    cut = run(engine, Stop(0, 0), program=program).cut
    assert (cut.kind, cut.time_fs) == ("stuck", 12 if launch_fs else 0)


@ENGINES
def test_a_protocols_share_of_a_link_changes_with_it(engine):
    """One protocol leaves half of each link to data, the other all; one after the other, both take
    as long as alone.
    """
    kinds, events = (
        (IDEAL, replace(IDEAL, link_shares=(("link", Fraction(1, 2)),))),
        ["t=0 gpu0 -> switch background 3/4"],
    )
    made = simcoll.schedule("broadcast", "tree", nranks=2)
    plans = [simcoll.bind(made, 1 << 20, "uint8", protocol=kind) for kind in kinds]
    program = Program(2, [Call(plan, [[0, 1]], "one", ()) for plan in plans])
    found, end = run(engine, *events, program=program), 0
    for number, plan in enumerate(plans):
        alone = emulate(
            plan, crossbar(3, "50 GB/s", "1 us"), events=events, engine=engine, bound=False
        )
        assert found.end_fs(number).max() - end == alone.time_fs
        end = found.end_fs(number).max()
    with pytest.raises(
        ConfigError, match="policy re-route: the protocols of this program leave different shares"
    ):
        run(engine, "t=0 gpu0 -> switch = 0", policy="re-route", program=program)


@pytest.mark.slow
def test_a_list_of_plans_takes_events_and_does_not_fold():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 1 << 20)
    place, events = crossbar(4, "50 GB/s", "1 us"), ["t=30us gpu0 -> switch = 0 for 1ms"]
    one, two = (emulate(each, place, events=events) for each in (plan, [plan, plan]))
    assert two.time_fs > one.time_fs > 10**12
    assert two.wrong == 0
    assert (
        emulate([plan, plan], place, events=events, quotient=True, data="none").path
        == "no quotient: 1 event during the run"
    )


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_engines_agree_at_random(first):
    for seed in range(first, first + 10):
        compare("program-events", seed)
