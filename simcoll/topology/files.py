"""Topology files: a family, its parameters with units in the values, and a source for every number.

The decoder is strict: an unknown key, a wrong type, a missing unit is an error that names the place.
"""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcoll.errors import ConfigError, nearest
from simcoll.topology import direct, ecmp, families
from simcoll.topology.cluster import Tier
from simcoll.topology.graph import LINK_KINDS, Topology
from simcoll.topology.machine import TRAIT_VALUES
from simcoll.topology.placement import place
from simcoll.topology.values import count, duration_fs, factor, parse_capacity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["load_topology", "shipped_topologies"]

MAX_FILE_BYTES = 2**20
MAX_DUMP_BYTES = 2**24
MAX_BASES = 4

_COMMON = {"name": "text", "description": "text", "family": "text"}
_OWN = ("name", "description")  # never taken from a base
_FAMILIES: dict[str, Callable[..., Topology]] = {
    "crossbar": families.crossbar,
    "fat_tree": families.fat_tree,
    "torus": families.torus,
    "boxes": families.boxes,
    "hypercube": direct.hypercube,
    "hybrid_cube_mesh": direct.hybrid_cube_mesh,
    "hyperx": direct.hyperx,
    "dragonfly": direct.dragonfly,
    "clos": ecmp.clos,
}
# A key is the parameter of the family's function, except these of boxes, which are in tables.
_TABLES = {
    "gpus_per_node": "gpu.count",
    "nodes_per_domain": "gpu.nodes_per_domain",
    "interconnect": "gpu.interconnect",
    "links": "gpu.links",
    "nics": "nic.count",
    "gpus_per_pcie_switch": "pcie.gpus_per_switch",
    "cpus": "cpu.count",
    "boxes_per_leaf": "network.boxes_per_leaf",
    "oversubscription": "network.oversubscription",
    "spine_latency": "network.spine_latency",
    "tiers": "network.tiers",
    **{
        f"{part}_{what}": f"{part}.{what}"
        for part in ("gpu", "nic", "pcie", "cpu")
        for what in ("bandwidth", "latency")
    },
}
_TYPES = {
    "dims": "counts", "wrap": "flags", "seed": "seed", "oversubscription": "ratio", "links": "links", "tiers": "tiers",
    **dict.fromkeys(("link_kind", "interconnect", "ecmp"), "text"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of a family: the parameter that it sets, the type of its value, and whether it must be there."""

    parameter: str
    type: str
    required: bool


def _keys(family: str) -> dict[str, _Key]:
    """The keys of a family by their places in the file, from the parameters of its function."""
    found = {}
    for name, parameter in inspect.signature(_FAMILIES[family]).parameters.items():
        ending = {"bandwidth": "rate", "latency": "time"}.get(name.rpartition("_")[2], "count")
        place = _TABLES.get(name, name) if family == "boxes" else name
        found[place] = _Key(name, _TYPES.get(name, ending), parameter.default is parameter.empty)
    del found["name"]
    return found


_PLACEMENT = {
    "placement.order": _Key("order", "text", required=False),
    "placement.ranks": _Key("nranks", "count", required=False),
    "placement.level": _Key("level", "text", required=False),
    "placement.seed": _Key("seed", "seed", required=False),
    "placement.gpus": _Key("gpus", "numbers", required=False),
}
_TIER_KEYS = {"name": "text", "boxes": "count", "rail_only": "flags", "latency": "time", "oversubscription": "ratio"}


def load_topology(name: str | Path, *, nodes: int | None = None, **overrides: object) -> Topology:
    """Load a shipped topology by name, a topology file, or an NCCL topology dump.

    Parameters
    ----------
    name
        ``"dgx-h100"``, or the path of a ``.toml`` or ``.xml`` file.
    nodes
        Number of nodes, for the family boxes and for dumps; default is the file's.
    overrides
        Other values of the file, with ``__`` for the dot: ``nic__bandwidth="200 Gbps"``,
        ``network__oversubscription=2``.

    Raises
    ------
    ConfigError
        With the file, the place in it, and the nearest valid choice.

    Examples
    --------
    >>> topology = load_topology("dgx-h100", nodes=2)
    >>> topology.nranks, topology.path(0, 1)
    (16, ['box0.gpu0 -> box0.nvswitch', 'box0.nvswitch -> box0.gpu1'])
    """
    text = str(name)
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    if nodes is not None:
        changes["nodes"] = nodes
    path, file = _located(text, Path())
    content = _read(path, file)
    if file.endswith(".xml") or content.lstrip()[:1] == b"<":
        from simcoll.topology.nccl_xml import parse_nccl_xml

        extra = [key for key in changes if key != "nodes"]
        if extra:
            raise ConfigError(f"{extra[0]!r} cannot be changed in an NCCL dump; valid: nodes", file=file)
        return parse_nccl_xml(content, file=file, nodes=1 if nodes is None else nodes)
    return _decode(_layers(content, file, path), file, changes)


def _located(name: str, folder: Path) -> tuple[Path, str]:
    """The file of a shipped topology, or the one at a path from a folder, and the name of it for messages."""
    shipped = {path.stem: path for path in _shipped_files()}
    if name in shipped:
        return shipped[name], f"{name}.toml"
    if name.endswith((".toml", ".xml")) or "/" in name or "\\" in name or (folder / name).is_file():
        return folder / name, str(folder / name)
    raise ConfigError(f"unknown topology {name!r}; {nearest(name, shipped)}; or give the path of a file")


def shipped_topologies() -> dict[str, str]:
    """Names of the shipped topologies, each with its one-line description."""
    return {
        path.stem: str(tomllib.loads(path.read_text(encoding="utf-8")).get("description", ""))
        for path in _shipped_files()
    }


def _shipped_files() -> list[Path]:
    """In a wheel the files are package data; in a source checkout they lie beside the package."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "data" / "topologies", package.parent / "topologies"):
        if folder.is_dir():
            return sorted(folder.glob("*.toml"))
    return []


def _read(path: Path, file: str) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_DUMP_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=file) from None
    except ValueError as error:
        raise ConfigError(f"not a path: {error}", file=repr(file)) from None


def _layers(content: bytes, file: str, path: Path, above: tuple[Path, ...] = ()) -> list[tuple[str, dict[str, Any]]]:
    """The contents of a file and of those that it extends, each with its name, the most basic first."""
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"larger than {MAX_FILE_BYTES} bytes; is this a topology file?", file=file)
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a TOML file: {error}", file=file) from None
    base = document.pop("extends", None)
    if base is None:
        return [(file, document)]
    try:
        base_path, base_file, chain = _base(base, path, above)
        base_content = _read(base_path, base_file)
    except ConfigError as error:
        raise ConfigError(error.message, file=file, path="$.extends") from None
    return [*_layers(base_content, base_file, base_path, chain), (file, document)]


