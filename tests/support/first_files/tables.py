"""Measured tables: output of nccl-tests, rccl-tests and the OSU benchmarks, and what people make
of it in pages and spreadsheets.
"""

from __future__ import annotations

import json

from simcoll.formats.logs.nccl_tests import load_log
from tests.support.first_files import FirstFile, Reader

TIMES = ((1 << 20, 25.1), (1 << 24, 101.56), (1 << 28, 1019.5), (1 << 30, 4018.0))
"""Sizes and times of an all_reduce of eight ranks, in bytes and microseconds."""
FACTOR = 14 / 8


def rates(size, us):
    """Algorithm and bus bandwidth."""
    return size / us / 1e3, size / us / 1e3 * FACTOR


def rows(wrong="0", op="sum", root="-1"):
    """Rows as nccl-tests prints them."""
    lines = []
    for size, us in TIMES:
        algbw, busbw = rates(size, us)
        half = f"{us:8.2f}  {algbw:6.2f}  {busbw:6.2f}  {wrong:>5}"
        middle = f"{op:>8}  {root:>6}" if root else f"{op:>8}"
        lines.append(f"{size:12}  {size // 4:12}     float  {middle}  {half}  {half}")
    return lines


HEAD = [
    (
        "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 4(factor) warmup iters: 5 "
        "iters: 20 agg iters: 1 validation: 1 graph: 0"
    ),
    "#",
    "# Using devices",
    *(
        f"#  Rank  {rank} Group  0 Pid  {4000 + rank} on     node-0 device  {rank} "
        f"[0x{16 + 8 * rank:02x}] NVIDIA H100 80GB HBM3"
        for rank in range(8)
    ),
    "#",
    (
        "#                                                              out-of-place                "
        "       in-place"
    ),
    (
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time"
        "   algbw   busbw #wrong"
    ),
    (
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)"
        "  (GB/s)  (GB/s)"
    ),
]
END = ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 322.4", "#"]
COMMAND = "mpirun -np 8 ./build/all_reduce_perf -b 1M -e 1G -f 4 -g 1"
PLAIN = [COMMAND, *HEAD, *rows(), *END]
INFO = "node-0:4000:4100 [0] NCCL INFO "


def text(lines, prefix=""):
    return ("\n".join(prefix + line for line in lines) + "\n").encode()


def markdown(titles, cells, edge="| ", bold=""):
    """A table of a page, with the cells of each size and time."""
    lines = [titles, ["---"] * len(titles), *([str(c) for c in cells(*each)] for each in TIMES)]
    return [
        edge + " | ".join(bold + cell + bold if row != 1 else cell for cell in line) + edge[::-1]
        for row, line in enumerate(lines)
    ]


def in_mebibytes(size):
    return f"{size >> 20} MiB" if size < 1 << 30 else f"{size >> 30} GiB"


def report():
    """The JSON of nccl-tests."""
    results = []
    for size, us in TIMES:
        algbw, busbw = rates(size, us)
        group = {"time": us, "alg_bw": algbw, "bus_bw": busbw, "nwrong": 0}
        results.append(
            {
                "size": size,
                "count": size // 4,
                "type": "float",
                "redop": "sum",
                "root": -1,
                "out_of_place": group,
                "in_place": group,
            }
        )
    devices = [
        {"rank": rank, "hostname": "node-0", "pid": rank, "device_info": "NVIDIA H100 80GB HBM3"}
        for rank in range(8)
    ]
    return {
        "version": 1,
        "args": ["./all_reduce_perf", "-b", "1M"],
        "nccl_version": 22703,
        "config": {"nranks": 8, "ngpus": 1, "devices": devices},
        "results": results,
    }


def summary(path):
    """Collective, ranks and times in microseconds of each table."""
    found = []
    for table in load_log(path).tables:
        times = tuple((row.size_bytes, round(row.time_fs / 1e9, 2)) for row in table.rows)
        found.append((table.collective, table.nranks, "as made" if times == TIMES else times))
    return found[0] if len(found) == 1 else found


READ = ("all_reduce", 8, "as made")


def interrupted():
    """Rows in three pieces, with lines of the library between them."""
    lines = [COMMAND, *HEAD]
    for place, row in enumerate(rows()):
        cut = row.index("-1") + 2
        middle = cut + (len(row) - cut) // 2
        lines.append(f"{row[:cut]}{INFO}AllReduce: {1 << 20} Bytes -> Algo 1 proto 2 time 25.1")
        lines += [row[cut:middle] + f"{INFO}Channel {place:02}/24 : 0 1 2 3 4 5 6 7", row[middle:]]
    return [*lines, *END]


