"""A slice of the campaign of random programs with faults, and proof that it would notice."""

from collections import Counter
from dataclasses import replace

import pytest

import simcoll.distributed as dist
from simcoll.types import LinkShare, Policy, Stop
from tests.laws.campaign import campaign, never
from tests.support.campaign_cases import Case, Fault, Step, drawn, fates, from_text, shrunk
from tests.support.campaign_events import judge_events
from tests.support.campaign_play import broken, judge, play, report
from tests.support.campaign_run import BrokenPromiseError

SLICE = (205, *range(218, 248), 255, 287, 297, 353, 359, 363, 431, 442, 491)
"""Those by themselves meet everything that must be seen."""


@pytest.mark.slow
def test_a_slice_keeps_every_promise_and_sees_everything():
    seen, found, played = campaign(SLICE, say=lambda _: None)
    assert found == []
    assert played == len(SLICE)
    assert never(seen) == []


LINK, STOP, STALL = LinkShare(0, 0, 0, 10**9), Stop(2, 10**6), Policy()
NAMED = (
    "RuntimeError: Operation timed out! Timed out waiting 1000ms for reduce operation to "
    "complete: reduce waits for "
)


@pytest.mark.parametrize(
    ("events", "told", "said"),
    [
        ([LINK], {0: NAMED + "rank 1", 1: "done", 2: "done"}, "none of"),
        ([LINK], {0: "done", 1: "done", 2: "done"}, "all is healed, and yet"),
        ([LINK], {0: NAMED + "data", 1: "done", 2: "done"}, "not documented"),
        ([STOP], {0: NAMED + "rank 1", 1: "done"}, "none of"),
        ([STOP], {0: "done", 2: "done"}, "rank 1, whose last step is 2 of 2: nothing"),
    ],
)
def test_wrong_ends_under_events_are_noticed(events, told, said):
    case = replace(TWO, faults=())
    with pytest.raises(BrokenPromiseError, match=said):
        judge_events(
            case, events, STALL, told, "raised" if len(told) == 3 else "", "words", Counter()
        )
    judge_events(case, [STOP], STALL, {0: "done", 1: NAMED + "rank 2"}, "", "words", Counter())


def test_a_case_is_its_text():
    for seed in range(50):
        assert from_text(drawn(seed).text()) == drawn(seed)


TWO = Case(3, steps=(Step("broadcast", root=2), Step("all_reduce")), faults=(Fault("dies", 1, 1),))


def test_fates_by_hand():
    # Rank 1 is missing from the sum, which all need.
    assert fates(TWO, patient=True) == {0: 1, 1: 1, 2: 1}
    # Nobody but the root is needed for a broadcast, so others may get through without rank 1, and
    # may not.
    early = replace(TWO, steps=TWO.steps[:1], faults=(Fault("dies", 1, 0),))
    assert fates(early, patient=True) == {0: 1, 1: 0, 2: 1}
    assert fates(early, patient=False) == {0: 0, 1: 0, 2: 0}


def test_a_root_whose_call_differs_may_be_through_before_the_others_come():
    odd = replace(TWO, steps=TWO.steps[:1], faults=(Fault("mismatch", 2, 0),))
    assert fates(odd, patient=True) == {0: 0, 1: 0, 2: 1}
    assert fates(odd, patient=False) == {0: 0, 1: 0, 2: 0}
    told = (
        "DistBackendError: Detected mismatch between collectives on ranks: call 0\n"
        "  rank 0: a\n"
        "  rank 2: b"
    )
    judge_events(odd, [LINK], STALL, {0: told, 1: told, 2: told}, "", "words", Counter())
    judge_events(odd, [LINK], STALL, {0: told, 1: told, 2: "done"}, "", "words", Counter())


OWN, BLAMED = (
    "ValueError: planned by the campaign",
    "RuntimeError: Connection closed by peer: rank 1 ended with ValueError",
)


@pytest.mark.parametrize(
    "told",
    [
        {0: "done", 1: OWN, 2: "done"},
        {0: "RuntimeError: something else", 1: OWN, 2: BLAMED},
        {1: OWN, 2: BLAMED},
        {0: BLAMED.replace("1", "7"), 1: OWN, 2: "done"},
    ],
)
def test_wrong_ends_are_noticed(told):
    with pytest.raises(BrokenPromiseError):
        judge(TWO, told, "", Counter())
    judge(
        TWO,
        dict.fromkeys((0, 2), BLAMED) | {1: told[1]},
        "",
        Counter(),
    )


@pytest.mark.slow
def test_wrong_data_shrinks_to_the_step_that_moves_it(monkeypatch):
    whole = dist.all_gather

    def wrong(outputs, *args, **kwargs):
        work = whole(outputs, *args, **kwargs)
        if len(outputs[0]):
            work.wait()
            outputs[0][0] += 1
        return work

    monkeypatch.setattr(dist, "all_gather", wrong)
    case = next(
        case
        for case in map(drawn, range(99))
        if not case.faults and any(s.kind == "all_gather" and s.count for s in case.steps)
    )
    assert "step" in broken(case)
    text = report(0, case)
    small = from_text(text.rpartition("--case '")[2].rstrip("'"))
    assert [(step.kind, step.count) for step in small.steps] == [("all_gather", 1)]
    assert (small.machine, small.costs, small.lost, small.faults) == ("crossbar", None, (), ())
    monkeypatch.undo()
    play(small)


def test_a_case_that_cannot_shrink_stays():
    assert shrunk(TWO, lambda _: False) == TWO
