"""Without scipy and matplotlib: proofs, emulation, predictions and bounds of small cases work;
pictures are left out, and what needs a package says so in one line.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed import PACKAGES

ROOT = Path(__file__).parents[3]
COMPILING = "compiling the fast engine"  # where nobody has before


def without(tmp_path, *commands, check=False):
    """Run commands in a process that has neither package; statuses in the first line."""
    program = f"""
import sys
sys.modules["scipy"] = sys.modules["matplotlib"] = None
from simcoll.cli import main
print([main(words.split()) for words in {commands!r}])
"""
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=check,
        cwd=tmp_path,
        env={"PYTHONPATH": str(PACKAGES)},
    )


@pytest.mark.slow
def test_proofs_tables_predictions_and_results(tmp_path):
    shutil.copy(ROOT / "docs/howto/llama-8b.toml", tmp_path)
    done = without(
        tmp_path,
        "verify ring -n 12",
        "show ring -n 4",
        "perf all_reduce -b 1K -e 1K -v",
        "perf all_reduce -t dgx-h100 --nodes 2 -b 1M -e 1M --library nccl",
        "run first-look",
        "step llama-8b.toml",
    )
    errors = [line for line in done.stderr.splitlines() if COMPILING not in line]
    assert (errors, done.stdout.splitlines()[-1]) == ([], "[0, 0, 0, 0, 0, 0]")
    assert "# left out bfb: this needs scipy, which is not installed: pip install scipy" in (
        done.stdout
    )
    assert done.stdout.count("# no picture: matplotlib is not installed") == 2
    written = sorted(path.name for path in (tmp_path / "out/first-look").iterdir())
    assert written == ["results.csv", "results.json", "trace.json.gz"]


@pytest.mark.slow
def test_what_needs_a_package_says_so(tmp_path):
    done = without(
        tmp_path,
        "perf all_reduce -b 1M -e 1M -a ring --svg x.svg",
        "perf all_reduce -b 1M -e 1M -a bfb",
    )
    assert done.stdout.splitlines()[-1] == "[2, 2]"
    assert done.stderr == (
        "simcoll: no picture: matplotlib is not installed (pip install matplotlib)\n"
        "simcoll: this needs scipy, which is not installed: pip install scipy\n"
    )
    assert list(tmp_path.iterdir()) == []
