"""Output of nccl-tests through the years, among other text, cut off, wrong, huge: what can be read
is used, the rest is named.
"""

from __future__ import annotations

import json
import random
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll.formats.logs.nccl_tests as nccl_tests_module
from simcoll.errors import ConfigError
from simcoll.formats.logs.nccl_tests import load_log
from tests.support.nccl_logs import blocks, nccl_tests, table, times

SIZES = [2**power for power in range(3, 31)]
TWO = ("node-1", "node-2")
INFO = "node-1:77:99 [0] NCCL INFO "


@pytest.fixture
def read(tmp_path):
    def reading(lines, name="log.txt", **how):
        path = tmp_path / name
        path.write_text("\n".join(lines) if not isinstance(lines, str) else lines, **how)
        return load_log(path)

    return reading


def same_times(found, sizes=SIZES, last_us=0.006, **machine):
    """Within the last printed digit."""
    assert [row.size_bytes for row in found.rows] == list(sizes)
    for row in found.rows:
        assert row.time_fs / 1e9 == pytest.approx(
            times(row.size_bytes, **machine), rel=2e-3, abs=last_us
        )


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[1,0]<stdout>:",
        "0: ",
        " 0: ",
        "2026-11-02T10:11:12.123456789Z stdout F ",
        "[pod/nccl-launcher-x7f/nccl] ",
        "\x1b[0m",
    ],
)
def test_versions_and_prefixes(read, version, prefix):
    log = read(nccl_tests(SIZES, 15 / 8, prefix=prefix, version=version, hosts=TWO))
    (found,) = log.tables
    # Version 0 prints milliseconds with three decimals.
    same_times(found, last_us=0.006 if version else 0.6)
    assert (found.collective, found.nranks, found.nnodes) == ("all_reduce", 16, 2)
    assert found.devices == ("NVIDIA H100 80GB HBM3",)
    assert {(row.dtype, row.op, row.root) for row in found.rows} == {("float", "sum", -1)}
    assert all(row.in_place_fs == row.out_of_place_fs for row in found.rows)
    assert found.version == ("2.28.7" if version == 3 else "")
    assert log.notes == (
        ()
        if version == 3
        else ("the collective is not named, taken for all_reduce by its columns",)
    )


def unchecked(_):
    return "N/A", 1.0


COLUMNS = [
    ("all_reduce", {"factor": 14 / 8}),
    ("reduce", {"factor": 1, "root": "0"}),
    ("reduce_scatter", {"factor": 7 / 8, "share": 8}),
    ("all_gather", {"factor": 7 / 8, "share": 8, "op": "none"}),
    ("broadcast", {"factor": 1, "op": "none", "root": "3"}),
]


@pytest.mark.parametrize(("name", "columns"), COLUMNS)
def test_a_collective_is_known_by_its_columns(read, name, columns):
    sizes = [size for size in SIZES if size >= 256]
    (found,) = read(nccl_tests(sizes, **columns)).tables
    assert (found.collective, found.nranks) == (name, 8)
    same_times(found, sizes)


@pytest.mark.parametrize(
    ("name", "ours", "columns"),
    [
        (
            "alltoall",
            "all_to_all",
            {"factor": 7 / 8, "share": 8, "op": "none", "inside": unchecked},
        ),
        ("sendrecv", "send_recv", {"factor": 1, "op": "none", "inside": unchecked}),
        ("hypercube", "hypercube", {"factor": 7 / 8, "op": "none"}),
    ],
)
def test_columns_that_fit_several_need_a_name(read, name, ours, columns):
    log = read(nccl_tests(SIZES[5:], **columns))
    assert log.tables[0].collective == ""
    assert log.notes == ("the collective is not named, and its columns fit several",)
    command = f"+ mpirun -np 8 -x NCCL_ALGO=Ring ./build/{name}_perf -b 256 -e 1G -f 2"
    (found,) = read([command, *nccl_tests(SIZES[5:], **columns)]).tables
    assert (found.collective, found.environment) == (ours, (("NCCL_ALGO", "Ring"),))


