"""Faults drawn from seeds: times by hand, distributions by their definition, and the command."""

import math
from dataclasses import replace
from itertools import islice, pairwise
from statistics import NormalDist, fmean, pstdev

import pytest

import simcoll
from simcoll.cli import main
from simcoll.emulator.events import Stop
from simcoll.errors import ConfigError
from simcoll.planning.reliability import chances
from simcoll.planning.reliability.faults import (
    KINDS,
    Chances,
    draw,
    outcomes,
    percentile,
    replan,
    run_fault,
    wrong_elements,
)
from simcoll.topology import boxes, clos, crossbar

US, MS, S = 10**9, 10**12, 10**15
PAIR = crossbar(2, "50 GB/s", "1 us")
MESSAGE = simcoll.bind(
    simcoll.schedule("broadcast", "linear", nranks=2), count=50_000, dtype="uint8"
)
WHOLE_FS = 2 * US
"""Of the one message: the latency, and 50,000 bytes at 50 GB/s."""


def test_quantiles_are_those_of_the_normal_distribution():
    normal = NormalDist()
    for place, given in enumerate(chances._QUANTILES_PPM):
        assert given == round(normal.inv_cdf((256 + 2 * place + 1) / 512) * 10**6)


@pytest.mark.slow
def test_draws_have_the_moments_of_their_distributions():
    words = list(islice(chances.words(5, 0), 20_000))
    logs = [math.log(chances.lognormal(word, 10**9, 700_000) / 10**9) for word in words]
    assert abs(fmean(logs)) < 0.02
    assert abs(pstdev(logs) - 0.7) < 0.02
    times = [chances.exponential(word, 10**6) for word in words]
    assert abs(fmean(times) / 10**6 - 1) < 0.03
    assert abs(pstdev(times) / 10**6 - 1) < 0.03


def test_flaps_have_their_mean_times():
    found = list(chances.flaps(7, 3, 10 * MS, MS, 10_000 * MS))
    assert abs(len(found) / (10_000 / 11) - 1) < 0.1
    assert abs(fmean(down for _, down in found) / MS - 1) < 0.1
    assert all(begin + down < after for (begin, down), (after, _) in pairwise(found))


def test_the_undisturbed_message():
    assert simcoll.emulate(MESSAGE, PAIR).time_fs == WHOLE_FS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_each_fault_by_hand(seed):
    def played(kind, **of):
        drawn = draw(kind, seed, MESSAGE, PAIR, WHOLE_FS, Chances(**of))
        return drawn, run_fault(drawn, Chances(**of))

    drawn, run = played("flap")
    (down,) = drawn.events
    # Bytes flow from 1 us to 2 us; what the link is down of the time from then on comes on top.
    assert run.time_fs == WHOLE_FS + max(down.at_fs + down.for_fs - max(down.at_fs, US), 0)
    drawn, run = played("traffic")
    assert run.time_fs - US in {math.ceil(US / (1 - drawn.events[0].share)) + k for k in (-1, 0, 1)}
    drawn, run = played("late")
    assert run.time_fs == WHOLE_FS + max(drawn.starts_fs)
    assert WHOLE_FS <= played("jitter", jitter_fs=500)[1].time_fs <= WHOLE_FS + 500
    drawn, run = played("link", policy="stall 3us x 2")
    # It goes down while bytes flow, or before; the message waits for 3 us three times.
    assert run.raised.startswith("aborted at")
    assert run.time_fs == max(drawn.events[0].at_fs, US) + 9 * US
    drawn, run = played("stop", timeout_fs=S)
    assert drawn.events == (Stop(drawn.events[0].rank, drawn.events[0].at_fs),)
    # What the sender has handed to its NIC at time 0 still arrives; without the receiver it is
    # never done.
    if drawn.events[0].rank == 0:
        assert run.time_fs == WHOLE_FS
        assert run.raised == ""
    else:
        assert run.raised.startswith("stuck")
        assert S <= run.time_fs <= S + WHOLE_FS


