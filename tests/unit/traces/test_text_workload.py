"""Text workloads of ASTRA-sim and SimAI: the orders of their strategies, groups, and errors."""

from __future__ import annotations

import json

import msgspec
import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.formats.reports.astra_workload import parse_astra_workload
from simcoll.topology import load_topology
from simcoll.traces.text_workload import text_workload
from simcoll.workload.playing import run_workload
from simcoll.workload.workload import CallOperation, Workload, map_operations

NS = 10**6


def read(text: str, nranks: int | None = 16, ranks_per_node: int | None = 8) -> Workload:
    return text_workload(parse_astra_workload(text), nranks, ranks_per_node)[0]


def time_ns(workload: Workload, ns_per_byte: int = 3) -> int:
    """The time with collectives that take some nanoseconds a byte."""
    operations = map_operations(
        workload.operations,
        lambda operation: (
            msgspec.structs.replace(operation, service_fs=operation.size_bytes * ns_per_byte * NS)
            if isinstance(operation, CallOperation)
            else operation
        ),
    )
    timed = Workload(workload.nranks, workload.classes, workload.groups, operations)
    machine = load_topology("dgx-h100", nodes=2)
    result = run_workload(timed, machine, tier=1, exposed=False)
    assert result.time_fs % NS == 0
    return result.time_fs // NS


LAYERS = """
2
low -1 10 ALLREDUCE 1 20 ALLREDUCE 2 40 ALLREDUCE 100 0
high -1 11 ALLREDUCE 3 21 ALLREDUCE 4 41 ALLREDUCE 100 0
"""


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # Forward 10 + 11; then 41, 21, 40; reductions of 300 begin at 62 and end at 662.
        ("DATA", 62 + 300 + 300),
        # Each forward pass waits for its 3 and 9; the backward one hides 12 behind 41.
        ("MODEL", 10 + 3 + 11 + 9 + 21 + 41 + 20 + 40),
        # The two groups have streams of their own: reductions of 300 begin at 95.
        ("HYBRID_DATA_MODEL", 10 + 3 + 11 + 9 + 21 + 41 + 300 + 300),
        ("HYBRID_MODEL_DATA", 10 + 3 + 11 + 9 + 21 + 41 + 300 + 300),
        # Gradients of inputs are waited for at once, those of the first layer too.
        ("HYBRID_TRANSFORMER model_parallel_NPU_group: 8", 33 + 21 + 12 + 41 + 300 + 300),
        ("DISTRIBUTED_INFERENCE", 10 + 3 + 11 + 9),
        ("MICRO", 600),
    ],
)
def test_the_order_of_passes_by_hand(strategy, expected):
    assert time_ns(read(strategy + LAYERS)) == expected


def test_layers_since_a_checkpoint_are_computed_again():
    head = (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 "
        "checkpoints: 1 0 checkpoint_initiates: 1 2"
    )
    rows = "".join(f"l{place} -1 {10**place} NONE 0 0 NONE 0 0 NONE 0 0\n" for place in range(4))
    # Before the backward pass of layer 2, layers 0 and 1 again.
    assert time_ns(read(f"{head}\n4\n{rows}")) == 1111 + 11


def test_dlrm_exchanges_embeddings_beside_the_bottom_layers():
    text = (
        "HYBRID_DLRM DLRM_LAST_BOTTOM_LAYER: 1\n3\n"
        "embedding -1 10 ALLTOALL 100 7 ALLTOALL 200 0 NONE 0 0\n"
        "bottom -1 20 NONE 0 5 NONE 0 30 ALLREDUCE 1 0\n"
        "top -1 40 NONE 0 6 NONE 0 50 ALLREDUCE 1 0\n"
    )
    # The top waits for the exchange (10 + 300); a reduction of 3 queues behind the exchange of 600.
    assert time_ns(read(text)) == 10 + 300 + 40 + 50 + 6 + 600 + 3
    chakra = text.replace("DLRM_LAST_BOTTOM_LAYER: 1", "1")
    assert time_ns(read(chakra)) == time_ns(read(text))


def test_an_update_delays_what_waits_for_a_collective():
    text = "DISTRIBUTED_INFERENCE\n2\n" + "a -1 10 ALLREDUCE 4 0 NONE 0 0 NONE 0 100\n" * 2
    assert time_ns(read(text)) == 2 * (10 + 12 + 100)


