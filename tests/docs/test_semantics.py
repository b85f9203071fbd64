"""docs/semantics.md: which statement of the torch.distributed documentation which test holds, and what differs.

The docstring of a test begins with the rows that it holds: ``AR-01 AR-02: what is stated``. ``pytest --bless`` rewrites the page.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "semantics.md"

SECTIONS = {
    "SIG": (30, "Signatures"), "BK": (12, "Backends"), "IN": (30, "Initialisation and shutdown"), "GR": (25, "Groups and ranks"),
    "NM": (8, "Outside of the group"), "DM": (26, "DeviceMesh"), "PP": (40, "Point to point"), "WK": (16, "Work and futures"),
    "BC": (4, "broadcast"), "AR": (10, "all_reduce"), "RD": (3, "reduce"), "AG": (6, "all_gather"), "AT": (6, "all_gather_into_tensor"),
    "GA": (6, "gather"), "SC": (6, "scatter"), "RS": (7, "reduce_scatter"), "RT": (4, "reduce_scatter_tensor"),
    "A1": (9, "all_to_all_single"), "AA": (4, "all_to_all"), "BA": (3, "barrier"), "OB": (12, "Objects"), "RO": (13, "Reduction operators"),
    "MB": (10, "monitored_barrier"), "DB": (10, "Debugging"), "ST": (33, "Stores"), "CS": (21, "torch.cuda.comm.scatter"),
    "LA": (6, "Launch"),
}  # fmt: skip

NO_DEVICES = (
    "numpy arrays have no device: this scatter moves data between the devices of one process, not between ranks"
)
DIFFERENCES = {
    "SIG-29": NO_DEVICES,
    **{f"CS-{number:02d}": NO_DEVICES for number in range(1, 22)},
    "BK-01": "every backend name is played by the emulator, which does all operations",
    "BK-02": "as BK-01: what gloo cannot do on GPUs is done here",
    "BK-03": "as BK-01: nccl's restriction to GPUs does not hold here",
    "BK-04": "mpi is there when a backend of that name is registered",
    "IN-29": "ranks of one process need no connections",
    "IN-30": "ranks of one process use no network interface",
    "GR-15": "mpi is not built in; a registered backend of that name gets the ValueError",
    "PP-14": "tags work whatever the name of the backend",
    "PP-35": "there is no connection set-up in which all ranks would have to take part",
    "WK-14": "there are no streams: wait() blocks the rank, and the result is there after it",
    "AR-07": "the order of float sums is that of the schedule: the same in every run, and proved",
    "RO-06": "AVG divides the sum, as gloo and NCCL's plans here do: 3e38 twice is inf, and recorded results of gloo are met bit for bit",
    "RO-12": "what MIN and MAX make of NaN follows numpy: NaN wins",
    "RO-13": "there are no sparse arrays",
    "MB-02": "monitored_barrier works with every backend name",
    "DB-08": "there is no DistributedDataParallel here, so nothing that it would log",
    "LA-05": "the trace of a run takes the profiler's place",
    "LA-06": "functions for several devices of one process were removed from torch",
}
NOTES = {
    "BK-07": "differs: an unknown backend is a ValueError with the nearest name; torch has an AssertionError",
    "BK-10": "differs: the default backend is the emulator for cpu and cuda",
    "BK-12": "differs: gloo and nccl are there, emulated",
    "RO-02": "differs: 16-bit integers work",
    "RO-05": "differs from gloo: whole numbers work, as with NCCL",
    "DB-04": "differs: op and root are compared too",
    "DB-06": "differs: the table is complete, so that an asynchronous call raises at wait()",
    "GR-12": "differs: a ValueError instead of an accident",
    "GR-22": "differs: a ValueError instead of another group's ranks",
    "PP-21": "differs: an error, unless spawn(debug=False)",
    "A1-04": "differs from gloo: always checked",
}
HEAD = """# torch.distributed's semantics, statement by statement

This page is made by `tests/docs/test_semantics.py` (`pytest --bless` rewrites it). Each row is a statement of the
torch.distributed documentation (PyTorch 2.8), or of what torch 2.13 with gloo was seen to do; the test that holds it runs with every
change. Beside these, `tests/unit/distributed/test_golden.py` replays recorded results of gloo: a part in every run, all {golden} (tensors
and objects, 1 to 8 ranks) where the folder with them is given in `SIMCOLL_GOLDEN`.

{held} rows are held by a test; {named} stand here as a difference, with the reason.
"""
ROWS = re.compile(r"((?:[A-Z][A-Z0-9]{1,2}-\d\d )*[A-Z][A-Z0-9]{1,2}-\d\d): (.*)", re.DOTALL)


def held():
    """For every row the tests that hold it, with what they state."""
    found = {}
    for path in sorted((TESTS / "unit" / "distributed").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match = ROWS.match(ast.get_docstring(node) or "") if isinstance(node, ast.FunctionDef) else None
            if match and node.name.startswith("test"):
                statement = " ".join(match[2].split()).rstrip(".")
                for row in match[1].split():
                    found.setdefault(row, []).append((f"{path.stem}::{node.name}", statement))
    return found


def all_rows():
    return [f"{prefix}-{number:02d}" for prefix, (count, _) in SECTIONS.items() for number in range(1, count + 1)]


def page():
    tests = held()
    lines = [HEAD.format(golden="4,581", held=len(tests), named=len(DIFFERENCES))]
    for prefix, (_, title) in SECTIONS.items():
        lines += [f"\n## {title}\n", "| row | | statement | test |", "|---|---|---|---|"]
        for row in all_rows():
            if row.split("-")[0] != prefix:
                continue
            if row in tests:
                where = "<br>".join(f"`{name}`" for name, _ in tests[row][:2])
                note = f" *({NOTES[row]})*" if NOTES.get(row) else ""
                text = tests[row][0][1].replace("|", "\\|")
                lines.append(f"| {row} | ✓ | {text}{note} | {where} |")
            else:
                lines.append(f"| {row} | ≠ | {DIFFERENCES.get(row, 'missing')} | |")
    return "\n".join(lines) + "\n"


def test_every_row_is_held_or_named():
    rows, tests = all_rows(), held()
    assert [row for row in rows if row not in tests and row not in DIFFERENCES] == []
    assert sorted(set(tests) - set(rows)) == []
    assert sorted(set(tests) & set(DIFFERENCES)) == []


def test_the_page_is_what_the_tests_say(request):
    if request.config.getoption("--bless"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()
