"""RAS and inspector reports: what is wrong with which ranks."""

from __future__ import annotations

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.formats.recognise import recognise
from simcoll.formats.reports.nccl_inspector import inspector_findings, parse_inspector
from simcoll.formats.reports.nccl_ras import parse_ras, parse_ras_text, ras_findings
from tests.support.nccl_reports import call, inspector, ras


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (ras({0: 5, 1: 5, 2: 5}), []),
        (
            ras({0: 6, 1: 5, 2: 6}),
            [
                (
                    "rank 1 has begun 5 AllReduce, others up to 6: by one is normal if a later report "
                    "shows that they go on, and otherwise they wait for it"
                )
            ],
        ),
        (
            ras({0: 9, 1: 5, 2: 9}),
            ["rank 1 has begun 5 AllReduce, others up to 9: they wait for it, or it for them"],
        ),
        (
            ras({0: 9, 1: 5, 2: 6}),
            [
                (
                    "ranks 1, 2 have begun 5 or more AllReduce, others up to 9: they wait for it, or "
                    "it for them"
                )
            ],
        ),
        (
            ras(
                {0: 5},
                missing=[
                    (1, {"unresponsive": True, "considered_dead": True}),
                    (2, {"unresponsive": True}),
                ],
            ),
            [
                "rank 1 is dead (host 10.0.0.2, process 9, GPU 1)",
                "rank 2 is not answering (host 10.0.0.2, process 9, GPU 1)",
            ],
        ),
        (ras({0: 5, 1: 5}, size=4), ["2 of 4 ranks are not in the report"]),
        (
            ras({0: 5, 1: 5}, status=[(1, {"async_error": 6})]),
            ["rank 1 running: remote process error (host 10.0.0.1, process 8, GPU 0, NVML 1)"],
        ),
        (
            ras({0: 5, 1: 5}, status=[(0, {"abort_flag": True})]),
            ["rank 0 aborted (host 10.0.0.1, process 7, GPU 0)"],
        ),
    ],
)
def test_what_ras_shows(report, said):
    assert recognise(report) == "ras"
    assert ras_findings(parse_ras(report)) == [f"communicator 0xfeed: {each}" for each in said]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([call(rank, number) for number in range(5) for rank in range(4)], []),
        (
            [
                call(rank, number)
                for number in range(5)
                for rank in range(4)
                if rank != 2 or number < 3
            ],
            ["rank 2 ended with collective 2, others with 4"],
        ),
        (
            [call(rank, 7, kind="Broadcast" if rank == 1 else "AllReduce") for rank in range(4)],
            [
                (
                    "collective 7: ranks run different ones: ranks 0, 2, 3 AllReduce of 1,024 bytes; "
                    "rank 1 Broadcast of 1,024 bytes"
                )
            ],
        ),
        (
            [
                call(rank, number, time=200 if rank == 3 else 100)
                for number in range(3)
                for rank in range(4)
            ],
            ["rank 3 takes 200 us for AllReduce of 1,024 bytes, others 100 us"],
        ),
        ([call(rank, 1) for rank in (0, 1, 3)], ["no collectives of rank 2"]),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_what_the_inspector_shows(rows, said, indent):
    content = inspector(rows, indent)
    assert inspector_findings(parse_inspector(content)) == [
        f"communicator 0x7f: {each}" for each in said
    ]
    assert recognise(content) == "inspector"


@pytest.mark.parametrize(
    ("read", "content", "said"),
    [
        (parse_ras, b"{}", "no report of NCCL's RAS: .*communicators"),
        (
            parse_ras,
            ras({0: 1, 1: 1}, size=1),
            r"\$.communicators\[0\]: ranks 0 to 1, and a size of 1",
        ),
        (
            parse_ras,
            ras({0: 1}, missing=[(0, {})]),
            r"\$.communicators\[0\]: a rank is named twice",
        ),
        (parse_ras_text, "NCCL version 2.27.5\n", "no table of communicators"),
        (parse_inspector, b"", "has no collectives of NCCL's inspector"),
        (parse_inspector, b"{}", "object 0: header.id: expected str, got None"),
        (parse_inspector, inspector([call(0, 1)]) + b"\nx", "line 2: no JSON object"),
        (parse_inspector, inspector([call(4, 1)]), "object 0: rank 4 of 4"),
        (parse_inspector, inspector([call(0, -1)]), "coll_sn: -1 is out of range"),
        (parse_inspector, b"[" * 100_000, "no JSON object|object 0"),
    ],
)
def test_what_is_refused(read, content, said):
    with pytest.raises(ConfigError, match=said):
        read(content)