def _base(base: object, path: Path, above: tuple[Path, ...]) -> tuple[Path, str, tuple[Path, ...]]:
    """The file that a file extends, its name for messages, and the chain of files that led to it."""
    base_path, base_file = _located(_expect(base, str, "extends", "the name of a topology or a path"), path.parent)
    chain = (*above, path.resolve())
    if base_path.resolve() in chain:
        raise ConfigError(f"{base!r} leads back to {base_file}; a file cannot extend itself")
    if len(chain) > MAX_BASES:
        raise ConfigError(f"{base!r} would be base number {len(chain)}; expected at most {MAX_BASES}")
    return base_path, base_file, chain


def _family(layers: list[tuple[str, dict[str, Any]]]) -> str:
    """The family of the most basic file, which those that extend it share."""
    family = layers[0][1].get("family")
    if not isinstance(family, str) or family not in _FAMILIES:
        wrong = f"unknown family {family!r}; {nearest(str(family), _FAMILIES)}"
        raise ConfigError(wrong, file=layers[0][0], path="$.family")
    for file, document in layers:
        if document.get("family", family) != family:
            wrong = (
                f"{document['family']!r} is not the family of {layers[0][0]}; expected {family!r}, or no family here"
            )
            raise ConfigError(wrong, file=file, path="$.family")
    return family


