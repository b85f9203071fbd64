"""Tables of the OSU micro-benchmarks, as versions 5.6 to 7.5 print them."""

import pytest

from simcoll.cli import main
from simcoll.formats.logs.nccl_tests import load_log
from simcoll.formats.recognise import recognise

ALLREDUCE = """
# OSU MPI Allreduce Latency Test v5.9
# Size       Avg Latency(us)
4                       1.34
8                       1.17
1048576               144.60
"""
ALLTOALL = """
mpirun -n 36 /opt/osu_alltoall -x 10 -i 10 -m 1:67108864
# OSU MPI-CUDA All-to-All Personalized Exchange Latency Test v7.5
# Datatype: MPI_INT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations        Validation
4                      10.29              9.11             12.30        1000              Pass
8                      10.56              9.20             13.02        1000              Pass
"""


@pytest.fixture
def read(tmp_path):
    def reading(text):
        (tmp_path / "osu.log").write_text(text)
        return load_log(tmp_path / "osu.log")

    return reading


def told(table):
    return [(row.size_bytes, row.count, row.time_fs) for row in table.rows]


@pytest.mark.parametrize(
    "prefix", ["", "[1,0]<stdout>:", "0: ", "2026-11-02T10:11:12.123456789Z stdout F "]
)
def test_sizes_of_a_vector(read, prefix):
    log = read("\n".join(prefix + line for line in ALLREDUCE.splitlines()))
    (table,) = log.tables
    assert (table.collective, table.nranks, table.library, table.guessed) == (
        "all_reduce",
        0,
        "mpi",
        False,
    )
    assert told(table) == [
        (4, 4, 1_340_000_000),
        (8, 8, 1_170_000_000),
        (1 << 20, 1 << 20, 144_600_000_000),
    ]
    assert log.notes == ("the number of ranks is not named, and its columns do not tell it",)


def test_sizes_of_a_block_with_the_ranks_of_the_command_line(read):
    (table,) = read(ALLTOALL).tables
    assert (table.collective, table.nranks) == ("all_to_all", 36)
    assert told(table) == [(36 * 4, 1, 10_290_000_000), (36 * 8, 2, 10_560_000_000)]
    assert {(row.dtype, row.op, row.root) for row in table.rows} == {("int", "", -1)}


def test_sizes_of_a_block_of_unknown_ranks_are_left_out_in_words(read):
    log = read(ALLTOALL.replace("mpirun -n 36 ", ""))
    assert log.tables == ()
    assert (
        "no command line such as 'mpirun -n 16' before it says how many there are" in log.notes[0]
    )


def test_other_benchmarks_end_a_table(read):
    pairs = (
        "# OSU MPI Latency Test v7.3\n# Size          Latency (us)\n1                       1.95\n"
    )
    barrier = "# OSU MPI Barrier Latency Test v7.3\n# Avg Latency(us)\n             3.10\n"
    nccl = (
        "#Using NCCL\n# OSU NCCL-CUDA Allreduce Latency Test v7.5\n"
        "# Size       Avg Latency(us)\n1073741824           8955.18\n$\n"
    )
    log = read(ALLREDUCE + pairs + barrier + nccl)
    assert [(table.library, len(table.rows)) for table in log.tables] == [("mpi", 3), ("nccl", 1)]
    assert sum("is not of a collective known here; left out" in note for note in log.notes) == 2


def test_compare(tmp_path, capsys):
    (tmp_path / "osu.log").write_text(ALLREDUCE)
    assert recognise(ALLREDUCE.encode()) == "osu"
    assert main(["verify", str(tmp_path / "osu.log")]) == 2
    assert "this is output of the OSU micro-benchmarks" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "osu.log"), "-t", "dgx-h100"]) == 0
    printed = capsys.readouterr().out
    assert "has the times of another library's collectives, not NCCL's" in printed
    assert "144.6" in printed
