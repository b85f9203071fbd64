"""Real MSCCL files, when a directory with them is given: Azure/msccl-scheduler, ROCm/rccl, and
probes.

``SIMCOLL_SAMPLES`` names a directory with ``msccl/*.xml`` and ``msccl/negative/*.xml``. Steps, FIFO
depths and verdicts were measured with an independent replayer (FIFO depth 2 at Simple, 8 at LL).
"""

import os
from pathlib import Path

import pytest

import simcoll
from simcoll.errors import ScheduleError
from simcoll.formats import load_msccl_xml
from simcoll.proving import program_schedule, verify_program
from simcoll.topology import crossbar

SAMPLES = os.environ.get("SIMCOLL_SAMPLES")
pytestmark = pytest.mark.skipif(
    not SAMPLES, reason="SIMCOLL_SAMPLES names no directory with MSCCL files"
)
FOLDER = Path(SAMPLES or ".") / "msccl"


@pytest.mark.parametrize(
    ("name", "steps", "consistent"),
    [
        ("azure-ncv4-ag_hier_4_LL", 96, None),
        ("azure-ncv4-ar_hier_12_Simple", 336, True),
        ("azure-ndv4-a2a2ll", 240, None),
        ("azure-ndv4-ag-1k-512k", 224, None),
        ("azure-ndv4-ap-1pass", 4896, False),
        ("rccl-alltoall-8n-0-9kb", 120, None),
        ("rccl-alltoall-8n-9kb-190kb", 240, None),
    ],
)
def test_real_files_are_right(name, steps, consistent):
    program = load_msccl_xml(FOLDER / f"{name}.xml")
    proof = verify_program(program)
    assert proof.data
    assert proof.steps == steps
    assert (proof.order not in ("", "any")) is bool(consistent)
    if consistent is False:
        assert proof.order == "any"
    if name == "azure-ncv4-ag_hier_4_LL":
        assert proof.depth_used == 2
    schedule = program_schedule(program)
    assert simcoll.verify(schedule).order == proof.order
    plan = simcoll.bind(schedule, schedule.layout.chunks * 3, "float32")
    assert simcoll.emulate(plan, crossbar(program.nranks, "100 GB/s", "1 us")).wrong == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("probe_fifo_3", r"deadlock at FIFO depth 2 \(Simple\); depth 3 is enough"),
        ("probe_fifo_9", r"deadlock at FIFO depth 2 \(Simple\); depth 9 is enough"),
        ("probe_double", r"counted more than once: rank 0 input\[0\]"),
        ("probe_rrc_other_offset", r"4 wrong output chunks|wrong output chunks in all: 4"),
        ("probe_rrs_partial2", r"overwrites input\[0\] of rank 1: inputs are read-only"),
    ],
)
def test_probes_are_rejected(name, reason):
    with pytest.raises(ScheduleError, match=reason):
        verify_program(load_msccl_xml(FOLDER / "negative" / f"{name}.xml"))


def test_probes_that_are_right():
    """Two sends ahead fit into two slots; a partial send after a wider reduction is what it
    says.
    """
    assert verify_program(load_msccl_xml(FOLDER / "negative" / "probe_fifo_2.xml")).least_depth == 2
    assert verify_program(load_msccl_xml(FOLDER / "negative" / "probe_rrs_partial.xml")).data
