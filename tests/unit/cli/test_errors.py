"""Bad input: one clear message on stderr, exit status 1 or 2, no traceback, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simcoll.cli import main
from tests.support.installed import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Sequence


SCENARIO = """
title = "small"
algorithms = ["ring"]
[topology]
name = "crossbar"
[collective]
kind = "all_reduce"
[sizes]
begin = "8"
end = "64"
"""

SEARCH = """
title = "which mapping?"
[model]
name = "llama-3.1-8b"
sequence = 8192
global_batch = 16
[topology]
name = "dgx-h100"
[objective]
maximise = "tokens_per_second"
"""

TOPOLOGY = """
name = "two"
family = "crossbar"
nranks = 2
bandwidth = "10 GB/s"
latency = "1 us"
"""

MSCCL = """<algo name="swap" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0">
 <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
  <tb id="0" send="1" recv="1" chan="0">
   <step s="0" type="{first}" srcbuf="i" srcoff="0" dstbuf="o" dstoff="{at0}" cnt="1" depid="-1" deps="-1" hasdep="0"/>
   {second}
   <step s="2" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
  </tb>
 </gpu>
 <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
  <tb id="0" send="0" recv="0" chan="0">
   <step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
   <step s="1" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
   <step s="2" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
  </tb>
 </gpu>
