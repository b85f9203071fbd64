"""Predictions on disk: found again, and no harm when the disk is not as it should be."""

import json
import os
from dataclasses import replace

import pytest

import simcoll
from simcoll.libraries import prediction, prediction_cache
from simcoll.libraries.environment import Environment
from simcoll.libraries.prediction import predict
from simcoll.libraries.prediction_cache import topology_digest
from simcoll.topology import load_topology

MACHINE = simcoll.load_topology("dgx-a100")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(prediction_cache.VARIABLE, str(tmp_path))
    prediction._predict.cache_clear()
    yield tmp_path / "predictions"
    prediction._predict.cache_clear()


def files(folder):
    return sorted(folder.rglob("*.json"))


def again(*args, **kwargs):
    """As another process would."""
    prediction._predict.cache_clear()
    return predict(*args, **kwargs)


def test_a_prediction_is_found_again_without_being_made(folder, monkeypatch):
    first = predict("all_gather", 2**20, MACHINE)
    assert len(files(folder)) == 1
    monkeypatch.setattr(prediction, "_with_emulation", None)
    assert again("all_gather", 2**20, MACHINE) == first
    with pytest.raises(TypeError):
        again("all_gather", 2**20 + 64, MACHINE)


def test_whatever_matters_is_in_the_key(folder):
    library = simcoll.libraries.library.load_library("nccl")
    slow = MACHINE.degrade("box0.gpu3 <-> box0.nvswitch", "1/4")
    variants = [
        again("all_gather", 2**20, MACHINE),
        again("all_reduce", 2**20, MACHINE),
        again("all_gather", 2**21, MACHINE),
        again("all_gather", 2**20, MACHINE, ranks=4),
        again("all_gather", 2**20, slow),
        again("all_gather", 2**20, replace(MACHINE, traits={**MACHINE.traits, "gpu": "V100"})),
        again("all_gather", 2**20, MACHINE, environment=Environment(launcher="torch")),
        again(
            "all_gather",
            2**20,
            MACHINE,
            library=library.with_values({"class.ampere.ring_share": 0.5}),
        ),
    ]
    assert len(files(folder)) == len(variants)
    assert len({found.time_fs for found in variants}) > 5


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{",
        b"[" * 4000,
        b'{"key": 1}',
        json.dumps({"time_fs": -1}).encode(),
    ],
)
def test_a_damaged_file_counts_as_absent(folder, damage):
    first = predict("all_gather", 2**20, MACHINE)
    (path,) = files(folder)
    path.write_bytes(damage)
    assert again("all_gather", 2**20, MACHINE) == first
    assert json.loads(path.read_bytes())["time_fs"] == first.time_fs


def test_a_pipe_in_the_place_of_a_prediction_is_not_waited_for(folder, monkeypatch):
    monkeypatch.setattr("simcoll.files.output.LOCK_S", 0.0)
    first = predict("all_gather", 2**20, MACHINE)
    (path,) = files(folder)
    path.unlink()
    os.mkfifo(path)
    assert again("all_gather", 2**20, MACHINE) == first


def test_a_field_of_another_type_counts_as_absent(folder):
    first = predict("all_gather", 2**20, MACHINE)
    (path,) = files(folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), "time_fs": "soon"}))
    assert again("all_gather", 2**20, MACHINE) == first


def signed(path, **changed):
    """A file as simcoll itself would have written it, if its code were wrong."""
    fields = {**json.loads(path.read_text()), **changed}
    del fields["checksum"]
    path.write_text(
        json.dumps({"checksum": prediction_cache._checksum(path.stem, fields), **fields})
    )


@pytest.mark.parametrize("time_fs", [0, -5, 10**9, 10**15])
def test_a_number_that_changed_on_the_disk_is_not_believed(folder, time_fs):
    first = predict("all_gather", 2**20, MACHINE)
    (path,) = files(folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), "time_fs": time_fs}))
    assert again("all_gather", 2**20, MACHINE) == first
    assert json.loads(path.read_bytes())["time_fs"] == first.time_fs


@pytest.mark.parametrize("digit", range(0, 400, 37))
def test_a_flipped_bit_is_noticed(folder, digit):
    first = predict("all_gather", 2**20, MACHINE)
    (path,) = files(folder)
    content = bytearray(path.read_bytes())
    content[digit] ^= 1
    path.write_bytes(content)
    assert again("all_gather", 2**20, MACHINE) == first


def test_a_file_under_the_name_of_another_is_not_believed(folder):
    first = predict("all_gather", 2**20, MACHINE)
    (path,) = files(folder)
    other = again("all_gather", 2**21, MACHINE)
    (longer,) = set(files(folder)) - {path}
    path.write_bytes(longer.read_bytes())
    assert again("all_gather", 2**20, MACHINE) == first != other


def test_an_impossible_time_is_not_believed_even_with_its_checksum(folder):
    first = predict("all_gather", 2**20, MACHINE)
    (path,) = files(folder)
    for changed in (
        {"time_fs": 0},
        {"time_fs": -5},
        {"time_fs": first.bound_fs - 1},
        {"bound_fs": -1},
    ):
        signed(path, **changed)
        assert again("all_gather", 2**20, MACHINE) == first
    signed(path, time_fs=first.time_fs + 1)  # possible: who can write the folder is trusted
    assert again("all_gather", 2**20, MACHINE).time_fs == first.time_fs + 1


def test_a_place_that_cannot_be_written_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(prediction_cache.VARIABLE, str(tmp_path / "file"))
    assert again("all_gather", 2**20, MACHINE).time_fs > 0


def test_nowhere_is_a_place(monkeypatch):
    monkeypatch.setenv(prediction_cache.VARIABLE, "")
    assert prediction_cache.cache_folder() is None
    monkeypatch.delenv(prediction_cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(prediction_cache.cache_folder()) == "/somewhere/simcoll/predictions"


def test_the_routes_of_many_ranks_are_hashed_in_parts(monkeypatch):
    machine = load_topology("dgx-h100", nodes=16)
    whole = topology_digest.__wrapped__(machine)
    monkeypatch.setattr(prediction_cache, "ROUTES_AT_ONCE", 1000)
    assert topology_digest.__wrapped__(machine) == whole
    assert topology_digest.__wrapped__(load_topology("dgx-h100", nodes=17)) != whole


def test_a_full_cache_loses_its_oldest_files(folder):
    part = replace(prediction_cache.PREDICTIONS, max_files=4 * prediction_cache.SUBFOLDERS)
    form, keys = {"time_fs": int, "bound_fs": int}, [f"ab{number:02}" for number in range(9)]
    for age, key in enumerate(keys):
        prediction_cache.remember(key, {"time_fs": 2, "bound_fs": 1}, part)
        (path,) = folder.rglob(f"{key}.json")
        os.utime(path, ns=(age, age))  # writes may be nearer to each other than clocks tell apart
    cached = [prediction_cache.recall(key, form, part) is not None for key in keys]
    assert cached[-2:] == [True, True]
    assert 2 <= sum(cached) <= 4
