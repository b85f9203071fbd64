"""Steps on a machine whose collectives were measured: a calibration of NCCL in ``[topology]``."""

from fractions import Fraction

import pytest

from simcoll.errors import ConfigError
from simcoll.libraries.calibration import Calibration, Correction, write_calibration
from simcoll.libraries.isolated import alone_fs, bind_size
from simcoll.libraries.plans import library_play
from simcoll.libraries.prediction import predict
from simcoll.planning.designs.space import load_space
from simcoll.topology import load_topology
from simcoll.training.design import load_design
from simcoll.training.operation_list import operations_from
from simcoll.training.steps import step

DESIGN = """
[model]
layers = 4
hidden = 2048
heads = 16
vocabulary = 32000
sequence = 2048
global_batch = 32
[gpu]
name = "h100"
[topology]
name = "dgx-h100"
nodes = 2
"""


def timed(folder, calibration=None):
    """The step of a small model on two nodes, under a calibration of its collectives."""
    text = DESIGN
    if calibration is not None:
        write_calibration(folder / "mine.toml", calibration)
        text += 'calibration = "mine.toml"\n'
    (folder / "design.toml").write_text(text)
    return step(load_design(folder / "design.toml"), tier=1)


@pytest.mark.slow
def test_slower_links_expose_more_of_a_step(tmp_path):
    slow = Calibration(rate=Fraction(1, 2))
    plain, slower = timed(tmp_path), timed(tmp_path, slow)
    assert slower.axes["dp"].total_fs == pytest.approx(2 * plain.axes["dp"].total_fs, rel=0.1)
    assert slower.compute_fs == plain.compute_fs
    assert slower.time_fs > plain.time_fs
    assert slower.design_hash != plain.design_hash
    assert slower.calibration == f"{plain.calibration}; collectives: calibration {slow.hash}"


@pytest.mark.slow
def test_one_of_other_groups_changes_no_time(tmp_path):
    neutral = Calibration(corrections=(Correction("all_reduce", 15, ((8, Fraction(2)),)),))
    plain, same = timed(tmp_path), timed(tmp_path, neutral)
    assert (same.time_fs, same.trace_hash) == (plain.time_fs, plain.trace_hash)


def test_a_launch_offset_delays_every_operation_as_it_does_a_prediction():
    two = load_topology("dgx-h100", nodes=2)
    for offset in (0, 20 * 10**9, -(10**11)):
        calibration = Calibration(launch_fs=offset)
        schedule, protocol = library_play("all_gather", 2**20, two, calibration=calibration)
        predicted = predict("all_gather", 2**20, two, calibration=calibration)
        assert alone_fs(bind_size(schedule, protocol, 2**20), two) == predicted.time_fs


def test_a_plan_reads_it_beside_its_file_and_sees_its_changes(tmp_path):
    keys = []
    for rate in (1, 2):
        write_calibration(tmp_path / "mine.toml", Calibration(rate=Fraction(1, rate)))
        (tmp_path / "plan.toml").write_text(
            DESIGN + 'calibration = "mine.toml"\n[parallel]\ntp = [1, 2]\n'
        )
        space = load_space(tmp_path / "plan.toml")
        keys.append(repr(space))
        assert str(tmp_path / "mine.toml") in keys[-1]
    assert keys[0] != keys[1]


def test_it_is_refused_where_it_is_missing_or_means_nothing(tmp_path):
    (tmp_path / "design.toml").write_text(DESIGN + 'calibration = "none.toml"\n')
    with pytest.raises(ConfigError, match=r"none\.toml: cannot read: No such file"):
        load_design(tmp_path / "design.toml")
    listed = {"topology": {"name": "dgx-h100", "calibration": "mine.toml"}, "mesh": {"dp": 8}}
    with pytest.raises(ConfigError, match=r"topology\.calibration: is for designs"):
        operations_from({**listed, "op": [{"id": "work", "time": "1 ms"}]})
