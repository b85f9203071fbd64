"""Comparisons: the machine of a log, and ranges that deviate."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simcoll.planning.measured.comparison as comparison_module
from simcoll.errors import ConfigError
from simcoll.formats.logs.measured import Log, MeasuredRow, MeasuredTable
from simcoll.formats.logs.nccl_tests import load_log
from simcoll.formats.logs.run_facts import RunFact, RunFacts
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import DEFAULT
from simcoll.libraries.fitting import formula
from simcoll.planning.measured.comparison import (
    Compared,
    band_errors,
    band_lines,
    compare,
    comparison_lines,
    deviations,
    settings_for,
)
from simcoll.planning.measured.log_parameters import LogParameters
from simcoll.topology import load_topology
from tests.support.nccl_logs import nccl_tests

US = 10**9
SIZES = tuple(2**power for power in range(3, 31))


def made(
    topology,
    *,
    collective="all_reduce",
    nodes=2,
    calibration=None,
    environment=DEFAULT,
    library=None,
    sizes=SIZES,
):
    """A log with the times that the formula gives."""
    found = load_topology(topology, nodes=nodes)
    predictor = formula(collective, found, library or "nccl", environment)
    times = predictor(sizes, calibration or Calibration())
    rows = tuple(
        MeasuredRow(size, size // 4, "float", "sum", -1, time)
        for size, time in zip(sizes, times, strict=True)
    )
    return Log(
        (MeasuredTable(collective, found.nranks, nodes, (), "nccl", "2.27.5", (), rows),),
        (),
        (),
        (),
    )


@pytest.mark.slow
def test_a_log_as_predicted_deviates_nowhere():
    log = made("dgx-h100")
    (setting,), notes = settings_for(log, "dgx-h100")
    assert notes == []
    rows = compare(setting)
    assert deviations(rows) == []
    # Events against the formula.
    assert all(each.ratio == pytest.approx(1, rel=0.06) for each in rows)
    errors = band_errors((each.row.size_bytes, each.ratio) for each in rows)
    assert [name for name, _, _, _ in errors] == ["below 64 KiB", "64 KiB to 64 MiB", "from 64 MiB"]
    assert all(middle <= ninth < 0.06 for _, _, middle, ninth in errors)


def test_a_value_that_is_not_nccl_s_is_named():
    log = made("dgx-a100")
    table = replace(log.tables[0], environment=(("NCCL_ALGO", "Spiral"), ("NCCL_PROTO", "^LL128")))
    (setting,), notes = settings_for(replace(log, tables=(table,)), "dgx-a100")
    assert notes[0].endswith("NCCL_ALGO=Spiral in the log is ignored")
    assert setting.environment.protocols == (("", ("LL", "Simple")),)


@pytest.mark.parametrize(
    ("nranks", "nnodes", "nodes", "boxes"),
    [
        (16, 2, None, 2),
        (16, 0, None, 2),
        (8, 4, None, 4),
        (0, 0, 2, 2),
        (12, 2, None, 2),
        (5, 1, None, 1),
    ],
)
def test_the_machine_has_the_nodes_and_ranks_of_the_log(nranks, nnodes, nodes, boxes):
    log = made("dgx-h100")
    table = replace(log.tables[0], nranks=nranks, nnodes=nnodes)
    (setting,), _ = settings_for(
        replace(log, tables=(table,)), "dgx-h100", LogParameters(nodes=nodes)
    )
    assert setting.topology.nranks == setting.table.nranks == (nranks or 16)
    assert len(set(setting.topology.groups["box"].tolist())) == boxes


def test_a_number_of_nodes_other_than_the_log_s_is_noted():
    log = made("dgx-a100")
    assert settings_for(log, "dgx-a100", LogParameters(nodes=2))[1] == []
    (note,) = settings_for(log, "dgx-a100", LogParameters(nodes=4))[1]
    assert note.endswith("is of 2 nodes in the log; predicted for --nodes 4")


@pytest.mark.parametrize(
    ("device", "topology", "noted"),
    [
        ("NVIDIA B200", "dgx-h100", "is of NVIDIA B200, topology 'dgx-h100' has H100"),
        ("NVIDIA H100 80GB HBM3", "dgx-h100", ""),
        ("NVIDIA A100-SXM4-40GB", "dgx-a100", ""),
        ("Tesla V100-SXM2-32GB", "dgx-a100", "is of Tesla V100-SXM2-32GB"),
        ("NVIDIA GH200 480GB", "dgx-h200", "is of NVIDIA GH200 480GB"),
        ("Graphics Device", "dgx-h100", ""),
    ],
)
def test_a_gpu_other_than_the_machine_s_is_noted(device, topology, noted):
    log = made(topology)
    table = replace(log.tables[0], devices=(device,))
    notes = settings_for(replace(log, tables=(table,)), topology)[1]
    assert [noted in note for note in notes] == ([True] if noted else [])


@pytest.mark.parametrize(
    ("change", "how", "says"),
    [
        ({"collective": "hypercube"}, {}, "simcoll has no model of 'hypercube'"),
        ({"collective": ""}, {}, "--collective says which one it is"),
        ({}, {"collective": "broadcast"}, "is left out: --collective asks for broadcast"),
        ({"collective": ""}, {"collective": "allreduce"}, "did you mean 'all_reduce'"),
        (
            {"nranks": 32},
            {"nodes": 2},
            (
                "topology 'dgx-h100' has 16 GPUs; 32 ranks were requested, as in the log; choose "
                "--nodes"
            ),
        ),
        ({}, {"library": "mccl"}, "unknown library 'mccl'; did you mean 'rccl'"),
        ({}, {"environment": "NCCL_ALGO=Spiral"}, "NCCL_ALGO: unknown value 'Spiral'"),
    ],
)
def test_what_cannot_be_compared(change, how, says):
    log = made("dgx-h100")
    changed = replace(log, tables=(replace(log.tables[0], **change),))
    parameters = LogParameters(**how)
    with pytest.raises(ConfigError, match=says):
        settings_for(changed, "dgx-h100", parameters)


def test_the_log_names_the_fabric_of_a_dump():
    log = made("dgx-a100")
    facts = RunFacts((RunFact("NICs", "mlx5_0:1/RoCE", 3),))
    (setting,), notes = settings_for(
        replace(log, tables=(replace(log.tables[0], facts=facts),)), "dgx-a100"
    )
    assert setting.topology.traits["fabric"] == "ib"
    assert notes == []
    bare = replace(setting.topology, traits={"gpu": "A100", "generation": "ampere"})
    assert comparison_module._fabric_of_log(setting.table, bare) == "roce"
    assert comparison_module._fabric_of_log(log.tables[0], bare) == ""


def test_tables_without_a_model_are_left_out_of_several():
    log = made("dgx-h100")
    other = replace(log.tables[0], collective="alltoallv")
    found, notes = settings_for(replace(log, tables=(other, *log.tables)), "dgx-h100")
    assert len(found) == 1
    assert notes == [
        (
            "table 1 (alltoallv, 16 ranks on 2 nodes, 28 rows, nccl 2.27.5) is left out: simcoll has "
            "no model of 'alltoallv'"
        )
    ]


def test_the_named_collective_of_several_is_taken():
    log = made("dgx-h100")
    guess, other = (
        replace(log.tables[0], guessed=True),
        replace(log.tables[0], collective="broadcast"),
    )
    found, notes = settings_for(
        replace(log, tables=(*log.tables, guess, other)),
        "dgx-h100",
        LogParameters(collective="broadcast"),
    )
    # A name counts more than a guess.
    assert [each.table.collective for each in found] == ["broadcast", "broadcast"]
    assert [note.partition(" is ")[2] for note in notes] == [
        "left out: --collective asks for broadcast"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "says"), [("(nccl)", ""), ("(mpi)", "another library's collectives")]
)
def test_the_library_of_a_report_of_realcoll(transport, says):
    log = made("dgx-h100")
    rows = tuple(
        replace(row, out_of_place_fs=3 * row.time_fs, library_fs=row.time_fs)
        for row in log.tables[0].rows
    )
    report = replace(log.tables[0], library="realcoll", version=transport, rows=rows)
    (setting,), notes = settings_for(replace(log, tables=(report,)), "dgx-h100")
    assert says in "".join(notes)
    assert bool(notes) == bool(says)
    # With the library's own time.
    assert all(each.ratio == pytest.approx(1, rel=0.06) for each in compare(setting))


@pytest.mark.slow
def test_rccl_is_compared_with_rccl():
    log = made("mi300x", nodes=1, library="rccl", sizes=SIZES[7:])
    (setting,), _ = settings_for(
        replace(log, tables=(replace(log.tables[0], library="rccl"),)), "mi300x"
    )
    assert setting.library.name == "rccl"
    assert all(each.ratio == pytest.approx(1, rel=0.06) for each in compare(setting))


def shifted(rows, factors):
    """As predicted, but for some sizes."""
    times = [round(each.prediction.time_fs * factors.get(each.row.size_bytes, 1)) for each in rows]
    return [
        Compared(replace(each.row, out_of_place_fs=time), each.prediction)
        for each, time in zip(rows, times, strict=True)
    ]


@pytest.mark.slow
def test_deviations_in_words():
    (setting,), _ = settings_for(made("dgx-h100"), "dgx-h100")
    rows = compare(setting)
    found = deviations(shifted(rows, {8: 2, 16: 1.5, 32: 0.5, 2**20: 1.3, 2**30: 0.01}))
    assert found == [
        "8 B to 16 B: measured is 1.50 to 2.00 times the prediction",
        "32 B: measured is 0.50 times the prediction",
        "1 MiB: measured is 1.30 times the prediction",
        "1 GiB: measured is 0.01 times the prediction",
        (
            "1 GiB: measured is less than the bound of this topology: the machine is another one, "
            "or the time is wrong"
        ),
    ]


def test_rows_of_one_size_are_no_range():
    (setting,), _ = settings_for(made("dgx-h100", sizes=(8,)), "dgx-h100")
    slow = shifted(compare(setting), {8: 2})
    assert deviations(slow * 2) == ["8 B: measured is 2.00 times the prediction"]


def test_lines_for_a_person():
    (setting,), _ = settings_for(made("dgx-h100", sizes=(8, 2**30)), "dgx-h100")
    lines = list(comparison_lines(compare(setting)))
    assert lines[2].split()[:1] == ["8"]
    assert lines[3].split()[3] == "1.00"
    assert "Simple" in lines[3]
    assert list(band_lines([(8, 1.5)])) == [
        "below 64 KiB: median 50%, 90th percentile 50% of 1 row"
    ]


def test_types_and_reductions_are_predicted_each_on_its_own():
    log = made("dgx-h100", sizes=(2**28, 2**30))
    (table,) = log.tables
    row = table.rows[-1]
    kinds = [("float", "sum"), ("float", "prod"), ("half", "max"), ("int8", "mulsum")]
    rows = [replace(row, dtype=dtype, op=op) for dtype, op in kinds]
    mixed = replace(log, tables=(replace(table, rows=tuple(rows)),))
    settings, _ = settings_for(mixed, "dgx-h100")
    elements = [(setting.environment.dtype, setting.environment.op) for setting in settings]
    assert elements == [("", ""), ("", "prod"), ("float16", "max"), ("int8", "premul_sum")]
    # Switches add floats, and find the greatest of halves; they do not multiply.
    chosen = [compare(setting)[0].prediction.algorithm for setting in settings]
    assert chosen == ["nvls_tree", "ring", "nvls_tree", "ring"]
    assert "float16 max on dgx-h100" in str(settings[2])
    (asked,) = settings_for(log, "dgx-h100", LogParameters(environment="OP=prod"))[0]
    assert asked.environment.op == "prod"


def test_a_size_that_was_measured_often_has_one_line():
    (setting,), _ = settings_for(made("dgx-h100", sizes=(8, 2**30)), "dgx-h100")
    small, large = compare(setting)
    slower = shifted([small], {8: 2})
    note, _, _, line, last = comparison_lines([small, large, *slower, *shifted([small], {8: 3})])
    assert note == "# measured is the median of the rows of a size, 1 to 3 of each"
    assert line.split()[1] == f"{slower[0].row.time_fs / 1e9:.2f}"
    assert last.split()[0] == str(2**30)


def test_a_log_that_was_printed(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("\n".join(nccl_tests(SIZES, 15 / 8, hosts=("a", "b"), version=3, rate=180.0)))
    (setting,), notes = settings_for(load_log(path), "dgx-h100")
    assert (str(setting), notes) == (
        "all_reduce, 16 ranks on 2 nodes, 28 rows, nccl 2.28.7 on dgx-h100",
        [],
    )
    assert setting.topology.nranks == 16


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "a table of one rank, which moves nothing: .* only if it was built with make MPI=1"),
        (4, "4 tables of a single rank each, .* was built without MPI, so that each process ran"),
    ],
)
def test_a_benchmark_built_without_mpi_is_named(count, said):
    log = made("dgx-a100")
    table = replace(log.tables[0], nranks=1, nnodes=1)
    with pytest.raises(ConfigError, match=said):
        settings_for(replace(log, tables=(table,) * count), "dgx-a100")
