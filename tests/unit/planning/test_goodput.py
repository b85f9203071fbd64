"""Failures, checkpoints and restarts: by hand, against the renewal formula, and the published
job.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from statistics import mean, stdev

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.planning.reliability import failures
from simcoll.planning.reliability.failures import Cause, Slowness, TrainingJob, simulate
from simcoll.planning.reliability.goodput import SPENT, goodput_grid
from simcoll.planning.reliability.renewal import renewal, young_daly

PLAIN = TrainingJob(
    nodes=4,
    interval_us=100,
    blocking_us=10,
    saving_us=30,
    detect_us=5,
    load_us=50,
    causes=(Cause("x", 1000),),
)


def total(spent):
    return sum(getattr(spent, name) for name in SPENT)


@pytest.fixture
def at(monkeypatch):
    """Failures at given times after the one before, instead of drawn ones; by stream."""

    def given(**streams):
        def drawn(mean_us, shape, seed, stream):
            name = {1 << 10: "slow"}.get(stream, f"cause{stream}")
            yield from streams.get(name, ())
            yield 10**12

        monkeypatch.setattr(failures, "_draws", drawn)

    return given


def test_one_failure_by_hand(at):
    # Cycles of 110; the second checkpoint begins at 210 and is safe at 240, so 200 of training are
    # kept of 250 - 20.
    at(cause0=[250])
    spent = simulate(PLAIN, 400, seed=0)
    assert (spent.useful, spent.checkpoint, spent.lost, spent.detect, spent.restart) == (
        200 + 95,
        20,
        30,
        5,
        50,
    )
    # At 235 it is not safe yet: one cycle is kept.
    at(cause0=[235])
    spent = simulate(PLAIN, 400, seed=0)
    assert (spent.useful, spent.checkpoint, spent.lost) == (100 + 100, 20 + 10, 235 - 20 - 100)
    assert (spent.interruptions, dict(spent.causes), total(spent)) == (1, {"x": 1}, 400)


def test_a_failure_begins_loading_again_and_none_happens_while_nothing_runs(at):
    # At 100; at 103, while it is noticed; at 133, after 28 of 50 of loading.
    at(cause0=[100, 3, 30])
    spent = simulate(PLAIN, 300, seed=0)
    assert spent.interruptions == 2
    assert (spent.detect, spent.restart, spent.lost) == (5 + 5, 28 + 50, 100)
    assert total(spent) == 300


def test_without_spares_the_job_waits_for_the_repair(at):
    at(cause0=[100])
    out = replace(PLAIN, causes=(Cause("x", 1000, nodes=1, repair_us=90),))
    assert simulate(out, 400, seed=0).waiting == 90 - 5
    assert simulate(replace(out, spares=1), 400, seed=0).waiting == 0
    assert (
        simulate(
            replace(out, spares=1, causes=(Cause("x", 1000, nodes=2, repair_us=90),)), 400, seed=0
        ).waiting
        == 85
    )


def test_without_spares_it_goes_on_with_fewer_replicas(at):
    at(cause0=[100, 200])
    fewer = replace(PLAIN, replica_nodes=2, causes=(Cause("x", 1000, nodes=1, repair_us=150),))
    spent = simulate(fewer, 500, seed=0)
    # 155 to 300 on two of four nodes: one cycle is kept, at half speed. By 300 the first node is
    # back, but the second is not: again at half speed from 355 to 500, of which 10 are a
    # checkpoint.
    assert (spent.waiting, spent.slow) == (0, 50 + (135 - 135 // 2))
    assert total(spent) == 500


def test_a_slow_node_is_paid_until_it_is_noticed(at):
    at(slow=[50])
    slow = replace(PLAIN, causes=(), slowness=Slowness(1000, 250_000, noticed_us=150))
    spent = simulate(slow, 400, seed=0)
    # Slow from 50 to 200, of which 100 to 110 is a checkpoint: 140 at 4/5. Then a checkpoint and a
    # restart, and nothing lost.
    assert (spent.slow, spent.lost, spent.restart, spent.detect) == (28, 0, 50, 0)
    assert (spent.checkpoint, dict(spent.causes), total(spent)) == (
        10 + 30 + 10,
        {"slow node": 1},
        400,
    )


def test_failures_of_the_same_microsecond(at):
    at(cause0=[100], cause1=[100], slow=[100])
    both = replace(
        PLAIN,
        causes=(Cause("x", 1000), Cause("y", 1000)),
        slowness=Slowness(1000, 250_000, noticed_us=1),
    )
    assert total(simulate(both, 400, seed=0)) == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("interval", "blocking", "saving", "detect", "load"),
    [
        (120, 10, 10, 0, 60),
        (120, 10, 10, 40, 60),
        (120, 2, 50, 0, 100),
        (60, 0, 60, 30, 300),
        (1000, 50, 200, 10, 500),
    ],
)
def test_simulation_equals_the_renewal_formula(interval, blocking, saving, detect, load):
    second, span = 10**6, 600 * 1000 * 10**6
    causes = (Cause("a", 1500 * second), Cause("b", 3000 * second))  # together one in 1000 s
    job = TrainingJob(
        8,
        interval * second,
        blocking * second,
        saving * second,
        detect * second,
        load * second,
        causes,
    )
    found = [simulate(job, span, seed).useful / span for seed in range(30)]
    error = stdev(found) / math.sqrt(len(found))
    assert abs(mean(found) - renewal(job)) < 3 * error < 0.012


def test_the_formula_is_said_only_where_it_holds():
    assert renewal(replace(PLAIN, causes=())) == 100 / 110
    assert renewal(replace(PLAIN, causes=(Cause("x", 1000, shape=0.7),))) is None
    assert renewal(replace(PLAIN, causes=(Cause("x", 1000, nodes=1, repair_us=5),))) is None
    assert renewal(replace(PLAIN, slowness=Slowness(1, 1, 1))) is None
    # Bougeret et al. (2011): a segment of W with a checkpoint C takes exp(R/M) (M + D) (exp((W +
    # C)/M) - 1).
    sync = replace(PLAIN, saving_us=10)
    segment = math.exp(50 / 1000) * (1000 + 5) * (math.exp(110 / 1000) - 1)
    assert renewal(sync) == pytest.approx(100 / segment, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [0.5, 0.7, 1.0, 2.0, 3.5])
def test_times_between_failures_have_their_distribution(shape):
    drawn = list(islice(failures._draws(10**9, shape, seed=7, stream=3), 4000))
    # The oracle is the float formula: scale (-ln u)^(1/k), and its moments.
    scale = 1e9 / math.gamma(1 + 1 / shape)
    spread = math.sqrt(math.gamma(1 + 2 / shape) * scale**2 - 1e18)
    assert abs(mean(drawn) - 1e9) < 4 * spread / math.sqrt(len(drawn))
    median = scale * math.log(2) ** (1 / shape)
    assert 0.46 < sum(each < median for each in drawn) / len(drawn) < 0.54
    assert drawn != list(islice(failures._draws(10**9, shape, seed=8, stream=3), 4000))


def test_draws_are_the_formula_of_their_words(monkeypatch):
    words = [0, 1, 2**63, 2**64 - 1, 12345678901234567890]

    monkeypatch.setattr(failures, "words", lambda _seed, _stream: iter(words))
    for shape in (1.0, 0.7):
        found = list(islice(failures._draws(10**12, shape, 1, 1), len(words)))
        scale = 1e12 / math.gamma(1 + 1 / shape)
        expected = [scale * (-math.log((word + 1) / 2**64)) ** (1 / shape) for word in words]
        assert found == pytest.approx([max(1, each) for each in expected], rel=1e-12, abs=1)


@pytest.mark.slow
def test_where_the_time_goes_adds_up():
    causes = (
        Cause("gpu", 40_000, shape=0.7, nodes=1, repair_us=50_000, repair_shape=1.5),
        Cause("switch", 300_000, nodes=3, repair_us=20_000),
        Cause("software", 60_000),
    )
    job = TrainingJob(
        8,
        900,
        20,
        300,
        70,
        900,
        causes,
        Slowness(100_000, 300_000, 5_000, 10_000),
        spares=2,
        replica_nodes=2,
    )
    seen = [simulate(job, 2_000_003, seed) for seed in range(10)]
    assert {total(spent) for spent in seen} == {2_000_003}
    for name in (*SPENT, "interruptions"):  # each of them happened
        assert any(getattr(spent, name) for spent in seen), name
    assert simulate(job, 2_000_003, 4) == seen[4]


def test_intervals():
    assert young_daly(50, 10_000) == 1000
    # Daly 2006, equation 37: 1000 (1 + sqrt(50/20000)/3 + 50/180000) - 50 = 966.9
    assert young_daly(50, 10_000, higher_order=True) == pytest.approx(
        1000 * (1 + 0.05 / 3 + 1 / 3600) - 50, abs=2
    )
    assert young_daly(50, 20, higher_order=True) == 20


@pytest.mark.slow
def test_the_feasible_set_of_llama_3(tmp_path, monkeypatch, capsys):
    """More than 90 % of effective training time: the paper's claim for 16,384 GPUs, and which
    checkpoints and restarts allow it.
    """
    monkeypatch.chdir(tmp_path)
    assert main(["goodput", "llama3-405b", "-o", "out", "-j", "1"]) == 0
    lines = [
        line.split()
        for line in (tmp_path / "out" / "results.csv")
        .read_text()
        .replace(",", " ")
        .splitlines()[1:]
    ]
    kept = {(f"{line[0]} s", f"{line[2]} min"): float(line[5]) for line in lines}
    assert len(kept) == 6
    assert {case for case, goodput in kept.items() if goodput > 0.9} == {
        ("5 s", "5 min"),
        ("5 s", "10 min"),
        ("30 s", "5 min"),
    }
    out = capsys.readouterr().out
    assert "13.6 min" in out


@pytest.mark.parametrize(("seeds", "remarks"), [(1, 1), (2, 0)])
def test_one_seed_has_no_spread(tmp_path, monkeypatch, capsys, seeds, remarks):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(FILE.replace("seeds = 2", f"seeds = {seeds}"))
    assert main(["goodput", "job.toml", "-o", "out", "-j", "1"]) == 0
    assert capsys.readouterr().out.count("# one seed: +/-") == remarks


FILE = """
title = "t"
days = 2
seeds = 2
[job]
gpus = 64
[checkpoint]
save = "30 s"
[restart]
load = "5 min"
[[failure]]
cause = "GPU"
gpu_hours = 1000
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gpus = 64", "gpus = 63", r"\$\.job\.gpus: 63 GPUs are no whole number of nodes of 8"),
        ("gpus = 64", "gpus = 64\nreplica_gpus = 48", "no whole number of replicas of 48"),
        (
            "gpus = 64",
            "gpus = 64\ntokens_per_second = inf",
            r"\$\.job\.tokens_per_second: expected a number of at least 0",
        ),
        (
            "gpus = 64",
            "gpus = 64\nusd_per_gpu_hour = -2",
            r"\$\.job\.usd_per_gpu_hour: expected a number of at least 0",
        ),
        ("gpus = 64", "gpus = 0", r"\$\.job\.gpus: expected a whole number from 1 to .*, got 0"),
        ("gpus = 64", "gpus = 10_000_000_000", "from 1 to 2147483647, got 10000000000"),
        (
            'save = "30 s"',
            'save = "30"',
            r"\$\.checkpoint\.save: .*no unit; write for example '30 min'",
        ),
        ('save = "30 s"', "save = []", r"\$\.checkpoint\.save: an empty list"),
        ('save = "30 s"', 'save = "30 s"\nblocking = "40 s"', "cannot stop training for longer"),
        (
            'save = "30 s"',
            'save = "30 s"\nblocking = "0 s"\ninterval = "10 s"',
            "would still be written; expected at least 30 s",
        ),
        ('save = "30 s"', 'save = "30 s"\ninterval = "yung"', "or 'young' or 'daly'"),
        ("gpu_hours = 1000", "gpu_hours = 0", r"\$\.failure\[0\]\.gpu_hours: .*above 0"),
        (
            "gpu_hours = 1000",
            "gpu_hours = 1000\nshape = 0",
            "the shape of a Weibull distribution, 0.1 to 20, got 0",
        ),
        ("gpu_hours = 1000", "gpu_hour = 1000", r"unknown key; did you mean 'gpu_hours'"),
        (
            "gpu_hours = 1000",
            "gpu_hours = 0.001",
            r"\$\.failure: 3,072,000 failures in all, one every 0\.0563 s: more than",
        ),
        ("days = 2", "days = -1", "above 0 and at most a hundred years"),
        ("seeds = 2", "seeds = 0", "expected 1 to 100,000 seeds, got 0"),
        (
            '[[failure]]\ncause = "GPU"\ngpu_hours = 1000',
            "",
            "follows from failures, and there are none",
        ),
    ],
)
def test_bad_files_are_named(tmp_path, old, new, said):
    assert old in FILE
    path = tmp_path / "g.toml"
    path.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        goodput_grid(path)


def test_lists_are_cases_and_seeds_are_points(tmp_path):
    path = tmp_path / "g.toml"
    path.write_text(
        FILE.replace('"30 s"', '["30 s", "1 min"]').replace("gpus = 64", "gpus = [64, 128, 256]")
    )
    _, grid = goodput_grid(path)
    assert len(grid) == 2 * 3 * 2
    assert grid.points[0]["case"] == {"job.gpus": 64, "checkpoint.save": "30 s"}
