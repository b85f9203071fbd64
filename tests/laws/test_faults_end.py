"""A slice of ``python -m tests.laws.fault_matrix``: a fault ends everything in the time that is
stated, and leaves nothing.
"""

import signal

import pytest

from tests.laws.fault_matrix import NOT_REACHED, Cell, cells, play
from tests.support.mpi import needs_mpi


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(
    ("launcher", "fault", "victim", "phase"),
    [
        ("realcoll", signal.SIGSTOP, "0", "mpi"),  # MPI itself would wait for it without limit
        ("simcoll", signal.SIGSTOP, "1", "start"),
        ("simcoll", signal.SIGKILL, "launcher", "run"),
    ],
)
def test_a_fault_ends_everything(launcher, fault, victim, phase):
    cell = Cell(launcher, fault, victim, phase)
    outcome = play(cell, 2.0)
    if outcome.wrong == (NOT_REACHED,):  # a busy machine starts a rank later than others wait
        outcome = play(cell, 10.0)
    assert outcome.wrong == ()


def test_the_matrix_has_every_fault_of_every_process_in_every_phase():
    found = list(cells(["realcoll", "mpiexec", "simcoll"]))
    assert len(set(found)) == len(found) == 2 * 5 * 4 * 3 + 4 * 4 * 3