@pytest.mark.slow
def test_faults_are_functions_of_kind_and_seed():
    tree = clos(2, 2, 2, "50 GB/s", "1 us")
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=4096)
    whole_fs = simcoll.emulate(plan, tree).time_fs
    kinds = [kind for kind in KINDS if kind != "nic"]
    once, again = (
        [list(outcomes(kind, range(4), plan, tree, whole_fs)) for kind in kinds] for _ in range(2)
    )
    assert once == again
    assert len({run.text for runs in once for run in runs}) > 3 * len(kinds)
    assert [wrong_elements(kind, range(2), plan, tree)[1] for kind in kinds] == [0] * len(kinds)
    with pytest.raises(ConfigError, match="has no NICs"):
        draw("nic", 0, plan, tree, whole_fs)
    with pytest.raises(ConfigError, match="no hash chooses its routes"):
        draw("rehash", 0, MESSAGE, PAIR, WHOLE_FS)


def test_a_machine_cut_in_two_raises_at_once():
    one = boxes(2, 1, "1 GB/s", nics=1, nic_bandwidth="1 GB/s")
    (run,) = outcomes("nic", [0], MESSAGE, one, WHOLE_FS)
    assert "is disconnected" in run.raised


def test_the_rest_of_the_machine_is_planned_anew():
    nodes = boxes(2, 2, "100 GB/s", "1 us", nics=2, nic_bandwidth="50 GB/s", nic_latency="3 us")
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=1 << 20)
    found = {each.name: each for each in replan(draw("stop", 1, plan, nodes, 10**12))}
    assert list(found) == ["packed on 3 ranks", "bfb on 3 ranks", "ring on 2 ranks"]
    # Two ranks of a node: two steps of a half of 4 MiB at 100 GB/s, each after 1 us.
    assert found["ring on 2 ranks"].time_fs == 2 * (US + (1 << 21) * 10_000)
    assert found["packed on 3 ranks"].time_fs > 0
    assert "direct links" in found["bfb on 3 ranks"].why_not


@pytest.mark.parametrize("seed", [-1, 1 << 24, 10**30])
def test_seeds_out_of_range_are_refused(seed, capsys):
    with pytest.raises(
        ConfigError, match=f"seed must be a whole number from 0 to 16777215, got {seed}"
    ):
        draw("late", seed, MESSAGE, PAIR, WHOLE_FS)
    for option in ("--first", "--seed"):
        assert main(["faults", "first-look", "--kind", "late", option, str(seed)]) == 2
        said = "from 0 to 16777215, got" if seed < 10**20 else f"{option} '{seed}': out of range"
        assert said in capsys.readouterr().err
    assert draw("late", (1 << 24) - 1, MESSAGE, PAIR, WHOLE_FS).text


@pytest.mark.parametrize("kind", ["late", "slow"])
def test_a_spread_beyond_all_measure_is_refused_before_it_is_computed(kind):
    with pytest.raises(ConfigError, match=r"sigma 1e\+06: expected at most 10"):
        draw(kind, 1, MESSAGE, PAIR, WHOLE_FS, Chances(sigma_ppm=10**12))


def test_a_rank_that_would_arrive_after_the_end_of_all_clocks_is_refused():
    late = Chances(late_fs=10**18, sigma_ppm=10**7)
    with pytest.raises(
        ConfigError,
        match=r"rank \d would arrive after .* s; expected a smaller sigma, or median delay",
    ):
        [draw("late", seed, MESSAGE, PAIR, WHOLE_FS, late) for seed in range(20)]