def test_a_copy_with_devices_left_out_and_rounded_counts(read):
    lines = [
        line
        for line in nccl_tests(SIZES, 15 / 8, hosts=TWO)
        if "Rank" not in line or "Rank 15" in line or "Rank  0" in line
    ]
    lines = [line.replace("268435456     float", "2.68e+8     float") for line in lines]
    (found,) = read(lines).tables
    assert (found.nranks, found.nnodes, found.rows[-1].count) == (16, 2, 268_000_000)
    same_times(found)


def test_two_tables_side_by_side_are_said(read):
    """As ``paste one.log other.log`` makes them."""
    one, other = (nccl_tests(SIZES, 15 / 8, hosts=hosts) for hosts in (TWO, ("node-7", "node-8")))
    log = read([f"{left}    {right}" for left, right in zip(one, other, strict=True)])
    notes = [note for note in log.notes if "two tables side by side" in note]
    assert len(notes) == 1
    assert "the left one is read" in notes[0]
    same_times(log.tables[0])
    assert not [note for note in read(one).notes if "side by side" in note]


def test_a_copy_without_the_end_of_the_list_of_devices(read):
    log = read(
        [
            line
            for line in nccl_tests(SIZES, 15 / 8, hosts=TWO)
            if "Rank" not in line or "Rank  0" in line
        ]
    )
    assert (log.tables[0].nranks, log.tables[0].nnodes) == (16, 0)
    assert "devices up to rank 0 are listed, taken for 16 ranks by its columns" in log.notes


@pytest.mark.parametrize("nranks", [2, 3, 5, 8, 16, 24])
def test_ranks_from_the_ratio_of_bandwidths(read, nranks):
    lines = list(nccl_tests(SIZES, 2 * (nranks - 1) / nranks))
    log = read([line for line in lines if "Rank" not in line and "#" not in line])
    assert log.tables[0].nranks == nranks
    assert f"the number of ranks is not named, taken for {nranks} by its columns" in log.notes


def test_old_all_gather_without_reduction_and_root(read):
    (found,) = read(nccl_tests(SIZES[6:], 7 / 8, op=None, version=1, share=8)).tables
    assert (found.collective, found.nranks) == ("all_gather", 8)
    same_times(found, SIZES[6:])


def test_lines_of_nccl_between_and_languages_around(read):
    rows = list(nccl_tests(SIZES, 15 / 8, hosts=TWO))
    around = [
        "Запуск теста на двух узлах, 8 float32 и 3 half",
        "以下是 float 类型的 测试结果 12 34 次",
        f"{INFO}NCCL version 2.27.5+cuda12.9",
        f"{INFO}NCCL_PROTO set by environment to ^LL128.",
        f"{INFO}NCCL_NVLS_ENABLE set to 0",
        f"{INFO}comm 0x55 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
        *blocks(table(("Tree", "Ring"), ("AllReduce",)), INFO),
    ]
    noisy = around + [
        part for row in rows for part in (row, f"{INFO}Channel 00/08 : 0 1 2 3 float 4", "ждём…")
    ]
    for encoding in ("utf-8", "utf-16", "utf-8-sig"):
        log = read(noisy, encoding=encoding)
        (found,) = log.tables
        same_times(found)
        assert (found.library, found.version) == ("nccl", "2.27.5")
        assert found.environment == (("NCCL_NVLS_ENABLE", "0"), ("NCCL_PROTO", "^LL128"))
        assert [(each.nranks, each.nnodes, len(each.rows)) for each in log.tuning] == [(16, 2, 6)]


def test_several_runs_in_one_log(read):
    first = ["NCCL_ALGO=Ring ./all_reduce_perf -b 8", *nccl_tests(SIZES, 14 / 8)]
    second = ["./reduce_scatter_perf", *nccl_tests(SIZES[6:], 7 / 8, share=8)]
    third = ["NCCL_ALGO=Tree mpirun ./all_reduce_perf", *nccl_tests(SIZES, 15 / 8, hosts=TWO)]
    found = read([*first, *second, *third]).tables
    assert [
        (each.collective, each.nranks, len(each.rows), dict(each.environment).get("NCCL_ALGO"))
        for each in found
    ] == [
        ("all_reduce", 8, 28, "Ring"),
        ("reduce_scatter", 8, 22, None),
        ("all_reduce", 16, 28, "Tree"),
    ]