def _decode(layers: list[tuple[str, dict[str, Any]]], file: str, changes: Mapping[str, object]) -> Topology:
    """A topology from a file and its bases; the values of later ones replace those of earlier ones."""
    family = _family(layers)
    own = _keys(family)
    valid = own | _PLACEMENT
    keys = {path: key.type for path, key in valid.items()}
    keys |= _COMMON | {f"efficiency.{kind}": "share" for kind in LINK_KINDS}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    traits: dict[str, str] = {}
    for where, document in layers:
        new_sources: dict[str, str] = {}
        new = _walk(document, keys, new_sources, where)
        sources = {
            place: text for place, text in sources.items() if place[2:].partition("[")[0] not in new
        } | new_sources
        values = {path: value for path, value in values.items() if path not in _OWN} | new
        traits |= _traits(document.get("traits", {}), where)
    for path, value in changes.items():
        if path not in valid:
            where = f"family {family!r} of {file} has no {path!r}"
            raise ConfigError(f"{where}; {nearest(path, valid)}")
        values[path] = _value(value, keys[path], path, None, sources)
        sources[f"$.{path}"] = "argument"
    arguments = {own[path].parameter: value for path, value in values.items() if path in own}
    for path, key in own.items():
        if key.required and path not in values:
            raise ConfigError(f"missing; family {family!r} needs it", file=file, path=f"$.{path}")
    title = str(values.get("name", Path(file).stem))
    try:
        topology = _FAMILIES[family](name=title, **arguments)
        placement = {_PLACEMENT[path].parameter: value for path, value in values.items() if path in _PLACEMENT}
        if placement:
            topology = place(topology, **placement)
    except ConfigError as error:
        raise ConfigError(error.message, file=file) from None
    return replace(
        topology,
        efficiency={path.partition(".")[2]: value for path, value in values.items() if path.startswith("efficiency.")},
        traits=traits,
        sources=sources,
        description=str(values.get("description", "")),
    )


def _walk(document: Mapping[str, Any], keys: Mapping[str, str], sources: dict[str, str], file: str) -> dict[str, Any]:
    """All values of a document by their place, checked against the valid keys."""
    values: dict[str, Any] = {}
    tables = {path.partition(".")[0] for path in keys if "." in path} | {"traits"}
    for key, entry in document.items():
        if key == "traits":
            continue
        if key in tables:
            if not isinstance(entry, dict):
                raise ConfigError(f"expected a table [{key}], got {entry!r}", file=file, path=f"$.{key}")
            inner = {path.partition(".")[2]: path for path in keys if path.startswith(f"{key}.")}
            for name, value in entry.items():
                if name not in inner:
                    raise ConfigError(f"unknown key; {nearest(name, inner)}", file=file, path=f"$.{key}.{name}")
                values[inner[name]] = _value(value, keys[inner[name]], inner[name], file, sources)
        elif key in keys:
            values[key] = _value(entry, keys[key], key, file, sources)
        else:
            valid = {path for path in keys if "." not in path} | tables | {"extends"}
            raise ConfigError(f"unknown key; {nearest(key, valid)}", file=file, path=f"$.{key}")
    return values


