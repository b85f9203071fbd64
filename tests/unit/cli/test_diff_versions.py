"""``simcoll diff`` of two versions of NCCL, and ``perf`` of one."""

import json

import pytest

from simcoll import load_topology, predict
from simcoll.cli import main
from simcoll.errors import ConfigError


def run(capsys, *words):
    status = main(list(words))
    said = capsys.readouterr()
    return status, said.out, said.err


def test_an_upgrade_changes_ranges_of_sizes(capsys):
    status, out, _ = run(
        capsys, "diff", "nccl-2.27", "nccl-2.30", "--topology", "dgx-b200", "--nodes", "2"
    )
    assert status == 1
    assert "# nccl 2.27 -> nccl 2.30 on dgx-b200, 16 ranks" in out
    # Both versions' own choices: 32 and 16 channels of an all_gather of 32 MiB.
    (line,) = (line for line in out.splitlines() if line.startswith("all_gather         1 MiB"))
    assert "ring LL128, 32 ch        -> ring LL128, 16 ch" in line


def test_the_same_version_changes_nothing(capsys):
    status, out, _ = run(capsys, "diff", "nccl-2.30", "nccl-2.30")
    assert status == 0
    assert "# 0 ranges of sizes" in out


def test_long_lists_are_cut(capsys):
    words = ("diff", "nccl-2.27", "nccl-2.30", "--topology", "dgx-b200", "--nodes", "2")
    _, out, _ = run(capsys, *words, "--limit", "1")
    assert "more (--limit)" in out


def test_collectives_that_nccl_refuses_are_named(capsys):
    _, out, _ = run(capsys, "diff", "nccl-2.27", "nccl-2.30", "--env", "NCCL_ALGO=Tree")
    assert "# all_gather: the variables leave nothing to run" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("nccl-2.27", "nccl-2.31"), "did you mean 'nccl-2.30'"),
        (("nccl-2.27", "nccl-2.30", "--threshold", "1%"), "for folders of results"),
        (("nccl-2.27", "nccl-2.30", "--topology", "mi300x"), "graphs on this machine are not"),
        (("out", "out", "--nodes", "2"), "for two versions of NCCL"),
        (("nccl-2.27", "out"), "two folders of results, or two versions of NCCL"),
        (("rccl-2.22", "nccl-2.30"), "two folders of results, or two versions of NCCL"),
    ],
)
def test_a_wrong_request_is_refused(capsys, words, expected):
    status, _, err = run(capsys, "diff", *words)
    assert status == 2
    assert expected in err


def test_perf_takes_a_version(capsys, tmp_path):
    words = ("perf", "all_reduce", "-b", "1M", "-e", "1M", "-J", str(tmp_path / "out.json"))
    status, out, _ = run(capsys, *words, "--nccl-version", "2.29")
    assert status == 0
    assert "# nccl 2.29 on dgx-h100, 8 ranks" in out
    assert "2.29" in json.dumps(json.loads((tmp_path / "out.json").read_text()))


@pytest.mark.parametrize(
    ("version", "nearest"), [("2.3", "2.30"), ("2.18", "2.27"), ("2.99", "2.30")]
)
def test_an_unknown_version_is_refused_with_the_nearest(capsys, version, nearest):
    status, _, err = run(capsys, "perf", "all_reduce", "--nccl-version", version)
    assert status == 2
    assert f"did you mean '{nearest}'" in err


def test_predict_takes_a_version():
    machine = load_topology("dgx-h100")
    assert predict("all_reduce", 2**20, machine, version="2.29.7").library == "nccl 2.29"
    with pytest.raises(ConfigError, match=r"no nccl of version 1\.0"):
        predict("all_reduce", 2**20, machine, version="1.0")
    with pytest.raises(ConfigError, match="a file states its own"):
        predict("all_reduce", 2**20, machine, library="mine.toml", version="2.29")
