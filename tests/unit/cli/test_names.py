"""Names of files and folders, and names in files, reach a terminal without what moves its cursor,
sets its title or adds lines.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path

import pytest

import realcoll.commands
import simcoll.distributed.launch
import simcoll.distributed.run
from realcoll.process_errors import FaultError, MissingError
from simcoll.cli import app, main
from simcoll.errors import ConfigError, InternalError, ScheduleError
from simcoll.terminal import say, say_text

ROOT = Path(__file__).resolve().parents[3]
EVIL = "a\x1b[31mRED\x1b]0;TITLE\x07\u202eb\u2066\x9b2J\nFORGED "
"""Colours, a title, a bell, bidirectional controls, an eight-bit CSI, a line break."""


def said_by(function, words):
    """What a command line prints, and its exit status."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = function(words)
        except SystemExit as end:
            status = end.code
    return out.getvalue(), status


def assert_harmless(text):
    odd = {letter for letter in text if not (letter.isprintable() or letter in "\n\t")}
    assert odd == set()
    assert "\nFORGED" not in text
    assert "\ud800" not in text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an evil name, which is the current one, and whose files have evil names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    place = Path(EVIL)
    place.mkdir()
    (place / f"{EVIL}empty.json").write_text("{}")
    (place / f"{EVIL}nothing.toml").write_text("")
    (place / f"{EVIL}no.xml").write_text("<algo")
    for name in (
        "all-gather.xml",
        "two-nodes.log",
        "llama-8b.toml",
        "small-job.toml",
        "small-plan.toml",
        "weak-link.toml",
    ):
        shutil.copy(ROOT / "docs" / "howto" / name, place / f"{EVIL}{name}")
    # One design: what is compared prints no other names.
    plan = place / f"{EVIL}small-plan.toml"
    text = plan.read_text()
    plan.write_text(text.replace("[1, 2, 4]", "2").replace("[1, 2]", "1"))
    shutil.copy(ROOT / "scenarios" / "first-look.toml", place / f"{EVIL}scenario.toml")
    shutil.copy(ROOT / "topologies" / "dgx-h100.toml", place / f"{EVIL}machine.toml")
    return place


# A command with a file in each place that takes one; X is replaced by a file that does not exist,
# or whose content is wrong.
FILES = {
    "accuracy": ["--output X/page.md"],
    "calibrate": [
        "X -t dgx-h100 -o out.toml",
        "step X X -o out.toml",
        "two-nodes.log -t X -o out.toml",
    ],
    "compare": [
        "X -t dgx-h100",
        "two-nodes.log -t X",
        "two-nodes.log -t dgx-h100 --library X",
        "two-nodes.log -t dgx-h100 --calibration X",
    ],
    "convert": ["X out.xml", "ring out.xml -t X"],
    "diff": ["X X"],
    "faults": ["X", "scenario.toml -a X"],
    "flight": ["X", "X X"],
    "goodput": ["X"],
    "graph": ["X -t dgx-h100", "two-nodes.log -t X"],
    "job": ["X", "X X"],
    "list": ["X"],
    "perf": [
        "X",
        "all_reduce -t X",
        "all_reduce -a X",
        "all_reduce --library X",
        "all_reduce --calibration X",
        "all_reduce -p X",
        "all_reduce --degrade X",
        "all_reduce --fault X",
        "all_reduce --background X",
        "all_reduce -b X",
        "all_reduce -a ring -b 8 -e 8 -J X/out.json",
    ],
    "plan": ["X"],
    "run": ["X"],
    "show": ["X", "ring -t X", "ring --svg X/out.svg", "ring --json X/out.json"],
    "step": ["X", "llama-8b.toml --topology X", "llama-8b.toml --gpu X"],
    "sweep": ["X"],
    "tune": [
        "-t X -o out.csv",
        "-t dgx-h100 -o X/out.csv",
        "-t dgx-h100 -o out.csv --library X",
        "-t dgx-h100 -o out.csv --format X",
    ],
    "verify": ["X", "ring -t X", "ring --certificate X/proof.json"],
}
BAD = ("missing.json", "empty.json", "nothing.toml", "no.xml", "missing\ud800.toml", "")


def test_every_command_is_here():
    assert FILES.keys() == {name for name in app if not name.startswith("-")} - {
        "help",
        "completion",
    }


