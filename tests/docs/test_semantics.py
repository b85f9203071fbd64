"""docs/reference/semantics.md: which statement of torch.distributed's documentation which test
holds, and what differs.

``simcoll/testing/conformance/statements.toml`` has the statements. The docstring of a test, in any folder, begins with the rows
that it holds: ``AR-01 AR-02: what is stated``. ``pytest --bless`` rewrites the page.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
PAGE = TESTS.parent / "docs" / "reference" / "semantics.md"

SOURCE = TESTS.parent / "simcoll" / "testing" / "conformance" / "statements.toml"
TABLE = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
DIFFERENCES, NOTES = TABLE.pop("differences"), TABLE.pop("notes")
STATEMENTS = {
    f"{prefix}-{number:02d}": statement
    for prefix, section in TABLE.items()
    for number, statement in enumerate(section["statements"], 1)
}
HEAD = """# torch.distributed's semantics, statement by statement

What `simcoll.distributed` does, statement by statement, and the test of each. A row is a statement of the torch.distributed
documentation (PyTorch 2.8), or an observed behaviour of torch 2.13 with gloo. W is the world size, r the rank. A ✓ means that the
named tests check the statement, and ≠ that simcoll differs, with the reason. *simcoll* notes its behaviour where torch differs from
its documentation or leaves something open, or where simcoll does more.

{held} of the {rows} rows have a test. In addition, `test_golden.py` replays recorded results of gloo: some in every run, all
4,581 (tensors and objects, 1 to 8 ranks) if `SIMCOLL_GOLDEN` names the folder with them. `test_torch_programs.py` tests
DistributedDataParallel, `fully_shard`, DTensor and the other parts of PyTorch that build on these calls, as PyTorch ships them.

Of the distributed tests that ship with PyTorch, played on 4 ranks ([all numbers](torch.md#pytorchs-own-tests)):

| | pass | fail | skip |
|---|---:|---:|---:|
| gloo, in processes | 116 | 0 | 192 |
| simcoll, called `gloo` | 116 | 0 | 192 |
| simcoll, called `simcoll` | 90 | 0 | 218 |
| the same, with tests that only gloo's name excludes | 112 | 0 | 196 |
| simcoll, called `simcoll`, with simulated GPUs | 142 | 1 | 165 |

PyTorch skips 22 tests by comparing the backend's name with `gloo`; no capability that a backend could
declare is asked for. With simulated GPUs, as `python -m simcoll.torch` shows them to scripts, it plays its tests of GPUs.
Its failure there is a race that the run finds: the model of `test_ddp_buffer_hook_allreduce_return_future` changes a buffer that is being reduced.

`tests/docs/test_semantics.py` prints this page (`pytest --bless`).
"""
ROWS = re.compile(r"((?:[A-Z][A-Z0-9]{1,2}-\d\d )*[A-Z][A-Z0-9]{1,2}-\d\d): ", re.DOTALL)


@cache
def held():
    """For every row the tests that hold it."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py"), key=lambda path: path.name):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match = (
                ROWS.match(ast.get_docstring(node) or "")
                if isinstance(node, ast.FunctionDef)
                else None
            )
            if match and node.name.startswith("test"):
                for row in match[1].split():
                    found.setdefault(row, []).append(f"`{path.stem}::{node.name}`")
    return found


def line(row, tests):
    statement = STATEMENTS[row].replace("|", "\\|")
    if row not in tests:
        return f"| {row} | ≠ | {statement} | {DIFFERENCES.get(row, 'missing')} |"
    note = f"<br>*simcoll: {NOTES[row]}*" if row in NOTES else ""
    return f"| {row} | ✓ | {statement}{note} | {'<br>'.join(tests[row][:2])} |"


def page():
    tests = held()
    lines = [HEAD.format(held=len(tests), rows=len(STATEMENTS))]
    for prefix, section in TABLE.items():
        lines += [
            f"\n## {section['title']}\n",
            "| row | | statement | test, or difference |",
            "|---|---|---|---|",
        ]
        lines += [line(row, tests) for row in STATEMENTS if row.split("-")[0] == prefix]
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_every_row_is_held_or_named():
    tests = held()
    assert [row for row in STATEMENTS if row not in tests and row not in DIFFERENCES] == []
    assert sorted(set(tests) - set(STATEMENTS)) == []
    assert sorted(set(tests) & set(DIFFERENCES)) == []
    assert sorted((set(NOTES) | set(DIFFERENCES)) - set(STATEMENTS)) == []


@pytest.mark.slow
def test_the_page_is_what_the_tests_say(request):
    if request.config.getoption("--bless"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()
