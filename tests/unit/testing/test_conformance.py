"""The conformance suite as a command: verdicts, reports, and what is refused."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from simcoll.testing import ThreadRunner
from simcoll.testing.conformance.__main__ import main
from simcoll.testing.conformance.mpi_checks import MPI_REASONS, mpi_checks
from simcoll.testing.conformance.statement_cases import CASES
from simcoll.testing.conformance.statement_reasons import REASONS
from simcoll.testing.conformance.suite import play_suite, statements
from simcoll.testing.conformance.torch_session import checks
from tests.support.deferred import needs_torch
from tests.support.mpi import MPIEXEC, needs_mpi
from tests.support.thread_collectives import ForgetsRoot, ThreadLibrary

ROOT = Path(__file__).parents[3]
LIBRARY = "tests.support.thread_collectives"
OTHERS = {"SIG", "BK", "IN", "GR", "NM", "DM", "DB", "ST", "CS", "LA"}
"""Sections that are neither on collectives, messages nor works."""


def test_rows_are_those_of_the_semantics():
    rows = {statement.row for statement in statements()}
    assert len(rows) == 360
    assert set(CASES) | set(checks()) <= rows
    assert len(set(CASES) | set(checks())) >= 280


@pytest.mark.slow
def test_a_right_library_passes_what_it_offers(tmp_path, capsys):
    page, results = tmp_path / "report.html", tmp_path / "report.xml"
    options = ["--ranks", "2,3", "--runner", "threads"]
    files = ["--report", str(page), "--junit", str(results)]
    assert main(["--backend", f"{LIBRARY}:ThreadLibrary", *options, *files]) == 0
    text = capsys.readouterr().out
    assert "61 pass, 0 fail, 299 skip" in text
    root = ET.fromstring(results.read_text(encoding="utf-8"))
    assert (root.get("tests"), root.get("failures")) == ("360", "0")
    assert len(root.findall("testcase")) == 360
    reasons = {
        case.find("skipped").get("message") for case in root if case.find("skipped") is not None
    }
    assert "operations are synchronous" in reasons
    assert "is on the interface of torch.distributed" in reasons
    assert "needs GPUs" in reasons
    html = page.read_text(encoding="utf-8")
    assert html.count("<tr>") == 361
    assert "distributed.html#point-to-point-communication" in html


@pytest.mark.slow
def test_a_faulty_library_fails_with_the_case(capsys):
    options = ["--ranks", "2", "--runner", "threads"]
    assert main(["--backend", f"{LIBRARY}:ForgetsRoot", *options]) == 1
    text = capsys.readouterr().out
    assert "BC-03 fails: the source is named by global or by group rank, not both" in text
    assert "broadcast n=2 root=1, ranks [0, 1], counts 3, int32: rank 0: element 0 is" in text


@pytest.mark.slow
def test_statements_that_do_not_fail_are_played_alike_by_a_faulty_library():
    right, wrong = (
        {verdict.statement.row: verdict.status for verdict in verdicts}
        for verdicts in (
            play_suite(library, [2], ThreadRunner(), frozenset())
            for library in (ThreadLibrary, ForgetsRoot)
        )
    )
    differ = {row for row in right if right[row] != wrong[row]}
    assert differ == {"BC-03", "OB-05"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "gloo"], "backend 'gloo': expected torch:gloo, torch:NAME, mpi"),
        (["--backend", "no_such_module:Library"], "No module named 'no_such_module'"),
        (["--backend", f"{LIBRARY}:NoLibrary"], "has no attribute 'NoLibrary'"),
        (["--backend", "mpi", "--ranks", "two"], "--ranks 'two': expected numbers of ranks"),
        (["--backend", "mpi", "--runner", "srun"], "expected {n}"),
        (
            ["--backend", "mpi", "--ranks", "1,2"],
            "--ranks '1,2': expected numbers of ranks, at least",
        ),
    ],
)
def test_wrong_arguments_are_told(options, message, capsys):
    assert main(options) == 2
    assert message in capsys.readouterr().err


class Nowhere:
    """A rank whose world is not there."""

    def setup(self, world):
        raise OSError(f"no server at 10.0.0.{world.nranks}")

    def run(self, call):
        raise NotImplementedError


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["processes", "threads"])
def test_ranks_that_cannot_join_end_the_suite(runner, capsys):
    options = ["--ranks", "2", "--runner", runner]
    assert main(["--backend", f"{__name__}:Nowhere", *options]) == 2
    message = "cannot join a world of 2: OSError: no server at 10.0.0.2"
    assert message in capsys.readouterr().err


@needs_torch
@pytest.mark.slow
def test_a_backend_that_torch_does_not_know_is_told(capsys):
    assert main(["--backend", "torch:glo", "--ranks", "2"]) == 2
    assert "glo" in capsys.readouterr().err


@pytest.mark.slow
@needs_mpi
def test_mpi_passes(capsys):
    runner = f"{shlex.quote(str(MPIEXEC))} -n {{n}}"
    assert main(["--backend", "mpi", "--ranks", "3", "--runner", runner]) == 1
    text = capsys.readouterr().out
    assert "103 pass, 1 fail, 256 skip" in text
    assert "A1-05 fails" in text  # mpi4py compares no counts with the buffer


def test_mpi_plays_every_statement_on_collectives_and_messages_or_says_why():
    played = set(CASES) | set(mpi_checks())
    for statement in statements():
        prefix = statement.row.split("-")[0]
        if prefix not in OTHERS and statement.row not in played:
            assert statement.row in MPI_REASONS or statement.row in REASONS, statement
    assert set(MPI_REASONS) & played <= set(checks())
    assert sum(row.split("-")[0] not in OTHERS for row in played) >= 100


@needs_torch
@pytest.mark.slow
def test_gloo_executes_two_hundred_statements():
    """Its ranks are forked from a process that has imported PyTorch."""
    command = [sys.executable, "-m", "tests.support.forked_ranks"]
    played = subprocess.run(
        [*command, "--backend", "torch:gloo", "--ranks", "2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    total = played.stdout.split("  all  ")[-1]
    passed, failed = (int(part.split()[0]) for part in total.split(",")[:2])
    assert passed >= 265, total
    assert failed <= 7, total


def test_every_statement_has_a_case_a_check_or_a_reason():
    played = set(CASES) | set(checks())
    for statement in statements():
        if statement.row not in played:
            assert statement.subject == "GPUs" or len(REASONS[statement.row]) >= 10, statement
    assert not played & set(REASONS)


def run_pytest(folder, *options):
    """Run pytest on a project of one test, with the plugin."""
    (folder / "test_own.py").write_text("def test_own():\n    pass\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
    ]
    return subprocess.run(
        [*command, "--rootdir", str(folder), *options, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.slow
def test_pytest_plays_statements_beside_ones_own_tests(tmp_path):
    backend = ["--simcoll-backend", f"{LIBRARY}:ForgetsRoot", "--simcoll-runner", "threads"]
    result = run_pytest(tmp_path, *backend, "--simcoll-ranks", "2", "-k", "BC or own", "-rs")
    assert "1 failed, 3 passed, 1 skipped, 356 deselected" in result.stdout
    assert "BC-03: the source is named by global or by group rank, not both" in result.stdout
    assert "rank 0: element 0 is" in result.stdout
    assert "suite.py" not in result.stdout
    assert result.returncode == 1


@pytest.mark.slow
def test_pytest_refuses_an_unknown_backend_and_plays_none_unasked(tmp_path):
    result = run_pytest(tmp_path, "--simcoll-backend", "gloo")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "backend 'gloo': expected torch:gloo, torch:NAME, mpi, or MODULE:CLASS" in result.stderr
    assert "1 passed" in run_pytest(tmp_path).stdout