def words_of(line, place, name):
    known = {path.name.removeprefix(EVIL): str(path) for path in place.iterdir()}
    return [
        known.get(word, word.replace("X", str(place / f"{EVIL}{name}"))) for word in line.split()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", FILES)
def test_names_of_bad_files(command, folder):
    for line in FILES[command]:
        for name in BAD:
            text, status = said_by(main, [command, *words_of(line, folder, name)])
            assert_harmless(text)
            if command not in {"list", "flight", "accuracy"}:
                assert status in {1, 2}, (line, name, text)
                assert "RED" in text or "FORGED" in text, (line, name, text)


GOOD = (
    "verify all-gather.xml --certificate X.json",
    "show all-gather.xml --svg X.svg --json X.json",
    "convert all-gather.xml X.json",
    "compare two-nodes.log -t dgx-h100 --svg X.svg",
    "calibrate two-nodes.log -t dgx-h100 -o X.toml",
    (
        "perf all_reduce -t machine.toml -b 1M -e 1M -a ring -J X.json --csv X.csv --svg X.svg --trace "
        "X.json.gz"
    ),
    "run scenario.toml --output X",
    "step llama-8b.toml --output X",
    "goodput small-job.toml --output X --jobs 1",
    "plan small-plan.toml --tier 1 --output X --jobs 1",
    "tune -t dgx-h100 -o X.csv -b 1M -e 1M -c all_reduce",
    "faults scenario.toml --kind jitter --seeds 2 --output X",
)


@pytest.mark.slow
@pytest.mark.parametrize("line", GOOD, ids=lambda line: line.split()[0])
def test_names_of_good_files(line, folder):
    text, status = said_by(main, words_of(line, folder, "made"))
    assert_harmless(text)
    assert (status, "FORGED" in text) == (0, True), text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "words"),
    [
        (simcoll.distributed.run, "X"),
        (simcoll.distributed.run, "-n 2 program.py"),
        (simcoll.distributed.run, "-n 2 -t X program.py"),
        (simcoll.distributed.launch, "--nproc-per-node 1 --no-python X"),
        (realcoll.commands, "perf all_reduce -t local --predict X"),
        (realcoll.commands, "perf all_reduce -t X"),
        (realcoll.commands, "perf all_reduce -t local -a X -b 8 -e 8"),
        (realcoll.commands, "perf X"),
        (realcoll.commands, "perf all_reduce -t local -b 8 -e 8 -J X/out.json"),
        (realcoll.commands, "perf all_reduce -t local -b 8 -e 8 -n 1 -J X.json"),
        (realcoll.commands, "calibrate X/out.toml"),
    ],
)
def test_names_given_to_the_other_command_lines(module, words, folder):
    (folder / f"{EVIL}program.py").write_text(
        "def program(rank, world_size): ...\nassert 0\n" if "-t" not in words else ""
    )
    try:
        text, status = said_by(module.main, words_of(words, folder, "missing"))
    except AssertionError:  # of the program, which passes through
        return
    assert_harmless(text)
    assert "FORGED" in text
    assert status == (0 if words.endswith("X.json") else 2)


@pytest.mark.slow
def test_names_given_to_the_command_line_of_pytorch(folder):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'simcoll[torch]'")
    from simcoll.torch.__main__ import main as play_script

    (folder / f"{EVIL}fails.py").write_text("raise ValueError('\\033[31m' + __file__)\n")
    for name, expected in (("missing.py", 2), ("fails.py", 1)):
        text, status = said_by(play_script, ["-n", "2", str(folder / f"{EVIL}{name}")])
        assert_harmless(text)
        assert (status, "FORGED" in text) == (expected, True)


@pytest.mark.parametrize(
    "error", [ConfigError, ScheduleError, InternalError, FaultError, MissingError]
)
def test_the_text_of_every_error_is_harmless(error):
    assert_harmless(str(error("x\x1b[2J\ny\u202e\ud800")))
    assert str(error("one\n\ttwo")).startswith("one\n\ttwo")


def test_the_file_and_the_place_of_an_error_are_one_line():
    error = ConfigError("expected\na size", file=EVIL, path=f"$.{EVIL}")
    assert_harmless(str(error))
    assert str(error).count("\n") == 1
    assert error.file == EVIL  # for programs


def test_a_line_is_one_line(capsys):
    say("a\nb\x1b[0m")
    say("c\td", error=True)
    say()
    say_text("a\nb\x1b[0m\t.")
    assert capsys.readouterr() == ("a?b?[0m\n\na\nb?[0m\t.\n", "c?d\n")