def test_groups_of_simai_and_a_stage_of_its_pipeline():
    text = (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 4 vpp: 1 ga: 8 "
        "all_gpus: 32 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 4096\n1\n"
        "moe -1 1 ALLGATHER 64 1 ALLTOALL_EP 64 1 REDUCESCATTER_DP_EP 64 0\n"
        "dense -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 64 0\n"
    ).replace("\n1\n", "\n2\n")
    workload, notes = text_workload(parse_astra_workload(text))
    assert workload.nranks == 8
    assert workload.groups["tp"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert workload.groups["ep"].tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert workload.groups["dp_ep"].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert workload.groups["dp"].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    sizes = {
        operation.kind: operation.size_bytes
        for operation in workload.operations
        if isinstance(operation, CallOperation)
    }
    assert sizes["all_gather"] == 64  # the whole, as in SimAI
    assert "one stage of 4, on 8 of 32 ranks" in notes[1]
    assert "4,096 bytes" in notes[1]


def test_an_all_gather_of_astra_sim_states_a_ranks_part():
    text = "MICRO\n1\na -1 1 NONE 0 1 NONE 0 1 ALLGATHER 64 0\n"
    workload, notes = text_workload(parse_astra_workload(text), 4)
    assert [operation.size_bytes for operation in workload.operations] == [256]
    assert "a rank's part" in notes[-1]


TRANSFORMER = "HYBRID_TRANSFORMER model_parallel_NPU_group: "
ONE = "\n1\na -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 64 0\n"


@pytest.mark.parametrize(
    ("text", "nranks", "per_node", "message"),
    [
        ("DATA" + ONE, None, None, "does not say how many ranks it has: give --topology"),
        ("HYBRID_CUSTOMIZED" + ONE, 8, 8, "HYBRID_CUSTOMIZED' has no order of passes"),
        ("HYBRID_DATA_MODEL" + ONE, 8, None, "divides ranks by the nodes"),
        ("DATA" + ONE.replace("-1 1 ", f"-1 {10**17} "), 8, 8, "1e.17 ns, more than the 2.5 hours"),
        (TRANSFORMER + "3" + ONE, 8, 8, "8 ranks: expected at most 1,048,576, and a multiple of"),
        (TRANSFORMER + "0" + ONE, 8, 8, "expected at least 1 each, got 0, 1 and 1"),
        (
            TRANSFORMER + "2" + ONE.replace("REDUCE", "REDUCE_PP"),
            8,
            8,
            "layer 0 .a., weight gradient: group 'pp'",
        ),
        ("HYBRID_DLRM" + ONE, 8, 8, "DLRM_LAST_BOTTOM_LAYER: expected the number of a layer"),
        (TRANSFORMER + "2 checkpoint_initiates: 1 0" + ONE, 8, 8, "there is none"),
        (TRANSFORMER + "2 checkpoints: 2 0" + ONE, 8, 8, "line 1: checkpoints: expected a count"),
        (TRANSFORMER + "2 checkpoints: 1 7" + ONE, 8, 8, "numbers of layers, 0 to 0, got 7"),
        (TRANSFORMER + "2 checkpoints:" + ONE, 8, 8, "line 1: checkpoints: expected a count"),
    ],
)
def test_what_the_file_lacks_is_refused(text, nranks, per_node, message):
    with pytest.raises(ConfigError, match=message):
        text_workload(parse_astra_workload(text), nranks, per_node)


@pytest.mark.slow
def test_the_commands_play_and_convert_it(tmp_path, capsys):
    path = tmp_path / "work.txt"
    path.write_text("DATA" + ONE)
    job = tmp_path / "job.json"
    assert main(["convert", str(path), str(job)]) == 2
    assert "give --topology" in capsys.readouterr().err
    assert main(["convert", str(path), str(job), "-t", "dgx-h100"]) == 0
    assert json.loads(job.read_text())["nranks"] == 8
    for source in (path, job):
        command = ["step", str(source), "-t", "dgx-h100", "-o", str(tmp_path / "out")]
        assert main(command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith("all         exposed") for line in lines)
