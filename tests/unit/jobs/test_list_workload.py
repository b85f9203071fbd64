"""Workloads of lists of collectives: NCCL's inspector, flight records, and what they lack."""

from __future__ import annotations

import json

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.formats.reports.flight_record import FlightEntry, FlightRecord, dump_flight_record
from simcoll.jobs.list_workload import list_workload
from simcoll.libraries.prediction import predict
from simcoll.topology import load_topology
from simcoll.workload.playing import run_workload
from simcoll.workload.workload import CallOperation

WORLD = tuple(range(4))
GROUPS = {"0": WORLD, "1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}


def calls_of(workload):
    return [
        (operation.group, operation.kind, operation.size_bytes)
        for operation in workload.operations
        if isinstance(operation, CallOperation)
    ]


def write_records(folder, skipped=(), kinds=("all_gather", "all_reduce")):
    """Four ranks: two collectives in pairs of neighbours, one with the rank two further."""
    files = []
    for rank in WORLD:
        entries = []
        for name, members in GROUPS.items():
            if rank not in members or name == "0":
                continue
            kind = kinds[0] if name in {"1", "2"} else kinds[1]
            for number in (1, 2):
                if (rank, name, number) in skipped:
                    continue
                tensor = (((1024,), "Float"),)
                entries.append(
                    FlightEntry(name, number, f"nccl:{kind}", tensor, tensor, "completed")
                )
        groups = tuple((name, members) for name, members in GROUPS.items() if rank in members)
        path = folder / f"record_{rank}"
        path.write_bytes(dump_flight_record(FlightRecord("2.9", groups, tuple(entries))))
        files.append(path)
    return files


def inspected(communicator, rank, nranks, number, time_us, kind="AllReduce", size=1 << 20):
    return json.dumps(
        {
            "header": {"id": communicator, "rank": rank, "n_ranks": nranks, "nnodes": 1},
            "metadata": {"hostname": "a", "pid": rank},
            "coll_perf": {
                "coll": kind,
                "coll_sn": number,
                "coll_msg_size_bytes": size,
                "coll_exec_time_us": time_us,
            },
        }
    )


def test_flight_records_of_all_ranks(tmp_path):
    workload, notes = list_workload(write_records(tmp_path))
    assert len(workload.classes) == 1
    assert workload.groups["2 by 1"].tolist() == [[0, 1], [2, 3]]
    assert workload.groups["2 by 2"].tolist() == [[0, 2], [1, 3]]
    assert sorted(calls_of(workload)) == [
        ("2 by 1", "all_gather", 4096),
        ("2 by 1", "all_gather", 4096),
        ("2 by 2", "all_reduce", 4096),
        ("2 by 2", "all_reduce", 4096),
    ]
    assert "the communication alone" in notes[-1]


def test_calls_that_a_rank_has_not_made_are_left_out_and_counted(tmp_path):
    workload, notes = list_workload(write_records(tmp_path, skipped={(3, "2", 2)}))
    assert len(calls_of(workload)) < 2 * 4
    assert notes[0].startswith("1 call left out: some recorded rank")


def test_one_record_is_enough_for_groups_of_all_ranks(tmp_path):
    tensor = (((256,), "Float"),)
    entries = tuple(
        FlightEntry("0", number, "nccl:all_reduce", tensor, tensor, "completed")
        for number in range(3)
    )
    path = tmp_path / "record_2"
    path.write_bytes(dump_flight_record(FlightRecord("2.9", (("0", WORLD),), entries)))
    workload, _ = list_workload([path])
    assert workload.nranks == 4
    assert calls_of(workload) == [("all", "all_reduce", 1024)] * 3


def test_a_reports_workload_takes_the_time_of_its_collectives(tmp_path):
    path = tmp_path / "rank0.log"
    path.write_text("\n".join(inspected("0xa", 0, 8, number, 100 + number) for number in range(3)))
    workload, _ = list_workload([path])
    machine = load_topology("dgx-h100")
    result = run_workload(workload, machine)
    alone = predict("all_reduce", 1 << 20, machine)
    # Without the launch, which a prediction of a collective alone contains.
    assert result.time_fs == pytest.approx(3 * alone.time_fs, rel=0.15)
    measured, _ = list_workload([path], measured=True)
    assert run_workload(measured, machine).time_fs == (100 + 101 + 102) * 10**9


def test_communicators_of_a_report_are_numbered_by_the_largest(tmp_path):
    files = []
    for rank in WORLD:
        rows = [inspected("0xa", rank, 4, 1, 9), inspected(f"0xb{rank % 2}", rank // 2, 2, 1, 9)]
        path = tmp_path / f"{chr(100 - rank)}.log"
        path.write_text("\n".join(rows))
        files.append(path)
    workload, _ = list_workload(sorted(files))
    assert workload.groups["2 by 2"].tolist() == [[0, 2], [1, 3]]
    with pytest.raises(ConfigError, match="expected a file of each of the 4 ranks"):
        list_workload(files[:2])


def test_what_a_list_lacks_is_said(tmp_path):
    files = write_records(tmp_path)
    with pytest.raises(ConfigError, match="ranks 2, 3 without a file, and group"):
        list_workload(files[:2])
    with pytest.raises(ConfigError, match="--measured: times of flight records"):
        list_workload(files, measured=True)
    folder = tmp_path / "other"
    folder.mkdir()
    other = write_records(folder, kinds=("reduce_scatter", "all_reduce"))
    with pytest.raises(ConfigError, match="ranks call all_gather and reduce_scatter as number 1"):
        list_workload([*files[:3], other[3]])
    untyped = (((8,), ""),)
    entry = FlightEntry("0", 1, "nccl:all_reduce", untyped, untyped, "completed")
    path = folder / "record_0"
    path.write_bytes(dump_flight_record(FlightRecord("2.3", (("0", WORLD),), (entry,))))
    with pytest.raises(ConfigError, match="no types of tensors"):
        list_workload([path])


@pytest.mark.slow
def test_the_commands_convert_folders_and_play_files(tmp_path, capsys):
    records = tmp_path / "records"
    records.mkdir()
    write_records(records)
    job = tmp_path / "job.json"
    assert main(["convert", str(records), str(job)]) == 0
    assert "# the communication alone" in capsys.readouterr().out
    report = tmp_path / "report.log"
    report.write_text(inspected("0xa", 0, 8, 1, 100))
    for source in (job, report):
        command = ["step", str(source), "-t", "dgx-h100", "-o", str(tmp_path / "out")]
        assert main(command) == 0
    table = tmp_path / "comms.log"
    table.write_text(
        "Comm. Op  Message Size  Count  Total Latency(ms)  Avg Latency(ms)  tput_avg (Gbps)\n"
        "all_reduce\n     98.25 MB    2    16.50     8.25    1.0\n"
    )
    for command in (["step", str(table), "-t", "dgx-h100"], ["convert", str(table), str(job)]):
        assert main(command) == 2
        assert "neither their order nor their groups" in capsys.readouterr().err
