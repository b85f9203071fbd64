"""Every ``load_`` function takes the path of a file, every ``parse_`` function the content of one;
all else is refused in words.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats import (
    dump_msccl_xml,
    load_algorithm,
    load_msccl_xml,
    parse_algorithm,
    parse_msccl_xml,
)
from simcoll.formats.schedules.schedule_json import dump_schedule, load_schedule, parse_schedule
from simcoll.tuning import schedule

ROOT = Path(__file__).resolve().parents[2]
NAMED = {
    "load_block",
    "load_cluster",
    "load_cupy",
    "load_goal",
    "load_gpu",
    "load_library",
    "load_mpi",
    "load_mpi_library",
    "load_topology",
}
"""Functions that load something else than a file, or what has a name; they have tests of their
own.
"""


def readers(start, kind):
    """``(module, name, further required arguments)`` of the functions whose first argument is a
    path or a content.
    """
    for path in sorted((ROOT / "simcoll").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        # Every worker collects this, and most files take long to parse and have none.
        for each in ast.parse(text).body if f"def {start}" in text else ():
            if isinstance(each, ast.FunctionDef) and each.name.startswith(start) and each.args.args:
                first = each.args.args[0]
                if first.annotation is not None and ast.unparse(first.annotation) == kind:
                    missing = len(each.args.args) - 1 - len(each.args.defaults)
                    yield pytest.param(module, each.name, missing, id=f"{module}.{each.name}")


LOADERS = list(readers("load_", "FilePath"))
PARSERS = [*readers("parse_", "Content"), *readers("read_", "Content")]


class Named:
    """A path of another library."""

    def __init__(self, name):
        self.name = name

    def __fspath__(self):
        return self.name

    def __repr__(self):
        return f"Named({self.name!r})"


def function_of(module, name):
    return getattr(importlib.import_module(module), name)


@pytest.mark.slow
def test_all_readers_are_here():
    assert len(LOADERS) >= 16
    assert len(PARSERS) >= 23
    here = {each.values[1] for each in LOADERS}
    for path in (ROOT / "simcoll").rglob("*.py"):
        for each in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(each, ast.FunctionDef) and each.name.startswith("load_"):
                assert each.name in here | NAMED


@pytest.mark.parametrize(
    "given", [b"{}", b"", bytearray(b"{}"), None, 3, ["a"], Named(b"bytes")], ids=repr
)
@pytest.mark.parametrize(("module", "name", "missing"), LOADERS)
def test_what_is_no_path_is_refused(module, name, missing, given):
    with pytest.raises(ConfigError, match=f"^{name} takes the path of a file, got ") as error:
        function_of(module, name)(given)
    parser = name.replace("load_", "parse_")
    if hasattr(importlib.import_module(module), parser) and parser != "parse_chakra":
        assert str(error.value).endswith(f"; {parser} takes the content of one")


@pytest.mark.parametrize(("module", "name", "missing"), LOADERS)
def test_every_kind_of_path_is_taken(module, name, missing, tmp_path):
    load, nowhere = function_of(module, name), tmp_path / "nowhere" / "file.json"
    said = []
    for path in (str(nowhere), nowhere, Named(str(nowhere))):
        with pytest.raises(ConfigError) as error:
            load(path)
        assert "nowhere" in str(error.value)
        said.append(str(error.value))
    assert len(set(said)) == 1
    for unnamable in ("a\0b", "a\udfffb", "a" * 10_000, ""):
        with pytest.raises(ConfigError):
            load(unnamable)


@pytest.mark.parametrize(("module", "name", "missing"), PARSERS)
def test_what_is_no_content_is_refused(module, name, missing):
    parse = function_of(module, name)
    for given in (None, 3, Path("file.json"), ["a"]):
        with pytest.raises(
            ConfigError, match=f"^{name} takes the content of a file, as bytes or text; got "
        ):
            parse(given, *missing * ("file",))


@pytest.mark.parametrize(("module", "name", "missing"), PARSERS)
def test_every_kind_of_content_is_taken(module, name, missing):
    parse = function_of(module, name)
    for text in ("no such format", "{", "a\udfffb", ""):
        said = set()
        content = text.encode("utf-8", "surrogatepass")
        for given in (content, bytearray(content), memoryview(content), text):
            try:
                said.add(repr(parse(given, *missing * ("file",))))
            except (ConfigError, ScheduleError) as error:
                said.add(str(error))
        assert len(said) == 1


def test_paths_and_contents_give_the_same(tmp_path):
    ring = schedule("all_gather", "ring", nranks=3)
    dump_schedule(ring, tmp_path / "ring.json")
    (tmp_path / "ring.xml").write_bytes(dump_msccl_xml(ring))
    for load, parse, name in (
        (load_schedule, parse_schedule, "ring.json"),
        (load_msccl_xml, parse_msccl_xml, "ring.xml"),
        (load_algorithm, parse_algorithm, "ring.xml"),
    ):
        path = tmp_path / name
        shown = {str(load(each)) for each in (path, str(path), Named(str(path)))}
        shown |= {
            str(parse(each))
            for each in (path.read_bytes(), path.read_text(), memoryview(path.read_bytes()))
        }
        assert len(shown) == 1