def test_what_disturbs_a_scenario_is_left_out_and_said(tmp_path, capsys):
    (tmp_path / "a.toml").write_text(
        'title = "a"\nalgorithms = ["ring:channels=1"]\nfaults = ["t=0 rank 1 stops"]\n[topology]\n'
        'name = "dgx-h100"\n'
        '[collective]\nkind = "all_reduce"\n[sizes]\nbegin = "1K"\nend = "1K"\n'
    )
    assert main(["faults", str(tmp_path / "a.toml"), "--kind", "late", "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert "# ignored, since faults are drawn here: t=0 rank 1 stops; policy stall" in said
    assert "# finished after" in said


def test_failures_without_number_are_refused_before_they_are_drawn(capsys):
    with pytest.raises(
        ConfigError, match=r"fails every 1 fs and is down for 1 fs: some 4,000,000,000 failures"
    ):
        draw("flap", 1, MESSAGE, PAIR, WHOLE_FS, Chances(mtbf_fs=1, mttr_fs=1))
    drawn = draw("flap", 1, MESSAGE, PAIR, WHOLE_FS, Chances(mtbf_fs=US // 100, mttr_fs=US // 1000))
    assert 200 < len(drawn.events) < 1000
    often = ["--size", "16M", "--mtbf", "1us", "--mttr", "50ns", "--seeds", "100"]
    for kind in (["--kind", "flap"], []):
        assert main(["faults", "first-look", "-a", "ring:channels=1", *often, *kind]) == 2
        assert (
            "failures in 100 runs; expected at most 1,000,000: ask for at most"
            in capsys.readouterr().err
        )


def test_a_link_that_fails_again_and_again_is_gone_once():
    triangle = crossbar(3, "50 GB/s", "1 us")
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=3), count=3000)
    often = draw("flap", 1, plan, triangle, 10 * US, Chances(mtbf_fs=US, mttr_fs=US))
    links = {event.link for event in often.events}
    assert len(often.events) > len(links)
    once = replace(often, events=tuple({event.link: event for event in often.events}.values()))
    found = list(replan(often))
    assert found == list(replan(once))
    assert [each.why_not for each in found if each.name == "ring on 0 ranks"] == [found[0].why_not]
    assert not any("no link" in each.why_not for each in found)


def test_percentiles():
    assert [percentile(range(1, 201), share) for share in (50, 95, 99, 100)] == [100, 190, 198, 200]


@pytest.mark.slow
def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair.toml").write_text(
        'title = "a pair"\nalgorithms = ["ring"]\n[topology]\nname = "dgx-h100"\n[collective]\n'
        'kind = "all_reduce"\n'
        '[sizes]\nbegin = "1M"\nend = "1M"\n'
    )
    command = [
        "faults",
        "pair.toml",
        "--seeds",
        "3",
        "--kind",
        "flap",
        "--kind",
        "link",
        "--timeout",
        "2s",
    ]
    texts = []
    for folder, processes in (("one", "1"), ("two", "2")):
        assert main([*command, "-o", folder, "--jobs", processes]) == 0
        texts.append([line for line in capsys.readouterr().out.splitlines() if "wrote" not in line])
    assert texts[0] == texts[1]
    assert any(line.split()[:3] == ["flap", "3", "3"] for line in texts[0])
    assert any("0 wrong elements" in line for line in texts[0])
    for name in ("faults.csv", "faults.svg"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert any(line.startswith("# after flap ") and "re-planned: " in line for line in texts[0])
    assert any(line.startswith("# after link ") and "re-planned: " in line for line in texts[0])
    # None finishes.
    link = ["faults", "pair.toml", "--kind", "link", "--jobs", "1"]
    assert main([*link, "--seeds", "2", "-o", "none"]) == 0
    assert (tmp_path / "none" / "faults.svg").is_file()
    capsys.readouterr()
    assert main([*link, "--seed", "1"]) == 0
    # The link is the only one of its GPU.
    assert "re-planned: ring on 7 ranks" in capsys.readouterr().out
    assert main(["faults", "pair.toml", "--kind", "lnk"]) == 2
    assert "did you mean 'link'" in capsys.readouterr().err