</algo>
"""
_RECEIVE = (
    '<step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" '
    'deps="-1" hasdep="0"/>'
)
_SEND = (
    '<step s="1" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" '
    'deps="-1" hasdep="0"/>'
)
_COPY = (
    '<step s="1" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" '
    'deps="-1" hasdep="0"/>'
)

GOOD_XML = MSCCL.format(first="s", at0=0, second=_RECEIVE)
CYCLE_XML = MSCCL.format(first="r", at0=1, second=_SEND)  # both ranks receive before they send
UNMATCHED_XML = MSCCL.format(first="s", at0=0, second=_COPY)  # rank 1's send is never received
BOMB_XML = """<?xml version="1.0"?>
<!DOCTYPE bomb [<!ENTITY a "aaaaaaaaaa">
<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]>
<algo name="&c;"/>
"""

SCHEDULE = """{"format": "simcoll-schedule", "version": 1, "name": "pass",
 "collective": {"kind": "broadcast", "nranks": 3}, "chunks": 1, "blocks": [
  {"steps": [{"src_rank": [0], "src_chunk": 0, "dst_rank": [0], "dst_chunk": 1}]},
  {"steps": [{"src_rank": [0], "src_chunk": 1, "dst_rank": [1], "dst_chunk": 1}]},
  {"steps": [{"src_rank": [%s], "src_chunk": 1, "dst_rank": [2], "dst_chunk": 1}]}]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with the input files of the cases below."""
    files = {
        "scenario.toml": SCENARIO,
        "key.toml": SCENARIO.replace("algorithms", "algoritms"),
        "tablekey.toml": SCENARIO.replace("[topology]", "[topology]\nnode = 2"),
        "otherkey.toml": SCENARIO.replace("[topology]", "[topology]\nbegin = 2"),
        "share.toml": SCENARIO.replace(
            "[topology]", '[topology]\ndegraded = { "gpu0 -> switch" = 2 }'
        ),
        "nolink.toml": SCENARIO.replace(
            "[topology]", '[topology]\ndegraded = { "gpu9 <-> switch" = 0.5 }'
        ),
        "algorithm.toml": SCENARIO.replace('"ring"', '"rnig"'),
        "sweep.toml": "topologies = ['crossbar']\ncollectives = ['broadcast']\nsizes = ['8']\n",
        "machine.toml": SCENARIO.replace('"crossbar"', '"crosbar"'),
        "size.toml": SCENARIO.replace('"64"', '"64Q"'),
        "negative.toml": SCENARIO.replace('"8"', "-8"),
        "nothing.toml": SCENARIO.replace('["ring"]', "[]"),
        "modle.toml": SEARCH.replace("[model]", "[modle]"),
        "kind.toml": SCENARIO.replace("all_reduce", "all_redcue"),
        "broken.toml": SCENARIO + "[[[",
        "unit.toml": TOPOLOGY.replace("10 GB/s", "10"),
        "wrongunit.toml": TOPOLOGY.replace("1 us", "1 uss"),
        "topokey.toml": TOPOLOGY.replace("latency", "latencie"),
        "fast.toml": TOPOLOGY.replace("10 GB/s", "10000 GB/s"),
        "good.xml": GOOD_XML,
        "cycle.xml": CYCLE_XML,
        "unmatched.xml": UNMATCHED_XML,
        "truncated.xml": GOOD_XML[: len(GOOD_XML) // 2],
        "bomb.xml": BOMB_XML,
        "hello.xml": "<hello/>",
        "good.json": SCHEDULE % 1,
        "wrong.json": (SCHEDULE % 1).replace(
            '"src_chunk": 1, "dst_rank": [2]', '"src_chunk": 0, "dst_rank": [2]'
        ),
        "rank.json": SCHEDULE % 7,
        "cut.json": (SCHEDULE % 1)[:90],
        "jsonkey.json": (SCHEDULE % 1).replace('"chunks"', '"chunkz"'),
        "afile": "in the way",
        "pieces.toml": TOPOLOGY.replace('"crossbar"', '"boxes"')
        .replace("nranks = 2", "nodes = 2")
        .replace(
            'bandwidth = "10 GB/s"\nlatency = "1 us"',
            '[gpu]\ncount = 2\nbandwidth = "10 GB/s"\nlatency = "1 us"',
        ),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = ("-b", "8", "-e", "16")
# (arguments, exit status, what the message must say)
CASES: list[tuple[Sequence[str], int, Sequence[str]]] = [
    # unknown names, with the nearest valid one
    (
        ("perf", "all_reduce", "-t", "dgx-h10"),
        2,
        ("unknown topology 'dgx-h10'", "did you mean 'dgx-h100'?"),
    ),
    (("perf", "all_redcue"), 2, ("unknown collective 'all_redcue'", "'all_reduce'")),
    (
        ("perf", "all_reduce", "-a", "rnig"),
        2,
        ("unknown algorithm 'rnig' for all_reduce", "did you mean 'ring'?"),
    ),
    (("perf", "all_reduce", "-a", "bruck"), 2, ("'bruck' serves", "all_to_all", "not all_reduce")),
    (
        ("perf", "all_reduce", "-a", "ring:chanels=2"),
        2,
        ("no parameter 'chanels'", "did you mean 'channels'?"),
    ),
    (
        ("perf", "all_reduce", "-a", "ring:channels=two"),
        2,
        ("cannot read 'channels=two'", "ring:channels=4"),
    ),
    (("perf", "all_reduce", "-a", "ring:channels=0"), 2, ("channels=0", "at least 1")),
    (("perf", "all_reduce", "-p", "LL12"), 2, ("unknown protocol 'LL12'", "did you mean 'LL128'?")),
    (("perf", "all_reduce", "-p", "LL", "-t", "mi300x"), 2, ("'LL' is NCCL's", "mi300", "'ideal'")),
    (("perf", "all_reduce", "-d", "float31"), 2, ("unknown dtype 'float31'", "'float32'")),
    (("perf", "all_reduce", "-o", "summ"), 2, ("unknown reduction 'summ'", "'sum'")),
    (("perf", "all_reduce", "-o", "band"), 2, ("'band' needs an integer", "float32")),
    (("run", "nothing.toml"), 2, ("nothing.toml: no algorithm to run all_reduce with",)),
    (("perf", "broadcast", "-r", "8", "-t", "crossbar"), 2, ("root 8 of broadcast", "0..7")),
    (("perf", "all_reduce", "-r", "0"), 2, ("all_reduce has no root",)),
    (("perf", "all_reduce", "--nodez", "2"), 2, ("--nodez", "--nodes")),
    (("perf", "all_reduce", "--nodes", "0"), 2, ("nodes", "0 is out of range")),
    (("perf", "all_reduce", "-t", "crossbar", "--nodes", "2"), 2, ("no 'nodes'",)),
    (("list", "topologis"), 2, ("'topologis'", "did you mean 'topologies'?")),
    (("rnu",), 2, ("rnu", "run")),
    (("perf",), 2, ("COLLECTIVE",)),
    (("run", "frist-look"), 2, ("no scenario file 'frist-look'", "did you mean 'first-look'?")),
    (("run", "key.toml"), 2, ("key.toml: $.algoritms: unknown key", "did you mean 'algorithms'?")),
    (("run", "algorithm.toml"), 2, ("algorithm.toml", "unknown algorithm 'rnig'", "'ring'")),
    (("run", "machine.toml"), 2, ("machine.toml", "unknown topology 'crosbar'", "'crossbar'")),
    (("run", "kind.toml"), 2, ("kind.toml", "unknown collective 'all_redcue'", "'all_reduce'")),
    (("run", "broken.toml"), 2, ("broken.toml: not a TOML file", "line")),
    (
        ("run", "sweep.toml"),
        2,
        ("sweep.toml: this is a sweep file; expected a scenario file; simcoll sweep plays it",),
    ),
    (("plan", "modle.toml"), 2, ("modle.toml: $.modle: unknown key", "did you mean 'model'?")),
    (
        ("plan", "kind.toml"),
        2,
        ("kind.toml: this is a simcoll scenario file; expected a plan file; simcoll run plays it",),
    ),
    (
        ("perf", "all_reduce", "-a", "pieces=3,ring"),
        2,
        ("'pieces=3' is a parameter", "'ring:channels=4:pieces=2'"),
    ),
    (
        ("verify", "ring:channels=2;pieces=3"),
        2,
        ("cannot read 'channels=2;pieces=3'", "'ring:channels=4:pieces=2'"),
    ),
    (
        ("verify", "linear:channels=2", "-c", "scatter"),
        2,
        ("no parameter 'channels'", "grouped has it"),
    ),
    (("plan", "cycle.xml"), 2, ("cycle.xml: this is an MSCCL XML file; expected a plan file",)),
    (("run", "nosuch.toml"), 2, ("no scenario file 'nosuch.toml'",)),
    (("perf", "all_reduce", "all_gather"), 2, ("unexpected argument 'all_gather'",)),
    (("faults", "first-look", "--seeds", "2.5"), 2, ("--seeds '2.5': expected a whole number",)),
    (("faults", "first-look", "--policy", "stal"), 2, ("policy 'stal'", "did you mean 'stall'?")),
    (("faults", "first-look", "--seed", "0"), 2, ("--seed 0: of which kind?",)),
    (("run", "."), 2, ("Is a directory",)),
    # numbers with too many digits
    (("perf", "all_reduce", "--seed", "9" * 30), 2, ("--seed", "out of range")),
    (
        ("perf", "all_reduce", "-a", "ring:pieces=" + "9" * 10),
        2,
        ("'pieces=9999999999' is out of range", "9 digits"),
    ),
    # units that are missing or wrong
    (("perf", "all_reduce", "-b", "8X"), 2, ("-b: unknown unit 'X'", "MiB")),
    (("perf", "all_reduce", "-e", "many"), 2, ("-e", "'many'")),
    (
        ("run", "tablekey.toml"),
        2,
        ("tablekey.toml: $.topology.node: unknown key", "did you mean 'nodes'?"),
    ),
    (
        ("run", "otherkey.toml"),
        2,
        ("otherkey.toml: $.topology.begin: unknown key; valid: degraded, name, nodes",),
    ),
    (("run", "share.toml"), 2, ("share.toml", "0 to 1")),
    (("run", "nolink.toml"), 2, ("nolink.toml", "gpu9")),
    (("perf", "all_reduce", "--degrade", "gpu0"), 2, ("--degrade 'gpu0'", "gpu0 <-> gpu4=1/2")),
    (("show", "packed", "-n", "4"), 2, ("packed is made for one topology",)),
    (("show", "packed", "-n", "4", "-t", "crossbar"), 2, ("has 8 ranks, all_reduce 4",)),
    (("run", "size.toml"), 2, ("size.toml: $.sizes.end", "unknown unit 'Q'")),
    (
        ("perf", "all_reduce", "-t", "unit.toml"),
        2,
        ("unit.toml: $.bandwidth", "'10' has no unit", "10 GB/s"),
    ),
    (
        ("perf", "all_reduce", "-t", "wrongunit.toml"),
        2,
        ("wrongunit.toml: $.latency", "uss", "'us'"),
    ),
    (
        ("perf", "all_reduce", "-t", "topokey.toml"),
        2,
        ("topokey.toml: $.latencie", "did you mean 'latency'?"),
    ),
    # sizes that are negative or overflow
    (("perf", "all_reduce", "-b", "-8"), 2, ("-b: '-8' is negative",)),
    (("perf", "all_reduce", "-b", "0"), 2, ("must start at 1 byte or more, got 0", "0")),
    (("perf", "all_reduce", "-b", "64", "-e", "8"), 2, ("8 bytes, is below the smallest, 64",)),
    (("perf", "all_reduce", "-f", "1"), 2, ("factor", "at least 2")),
    (("run", "negative.toml"), 2, ("negative.toml: $.sizes.begin", "negative")),
    (("perf", "all_reduce", "-e", "99999999999G"), 2, ("-e", "too large")),
    (
        ("perf", "all_reduce", "-b", "4194304T", "-e", "8388607T", "-p", "ideal"),
        2,
        ("the clock ends at",),
    ),
    (("perf", "all_reduce", "-t", "fast.toml"), 2, ("fast.toml", "too large")),
    # an algorithm that does not serve this n
    (("perf", "all_reduce", "-a", "hierarchical:box=5"), 2, ("multiple of box=5", "8")),
    (("show", "hierarchical:box=4", "-n", "6"), 2, ("multiple of box=4", "6")),
    (("show", "neighbor_exchange", "-c", "all_gather", "-n", "5"), 2, ("even", "5")),
    (("show", "ring", "-n", "0"), 2, ("at least 1", "0")),
    (("show", "rnig"), 2, ("unknown algorithm 'rnig'", "'ring'")),
    (("convert", "nowhere", "x.json"), 2, ("'nowhere' is no file or folder here", "algorithm")),
    (("convert", "rnig", "x.xml"), 2, ("no file or folder here", "did you mean 'ring'?")),
    # imported schedules
    (("verify", "cycle.xml"), 1, ("deadlock",)),
    (("verify", "unmatched.xml"), 1, ("rank 1",)),
    (("verify", "truncated.xml"), 2, ("truncated.xml",)),
    (("verify", "bomb.xml"), 2, ("bomb.xml",)),
    (("verify", "hello.xml"), 2, ("hello.xml", "hello")),
    (("verify", "wrong.json"), 1, ("step 2", "rank 1 input", "holds nothing yet")),
    (("verify", "rank.json"), 1, ("source rank 7 does not exist", "0..2")),
    (("verify", "cut.json"), 2, ("cut.json: not a JSON file",)),
    (("verify", "jsonkey.json"), 2, ("jsonkey.json", "$.chunkz: unknown key", "'chunks'")),
    (("verify", "nosuch.json"), 2, ("nosuch.json", "No such file")),
    (("perf", "all_gather", "-t", "truncated.xml"), 2, ("truncated.xml",)),
    (("perf", "all_gather", "-t", "bomb.xml"), 2, ("bomb.xml",)),
    (("perf", "all_gather", "-t", "hello.xml"), 2, ("hello.xml",)),
    # a disconnected topology
    (("perf", "all_gather", "-t", "pieces.toml"), 2, ("pieces.toml", "no NICs")),
    # a place that cannot be written; a file in the way stops root too
    (("run", "scenario.toml", "-o", "afile"), 2, ("afile: cannot write to the output folder",)),
    (
        ("run", "scenario.toml", "-o", "afile/deeper"),
        2,
        ("afile/deeper: cannot write", "Not a directory"),
    ),
    (("show", "ring", "--svg", "afile/ring.svg"), 2, ("afile/ring.svg: cannot be written",)),
    (("show", "ring", "--json", "nosuch/ring.json"), 2, ("nosuch/ring.json: cannot be written",)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "status", "said"), CASES, ids=[" ".join(case[0]) for case in CASES]
)
def test_one_clear_message(folder, capsys, argv, status, said):
    before = sorted(path.name for path in folder.iterdir())
    assert main(argv) == status
    message = capsys.readouterr().err
    for part in said:
        assert part in message
    assert message.startswith("simcoll: ")
    assert "Traceback" not in message
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("perf", "all_reduce", "-t", "dgx-h10"), 2),
        (("run", "key.toml"), 2),
        (("verify", "wrong.json"), 1),
        (("verify", "cycle.xml"), 1),
        (("verify", "bomb.xml"), 2),
        (("run", "scenario.toml", "-o", "afile"), 2),
    ],
)
def test_as_a_process(folder, argv, status):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    done = subprocess.run(
        [sys.executable, "-m", "simcoll", *argv],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == status
    assert done.stderr.startswith("simcoll: ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_is_right_is_accepted(folder, capsys):
    """The good ones beside the bad files, so that the cases above fail for the reason they name."""
    assert main(["verify", "good.xml"]) == 0
    assert main(["verify", "good.json"]) == 0
    assert main(["run", "scenario.toml", "-o", "out/deep"]) == 0
    assert "0 wrong" in capsys.readouterr().out


@pytest.mark.slow
def test_results_are_replaced_whole(folder, monkeypatch):
    """When the disk fails in the middle, the old results stay as they were and no part is left."""
    assert main(["run", "scenario.toml", "-o", "out"]) == 0
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    write, written = os.write, []

    def full(descriptor, content):
        written.append(len(content))
        if len(written) == 2:
            write(descriptor, content[:10])
            raise OSError(28, "No space left on device")
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    assert main(["run", "scenario.toml", "-o", "out"]) == 2
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before


@pytest.mark.slow
def test_a_refused_rename_says_which_results_are_new(folder, monkeypatch, capsys):
    rename = Path.replace

    def stuck(path, target):
        if target.name == "busbw.svg":
            raise OSError(1, "Operation not permitted")
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", stuck)
    assert main(["run", "scenario.toml", "-o", "out"]) == 2
    assert (
        "Operation not permitted; new already: results.json, results.csv" in capsys.readouterr().err
    )
    assert sorted(path.name for path in Path("out").iterdir()) == ["results.csv", "results.json"]


@pytest.mark.parametrize(
    ("line", "place"), [("protocols = []", "protocols"), ('trace_size = "huge"', "trace_size")]
)
def test_scenario_is_refused_before_it_runs(folder, capsys, line, place):
    file = Path("scenario.toml")
    file.write_text(line + "\n" + file.read_text())
    assert main(["run", "scenario.toml", "-o", "out"]) == 2
    assert place in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_folder_in_place_of_a_result_is_refused(folder, capsys):
    Path("out/trace.json.gz").mkdir(parents=True)
    assert main(["run", "scenario.toml", "-o", "out"]) == 2
    assert "trace.json.gz" in capsys.readouterr().err
    assert [path.name for path in Path("out").iterdir()] == ["trace.json.gz"]


def test_no_traceback_reaches_a_user(folder, monkeypatch, capsys):
    from realcoll.commands import main as realcoll

    def broken(*arguments, **options):
        raise KeyError("a bug\nin two lines")

    monkeypatch.setattr("simcoll.units.parse_size", broken)
    for name, command, arguments in (
        ("simcoll", main, ["perf", "all_reduce"]),
        ("realcoll", realcoll, ["perf", "all_reduce", "-t", "local"]),
    ):
        monkeypatch.delenv("SIMCOLL_TRACEBACK", raising=False)
        assert command(arguments) == 3
        message = capsys.readouterr().err
        assert message.startswith(f"{name}: unexpected KeyError: 'a bug")
        assert message.count("\n") == 1
        assert "please report it" in message
        monkeypatch.setenv("SIMCOLL_TRACEBACK", "1")
        assert command(arguments) == 3
        assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("show ring --limit -5", "--limit -5: expected a number from 0 on"),
        ("diff a.json b.json --limit -1", "--limit -1: expected a number from 0 on"),
        ("faults first-look --size 0", "--size 0: expected 1 byte or more"),
        (
            "perf all_reduce -c 1M --library nccl",
            "-c moves data through algorithms that you choose (-a); a library's choices are timed",
        ),
        ("plan a.toml --top -1", "--top -1: expected a number from 0 on"),
        (
            "perf all_reduce --degrade a=1/2 --degrade a=1/4",
            "--degrade: a is given twice, as 1/2 and as 1/4; leave one out",
        ),
    ],
)
def test_counts_below_zero_and_values_that_contradict_are_refused(arguments, said, capsys):
    assert main(arguments.split()) == 2
    assert capsys.readouterr().err == f"simcoll: {said}\n"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("perf all_reduce --nodes 2.5", "--nodes '2.5'"),
        ("perf all_reduce --nodes two", "--nodes 'two'"),
        ("perf broadcast -r 1.0", "-r '1.0'"),
        ("show ring -n 4.5", "-n '4.5'"),
        ("show ring --limit 1e3", "--limit '1e3'"),
    ],
)
def test_a_fraction_is_refused_where_a_whole_number_is_meant(arguments, option, capsys):
    assert main(arguments.split()) == 2
    assert capsys.readouterr().err == f"simcoll: {option}: expected a whole number, such as 2\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "step x.et -t dgx-h100",
            (
                "x.et: this is a binary file of no kind known here; expected a design, a list of "
                "operations"
            ),
        ),
        (
            "step tuner.csv -t dgx-h100",
            "this is a configuration of NCCL's tuner plugin (CSV); expected a design",
        ),
        ("compare model.toml", "compare needs --topology\n"),
        ("step none", "there is no such file, nor none.0.et"),
        ("step none.toml", "none.toml: there is no such file\n"),
        ("step .", "a folder without files such as trace.0.et"),
        (
            "step /dev/null",
            "this is a pipe or device, and what is in it can be read only once; expected a file",
        ),
        ("step model.toml", "$.model: missing key 'sequence'; needed are sequence, global_batch"),
        (
            "flight tuner.csv",
            "this is a configuration of NCCL's tuner plugin (CSV); expected a flight record",
        ),
        (
            "graph tuner.csv -t dgx-h100",
            (
                "this is a configuration of NCCL's tuner plugin (CSV); expected a dump of NCCL's "
                "graphs"
            ),
        ),
        (
            "perf all_reduce -t tuner.csv",
            "tuner.csv: not a topology: expected TOML, an NCCL topology dump",
        ),
        (
            "verify tuner.csv",
            "this is a configuration of NCCL's tuner plugin (CSV); expected an algorithm",
        ),
    ],
)
def test_a_file_of_another_kind_is_named(command, said, folder, capsys):
    (folder / "x.et").write_bytes(bytes(range(256)) * 2)
    (folder / "tuner.csv").write_text("allreduce,0,1024,ring,ll,2,1,8\n")
    (folder / "model.toml").write_text(
        '[model]\nname = "llama-3.1-8b"\n[topology]\nname = "dgx-h100"\n'
    )
    assert main(command.split()) == 2
    assert said in capsys.readouterr().err


def test_an_unknown_collective_is_named_once(capsys):
    assert main(["perf", "all_redcue"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("all_redcue")) == ("", 1)


def test_an_unknown_reduction_is_refused_before_anything_is_built(monkeypatch, capsys):
    def build(*_):
        raise AssertionError("schedules are built")

    monkeypatch.setattr("simcoll.tuning.candidates", build)
    assert main(["perf", "all_gather", "-t", "dgx-h100", "--nodes", "128", "-o", "x"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("simcoll: unknown reduction 'x'; did you mean 'max'?")
    assert printed.out == ""
