"""Help, listings and completion: what a newcomer types first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from io import StringIO

import pytest

from realcoll.commands import app as realcoll_app
from realcoll.commands import main as realcoll_main
from simcoll.cli import app, main
from simcoll.core.collective import KINDS
from simcoll.core.reduction import parse_dtype
from simcoll.errors import ConfigError


def test_help_shows_a_command(capsys):
    assert main(["help", "calibrate", "step"]) == 0
    assert "simcoll calibrate step" in capsys.readouterr().out
    assert main(["help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in app if not name.startswith("-"))
    assert main(["help", "prf"]) == 2
    assert "no command 'prf'; did you mean 'perf'?" in capsys.readouterr().err


def test_perf_without_a_collective_lists_them(capsys):
    assert main(["perf"]) == 2
    shown = capsys.readouterr()
    assert "expected a COLLECTIVE, for example: simcoll perf all_reduce" in shown.err
    assert [line.split()[0] for line in shown.out.splitlines()] == list(KINDS)


@pytest.mark.slow
def test_list_without_an_argument_says_what_there_is(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in lines:
        *_, what, number = line.split()
        assert main(["list", what]) == 0
        rows = capsys.readouterr().out.splitlines()
        assert len(rows) - rows[0].startswith(("collective ", "model ")) == int(number) > 0
    assert len(lines) == 10


@cache
def completion(program, shell):
    """The script that a program prints."""
    with redirect_stdout(StringIO()) as script:
        assert {"simcoll": main, "realcoll": realcoll_main}[program](["completion", shell]) == 0
    return script.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_every_command(shell):
    script = completion("simcoll", shell)
    assert all(name in script for name in app if not name.startswith("-"))
    assert "topology" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("simcoll pe", "perf"),
        ("simcoll perf --topo", "--topology"),
        ("simcoll perf all_red", "all_reduce"),
        ("simcoll perf -t dgx-h1", "dgx-h100"),
        ("simcoll perf --algorithm rabens", "rabenseifner"),
        ("simcoll show recursive_mul", "recursive_multiplying"),
        ("simcoll list topo", "topologies"),
        ("simcoll perf -p LL1", "LL128"),
        ("simcoll perf -d bfl", "bfloat16"),
        ("simcoll help swe", "sweep"),
        ("simcoll tune --format openmpi-h", "openmpi-han"),
        ("simcoll goodput ll", "llama3-405b"),
        ("realcoll perf --predict dgx-h1", "dgx-h100"),
        ("realcoll perf -a rabens", "rabenseifner"),
    ],
)
def test_bash_completes(typed, expected):
    words = typed.split()
    script = completion(words[0], "bash")
    tried = (
        f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _{words[0]}; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{tried}"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == expected.split()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
@pytest.mark.parametrize("program", ["simcoll", "realcoll"])
def test_zsh_completes_from_the_first_time_it_loads_the_script(program, tmp_path):
    (tmp_path / f"_{program}").write_text(completion(program, "zsh"))
    loaded = (
        f"fpath=({tmp_path} $fpath); autoload -Uz _{program}; _arguments() {{ print asked; "
        f"}}; _{program}"
    )
    sourced = f"compdef() {{ print $@; }}; source {tmp_path}/_{program}"
    for command, said in ((loaded, "asked\n"), (sourced, f"_cyclopts_{program} {program}\n")):
        done = subprocess.run(
            ["zsh", "-fc", command], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.stdout, done.stderr) == (said, "")


@pytest.mark.slow
def test_completion_leaves_the_commands_as_they_are(capsys):
    """Names are completed, not required: a file is still a topology."""
    assert main(["completion", "bash"]) == 0
    assert (
        main(
            [
                "perf",
                "barrier",
                "-t",
                "topologies/crossbar.toml",
                "-p",
                "ideal",
                "-a",
                "dissemination",
            ]
        )
        == 0
    )
    assert main(["completion", "tcsh"]) == 2
    assert "no completion for 'tcsh'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("half", "float16"),
        ("float", "float32"),
        ("double", "float64"),
        ("fp8_e4m3", "float8_e4m3fn"),
        ("torch.bfloat16", "bfloat16"),
        ("torch.int64", "int64"),
    ],
)
def test_short_names_of_types(given, name):
    assert parse_dtype(given).name == name


@pytest.mark.slow
def test_types_of_pytorch_are_known():
    torch = pytest.importorskip("torch")
    for each in (torch.float16, torch.bfloat16, torch.float8_e5m2, torch.int32, torch.bool):
        assert parse_dtype(each).name == str(each).removeprefix("torch.")
    with pytest.raises(ConfigError, match="unknown dtype"):
        parse_dtype(torch.qint8)


def commands(app, path=()):
    """Every command of an application, by the words that call it."""
    for name in app:
        if not name.startswith("-"):
            yield from commands(app[name], (*path, name))
    if app.default_command is not None:
        yield path, app


@pytest.mark.parametrize(
    ("path", "command"),
    [
        pytest.param(path, command, id=" ".join((program.name[0], *path)))
        for program in (app, realcoll_app)
        for path, command in commands(program)
        if path
    ],
)
def test_every_option_has_a_description(path, command):
    arguments = command.assemble_argument_collection(parse_docstring=True)
    options = [argument for argument in arguments if not argument.children]
    assert [option.name for option in options if not option.parameter.help] == []
    assert len({option.name for option in options}) == len(options)


@pytest.mark.slow
def test_help_wraps_paragraphs_to_the_terminal_and_not_as_the_code_does():
    run = subprocess.run(
        [sys.executable, "-m", "simcoll", "run", "--help"],
        env={**os.environ, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    group = next(line for line in run.stdout.splitlines() if "--group" in line)
    assert "fastest first, such as tp=8,dp=64: a table for one group of each axis" in group
