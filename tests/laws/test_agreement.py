"""A sample of the random runs; ``python tests/support/run_agreement.py`` takes thousands."""

from collections import Counter
from dataclasses import replace

import pytest

from simcoll.core.schedule import SYNC
from simcoll.emulator import ways
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.reference_way import ReferenceWay
from tests.support import event_cases, program_cases
from tests.support.agreement_cases import case, compare

pytestmark = pytest.mark.skipif(not COMPILED, reason="needs numba")
DAGS = 30
"""So many hold every cost and coincidence."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cases"),
    # Many concurrent messages take the reference engine long.
    [
        ("dag", DAGS),
        ("algorithm", 30),
        ("lift", 30),
        ("alone", 30),
        ("path", 30),
        ("concurrent", 8),
        ("library", 20),
    ],
)
def test_engines_agree_on_every_message(kind, cases):
    took_part = Counter()
    for seed in range(cases):
        took_part.update(compare(kind, seed))
    # The sample must hold what it is about, not only cases that one engine refuses.
    assert took_part["fast"] >= cases * 2 // 3
    if kind in {"algorithm", "lift"}:
        assert took_part["quotient"] >= 3
    if kind == "concurrent":
        assert took_part["concurrent"] >= 5
    if kind == "alone":
        assert took_part["lock-step"] >= 10
    if kind == "library":
        assert min(took_part[way] for way in ("lock-step", "quotient", "loaded")) >= 3


class LateWay:
    """An engine that takes a femtosecond too long."""

    name = "late"

    def refuses(self, request):
        return None if request.engine == self.name else "late: not asked for"

    def play(self, request):
        result = ReferenceWay().play(request)
        return replace(result, engine=self.name, time_fs=result.time_fs + 1)


def test_an_added_engine_is_compared(monkeypatch):
    monkeypatch.setattr(ways, "WAYS", (LateWay(), *ways.WAYS))
    with pytest.raises(AssertionError, match="late differs from simpy"):
        compare("dag", 0)


@pytest.mark.slow
def test_engines_agree_on_programs():
    took_part = Counter()
    for seed in range(30):
        took_part.update(program_cases.compare("program", seed))
    assert took_part["fast"] >= 15
    assert took_part["quotient"] >= 1


@pytest.mark.slow
def test_engines_agree_on_training_steps():
    took_part = Counter()
    for seed in range(25):
        took_part.update(program_cases.compare("step", seed))
    assert took_part["fast"] == 25
    assert took_part["quotient"] >= 10


@pytest.mark.slow
def test_nothing_changes_without_links_that_never_bind():
    took_part = Counter()
    for seed in range(30):
        took_part.update(program_cases.compare("tree", seed))
    assert took_part["fewer links"] >= 15


@pytest.mark.slow
def test_engines_agree_on_events():
    took_part = Counter()
    for seed in range(100):
        took_part.update(event_cases.compare("events", seed))
    assert took_part["fast"] >= 80
    happened = (
        "changed",
        "aborted",
        "stuck",
        "another way",
        "LinkShare",
        "Background",
        "Slow",
        "Stop",
    )
    assert min(took_part[what] for what in happened) >= 3, took_part


@pytest.mark.slow
def test_engines_agree_on_events_where_paths_are_chosen():
    took_part = Counter()
    for seed in range(40):
        took_part.update(event_cases.compare("path-events", seed))
    assert took_part["fast"] >= 20
    assert min(took_part[kind] for kind in ("re-route", "another way", "changed")) >= 3, took_part


@pytest.mark.slow
def test_the_sample_has_every_cost_and_coincidence():
    seen = Counter()
    for seed in range(DAGS):
        plan, _ = case("dag", seed)
        protocol = plan.protocol
        steps = list(plan.steps())
        seen["jitter"] += bool(protocol.jitter_fs)
        seen["fifo"] += bool(protocol.fifo_depth)
        seen["occupied"] += bool(
            protocol.fifo_depth and max(dict(protocol.occupancy_fs).values(), default=0) > 5
        )
        seen["added latency"] += bool(protocol.hop_latency_fs and protocol.add_path_latency)
        seen["replaced latency"] += bool(protocol.hop_latency_fs and not protocol.add_path_latency)
        seen["capped"] += bool(protocol.channel_rate_uBps)
        seen["capped ranks"] += bool(protocol.rank_rate_uBps)
        seen["shares"] += bool(protocol.link_shares)
        seen["channels"] += plan.nchannels > 1
        seen["switches"] += any((step.op > SYNC).any() for step in steps)
        seen["waits"] += bool(plan.waits)
        seen["inside a rank"] += any((step.src_rank == step.dst_rank).any() for step in steps)
        seen["nothing to do"] += not steps
    assert [name for name, times in seen.items() if not times and name != "nothing to do"] == []
