"""A seed is 0 to 2**63 - 1 wherever one is taken, and none draws what another one does."""

import pytest

import simcoll
from simcoll.cli import main
from simcoll.core.protocol import Protocol
from simcoll.core.reference import exact_inputs
from simcoll.emulator.model import jitter_fs
from simcoll.errors import ConfigError
from simcoll.planning.sweeps.disturbance import disturbance
from simcoll.topology import clos, crossbar, place
from simcoll.topology.ecmp import reseed

PLAN = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=2), count=64)
PAIR = 'name = "pair"\nfamily = "crossbar"\nnranks = 2\nbandwidth = "10 GB/s"\nlatency = "1 us"\n'
SCENARIO = """
title = "a"
algorithms = ["ring"]
jitter = "1us"
{}
[topology]
name = "pair.toml"
[collective]
kind = "all_reduce"
[sizes]
begin = "1K"
end = "1K"
"""
SWEEP = (
    'title = "a"\ntopologies = ["pair.toml"]\ncollectives = ["all_reduce"]\n'
    'algorithms = ["ring"]\nsizes = ["1K"]\njitter = "1us"\n'
)
TREE = clos(2, 4, 2, "1 GB/s")
TAKERS = {
    "data": lambda seed: simcoll.emulate(PLAN, crossbar(2, "1 GB/s"), seed=seed),
    "a program's data": lambda seed: simcoll.emulate([PLAN], crossbar(2, "1 GB/s"), seed=seed),
    "jitter": lambda seed: Protocol("ideal", jitter_fs=1, seed=seed),
    "disturbance": lambda seed: disturbance(jitter="1us", seed=seed),
    "ECMP": lambda seed: clos(2, 4, 2, "1 GB/s", seed=seed),
    "another ECMP": lambda seed: reseed(TREE, seed),
    "placement": lambda seed: place(TREE, order="random", seed=seed),
}
LAST = 2**63 - 1


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_functions(take):
    take(LAST)
    for seed in (-1, LAST + 1, 2**64, 10**6000):
        with pytest.raises(ConfigError, match="seed"):
            take(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("a.toml", SCENARIO.format("seed = {}"), ["run", "a.toml", "-o", "out"]),
        ("s.toml", SWEEP + "seeds = [{}]\n", ["sweep", "s.toml", "-o", "swept"]),
        (
            "t.toml",
            PAIR.replace("nranks = 2", "nranks = 4") + '[placement]\norder = "random"\nseed = {}\n',
            ["perf", "all_reduce", "-t", "t.toml", "-e", "1K"],
        ),
        (
            "",
            "",
            [
                "perf",
                "all_reduce",
                "-t",
                "pair.toml",
                "-e",
                "1K",
                "--jitter",
                "1us",
                "--seed",
                "{}",
            ],
        ),
    ],
    ids=["scenario", "sweep", "topology", "option"],
)
def test_files_and_options(name, content, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair.toml").write_text(PAIR)
    for seed, code in ((LAST, 0), (LAST + 1, 2), (2**64, 2), (-1, 2)):
        if name:
            (tmp_path / name).write_text(content.replace("{}", str(seed)))
        assert main([each.replace("{}", str(seed)) for each in command]) == code
        assert ("seed" in capsys.readouterr().err) == bool(code)


def test_other_seeds_draw_other_things():
    seeds = (0, 1, 2**32, 2**40 + 1, LAST)
    assert len({exact_inputs(PLAN, seed)[0].tobytes() for seed in seeds}) == len(seeds)
    delays = [jitter_fs(0, 8, Protocol("ideal", jitter_fs=10**9, seed=seed)) for seed in seeds]
    assert len({each.tobytes() for each in delays}) == len(seeds)