def _value(entry: object, kind: str, path: str, file: str | None, sources: dict[str, str]) -> Any:
    """One value, bare or as ``{ value = ..., source = "..." }``."""
    where = f"$.{path}"
    value = entry
    if isinstance(entry, dict) and kind != "tiers":
        extra = [key for key in entry if key not in {"value", "source"}]
        if extra or "value" not in entry:
            given = extra[0] if extra else "no value"
            raise ConfigError(f"expected {{ value = ..., source = '...' }}, got {given!r}", file=file, path=where)
        value, source = entry["value"], entry.get("source")
        if source is not None:
            if not isinstance(source, str) or not source.strip():
                raise ConfigError(f"source: expected text, got {source!r}", file=file, path=where)
            sources[where] = source
    try:
        return _typed(value, kind, path, file, sources)
    except ConfigError as error:
        if error.path is not None:
            raise
        raise ConfigError(error.message, file=file, path=where) from None


def _typed(value: Any, kind: str, path: str, file: str | None, sources: dict[str, str]) -> Any:
    what = path.rpartition(".")[2]
    if kind == "count":
        return count(value, what, least=0 if path == "nic.count" else 1)
    if kind == "seed":
        return count(value, what, least=0)
    if kind == "numbers":
        return [count(item, what, least=0) for item in _expect(value, list, what, "a list of GPU numbers")]
    if kind == "rate":
        return parse_capacity(_expect(value, str, what, "text with a unit such as '50 GB/s'"), what)
    if kind == "time":
        return 0 if value == 0 else duration_fs(_expect(value, str, what, "text with a unit such as '1.5 us'"), what)
    if kind in {"ratio", "share"}:
        ratio = factor(value, what)
        if kind == "share" and ratio > 1:
            raise ConfigError(f"{what}: expected at most 1, got {value!r}")
        return ratio
    if kind == "flags":
        flags = value if isinstance(value, list) else [value]
        if not flags or not all(isinstance(flag, bool) for flag in flags):
            raise ConfigError(f"{what}: expected true or false, got {value!r}")
        return value
    if kind == "counts":
        return [count(item, what) for item in _expect(value, list, what, "a list of whole numbers such as [4, 4]")]
    if kind == "links":
        rows = _expect(value, list, what, "a list such as [[0, 1, 2]]: GPU, GPU, number of parallel links")
        for row in rows:
            if not isinstance(row, list) or [type(item) for item in row] != [int, int, int]:
                raise ConfigError(f"{what}: expected [GPU, GPU, number of parallel links], got {row!r}")
        return [tuple(row) for row in rows]
    if kind == "tiers":
        rows = _expect(value, list, what, "tables [[network.tiers]]")
        return [_tier(row, f"{path}[{i}]", file, sources) for i, row in enumerate(rows)]
    return _expect(value, str, what, "text")


def _tier(row: object, path: str, file: str | None, sources: dict[str, str]) -> Tier:
    if not isinstance(row, dict):
        raise ConfigError(f"expected a table, got {row!r}", file=file, path=f"$.{path}")
    for key in row:
        if key not in _TIER_KEYS:
            raise ConfigError(f"unknown key; {nearest(key, _TIER_KEYS)}", file=file, path=f"$.{path}.{key}")
    if "name" not in row:
        raise ConfigError("missing; a tier needs a name", file=file, path=f"$.{path}.name")
    return Tier(**{key: _value(value, _TIER_KEYS[key], f"{path}.{key}", file, sources) for key, value in row.items()})


def _expect(value: Any, kind: type, what: str, expected: str) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(f"{what}: expected {expected}, got {value!r}")
    return value


def _traits(table: object, file: str) -> dict[str, str]:
    """Facts by name, all text; any names are allowed, and some have a fixed choice of values."""
    if not isinstance(table, dict):
        raise ConfigError(f"expected a table [traits], got {table!r}", file=file, path="$.traits")
    for key, value in table.items():
        if not isinstance(value, str):
            raise ConfigError(f"expected text, got {value!r}", file=file, path=f"$.traits.{key}")
        if value not in TRAIT_VALUES.get(key, (value,)):
            wrong = f"unknown {key} {value!r}; {nearest(value, TRAIT_VALUES[key])}"
            raise ConfigError(wrong, file=file, path=f"$.traits.{key}")
    return dict(table)
