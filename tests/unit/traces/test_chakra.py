"""Chakra traces: the bytes against Google's protocol buffers, times by hand, round trips, and what
is refused.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.cli import main
from simcoll.emulator.programs import Call, Compute, Program, Send, emulate_program
from simcoll.errors import ConfigError
from simcoll.formats.chakra.nodes import Node, dump_nodes, parse_nodes
from simcoll.formats.recognise import recognise
from simcoll.topology import crossbar, load_topology
from simcoll.traces.chakra import load_chakra, parse_chakra
from simcoll.traces.chakra_writer import dump_chakra, traces_of_program, traces_of_workload
from simcoll.training.gpu import load_gpu
from simcoll.workload import workload as ours
from simcoll.workload.lower import WorkloadPlans, lower
from simcoll.workload.playing import run_workload

# Metadata, and a node with an attribute of each type, serialised by Google's protobuf 7.36 from
# MLCommons' et_def.proto.
OTHERS = bytes.fromhex(
    "150a05302e302e34120c0a06736368656d61ea010178ec020807120467656d6d18042203ac02022a020209300538d20942090a035b315d12025b5d52150a0a"
    "646f75626c655f76616c19000000000000f83f52100a09666c6f61745f76616c2d0000204052160a09696e7433325f76616c38fdffffffffffffffff015216"
    "0a09696e7436345f76616c48fcffffffffffffffff01520e0a0a75696e7433325f76616c5805520e0a0a75696e7436345f76616c6806520e0a0a73696e7433"
    "325f76616c780d520f0a0a73696e7436345f76616c88010f52130a0b666978656433325f76616c9d010900000052170a0b666978656436345f76616ca9010a"
    "0000000000000052140a0c73666978656433325f76616cbd01f5ffffff52180a0c73666978656436345f76616cc901f4ffffffffffffff520d0a08626f6f6c"
    "5f76616cd8010152110a0a737472696e675f76616cea0102c3a952100a0962797465735f76616cfa010200ff520d0a0464696d73e201040a020100520c0a04"
    "6d616e7952040a020102"
)
TWO = crossbar(2, "50 GB/s", "1 us")
DGX = load_topology("dgx-h100")
MS = 10**12


def files(*ranks):
    return [(dump_nodes({}, list(nodes)), f"t.{rank}.et") for rank, nodes in enumerate(ranks)]


def collective(number, kind, size, *after, **more):
    return Node(number, "c", "COMM_COLL", after, 0, {"comm_type": kind, "comm_size": size, **more})


def test_bytes_of_googles_protocol_buffers():
    metadata, (node,) = parse_nodes(OTHERS)
    assert metadata == {"schema": "x"}
    assert (node.number, node.name, node.kind, node.after, node.duration_us) == (
        7,
        "gemm",
        "COMP",
        (300, 2, 9),
        1234,
    )
    assert node.values == "[1]"
    assert node.attributes == {
        "double_val": 1.5,
        "float_val": 2.5,
        "int32_val": -3,
        "int64_val": -4,
        "uint32_val": 5,
        "uint64_val": 6,
        "sint32_val": -7,
        "sint64_val": -8,
        "fixed32_val": 9,
        "fixed64_val": 10,
        "sfixed32_val": -11,
        "sfixed64_val": -12,
        "bool_val": True,
        "string_val": "é",
        "bytes_val": b"\0\xff",
        "dims": (True, False),
    }
    assert recognise(OTHERS) == "chakra"
    assert parse_nodes(dump_nodes(metadata, [node])) == (metadata, [node])


def test_a_message_flows_when_its_sender_comes_to_it():
    # Each rank sends 1 MB and then receives, as in a ring: 1 us and 20 us at 50 GB/s, and 2 ms
    # before on rank 1.
    def rank(own, work):
        send = {"comm_src": own, "comm_dst": 1 - own, "comm_size": 10**6}
        receive = {"comm_src": 1 - own, "comm_dst": own, "comm_size": 10**6}
        return [
            Node(0, "w", "COMP", (), work),
            Node(1, "s", "COMM_SEND", (0,), 0, send),
            Node(2, "r", "COMM_RECV", (1,), 0, receive),
            Node(3, "after", "COMP", (2,), 1000),
        ]

    workload = parse_chakra(files(rank(0, 1000), rank(1, 3000)))
    result = run_workload(workload, TWO)
    assert result.time_fs == 3 * MS + 21 * 10**9 + MS
    assert result.compute_fs == 4 * MS


def test_the_size_of_a_collective_is_that_of_a_ranks_input():
    for kind, name, size in (
        (0, "all_reduce", 4096),
        (2, "all_gather", 8192),
        (7, "reduce_scatter", 4096),
        (6, "all_to_all", 4096),
    ):
        (call,) = parse_chakra(
            files([collective(0, kind, 4096)], [collective(0, kind, 4096)])
        ).operations
        assert (call.kind, call.size_bytes) == (name, size)


def test_work_is_timed_by_its_duration_or_by_a_gpu():
    node = Node(
        0, "gemm", "COMP", (), 7, {"num_ops": 10**12, "tensor_size": 10**9, "dtype": "bf16"}
    )
    h100 = load_gpu("h100")
    assert parse_chakra(files([node])).operations[0].time_fs == 7 * 10**9
    assert parse_chakra(files([node]), gpu=h100).operations[0].time_fs == round(
        10**12 / h100.gemm("bf16") * 1e15
    )


def test_groups_that_a_metadata_node_describes():
    said = '["[{\\"pg_name\\": \\"7\\", \\"ranks\\": [0, 2]}]"]'
    ranks = [[Node(9, "pg", "METADATA", values=said), collective(1, 0, 64, 9, pg_name="7")], [], []]
    ranks[2] = ranks[0]
    (call,) = (workload := parse_chakra(files(*ranks))).operations
    assert workload.groups_of(call).tolist() == [[0, 2]]


TIMES = st.sampled_from([0, 1, 10**6, 3 * 10**9, 1_234_567])


@st.composite
def workloads(draw):
    """Work, collectives and messages of two axes, on streams, with dependencies."""
    rows, columns = draw(st.sampled_from([(1, 2), (2, 2), (3, 2), (2, 3)]))
    ranks = np.arange(rows * columns).reshape(rows, columns)
    classes = {f"row {number}": row for number, row in enumerate(ranks)}
    groups = {"row": ranks, "column": np.ascontiguousarray(ranks.T)}
    made = []
    for number in range(draw(st.integers(1, 8))):
        after = tuple(str(each) for each in range(number) if draw(st.integers(0, 2)) == 0)
        stream = draw(st.sampled_from(["a", "b"]))
        one, other = (
            (f"row {each}" for each in draw(st.permutations(range(rows)))[:2])
            if rows > 1
            else ("row 0", "")
        )
        size = draw(st.integers(1, 99)) * 12 * rows * columns
        common = {"id": str(number), "stream": stream, "after": after}
        what = draw(st.sampled_from(["compute", "row", "column", "send", "meeting"]))
        if what == "compute" or (what == "send" and not other):
            made.append(ours.ComputeOperation(on=one, time_fs=draw(TIMES), **common))
        elif what == "send":
            made.append(
                ours.SendOperation(
                    source=one, target=other, size_bytes=draw(st.sampled_from([0, size])), **common
                )
            )
        elif what == "meeting":
            made.append(ours.CallOperation(kind="meeting", group="column", size_bytes=0, **common))
        else:
            kind = draw(
                st.sampled_from(
                    [
                        "all_reduce",
                        "all_gather",
                        "reduce_scatter",
                        "broadcast",
                        "all_to_all",
                        "barrier",
                    ]
                )
            )
            more = (
                {"sizes": ((0,),)}
                if kind == "barrier"
                else {"dtype": draw(st.sampled_from(["", "float32"]))}
            )
            more |= {"root": 1} if kind == "broadcast" and len(groups[what][0]) > 1 else {}
            size = 0 if kind == "barrier" else size
            on = (one,) if what == "row" and draw(st.booleans()) else ()
            made.append(
                ours.CallOperation(kind=kind, group=what, size_bytes=size, on=on, **common, **more)
            )
    protocol = draw(st.sampled_from(["ideal", "LL", "Simple"]))
    return ours.Workload(
        rows * columns, classes, groups, tuple(made), rules=ours.Rules(protocol=protocol)
    )


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(workloads())
def test_there_and_back_takes_the_same_time(workload):
    """Classes and groups come back in another form; every operation takes place as before."""
    topology = DGX

    def time_fs(each):
        return emulate_program(
            lower(each, WorkloadPlans(topology, rules=each.rules))[0], topology, data="none"
        ).time_fs

    traces = traces_of_workload(workload)
    back = parse_chakra([(content, None) for content in dump_chakra(traces, workload.rules)])
    assert time_fs(back) == time_fs(workload)
    program = lower(workload, WorkloadPlans(topology, rules=workload.rules))[0]
    again = parse_chakra(
        [(content, None) for content in dump_chakra(traces_of_program(program), workload.rules)]
    )
    assert time_fs(again) == time_fs(workload)


@pytest.mark.slow
def test_a_plan_as_messages_takes_its_time():
    topology = crossbar(4, "50 GB/s", "1 us")
    for kind, name in (
        ("all_reduce", "ring"),
        ("all_gather", "bruck"),
        ("all_to_all", "pairwise"),
        ("broadcast", "tree"),
    ):
        plan = simcoll.bind(simcoll.schedule(kind, name, nranks=4), 1 << 16)
        program = Program(
            4,
            [Compute([0, 1, 2, 3], MS), Call(plan, after=0), Send([(0, 1), (1, 2)], 999, after=1)],
        )
        lowered = dump_chakra(traces_of_program(program, lowered=True), ours.Rules())
        workload = parse_chakra([(content, None) for content in lowered])
        assert (
            run_workload(workload, topology, exposed=False).time_fs
            == simcoll.emulate(program, topology).time_fs
        )
    nvls = simcoll.bind(simcoll.schedule("all_reduce", "nvls", nranks=4), 1 << 16)
    with pytest.raises(ConfigError, match="of a switch; a trace has messages between two ranks"):
        traces_of_program(Program(4, [Call(nvls)]), lowered=True)
    staged = simcoll.bind(
        simcoll.schedule("all_reduce", "hierarchical", nranks=4, box=2, pieces=2), 1 << 16
    )
    with pytest.raises(
        ConfigError,
        match=r"a Chakra trace cannot hold hierarchical.*: its messages of different channels wait",
    ):
        traces_of_program(Program(4, [Call(staged)]), lowered=True)


def test_files_of_all_ranks(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"run.{rank}.et").write_bytes(files([collective(0, 0, 64)])[0][0])
    (tmp_path / "other.0.et").write_bytes(b"")
    for name in ("run", "run.et", "run.1.et"):
        assert load_chakra(tmp_path / name).nranks == 2
    (tmp_path / "run.3.et").write_bytes(b"")
    for name, said in (
        ("run", "the file of rank 2 is missing"),
        ("walk", "there is no such file, nor walk.0.et"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_chakra(tmp_path / name)


COMP = Node(0, "w", "COMP", (), 1)
REFUSED = {
    "a circle": (
        [[Node(0, "a", "COMP", (1,), 1), Node(1, "b", "COMP", (0,), 1)]],
        "depends on itself",
    ),
    "an id twice": ([[COMP, COMP]], "id 0 is a duplicate"),
    "an unknown group": ([[collective(0, 0, 64, pg_name="3")]], "nothing describes group '3'"),
    "dimensions": ([[collective(0, 0, 64, involved_dim=(True, False))]], r"involved_dim \[1, 0\]"),
    "an unknown collective": ([[collective(0, 12, 64)]], "comm_type 12"),
    "no size": (
        [[Node(0, "c", "COMM_COLL", (), 0, {"comm_type": 0})]],
        "comm_size: expected a whole number of at least 0, got none",
    ),
    "a rank that does not come": (
        [[collective(0, 0, 64)], [COMP]],
        "rank 1 never comes to it; rank 0 does",
    ),
    "ranks that differ": (
        [[collective(0, 0, 64)], [collective(0, 0, 65)]],
        "rank 1 asks for .* 65 bytes .*, rank 0 for .* 64 bytes",
    ),
    "a message to nobody": (
        [[Node(0, "s", "COMM_SEND", (), 0, {"comm_dst": 4, "comm_size": 1})]],
        "rank 4 does not exist",
    ),
    "memory": (
        [[Node(0, "m", "MEM_LOAD", (), 0, {"tensor_size": 64})]],
        "no duration, and no memory is modelled",
    ),
    "a circle of ranks": (
        [
            [collective(0, 0, 64, pg_name="0"), collective(1, 2, 64, 0)],
            [collective(0, 2, 64), collective(1, 0, 64, 0)],
        ],
        "asks for",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    ranks, said = REFUSED[case]
    with pytest.raises(ConfigError, match=said):
        parse_chakra(files(*ranks))


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 12, b"\x05\x0a\x09", OTHERS[:-3], b"\x03\x0a\x01\x41\x02\x18\x09"]
)
def test_no_trace(content):
    with pytest.raises(ConfigError, match="not a Chakra execution trace"):
        parse_nodes(content)


def test_a_prefix_is_converted_as_it_is_played(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "ring", "r.et", "-n", "4", "-s", "64K", "--to", "chakra-messages"]) == 0
    for source in ("r", "r.0.et"):
        assert main(["convert", source, f"of-{source}.json", "--to", "workload"]) == 0
    assert (tmp_path / "of-r.json").read_bytes() == (tmp_path / "of-r.0.et.json").read_bytes()
    capsys.readouterr()


def test_what_a_node_needs_from_before_the_trace_is_done():
    workload = parse_chakra(
        files([Node(7, "a", "COMP", (2, 5), 3), Node(8, "b", "COMP", (7, 5), 4)])
    )
    assert workload.title == "2 nodes outside the trace taken as done"
    first, second = workload.operations
    assert (first.after, second.after) == ((), (first.id,))


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


def message(*fields):
    """A message of fields with bytes, by number."""
    return b"".join(bytes([number << 3 | 2]) + varint(len(raw)) + raw for number, raw in fields)


SCHEMA = b"\x0a\x06schema\xea\x01\x051.0.1"
NODES = dump_nodes({}, [Node(0, "w", "COMP", (), 1), Node(1, "v", "COMP", (0,), 1)])
NODES = NODES[1 + NODES[0] :]


@pytest.mark.parametrize(
    "metadata",
    [
        message((2, SCHEMA)),
        message((2, SCHEMA), (1, b"0.0.4")),
        message((1, b"0.0.4"), (2, SCHEMA)),
        message((1, b"1.1.1-chakra.0.0.4")),
        b"",
    ],
    ids=["no version", "version last", "version first", "long version", "empty"],
)
def test_traces_of_other_writers_are_recognised(metadata):
    content = varint(len(metadata)) + metadata + NODES
    assert recognise(content) == "chakra"
    assert [node.name for node in parse_nodes(content)[1]] == ["w", "v"]
    assert recognise(content[: len(metadata) + 4]) == "chakra"


@pytest.mark.parametrize(
    "content",
    [b"\x00", b"\x00hello", b"\x02\x18\x01rest", b"\x05\x0a\x03abc\xff\xff", b"\n\x0a\x01"],
)
def test_other_files_are_not_traces(content):
    assert recognise(content) != "chakra"
