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


@pytest.fixture(scope="module")
def compiled_program(tmp_path_factory):
    """A program, run once, and the index of what it has compiled."""
    folder = tmp_path_factory.mktemp("compiled")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    assert run(program) == (0, "2\n", "")
    (index,) = (folder / "cache").rglob("*.nbi")
    return program, index


def run(program):
    """The status and the texts of a process, which compiles beside the program."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(program.parent / "cache")}
    done = subprocess.run(
        [sys.executable, program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("content", ["moved", "torn", "nonsense"])
def test_an_index_that_cannot_be_read_is_written_anew(content, compiled_program):
    program, index = compiled_program
    with index.open("rb") as file:
        version = pickle.load(file)
    payload = pickle.dumps(((0.0, 0), {"signature": Moved()}))
    damaged = (
        pickle.dumps(version)
        + {"moved": payload, "torn": payload[:5], "nonsense": b"nonsense"}[content]
    )
    index.write_bytes(damaged)
    assert run(program) == (0, "2\n", "")
    assert index.read_bytes() != damaged
    assert run(program) == (0, "2\n", "")
