"""What hung jobs leave: flight records of PyTorch, lines of its watchdog, reports of NCCL's RAS and
inspector.
"""

from __future__ import annotations

import io
import json
import pickle
from contextlib import redirect_stdout

from simcoll.cli.flight_command import read_flight
from tests.support.first_files import FirstFile, Reader, Refusal
from tests.support.nccl_reports import call, inspector, ras


def entry(number, *, name="nccl:all_reduce", state="completed", group=("0", "default_pg"), **more):
    """An entry with the fields that PyTorch writes."""
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": 12}],
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": [[4, 2]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 2]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        **more,
    }


CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


def record(entries, version="2.4", **more):
    return {"version": version, "pg_config": CONFIG, "entries": entries, **more}


def status(enqueued, completed):
    """The status of the group, as versions from 2.5 on write it."""
    return {
        "pg_status": {
            "0": {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
        }
    }


DONE = [entry(1), entry(2)]
WAITING = [*DONE, entry(3, state="scheduled")]
ABSENT = "group '0', collective 3 (nccl:all_reduce): rank 1 never came; it has done 2 of this group"


def pickled(name, *records):
    return {f"{name}{rank}": pickle.dumps(each, 2) for rank, each in enumerate(records)}


def summary(path):
    """The first finding, without those who wait."""
    output = io.StringIO()
    with redirect_stdout(output):
        read_flight(path)
    first = output.getvalue().splitlines()[0]
    return first.partition("; waiting")[0]


def message(number, kind, state):
    """A send or a receive."""
    return entry(
        0, name=f"nccl:{kind} 0->1", state=state, is_p2p=True, p2p_seq_id=number,
        profiling_name=f"nccl:{kind} 0->1",
    )  # fmt: skip


WATCHDOG = """\
[rank0]:[E304 10:11:12.000 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for \
600029 milliseconds before timing out.
[rank0]:[E304 10:11:12.100 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 0]  \
failure detected by watchdog at work sequence id: 3 PG status: last enqueued work: 3, last completed \
work: 2
[rank1]:[E304 10:11:12.100 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 1]  \
failure detected by watchdog at work sequence id: 3 PG status: last enqueued work: 2, last completed \
work: 2
"""
RAS_TEXT = """\
NCCL version 2.28.3 compiled with CUDA 13.0

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 8
  Rank 2 has launched up to operation 6 -- GPU 2 managed by process 483 on node 10.0.0.1
"""

HANGS = Reader(
    "records and reports of hung jobs",
    summary,
    (
        FirstFile(
            "pickles of PyTorch 2.4",
            pickled("nccl_trace_rank_", record(WAITING), record(DONE)),
            ABSENT,
        ),
        FirstFile(
            "pickles with the status of groups",
            pickled(
                "nccl_trace_rank_",
                record(WAITING, "2.9", nccl_version="2.27.5", **status(3, 2)),
                record(DONE, "2.9", nccl_version="2.27.5", **status(2, 2)),
            ),
            ABSENT,
        ),
        FirstFile(
            "pickles under the newer default name",
            pickled(
                "comm_lib_trace_rank_",
                record(WAITING, "2.10", comm_lib_version="2.27.5", **status(3, 2)),
                record(DONE, "2.10", comm_lib_version="2.27.5", **status(2, 2)),
            ),
            ABSENT,
        ),
        FirstFile(
            "JSON of the same",
            {
                f"rank{rank}.json": json.dumps(each).encode()
                for rank, each in enumerate((record(WAITING, "2.9"), record(DONE, "2.9")))
            },
            ABSENT,
        ),
        FirstFile(
            "a record that was overwritten",
            pickled(
                "trace_",
                record([entry(45265, state="started")], "2.9", **status(45265, 45264)),
                record([], "2.9", **status(45264, 45264)),
            ),
            "group '0', collective 45265 (nccl:all_reduce): rank 1 never came; it has done 45264 of "
            "this group",
        ),
        FirstFile(
            "no record of a rank",
            pickled("nccl_trace_rank_", record(WAITING)),
            "group '0', collective 3 (nccl:all_reduce): no record of rank 1, and all others are in it",
        ),
        FirstFile(
            "different operations",
            pickled(
                "nccl_trace_rank_",
                record([*DONE, entry(3, state="started")]),
                record([*DONE, entry(3, name="nccl:_all_gather_base", state="started")]),
            ),
            "group '0', collective 3: ranks run different operations: rank 1 nccl:_all_gather_base; rank 0 "
            "nccl:all_reduce",
        ),
        FirstFile(
            "a message that nobody receives",
            pickled(
                "nccl_trace_rank_",
                record([message(1, "send", "started")], "2.9"),
                record([], "2.9"),
            ),
            "group '0', message 1 (nccl:send 0->1): rank 1 has not received it",
        ),
        FirstFile(
            "lines of the watchdog",
            {"train.log": WATCHDOG.encode()},
            "group '0', collective 3 (all_reduce): rank 1 never came; it has done 2 of this group",
        ),
        FirstFile(
            "ncclras as text",
            {"ras.txt": RAS_TEXT.encode()},
            "communicator 27a079b828ff1a75: AllReduce: rank 2 (GPU 2, process 483, node 10.0.0.1) has "
            "launched up to operation 6, 3 ranks up to 8",
        ),
        FirstFile(
            "ncclras -f json",
            {"ras.json": ras({0: 9, 1: 5, 2: 9, 3: 9})},
            "communicator 0xfeed: rank 1 has begun 5 AllReduce, others up to 9: they wait for it, or it for them",
        ),
        FirstFile(
            "files of the inspector",
            {
                "rank.log": inspector(
                    [call(rank, number) for number in (1, 2) for rank in range(4)]
                    + [call(rank, number) for number in range(3, 9) for rank in (0, 1, 3)]
                )
            },
            "communicator 0x7f: rank 2 ended with collective 2, others with 8",
        ),
        FirstFile(
            "a folder of other files",
            {"notes.txt": b"nothing here\n"},
            Refusal("expected the flight records of some ranks"),
        ),
    ),
)
