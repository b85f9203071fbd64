"""What no proof covers is marked in every output, or does not get there: GOAL programs, wrong
schedules, plans bound without a proof.

Tables, scenarios and sweeps with GOAL programs are in ``tests/unit/planning/test_programs.py``.
"""

import json

import pytest

import simcoll
from simcoll.cli import main
from simcoll.emulator import Trace
from simcoll.emulator.programs import Call, Program
from simcoll.formats.goal.goal_writer import goal_of
from simcoll.formats.schedules.schedule_files import FORMATS
from simcoll.topology import crossbar
from simcoll.traces.chakra_writer import dump_chakra, traces_of_program

MACHINE = crossbar(4, "1 GB/s")
GOAL = "num_ranks 2\nrank 0 {\nl1: send 8b to 1 tag 0\n}\nrank 1 {\nl1: recv 8b from 0 tag 0\n}\n"
TARGETS = [each.name for each in FORMATS if each.write] + ["chakra", "chakra-messages", "workload"]


@pytest.fixture
def sources(tmp_path, monkeypatch, capsys):
    """A GOAL program, and a schedule whose last step is missing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.goal").write_text(GOAL)
    assert main(["convert", "two_shot", "whole.json", "-n", "4", "--to", "schedule"]) == 0
    whole = json.loads((tmp_path / "whole.json").read_text())
    whole["blocks"].pop()
    (tmp_path / "wrong.json").write_text(json.dumps(whole))
    capsys.readouterr()
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["p.goal", "wrong.json"])
def test_what_is_made_of_it(sources, source, target, capsys):
    code = main(["convert", source, "made.x", "--to", target])
    printed = capsys.readouterr()
    if source == "p.goal" and target.startswith("chakra"):
        assert code == 0
        assert ", unproved, " in printed.out
        traces = [(path.read_bytes(), path.name) for path in sorted(sources.glob("made.x.*.et"))]
        assert len(traces) == 2
        assert all(b"unproved" in content for content, _ in traces)
    elif source == "p.goal" and target.startswith("goal"):
        assert code == 0
        assert ", unproved, " in printed.out
        assert main(["verify", "made.x"]) == 0
        assert "unproved, data unknown" in capsys.readouterr().out
    else:
        assert code == (2 if source == "p.goal" or target == "workload" else 1), printed
        assert printed.err.startswith("simcoll: ")
        assert not list(sources.glob("made*"))


@pytest.mark.parametrize("command", ["perf -t four.toml -a", "verify", "show --json shown.json"])
def test_a_wrong_schedule_is_not_run(sources, command, capsys):
    (sources / "four.toml").write_text(
        'name = "four"\nfamily = "crossbar"\nnranks = 4\nbandwidth = "1 GB/s"\nlatency = "0"\n'
    )
    assert main([*command.split(), "wrong.json"]) == 1
    assert "rank " in capsys.readouterr().err
    assert not (sources / "shown.json").exists()


def test_a_wrong_schedule_is_shown_and_marked(sources, capsys):
    assert main(["show", "wrong.json", "--limit", "1"]) == 0
    marked = capsys.readouterr().out
    assert marked.startswith("# unproved: ")
    assert main(["show", "whole.json", "--limit", "1"]) == 0
    assert "unproved" not in capsys.readouterr().out


@pytest.mark.parametrize("unproved", [True, False])
def test_a_plan_without_a_proof_is_marked(unproved):
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 1000, unproved=unproved)
    trace = Trace(plan, MACHINE)
    result = simcoll.emulate(plan, MACHINE, observer=trace)
    program = Program(4, [Call(plan)])
    messages = b"".join(dump_chakra(traces_of_program(program, lowered=True)))
    told = [
        str(plan),
        repr(result),
        result.proof,
        repr(simcoll.emulate(program, MACHINE)),
        messages.decode("latin-1"),
        trace.document(result)["otherData"]["proof"],
    ]
    assert ["unproved" in each for each in told] == [unproved] * len(told)
    assert "unproved" in str(goal_of(plan))