def test_variables_of_a_shell_count_for_all_runs_after_them(read):
    rows = list(nccl_tests(SIZES[6:], 14 / 8))
    log = read(["export NCCL_ALGO=Ring", "./all_reduce_perf", *rows, "./all_reduce_perf", *rows])
    assert [dict(each.environment) for each in log.tables] == [{"NCCL_ALGO": "Ring"}] * 2


@pytest.mark.parametrize(
    "lines",
    [
        ["# export NCCL_IB_DISABLE=1", "#export NCCL_IB_DISABLE=1"],
        ["#  -x NCCL_IB_DISABLE=1", "# mpirun -x NCCL_IB_DISABLE=1 ./all_reduce_perf"],
        ["+ export NCCL_IB_DISABLE=1", "+ unset NCCL_IB_DISABLE"],
        ["export NCCL_IB_DISABLE=1", "unset NCCL_DEBUG NCCL_IB_DISABLE"],
    ],
)
def test_variables_that_a_script_does_not_set(read, lines):
    log = read([*lines, "./all_reduce_perf", *nccl_tests(SIZES[6:], 14 / 8)])
    assert log.tables[0].environment == ()


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("#SBATCH --export=ALL,NCCL_IB_DISABLE=1", {"NCCL_IB_DISABLE": "1"}),
        (
            "srun --export=ALL,NCCL_ALGO=Ring,NCCL_DEBUG=INFO,LD_LIBRARY_PATH ./all_reduce_perf",
            {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"},
        ),
        ("mpirun -x NCCL_ALGO=Ring,Tree ./all_reduce_perf", {"NCCL_ALGO": "Ring,Tree"}),
        (
            "mpirun -x NCCL_IB_HCA=mlx5_0,mlx5_1 -x NCCL_PROTO=LL ./all_reduce_perf",
            {"NCCL_IB_HCA": "mlx5_0,mlx5_1", "NCCL_PROTO": "LL"},
        ),
    ],
)
def test_lists_of_variables_and_values_that_are_lists(read, text, environment):
    log = read([text, *nccl_tests(SIZES[6:], 14 / 8)])
    assert dict(log.tables[0].environment) == environment


def test_a_run_that_is_repeated_is_a_table_of_its_own(read):
    once = [
        "./all_reduce_perf -b 8",
        *nccl_tests(SIZES, 14 / 8),
        "# Collective test concluded: all_reduce_perf",
    ]
    log = read([*once, *once, *nccl_tests(SIZES[6:], 7 / 8, share=8)])
    assert [(each.collective, each.guessed) for each in log.tables] == [
        ("all_reduce", False),
        ("all_reduce", False),
        ("reduce_scatter", True),
    ]


@pytest.mark.parametrize("hosts", [("a",), TWO])
def test_one_process_that_drives_all_gpus_of_a_node_is_seen(read, hosts):
    lines = nccl_tests(SIZES, 1.5, hosts=hosts)
    same = [re.sub(r"Pid +\d+", f"Pid {4000 + len(hosts[0])}", line) for line in lines]
    assert read(same).tables[0].environment == ()  # process numbers of containers
    same = [line.replace("nGpus 1", "nGpus 8") for line in same]
    assert read(same).tables[0].environment == (("LAUNCHER", "one-process"),)
    assert read(nccl_tests(SIZES, 1.5, hosts=TWO, per_host=1)).tables[0].environment == ()


def test_rccl(read):
    lines = [
        "RCCL version : 2.20.5-HEAD:d380693",
        *nccl_tests(SIZES, 14 / 8, device="AMD Instinct MI300X"),
    ]
    (found,) = read(lines).tables
    assert (found.library, found.version, found.devices) == (
        "rccl",
        "2.20.5",
        ("AMD Instinct MI300X",),
    )


def test_wrong_elements_are_left_out_and_named(read):
    lines = list(
        nccl_tests(
            SIZES,
            14 / 8,
            wrong=lambda size: "17" if size == 1024 else "0",
            name="all_reduce",
            version=3,
        )
    )
    log = read(lines)
    assert [row.size_bytes for row in log.tables[0].rows] == [
        size for size in SIZES if size != 1024
    ]
    at = next(number for number, line in enumerate(lines, 1) if line.startswith(f"{1024:12d}"))
    assert log.notes == (f"line {at}: 1024 B: 17 wrong elements; left out",)
    log = read(
        nccl_tests(SIZES, 14 / 8, inside=lambda size: ("3" if size == 8 else "N/A", 0.9), version=3)
    )
    assert "line 17: 8 B: 3 wrong elements in place; that time is left out" in log.notes
    assert [row.in_place_fs > 0 for row in log.tables[0].rows] == [False] + [True] * 27


