"""Every number in a shipped file has a source: of machines, GPUs, libraries, models and
calibrations, whatever files there are.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from simcoll.libraries.library import load_library, shipped_libraries
from simcoll.topology import load_topology, shipped_topologies
from simcoll.training.gpu import load_gpu, shipped_gpus
from simcoll.training.transformer import shipped_model, shipped_models

ROOT = Path(__file__).parents[2]
LOADED = {
    "topologies": (shipped_topologies, load_topology),
    "gpus": (shipped_gpus, load_gpu),
    "libraries": (shipped_libraries, load_library),
    "models": (shipped_models, shipped_model),
}
SOURCED = [
    path
    for folder in ("topologies", "gpus", "libraries")
    for path in sorted((ROOT / folder).glob("*.toml"))
]
# One source says where all numbers of the file are from.
OF_ONE_SOURCE = [
    path
    for folder in ("models", "calibrations", "libraries/mpi")
    for path in sorted((ROOT / folder).glob("*.toml"))
]
NO_NUMBERS = {"$.nodes", "$.wrap", "$.version", "$.description"}
"""Not measured: how many nodes there are if none are asked for, whether a torus closes, a version,
prose that begins with a digit.
"""


def name(path):
    return str(path.relative_to(ROOT))


def unsourced(value, place="$"):
    """Places of numbers, or of quantities, that are not beside a source, and of sources that say
    nothing.
    """
    if isinstance(value, dict):
        if "value" in value:
            if not str(value.get("source", "")).strip():
                yield place
            return
        for key, inner in value.items():
            yield from unsourced(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from unsourced(inner, place)
    elif place not in NO_NUMBERS and (isinstance(value, (int, float)) or value[:1].isdigit()):
        yield place


@pytest.mark.parametrize("path", SOURCED, ids=name)
def test_every_number_has_a_source(path):
    assert list(unsourced(tomllib.loads(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("path", OF_ONE_SOURCE, ids=name)
def test_the_file_has_a_source(path):
    assert len(tomllib.loads(path.read_text(encoding="utf-8"))["source"].strip()) > 10


@pytest.mark.slow
@pytest.mark.parametrize("folder", LOADED)
def test_every_file_is_shipped_and_loads(folder):
    shipped, load = LOADED[folder]
    assert sorted(shipped()) == sorted(path.stem for path in (ROOT / folder).glob("*.toml"))
    for each in shipped():
        assert load(each)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("[memory]\nsize = '40 GB'", ["$.memory.size"]),
        ("[memory]\nsize = { value = '40 GB' }", ["$.memory.size"]),
        ("[memory]\nsize = { value = '40 GB', source = ' ' }", ["$.memory.size"]),
        ("[memory]\nsize = { value = '40 GB', source = 'data sheet' }", []),
        ("[[tiers]]\nports = 3\nname = 'leaf'", ["$.tiers.ports"]),
        ("nodes = 3\ncount = 4", ["$.count"]),
    ],
)
def test_what_has_no_source_is_found(text, places):
    assert list(unsourced(tomllib.loads(text))) == places
