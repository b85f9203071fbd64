"""All readers with their first files."""

from __future__ import annotations

from tests.support.first_files import Reader
from tests.support.first_files.dumps import DUMPS
from tests.support.first_files.fabrics import FABRICS
from tests.support.first_files.hangs import HANGS
from tests.support.first_files.matrices import AMD, NVIDIA
from tests.support.first_files.notes import NAMED
from tests.support.first_files.platforms import SIMGRID
from tests.support.first_files.schedules import GOAL, MSCCL
from tests.support.first_files.tables import TABLES
from tests.support.first_files.traces import CHAKRA, NETWORKS, SYSTEMS

__all__ = ["EVERY", "LEAST"]

LEAST = 10
"""Number of kinds of files that each reader has at least."""
EVERY: tuple[Reader, ...] = (
    NVIDIA,
    AMD,
    DUMPS,
    FABRICS,
    SIMGRID,
    NAMED,
    TABLES,
    HANGS,
    CHAKRA,
    NETWORKS,
    SYSTEMS,
    MSCCL,
    GOAL,
)