RAS_TABLE = """NCCL version 2.27.5 compiled with CUDA 12.9
Job summary
===========

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING   {0}
    1         4         1         8         8        32   RUNNING      OK

Errors
======

"""


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ("", []),
        (
            (
                "#0-0 (ab12) MISMATCH\n  Communicator ranks have different collective operation counts\n"
                "  30 ranks have launched up to operation 75\n"
                "  2 ranks have launched up to operation 74\n"
                "  Rank 3 -- GPU 3 managed by process 71 on node 10.0.0.1\n"
                "  Rank 5 -- GPU 5 managed by process 73 on node 10.0.0.1\n"
            ),
            [
                (
                    "communicator ab12: rank 3 (GPU 3, process 71, node 10.0.0.1), rank 5 (GPU 5, "
                    "process 73, node 10.0.0.1) have launched up to operation 74, 30 ranks up to 75: by "
                    "one is normal if a later report shows that they go on, and otherwise they wait for "
                    "it"
                )
            ],
        ),
        (
            (
                "#0-0 (ab12) MISMATCH\n  Communicator ranks have different Broadcast operation counts\n"
                "  31 ranks have launched up to operation 7\n"
                "  Rank 9 has not launched any operations -- GPU 1 managed by process 8 on node n2\n"
            ),
            [
                (
                    "communicator ab12: Broadcast: rank 9 (GPU 1, process 8, node n2) has launched up to "
                    "operation 0, 31 ranks up to 7"
                )
            ],
        ),
        (
            (
                "#0-0 (ab12) INCOMPLETE\n  Missing communicator data from 1 rank\n"
                "  Rank 6 -- GPU 6 managed by process 9 on node 10.0.0.1\n\n"
                "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
                "  Process 9 on node 10.0.0.1 managing GPU 6\n"
            ),
            [
                (
                    "job: 1 job process is considered dead (unreachable via the RAS network); Process 9 "
                    "on node 10.0.0.1 managing GPU 6"
                ),
                (
                    "communicator ab12: Missing communicator data from 1 rank; Rank 6 (GPU 6, process 9, "
                    "node 10.0.0.1)"
                ),
            ],
        ),
        (
            (
                "#1-2 (cd) ERROR\n  Asynchronous error on 1 rank\n"
                "  Rank 2 reported remote process error -- GPU 2 managed by process 5 on node n1\n"
            ),
            [
                (
                    "communicator cd: Asynchronous error on 1 rank; Rank 2 reported remote process error "
                    "(GPU 2, process 5, node n1)"
                )
            ],
        ),
    ],
    ids=["well", "one behind", "not begun", "dead", "error"],
)
def test_what_ras_prints(blocks, said):
    text = RAS_TABLE.format("MISMATCH") + blocks
    report = parse_ras_text(text)
    assert list(report.findings) == said
    assert (report.communicators, report.ranks) == (5, 64)
    assert recognise(text.encode()) == "ras-text"


def test_on_the_command_line(tmp_path, capsys):
    (tmp_path / "ras.json").write_bytes(ras({0: 9, 1: 5}))
    assert main(["flight", str(tmp_path / "ras.json")]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "# 1 communicator, 2 ranks: 1 finding"
    for rank in range(4):
        (tmp_path / f"inspector-{rank}.log").write_bytes(
            inspector([call(rank, number) for number in range(3)])
        )
    assert main(["flight", *map(str, sorted(tmp_path.glob("inspector-*.log")))]) == 0
    assert capsys.readouterr().out == "# 4 ranks, 12 collectives: 0 findings\n"