@pytest.mark.parametrize("cut", range(4, 100, 3))
def test_a_log_cut_off_in_a_row(read, cut):
    lines = list(nccl_tests(SIZES, 14 / 8, version=3, end=False))
    log = read([*lines[:-1], lines[-1][:cut]])
    whole = [row for row in log.tables[0].rows if row.size_bytes < SIZES[-1]]
    assert len(whole) == len(SIZES) - 1
    for row in log.tables[0].rows[len(whole) :]:
        assert row.time_fs / 1e9 == pytest.approx(times(row.size_bytes), rel=0.02)
    assert log.notes[-1].endswith(
        "has no last line '# Avg bus bandwidth': the log is cut off or a copy"
    )


def test_a_failed_run_says_why(read):
    lines = [
        *list(nccl_tests(SIZES, 14 / 8, version=3, end=False))[:20],
        "node-1: Test NCCL failure all_reduce.cu:76 'unhandled cuda error'",
    ]
    log = read(lines)
    assert log.notes[0] == "line 21: Test NCCL failure all_reduce.cu:76 'unhandled cuda error'"
    assert len(log.tables[0].rows) == 4


def test_numbers_that_do_not_agree_are_named(read):
    log = read(["  1048576  262144  float  sum  -1  61.5  99.00  173.25  0  61.5  17.05  29.84  0"])
    assert log.tables == ()
    assert log.notes == ("line 1: 1048576 B: size, time and bandwidth do not agree; left out",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing here",
        "float float float",
        "8 2 float",
        "a,b\n1,2\n",
        "8 2 float sum -1 N/A N/A N/A N/A",
    ],
)
def test_without_a_table(read, text):
    assert read(text).tables == ()


@pytest.mark.slow
@given(
    st.lists(
        st.text(max_size=60) | st.sampled_from(list(nccl_tests(SIZES[:4], 14 / 8))), max_size=40
    ),
    st.data(),
)
@settings(max_examples=60)
def test_any_mixture_is_survived(tmp_path_factory, lines, data):
    path = tmp_path_factory.mktemp("fuzz") / "log"
    content = "\n".join(lines).encode(errors="replace")
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        content = (
            content[:at]
            + data.draw(st.binary(max_size=3))
            + content[at + data.draw(st.integers(0, 5)) :]
        )
    path.write_bytes(content)
    try:
        tables = load_log(path).tables
    except ConfigError:  # taken for JSON
        assert content.lstrip().startswith(b"{")
        return
    for found in tables:
        assert all(row.time_fs > 0 and row.size_bytes > 0 for row in found.rows)


ROW = st.tuples(st.integers(0, 40), st.floats(1, 1e6), st.sampled_from(["0", "N/A", "5"]))


