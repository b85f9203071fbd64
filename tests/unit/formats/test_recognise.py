"""What a file is, by its content; and algorithms from files of any format."""

import gzip
import json
import pickle
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError, SimcollError
from simcoll.formats.recognise import TITLES, recognise, title_of
from simcoll.formats.schedules.schedule_files import (
    FORMATS,
    load_algorithm,
    parse_algorithm,
    schedule_of,
)
from tests.support.fuzzing import READERS

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(__file__).parent / "data"
PLAN = {"name": "p", "collective": "allgather", "gpus": []}

MARKS = [
    (b"<!-- made by hand --><algo name='a'/>", "msccl"),
    (b"\n<system version='1'/>", "nccl-topology"),
    (b"<graphs version='1'/>", "nccl-graph"),
    (b"<?xml version='1.0'?><!DOCTYPE platform SYSTEM 'simgrid.dtd'><platform/>", "simgrid"),
    (b"<graphml xmlns='x'/>", "graphml"),
    (b"<html>", "xml"),
    (json.dumps({"format": "f", "version": 1, "blocks": []}).encode(), "schedule"),
    (json.dumps(PLAN).encode(), "mscclpp"),
    (json.dumps(PLAN | {"gpus": [{"inputChunks": 1}]}).encode(), "mscclpp-old"),
    (b'{"version": "2.4", "entries": []}', "flight-record"),
    (pickle.dumps({"version": "2.4", "entries": []}), "flight-record"),
    (pickle.dumps([1]), "pickle"),
    (b'{"header": {}, "coll_perf": {}}\n{"header": {}, "coll_perf": {}}\n', "inspector"),
    (b'{"traceEvents": []}', "chrome-trace"),
    (b"[1, 2]", "json"),
    (b"// a tree\n/* of\n two */\nnum_ranks 2\nrank 0 {\n}\n", "goal"),
    (struct.pack("<QI", 4223, 2) + b"\0\0", "goal-binary"),
    (b"node1:1:2 [0] NCCL INFO Bootstrap", "nccl-log"),
    (b"\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tNV4\n", "smi-topology"),
    (b'vendid=0x2c9\nSwitch\t36 "S-1" # x\n', "ib-fabric"),
    (b"# comment\nallreduce,0,65536,tree,ll,-1,-1,-1\n", "nccl-tuner"),
    (b"# collective,bytesPerRank\nreduce,[5,),ring,ll,-1,2,8\n", "ncclx-tuner"),
    (b"allreduce,*,tree,simple,4,2,8,-1,-1,4096\n", "ncclx-tuner"),
    (b"1 # collectives\n2\n1\n64\n1\n0 3 0 0 # all\n", "openmpi-rules"),
    (b"rule-file-version-2\n1\n2\n1\n64\n1\n0 3 0 0 0\n", "openmpi-rules"),
    (b"1 2 3 4\n1\n", "text"),
    (b'export CCL_ALLREDUCE="ring:0-max"\n', "oneccl"),
    (b'{"rule_file_version": 3}', "openmpi-rules"),
    (b"1 # collectives\nbcast\n1\n2\n1\n1\n2\n0 tuned\n2049 han\n", "openmpi-han"),
    (b'{"collective=bcast": {}}', "mpich-selection"),
    (b"<?xml version='1.0'?>\n<!DOCTYPE topology SYSTEM 'hwloc2.dtd'>\n<topology/>", "hwloc"),
    (b"CA 'mlx5_0'\n\tCA type: MT4123\n\tNumber of ports: 1\n", "ibstat"),
    (b"                    RDMA_Write BW Test\n Dual-port       : OFF\n", "perftest"),
    (b" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]\n", "perftest"),
    (b"nvbandwidth Version: v0.5\nBuilt from Git version:\n", "bandwidth-test"),
    (b"[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\nDevice: 0, NVIDIA\n", "bandwidth-test"),
    (b"hca_id:\tmlx5_0\n\ttransport:\tInfiniBand (0)\n", "ibstat"),
    (b"# tree\nSwitchName=s0 Nodes=n[0-15]\n", "slurm-topology"),
    (b"[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2)\n", "watchdog"),
    (b"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1\n1\n", "astra-workload"),
    (b"MODEL\n2\nlayer0 -1 1000 ALLREDUCE 1024 1 NONE 0 1 NONE 0 1\n", "astra-workload"),
    (b"HloModule jit_step, is_scheduled=true\n", "hlo"),
    (b'#loc1 = loc("x")\nmodule @jit_f attributes {a = 1} {\n', "stablehlo"),
    (gzip.compress(b"x"), "gzip"),
    (b"  \n", "empty"),
    (b"hello", "text"),
    (b"\x7fELF\0\0", "binary"),
    (b"a = 1", "toml"),
]


@pytest.mark.parametrize(("content", "name"), MARKS, ids=[name for _, name in MARKS])
def test_marks(content, name):
    assert recognise(content) == name


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("topologies", "topology"),
        ("libraries", "library"),
        ("scenarios", "scenario"),
        ("scenarios/goodput", "goodput"),
        ("scenarios/plans", "plan"),
        ("scenarios/sweeps", "sweep"),
    ],
)
def test_shipped_files(folder, name):
    found = {path.name: recognise(path.read_bytes()) for path in (ROOT / folder).glob("*.toml")}
    assert found
    assert set(found.values()) == {name}


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)
def test_every_format_has_a_title(each):
    assert each.name in TITLES


@pytest.fixture(scope="module")
def samples():
    """A file of every kind; writing them takes longer than collecting a hundred tests."""
    seeds = [
        bytes(seed)
        for name, reader in READERS.items()
        if name != "recognise"
        for seed in reader.seeds()
    ]
    return {name: content for content, name in MARKS} | {recognise(seed): seed for seed in seeds}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TITLES)
def test_every_kind_is_recognised_and_what_is_no_algorithm_refused_by_its_title(kind, samples):
    content = samples[kind]
    assert recognise(content) == kind
    if kind not in {each.name for each in FORMATS}:
        with pytest.raises(ConfigError) as error:
            parse_algorithm(content)
        assert f"this is {TITLES[kind]}; expected an algorithm in one of the formats" in str(
            error.value
        )


def test_the_content_decides_not_the_name(tmp_path):
    file = tmp_path / "ring.json"
    file.write_bytes((DATA / "all_gather.xml").read_bytes())
    found = load_algorithm(file)
    assert not isinstance(found, Schedule)
    assert schedule_of(found).collective.kind == "all_gather"
    file.write_text("allreduce,0,65536,tree,ll,-1,-1,-1")
    with pytest.raises(
        ConfigError,
        match=r"ring.json: this is a configuration of NCCL's tuner plugin \(CSV\); expected",
    ):
        load_algorithm(file)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80), st.integers(0, len(MARKS) - 1), st.integers(0, 100))
def test_any_bytes_have_a_title(noise, which, at):
    content = MARKS[which][0]
    content = content[:at] + noise + content[at:]
    assert title_of(content)
    try:
        parse_algorithm(content)
    except SimcollError:
        return
