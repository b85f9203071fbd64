"""Every example in the README and the documentation runs and prints what it says.

A ``python`` block is executed, all blocks of a file top to bottom in one namespace; a ``text``
block right after one is what it prints. In a ``console`` block a line ``$ simcoll ...`` is run, and
the lines up to the next ``$`` are what it prints. ``...`` stands for anything.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, text, first line; ``follows``: only blank lines since the block
    before.
    """

    language: str
    text: str
    line: int
    follows: bool


def blocks(page):
    text, end, found = page.read_text(encoding="utf-8"), -1, []
    for match in FENCE.finditer(text):
        body = "".join(line.removeprefix(match[1]) for line in match[3].splitlines(keepends=True))
        found.append(
            Block(
                match[2],
                body,
                text.count("\n", 0, match.start()) + 2,
                end >= 0 and not text[end : match.start()].strip(),
            )
        )
        end = match.end()
    return found


def same(shown, printed):
    """Whether output is as shown, but for trailing blanks and what ``...`` stands for."""
    want, got = (
        "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"
        for text in (shown, printed)
    )
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


@pytest.fixture
def at_root(tmp_path, monkeypatch):
    """A folder to write to, in which the shipped folders are where they are in a checkout."""
    for folder in ("topologies", "scenarios", "docs"):
        if (ROOT / folder).exists():
            (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)


def commands(block):
    """``(command line, output shown, line)`` of every command of a console block."""
    found = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            found.append([line[2:], "", number])
        elif found and found[-1][0].endswith("\\"):
            found[-1][0] = found[-1][0][:-1] + line.strip()
        elif found:
            found[-1][1] += line + "\n"
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("at_root")
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.exists()], ids=lambda p: str(p.relative_to(ROOT))
)
def test_examples(page, monkeypatch):
    """Code and commands run in the order of the page, so that one may use the files of the
    other.
    """
    monkeypatch.setenv("COLUMNS", "120")
    if page.name == "pytorch.md":
        pytest.importorskip(
            "torch", reason="PyTorch is not installed: pip install 'simcoll[torch]'"
        )
    namespace, printed, wrong = {"__name__": "__main__"}, "", []
    for block in blocks(page):
        if block.language == "python":
            out = io.StringIO()
            # Blank lines before the code make the line numbers of an error those of the page.
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
            printed = out.getvalue()
        elif block.language == "text" and block.follows and printed:
            if not same(block.text, printed):
                wrong.append(f"{page.name}, line {block.line}: printed\n{printed}")
            printed = ""
        elif block.language == "console":
            wrong += [
                f"{page.name}, line {number}: $ {line}\n{out}"
                for line, shown, number in commands(block)
                if (out := run(line)) is not None and shown.strip() and not same(shown, out)
            ]
    assert wrong == []


def run(line):
    """What a command line of ours prints; None for those of other programs."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["simcoll"]:
        from simcoll.cli import main
    elif words[:1] == ["simcoll-check"]:
        from simcoll_check import main
    elif words[:3] == ["python", "-m", "simcoll.distributed.run"] and "mpi" not in words:
        from simcoll.distributed.run import main

        words = words[2:]
    else:
        return None
    out = io.StringIO()
    # Whose lines of progress no page shows.
    slow_machine = mock.patch("simcoll.cli.progress.LINE_S", 3600.0)
    with (
        slow_machine,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        contextlib.suppress(SystemExit),
    ):
        main(words[1:])
    return out.getvalue()


def test_blocks_are_found_as_written(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "a\n```python\nx = 1\n```\n\n```text\n1\n```\nb\n  ```console\n  $ simcoll a \\\n      b\n"
        "  out ...\n  ```\n"
    )
    found = blocks(page)
    assert [(b.language, b.line, b.follows) for b in found] == [
        ("python", 3, False),
        ("text", 7, True),
        ("console", 11, False),
    ]
    assert commands(found[2]) == [["simcoll a b", "out ...\n", 11]]
    assert same("a ... c\n", "a b c  \n")
    assert not same("a\n", "b\n")
