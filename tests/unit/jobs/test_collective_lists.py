"""Files that only list collectives: kinds, sizes and counts, and what their times are."""

from __future__ import annotations

import json

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.formats.reports.aicb_calls import parse_aicb_calls
from simcoll.formats.reports.astra_workload import parse_astra_workload
from simcoll.formats.reports.deepspeed_comms import parse_deepspeed_comms
from simcoll.formats.reports.flight_record import FlightEntry, FlightRecord, dump_flight_record
from simcoll.jobs.collective_lists import is_collective_list, list_lines

# Of DeepSpeed's tutorial on communication logging, with and without a launcher's prefix.
DEEPSPEED = """\
[2022-07-04 11:10:03,170] [INFO] [comm.py:1:log] Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)
broadcast
                    2.0 KB              146                 11.12               0.08                0.43                0.41
                    98.25 MB            1                   8317.12             8317.12             0.20                0.19
reduce_scatter_tensor
                    678.86 MB           40                  602.29              9.69                1468.06             1376.06
training went on
"""
SIMAI = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 2 pp: 2 vpp: 8 ga: 1 all_gpus: 64 checkpoints: 0 checkpoint_initiates: 0
2
embedding -1 556000 ALLREDUCE 16777216 1 NONE 0 1 REDUCESCATTER_DP_EP 4096 1
moe -1 1000 ALLTOALL_EP 2048 1000 ALLTOALL_EP 2048 1000 NONE 0 5
"""


def test_deepspeeds_table():
    rows = parse_deepspeed_comms(DEEPSPEED)
    assert [(row.operation, row.size_bytes, row.count, row.average_ms) for row in rows] == [
        ("broadcast", 2048, 146, 0.08),
        ("broadcast", round(98.25 * 2**20), 1, 8317.12),
        ("reduce_scatter_tensor", round(678.86 * 2**20), 40, 9.69),
    ]


HEADER = (
    "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,"
    "busbw,count\n"
)
AICB = (
    "[ pp_stage0: [rank0, rank1] ]\n"
    + HEADER
    + "CommType.all_reduce,CommGroup.tp_group,8,20971520,forward,None,None,,0.5,None,None,1\n"
    "CommType.all_reduce,CommGroup.tp_group,8,20971520,forward,None,None,,0.25,None,None,1\n"
    "CommType.isend,CommGroup.pp_group,2,8192,forward,16,None,,None,None,None,2\n"
    "CommType.epoch_end,None,None,None,,None,None,,None,None,None,1\n"
    "[ pp_stage1: [rank16, rank17] ]\n"
    + HEADER
    + "CommType.barrier,CommGroup.all,8,1,init,None,None,,None,None,None,1\n"
)


def test_a_list_of_aicb(tmp_path, capsys):
    calls = parse_aicb_calls(AICB)
    assert [(call.operation, call.group, call.ranks, call.size_bytes) for call in calls] == [
        ("all_reduce", "tp_group", 8, 20971520),
        ("all_reduce", "tp_group", 8, 20971520),
        ("isend", "pp_group", 2, 8192),
        ("isend", "pp_group", 2, 8192),
    ]
    assert [call.elapsed_ms for call in calls] == [0.5, 0.25, None, None]
    path = tmp_path / "calls.csv"
    path.write_text(AICB)
    assert list_lines([path])[0] == "calls of AICB: 4 calls"
    rows = [line.split() for line in list_lines([path])[2:4]]
    assert rows[0] == ["all_reduce", "20", "MiB", "8", "2", "250", "us", "375", "us"]
    assert rows[1][:5] == ["send", "8", "KiB", "2", "2"]
    assert main(["convert", str(path), str(tmp_path / "job.json")]) == 2
    assert "AICB's text workload for SimAI has both" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("CommType.all_reduce,g,8,many,,,,,,,,1\n", "line 2: msg_size is 'many'"),
        ("CommType.all_reduce,g,8,,,,,,,,,1\n", "line 2: a call of 'all_reduce' without msg_size"),
        ("CommType.epoch_end,,,,,,,,,,,1\n", "has no call of AICB"),
    ],
)
def test_rows_of_aicb_that_are_no_calls(row, message):
    with pytest.raises(ConfigError, match=message):
        parse_aicb_calls(HEADER + row)


def test_a_text_workload_of_simai():
    workload = parse_astra_workload(SIMAI)
    assert [(call.kind, call.stage, call.group) for call in workload.calls] == [
        ("all_reduce", "forward", "tp"),
        ("reduce_scatter", "weight gradient", "dp_ep"),
        ("all_to_all", "forward", "ep"),
        ("all_to_all", "input gradient", "ep"),
    ]
    assert [workload.ranks_of(call.group) for call in workload.calls] == [8, 2, 2, 2]
    assert workload.compute == 556000 + 3 + 3000 + 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DATA\n", "expected a strategy and a number"),
        ("DATA\nx\n", "line 2: expected a number of layers"),
        ("DATA\n2\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", "expected 2 layers, got 1"),
        ("DATA\n1\na -1 1 NONE 0 1 NONE 0 1 NONE\n", "line 3: expected a layer"),
        ("DATA\n1\na -1 1 SUM 8 1 NONE 0 1 NONE 0 1\n", "line 3: unknown collective 'SUM'"),
    ],
)
def test_other_text_workloads_are_refused_by_line(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_astra_workload(text)


def inspector(rank, number, time_us):
    return json.dumps(
        {
            "header": {"id": "0xab", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {"hostname": "a", "pid": 1},
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": number,
                "coll_msg_size_bytes": 1024,
                "coll_exec_time_us": time_us,
            },
        }
    )


def test_the_least_time_of_the_ranks_is_listed(tmp_path):
    files = []
    for rank, times in enumerate([(61, 300), (200, 64)]):
        path = tmp_path / f"rank{rank}.log"
        path.write_text(
            "\n".join(inspector(rank, number, time) for number, time in enumerate(times))
        )
        files.append(path)
    lines = list_lines(files)
    assert lines[2].split() == ["all_reduce", "1", "KiB", "2", "2", "61", "us", "62.5", "us"]
    assert "2 of 2 calls with all ranks" in lines[-1]


def test_flight_records_are_listed(tmp_path):
    entries = tuple(
        FlightEntry(
            "0", number, "nccl:all_gather", (((8,), "Float"),), (((16,), "Float"),), "completed"
        )
        for number in range(3)
    )
    for rank in range(2):
        record = FlightRecord("2.4", (("0", (0, 1)),), entries)
        (tmp_path / f"record_{rank}").write_bytes(dump_flight_record(record))
    lines = list_lines(sorted(tmp_path.iterdir()))
    assert lines[0] == "flight records: 6 calls"
    assert lines[2].split() == ["all_gather", "64", "B", "2", "6"]


def test_sizes_without_types_are_unknown(tmp_path):
    entry = FlightEntry("0", 1, "nccl:all_reduce", (((8,), ""),), (((8,), ""),), "completed")
    path = tmp_path / "record_0"
    path.write_bytes(dump_flight_record(FlightRecord("1.0", (("0", (0, 1)),), (entry,))))
    assert list_lines([path])[2].split() == ["all_reduce", "-", "2", "1"]


@pytest.mark.parametrize(("name", "text"), [("comms.log", DEEPSPEED), ("work.txt", SIMAI)])
def test_the_command_lists_what_it_recognises(tmp_path, capsys, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert is_collective_list(path)
    assert main(["job", str(path)]) == 0
    assert "collective " in capsys.readouterr().out
    assert main(["job", str(path), "-t", "dgx-h100"]) == 2
    assert "no times that could be changed" in capsys.readouterr().err


def test_files_of_several_kinds_are_refused(tmp_path):
    (tmp_path / "a.log").write_text(DEEPSPEED)
    (tmp_path / "b.txt").write_text(SIMAI)
    with pytest.raises(ConfigError, match="of another kind than"):
        list_lines([tmp_path / "a.log", tmp_path / "b.txt"])


def test_a_compiled_program_is_one_file_without_measured_times(tmp_path, capsys):
    path = tmp_path / "program.txt"
    path.write_text("HloModule jit_step\n")
    assert main(["job", str(path), str(path)]) == 2
    assert "which all ranks share" in capsys.readouterr().err
    assert main(["job", str(path), "--slow", "1=2"]) == 2
    assert "are for traces" in capsys.readouterr().err
