"""Readers and damaged files: a slice of ``python -m tests.laws.fuzz_readers``, and inputs that have
got through before.
"""

import json
from functools import cache
from typing import get_args

import pytest

from simcoll.formats.recognise import TITLES, FileKind, recognise
from simcoll.formats.tuners.tuner_files import TUNER_FORMATS
from tests.support.fuzzing import (
    DESIGN,
    MODEL,
    READERS,
    WITHOUT_READER,
    Tally,
    damaged,
    fuzz,
    judged,
)

SLICE = 60
LONG, DIGITS = b"A" * 5000, b"9" * 5000
SOCKETS = b"""name = "one"
family = "boxes"
nodes = 1
[gpu]
interconnect = "pcie"
count = 2
[pcie]
bandwidth = "15 GB/s"
gpus_per_switch = 1
[cpu]
count = 8388607
bandwidth = "10 GB/s"
"""
# Found by the command, then made small.
MESH = b"""name = "x"
family = "boxes"
nodes = 2
[gpu]
count = 1024
interconnect = "mesh"
bandwidth = "100 GB/s"
latency = "1 us"
"""
BELOW_A_CARD = b"""<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
<pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
<nic><net name="mlx5_0" dev="0" speed="400000" port="1"/></nic>
<pci busid="0000:11:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="90" rank="0"/></pci>
</pci></cpu></system>"""
SCENARIO = next(seed for seed in READERS["scenario"].seeds() if b"bfloat16" in seed)
NCCL_TESTS = next(seed for seed in READERS["log"].seeds() if b'"results"' in seed)
CORPUS = {
    "a number that Python does not print": ("gpu", b"[memory]\nsize = " + DIGITS),
    "a name that no file can have": ("design", DESIGN.replace(b"dgx-h100", LONG)),
    "the same beside a scenario": (
        "scenario",
        READERS["scenario"].seeds()[0].replace(b'name = "', b'name = "' + LONG),
    ),
    "the same beside a sweep": ("sweep", READERS["sweep"].seeds()[0].replace(b"dgx-h100", LONG)),
    "a rank of 5,000 digits": ("design", DESIGN.replace(b'"3"', b'"' + DIGITS + b'"')),
    "an infinite factor": ("design", DESIGN.replace(b"1.1", b"inf")),
    "two billion layers": ("design", DESIGN.replace(b"layers = 2", b"layers = 2147483647")),
    "eight million sockets": ("topology", SOCKETS),
    "a node of 1,024 GPUs, all linked to each other": ("topology", MESH),
    "GPUs below a network card": ("nccl-topology", BELOW_A_CARD),
    "an expert's size in words": (
        "model",
        json.dumps(MODEL | {"shared_expert_intermediate_size": "x"}).encode(),
    ),
    "an expert of no size": ("model", json.dumps(MODEL | {"moe_intermediate_size": 0.5}).encode()),
    "types of NumPy's own grammar": (
        "scenario",
        SCENARIO.replace(b"bfloat16", b"9223372036854775808bfloat16"),
    ),
    "types with an underscore": ("scenario", SCENARIO.replace(b"bfloat16", b"1_0")),
    "a type with an open bracket": ("scenario", SCENARIO.replace(b"bfloat16", b"3f4,(")),
    "sixteen thousand stages": (
        "operations",
        READERS["operations"].seeds()[0].replace(b"pp = 2", b"pp = 16384"),
    ),
    "XML comments without an end": ("recognise", b"<!--" * 200_000),
    "XML declarations without an end": ("recognise", b"<!a" * 200_000),
    "lines of number signs": ("recognise", (b"#" * 400 + b"\n") * 4000),
    "lines of launchers without ranks": ("log", (b"mpirun " * 2340 + b"\n") * 200),
    "a root of 5,000 digits": (
        "log",
        NCCL_TESTS.replace(b'"root": -1', b'"root": "' + DIGITS + b'"'),
    ),
    "a time of 400 digits": (
        "log",
        NCCL_TESTS.replace(b'"time": 10.0', b'"time": 1' + b"0" * 400, 1),
    ),
    "a size of 400 digits": ("log", NCCL_TESTS.replace(b'"size": 8', b'"size": 1' + b"0" * 400)),
    "an algorithm of 5,000 digits": (
        "log",
        READERS["log"].seeds()[0] + b"\nNCCL INFO AllReduce: 8 Bytes -> Algo " + DIGITS,
    ),
}


@cache
def fuzzed():
    """The kinds of the sound files that are damaged, without those of readers of several kinds."""
    own = [
        reader.seeds() for name, reader in READERS.items() if name not in {"algorithm", "recognise"}
    ]
    return {recognise(bytes(seed)) for seeds in own for seed in seeds}


def test_every_kind_of_file_has_a_title():
    assert get_args(FileKind) == tuple(TITLES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TITLES)
def test_every_kind_of_file_is_fuzzed(kind):
    assert kind in fuzzed() or WITHOUT_READER.get(kind), (
        f"{kind!r} needs a reader with sound files in READERS of tests/support/fuzzing.py, or an "
        "entry in WITHOUT_READER there"
    )


@pytest.mark.parametrize("name", TUNER_FORMATS)
def test_every_format_of_a_tuner_is_fuzzed(name):
    assert f"tuner-{name}" in READERS


def test_nothing_is_left_out_that_has_a_reader():
    # What is read where it is expected, without being recognised.
    several = {"toml", "json", "binary", "text"}
    assert WITHOUT_READER.keys() & fuzzed() <= several
    assert WITHOUT_READER.keys() <= TITLES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name):
    tally = Tally()
    fuzz(name, range(SLICE), 0, tally)
    assert [(finding.number, finding.what) for finding in tally.findings] == []
    assert tally.accepted[name] + tally.refused[name] == SLICE
    assert tally.accepted[name]  # damage reaches beyond the first look at a file
    assert tally.refused[name] or name == "recognise"


@pytest.mark.slow
@pytest.mark.parametrize("case", CORPUS)
def test_inputs_that_got_through_once(case):
    assert not judged(*CORPUS[case])


@pytest.mark.slow
def test_sound_files_are_accepted():
    refused = [
        (name, number)
        for name, reader in READERS.items()
        for number, seed in enumerate(reader.seeds())
        if judged(name, seed) is not None
    ]
    assert refused == []


def test_an_input_is_made_again_from_its_number():
    assert damaged("log", 3, 77) == damaged("log", 3, 77) != damaged("log", 3, 78)


@pytest.mark.parametrize(("raised", "found"), [(KeyError("x"), "KeyError at"), (None, None)])
def test_what_gets_through_is_found(raised, found, monkeypatch):
    def read(_):
        if raised:
            raise raised

    monkeypatch.setitem(READERS, "log", type(READERS["log"])(read, list))
    what = judged("log", b"")
    assert what is None if found is None else what.startswith(found)
