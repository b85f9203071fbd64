"""A cache of compiled code that another version left does no harm."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

pytest.importorskip("numba")

PROGRAM = """
from simcoll.emulator.fast.compiled import entry

@entry
def following(number):
    return number + 1

print(following(1))
"""


class Moved:
    """Stands for a type of a module that is gone."""

    def __reduce__(self):
        return (pickle.loads, (b"cmodule_of_another_version\nThing\n.",))


@pytest.mark.slow
@pytest.mark.parametrize("content", ["moved", "torn", "nonsense"])
def test_an_index_that_cannot_be_read_is_written_anew(content, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run():
        return subprocess.run(
            [sys.executable, program],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    assert run().stdout == "2\n"
    (index,) = (tmp_path / "cache").rglob("*.nbi")
    with index.open("rb") as file:
        version = pickle.load(file)
    payload = pickle.dumps(((0.0, 0), {"signature": Moved()}))
    index.write_bytes(
        pickle.dumps(version)
        + {"moved": payload, "torn": payload[:5], "nonsense": b"nonsense"}[content]
    )
    again = run()
    assert (again.stdout, again.stderr) == ("2\n", "")
    assert (run().stdout, run().returncode) == ("2\n", 0)
