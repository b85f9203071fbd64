"""Vocabularies are literals: a misspelt word is an error of mypy, or of these tests where mypy does
not look.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from simcoll.core import vocabulary
from simcoll.core.collective import KINDS
from simcoll.core.proof import LEVELS
from simcoll.core.step import OP_NAMES
from simcoll.emulator.events.kinds import POLICIES
from simcoll.formats.reports.flight_record import STATES
from simcoll.libraries.formula import PROTOCOLS
from simcoll.topology import LINK_KINDS, NODE_KINDS
from simcoll.topology.families import INTERCONNECTS
from simcoll.training.parallel import CHOICES

ROOT = Path(__file__).resolve().parents[2]
TABLES = {
    "CollectiveKind": (*KINDS, "custom"),
    "Interconnect": INTERCONNECTS,
    "LinkKind": LINK_KINDS,
    "NcclProtocol": PROTOCOLS,
    "NodeKind": NODE_KINDS,
    "OperationState": STATES,
    "OrderLevel": ("", *LEVELS),
    "PipelineSchedule": CHOICES["schedule"],
    "PolicyKind": POLICIES,
    "Sharding": CHOICES["shard"],
    "TransferOp": OP_NAMES,
}

PLANTED = """
from simcoll.core.collective import Collective
from simcoll.core.proof import Proof
from simcoll.core.step import OP_NAMES
from simcoll.bounds import Bound
from simcoll.emulator import Result
from simcoll.emulator.events.kinds import Policy
from simcoll.formats.reports.flight_record import FlightEntry
from simcoll.libraries.prediction import Prediction
from simcoll.libraries.formula import Cost
from simcoll.topology import Routes, Topology
from simcoll.topology.families import BoxesParameters
from simcoll.topology.machine import Machine
from simcoll.training.pipeline import PipelineTurn
from simcoll.training.script import ScriptShape

def compared(collective: Collective, proof: Proof, bound: Bound, result: Result, policy: Policy,
             entry: FlightEntry, prediction: Prediction, cost: Cost, topology: Topology,
             routes: Routes, boxes: BoxesParameters, machine: Machine, shape: ScriptShape,
             turn: PipelineTurn) -> list[bool]:
    return [
"""
COMPARED = [
    ("collective.kind", "all_reduce", "allreduce"),
    ("collective.spec.input_at", "root", "roots"),
    ("proof.kind", "full", "complete"),
    ("proof.method", "exact", "exactly"),
    ("proof.order", "run-consistent", "run_consistent"),
    ("OP_NAMES[0]", "switch_reduce", "switch-reduce"),
    ("bound.kind", "latency", "latencies"),
    ("result.data", "exact", "full"),
    ("policy.kind", "re-route", "reroute"),
    ("entry.state", "completed", "complete"),
    ("prediction.collective", "all_to_all", "alltoall"),
    ("cost.protocol", "LL128", "ll128"),
    ("topology.node_kinds[0]", "nic", "hca"),
    ("routes.kinds[0]", "nvlink", "nvlinks"),
    ("boxes.interconnect", "mesh", "full mesh"),
    ("machine.inside", "host", "hosts"),
    ("shape.schedule", "1f1b", "1F1B"),
    ("shape.shard", "parameters", "parameter"),
    ("turn.kind", "F", "forward"),
]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_words_of_its_vocabulary(name):
    assert tuple(TABLES[name]) == get_args(getattr(vocabulary, name))


@pytest.mark.slow
def test_a_comparison_with_a_misspelt_word_is_an_error_of_mypy(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed: pip install 'simcoll[dev]'")
    head = PLANTED.count("\n")
    lines = [f"        {field} == {word!r}," for field, *words in COMPARED for word in words]
    file = tmp_path / "planted.py"
    file.write_text(PLANTED + "\n".join(lines) + "\n    ]\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    report = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    errors = [line for line in report.splitlines() if ": error: " in line]
    wrong = [f"planted.py:{head + 2 + 2 * place}: error: " for place in range(len(COMPARED))]
    assert len(errors) == len(wrong), report
    for error, place in zip(errors, wrong, strict=True):
        assert place in error
        assert "[comparison-overlap]" in error


@cache
def containers():
    """``(place, words)`` of every ``in ("a", "b")`` of strings alone."""
    return tuple(string_containers())


def string_containers():
    for package in ("simcoll", "realcoll"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Compare):
                    continue
                for operator, right in zip(node.ops, node.comparators, strict=True):
                    if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(
                        right, (ast.Set, ast.Tuple, ast.List)
                    ):
                        words = {getattr(word, "value", None) for word in right.elts}
                        if len(words) > 1 and all(isinstance(word, str) for word in words):
                            yield f"{path.relative_to(ROOT)}:{node.lineno}", words


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CollectiveKind", "NcclProtocol", "NodeKind", "OrderLevel"])
def test_words_are_looked_for_among_words_of_one_vocabulary(name):
    # Two words of a vocabulary say which one is meant: the others must be in it, too.
    vocabulary_words = set(get_args(getattr(vocabulary, name)))
    mixed = [
        (place, sorted(words - vocabulary_words))
        for place, words in containers()
        if len(words & vocabulary_words) > 1 and words - vocabulary_words
    ]
    assert mixed == []