@pytest.mark.slow
@given(st.lists(ROW, min_size=1, max_size=20))
def test_every_row_is_used_or_named(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "log"
    lines = []
    for power, us, wrong in rows:
        size = 2**power
        algbw = size / us / 1e3
        lines.append(
            f"{size:12d} {size:12d} {'int8':>8} {'sum':>6} {-1:>6} {us:.2f} {algbw:.2f} "
            f"{algbw:.2f} {wrong}"
        )
    path.write_text("\n".join(lines))
    log = load_log(path)
    used = {row.line for found in log.tables for row in found.rows}
    named = {
        number
        for number in range(1, len(rows) + 1)
        if any(note.startswith(f"line {number}:") for note in log.notes)
    }
    assert used == {number for number, (_, _, wrong) in enumerate(rows, 1) if wrong != "5"}
    assert named == {number for number, (_, _, wrong) in enumerate(rows, 1) if wrong == "5"}


@pytest.mark.slow
def test_few_of_many_faults_are_kept(read):
    log = read(["  8  2  float  sum  -1  1.0  9.99  9.99  0"] * 5000)
    assert len(log.notes) == 21
    assert log.notes[-1] == "and 4,980 more lines"


def test_rows_beyond_the_most_of_a_table_are_named(read, monkeypatch):
    monkeypatch.setattr(nccl_tests_module, "MAX_ROWS", 20)
    log = read(nccl_tests(SIZES, 15 / 8, hosts=TWO, version=3))
    assert len(log.tables[0].rows) == 20
    named = [note for note in log.notes if "beyond the first 20 rows of a table; left out" in note]
    assert len(named) == len(SIZES) - 20


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["lines", "one line", "float"])
def test_a_huge_log_in_little_memory(tmp_path, noise):
    path = tmp_path / "huge.txt"
    rows = list(nccl_tests(SIZES, 15 / 8, hosts=TWO, version=3))
    filler = {
        "lines": f"{INFO}Channel 01/0 : 3[3] -> 4[4] via P2P/CUMEM/read and a few more words to "
        "fill the line\n" * 10_000,
        "one line": "NCCL_NCCL_Rank 1 on " * 50_000,
        "float": "8 2 float sum " * 70_000 + "\n",
    }[noise]
    with path.open("w") as stream:
        for row in rows:
            stream.write(row + "\n")
            while stream.tell() < 2 * 2**20 * (rows.index(row) + 1) / len(rows):
                stream.write(filler)
            stream.write("\n")
    assert path.stat().st_size > 2 * 10**6
    tracemalloc.start()
    log = load_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    same_times(log.tables[0])
    assert peak < 2**20


def document(**changes):
    def measured(size, us):
        return {
            "time": us,
            "alg_bw": size / us / 1e3,
            "bus_bw": 1.875 * size / us / 1e3,
            "nwrong": "0",
        }

    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "-1",
            "out_of_place": measured(size, times(size)),
            "in_place": measured(size, times(size) * 0.9),
        }
        for size in SIZES
    ]
    devices = [
        {"rank": rank, "pid": rank, "hostname": f"n{rank // 8}", "device_info": "NVIDIA B200"}
        for rank in range(16)
    ]
    return {
        "version": 3,
        "args": ["./build/all_reduce_perf", "-b", "8"],
        "env": ["NCCL_ALGO=Ring", "PATH=/bin"],
        "nccl_version": "2.28.7",
        "config": {"nthreads": 1, "ngpus": 1, "devices": devices},
        "results": results,
        "errors": [],
        **changes,
    }


def test_json(read):
    log = read(json.dumps(document(), indent=2))
    (found,) = log.tables
    same_times(found)
    assert (found.collective, found.nranks, found.nnodes, found.version) == (
        "all_reduce",
        16,
        2,
        "2.28.7",
    )
    assert (found.devices, found.environment, log.notes) == (
        ("NVIDIA B200",),
        (("NCCL_ALGO", "Ring"),),
        (),
    )
    assert read(json.dumps(document())).tables == log.tables


def test_json_with_a_number_for_a_version_and_without_times(read):
    other = document(nccl_version=22703)
    for result in other["results"]:
        result["out_of_place"] = {"alg_bw": result["out_of_place"]["alg_bw"]}
    (found,) = read(json.dumps(other)).tables
    assert found.version == "2.27.3"
    same_times(found)


def test_json_rows_that_cannot_be_used(read):
    bad = document()
    bad["results"][0]["out_of_place"]["nwrong"] = "4"
    bad["results"][1]["out_of_place"] = {}
    bad["results"][1]["in_place"] = None
    log = read(json.dumps(bad | {"errors": ["unhandled"]}))
    assert len(log.tables[0].rows) == len(SIZES) - 2
    assert log.notes == (
        "results[0], 8 B: 4 wrong elements; left out",
        "results[1], 16 B: no time; left out",
        "the file names an error: unhandled",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps(document())[:5000], "JSON that is cut off or broken"),
        ('{"results": 7}', r"not the JSON of nccl-tests or realcoll: expected a list"),
        ('{\n "scenario": []\n}', "Object missing required field `results`"),
        ('{"results": [{"size": "8"}]}', "expected a whole number"),
        ('{"results": [' + '{"config":' * 10_000, "cut off or broken"),
        ('{\n "results": [' + "\x00", "cut off or broken"),
    ],
)
def test_json_of_another_kind(read, text, says):
    with pytest.raises(ConfigError, match=says) as refused:
        read(text)
    assert "log.txt" in str(refused.value)