TABLES = Reader(
    "logs of nccl-tests, and tables made of them",
    summary,
    (
        FirstFile("as it is printed", text(PLAIN), READ),
        FirstFile(
            "an old version, without root and with an error",
            text(
                [
                    COMMAND,
                    *HEAD[:-2],
                    (
                        "#       size         count    type   redop     time   algbw   busbw  error     "
                        "time   algbw   busbw  error"
                    ),
                    HEAD[-1],
                    *rows(wrong="5e-07", root=""),
                    *END,
                ]
            ),
            READ,
        ),
        FirstFile("with the labels of srun -l", text(PLAIN, "0: "), READ),
        FirstFile("with the labels of mpirun --tag-output", text(PLAIN, "[1,0]<stdout>:"), READ),
        FirstFile(
            "with time stamps of kubectl logs", text(PLAIN, "2026-03-04T10:11:12.123456789Z "), READ
        ),
        FirstFile(
            "in the JSON lines of Docker",
            b"".join(
                json.dumps(
                    {"log": line + "\n", "stream": "stdout", "time": "2026-03-04T10:11:12Z"}
                ).encode()
                + b"\n"
                for line in PLAIN
            ).replace(b'{"log": ', b'{"log":'),
            READ,
        ),
        FirstFile("with lines of NCCL inside of rows", text(interrupted()), READ),
        FirstFile("rows alone", text(rows()), READ),
        FirstFile("quoted in a mail", text(PLAIN, "> "), READ),
        FirstFile(
            "a table of a page, all columns",
            text(
                [
                    "all_reduce_perf on 8 H100",
                    *markdown(
                        [
                            "size",
                            "count",
                            "type",
                            "redop",
                            "root",
                            "time",
                            "algbw",
                            "busbw",
                            "#wrong",
                        ],
                        lambda size, us: (
                            size,
                            size // 4,
                            "float",
                            "sum",
                            -1,
                            us,
                            *(f"{rate:.2f}" for rate in rates(size, us)),
                            0,
                        ),
                    ),
                ]
            ),
            READ,
        ),
        FirstFile(
            "a table of a page: size and bus bandwidth",
            text(
                [
                    "### All-reduce, 8 GPUs",
                    *markdown(
                        ["Message size", "Time (us)", "Bus BW (GB/s)"],
                        lambda size, us: (in_mebibytes(size), us, f"{rates(size, us)[1]:.1f}"),
                    ),
                ]
            ),
            READ,
        ),
        FirstFile(
            "a table of a page: sizes and times, with the ranks above it",
            text(
                [
                    "AllGather with 8 GPUs",
                    *markdown(["size", "latency (us)"], lambda size, us: (size, us)),
                ]
            ),
            ("all_gather", 8, "as made"),
        ),
        FirstFile(
            "a table of a page in bold, without edges",
            text(
                markdown(
                    ["Size (B)", "Time (us)", "algbw (GB/s)", "busbw (GB/s)"],
                    lambda size, us: (
                        f"{size:,}",
                        us,
                        *(f"{rate:.2f}" for rate in rates(size, us)),
                    ),
                    edge="",
                    bold="**",
                )
            ),
            READ,
        ),
        FirstFile(
            "CSV with titles",
            text(
                [
                    "size,count,type,redop,root,time,algbw,busbw,#wrong",
                    *(
                        ",".join(
                            map(
                                str,
                                (
                                    size,
                                    size // 4,
                                    "float",
                                    "sum",
                                    -1,
                                    us,
                                    *(f"{rate:.2f}" for rate in rates(size, us)),
                                    0,
                                ),
                            )
                        )
                        for size, us in TIMES
                    ),
                ]
            ),
            READ,
        ),
        FirstFile(
            "a spreadsheet's CSV with semicolons",
            text(
                ["all_reduce; 8 ranks", "size;time (us);busbw (GB/s)"]
                + [f"{size};{us};{rates(size, us)[1]:.2f}" for size, us in TIMES]
            ),
            READ,
        ),
        FirstFile("the JSON report", json.dumps(report(), indent=2).encode(), READ),
        FirstFile(
            "the JSON report with a comment",
            b"// of Tuesday\n" + json.dumps(report(), indent=2).encode(),
            READ,
        ),
        FirstFile(
            "two runs in one file",
            text([*PLAIN, "./build/all_gather_perf -b 1M", *HEAD, *rows(op="none"), *END]),
            [READ, ("all_gather", 8, "as made")],
        ),
        FirstFile(
            "OSU's all-reduce",
            text(
                [
                    "mpirun -n 8 ./osu_allreduce -m 1048576:1073741824",
                    "# OSU MPI-CUDA Allreduce Latency Test v7.4",
                    "# Size       Avg Latency(us)",
                    *(f"{size:<12}{us:12.2f}" for size, us in TIMES),
                ]
            ),
            READ,
        ),
    ),
)