@pytest.mark.slow
@given(st.binary(max_size=300))
def test_json_fuzz(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("json") / "log"
    whole = json.dumps(document()).encode()
    at = random.Random(data).randrange(len(whole))
    for content in (b"{" + data, whole[:at] + data + whole[at:], whole[:at] + data):
        path.write_bytes(content)
        try:
            load_log(path)
        except ConfigError:
            continue


def test_docker_lines(read):
    lines = [
        json.dumps({"log": row + "\n", "stream": "stdout", "time": "t"})
        for row in nccl_tests(SIZES, 14 / 8)
    ]
    same_times(read(lines).tables[0])


def test_what_cannot_be_read(tmp_path):
    for path, says in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        ("a\0b", "embedded null"),
    ):
        with pytest.raises(ConfigError, match=f"cannot be read: {says}"):
            load_log(path)


PIECES = "  1048576  262144  float  sum  -1", "  25.10  41.78  73.12  0", "  25.20  41.61  72.82  0"
HEAD = (
    "# Collective test starting: all_reduce_perf",
    *(
        f"#  Rank {rank} Group 0 Pid 4{rank} on node-0 device {rank} [0x10] H100"
        for rank in range(8)
    ),
    "#       size    count   type redop root   time  algbw  busbw #wrong   time  algbw  busbw #wrong",
)
CHOICE = "AllReduce: 1048576 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}"


def of_nccl(host="node-0", rank=0):
    return f"{host}:9:1{rank} [{rank}] NCCL INFO {CHOICE}"


@pytest.mark.parametrize(
    "lines",
    [
        [PIECES[0] + of_nccl(), PIECES[1] + of_nccl(), PIECES[2]],
        [PIECES[0] + of_nccl(), of_nccl(rank=1), PIECES[1] + of_nccl(), of_nccl(rank=1), PIECES[2]],
        [PIECES[0], of_nccl(), PIECES[1], of_nccl(rank=1), of_nccl(), PIECES[2]],
        [of_nccl("10.0.0.7"), PIECES[0] + of_nccl("10.0.0.7"), PIECES[1] + of_nccl("10.0.0.7"), PIECES[2]],
        [PIECES[0] + of_nccl("ip-10-0-0-7"), "", *PIECES[1:]],
        [PIECES[0] + PIECES[1] + of_nccl(), PIECES[2] + of_nccl()],
        ["[0]" + "[0]".join(PIECES)],
        ["[1,0]<stdout>:" + "[1,0]<stdout>:".join(PIECES)],
        [f"[1,0]<stdout>:{piece}" for piece in PIECES],
        [f"0: {piece}" for piece in PIECES],
        [f"2026-11-02T10:11:1{number}.12Z {piece}" for number, piece in enumerate(PIECES)],
        [f"[pod/launcher-x7/nccl] {piece}" for piece in PIECES],
    ],
    ids=[
        "glued", "of two ranks", "between", "addresses", "names that begin with i", "first group",
        "prefix", "mpirun", "lines of mpirun", "lines of srun", "time stamps", "lines of kubectl",
    ],
)  # fmt: skip
def test_rows_in_pieces(read, lines):
    log = read([*HEAD, *lines, "# Avg bus bandwidth : 73"])
    ((row,),) = (table.rows for table in log.tables)
    assert (row.size_bytes, row.out_of_place_fs, row.in_place_fs) == (
        2**20,
        25_100_000_000,
        25_200_000_000,
    )
    assert log.notes == ()
    if any("NCCL" in line for line in lines):
        assert {choice.algorithm for choice in log.choices} == {"nvls"}


def test_pieces_that_never_come_are_no_rows(read):
    log = read([*HEAD, PIECES[0], of_nccl(), PIECES[0] + PIECES[1], "# Avg bus bandwidth : 73"])
    assert [row.in_place_fs for row in log.tables[0].rows] == [0]
    assert any("1048576 B: cut off" in note for note in log.notes)


TITLES = "size,count,type,redop,root,time,algbw,busbw,#wrong,time,algbw,busbw,#wrong"
CELLS = "1048576,262144,float,sum,-1,25.10,41.78,73.12,0,25.20,41.61,72.82,0"


@pytest.mark.parametrize(
    "lines",
    [
        [TITLES, CELLS],
        ["size (B)," + TITLES.removeprefix("size,"), CELLS],
        [TITLES.replace("time", "oop_time(us)", 1), CELLS],
        [",".join(f'"{title}"' for title in TITLES.split(",")), CELLS],
        [CELLS],
        [
            f"| {TITLES.replace(',', ' | ')} |",
            "|---" * 13 + "|",
            f"| {CELLS.replace(',', ' | ')} |",
        ],
        [f"{TITLES.replace(',', ' | ')}", f"{CELLS.replace(',', ' | ')}"],
    ],
    ids=["csv", "units", "long titles", "quotes", "no titles", "page", "page without edges"],
)
def test_tables_of_pages_and_csv(read, lines):
    (table,) = read(["all_reduce_perf", *lines]).tables
    assert [(row.out_of_place_fs, row.in_place_fs) for row in table.rows] == [
        (25_100_000_000, 25_200_000_000)
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["all_reduce_perf", "size(B),time(us),algbw(GB/s),busbw(GB/s)", "1048576,25.1,41.78,78.3"],
        [
            "AllReduce on two nodes",
            "",
            "| Message size | Time (ms) | Bus BW |",
            "|---:|---:|---:|",
            "| **1 MB** | 0.0251 | 78.3 |",
        ],
        ["all-reduce", "Size (MB)\tAlgBW (GB/s)", "1\t41.776"],
        ["all_reduce", "| nbytes | latency |", "|---|---|", "| 1M | 25.1 us |"],
    ],
    ids=["csv", "page", "tabs", "units in cells"],
)
def test_tables_with_columns_of_their_own(read, lines):
    (table,) = read(lines).tables
    ((row,),) = (table.rows,)
    assert (table.collective, row.size_bytes) == ("all_reduce", 2**20)
    assert row.time_fs == pytest.approx(25_100_000_000, rel=1e-4)


def test_a_table_that_states_no_time_is_said(read):
    log = read(["all_reduce", "| size | busbw |", "| 1024 | 3.2 |", "| 2048 | 2 |"])
    assert log.tables == ()
    assert log.notes[0].endswith("1024 B: neither a time nor an algorithm bandwidth; left out")
    wrong = read(["all_reduce", "| size | time | algbw |", "| 1048576 | 25.1 | 99 |"])
    assert wrong.notes == ("line 3: 1048576 B: time and bandwidth do not agree; left out",)


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ("-R 2", (("REGISTERED", "1"),)),
        ("-R 1", ()),
        ("--local_register=2 -n 5", (("REGISTERED", "1"),)),
    ],
)
def test_registered_buffers_are_seen(read, options, environment):
    log = read([f"mpirun -np 8 ./all_reduce_perf -b 8 -e 1G {options}", *HEAD, "".join(PIECES)])
    assert log.tables[0].environment == environment


def test_json_that_people_have_annotated(read):
    group = '{"time": 25.1, "alg_bw": 41.78, "bus_bw": 73.12, "nwrong": 0}'
    log = read(
        [
            "// of node 7 // again",
            "{",
            '  "args": ["all_reduce_perf", "http://wiki/x"], // the command',
            '  /* "env": [], */',
            "  # one row",
            f'  "results": [{{"size": 1048576, "type": "float", "out_of_place": {group}}},],',
            "}",
        ]
    )
    assert [row.out_of_place_fs for row in log.tables[0].rows] == [25_100_000_000]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "# nThread 1 nGpus 8 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 0 iters: 20",
            "no warm-up",
        ),
        ("mpirun -np 8 ./all_reduce_perf -b 8 -e 1G -C 1 -f 2", "times of the CPU (-C 1)"),
        ("./all_reduce_perf -b 8 --report_cputime 1", "times of the CPU (-C 1)"),
        (
            "# nThread 1 nGpus 8 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20",
            None,
        ),
        ("./all_reduce_perf -b 8 -c 1 -C 0", None),
    ],
)
def test_misuse_is_named(read, line, said):
    log = read([line, *HEAD, "".join(PIECES), "# Avg bus bandwidth : 73"])
    notes = log.notes
    assert [note for note in notes if said and said in note] == list(notes)
    assert bool(notes) == (said is not None)
    of_the_cpu = [str(value) for value in log.tables[0].facts.values("times")]
    assert bool(of_the_cpu) == (said is not None and "CPU" in said)
