"""Plan files: a design file whose lists are axes, alternatives, limits, an objective, costs and
failures, as a space of designs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from simcoll.errors import ConfigError, blamed_on, nearest
from simcoll.files.paths import is_file
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.files.strict import convert_table, read_file
from simcoll.files.text import parse_toml
from simcoll.planning.costs import ClusterCost, ClusterPower, has_prices, watts_of
from simcoll.planning.designs.figures import FIGURES
from simcoll.planning.designs.mapping_search import EXCHANGE_KEYS, MAPPING_KEYS
from simcoll.topology.file_layers import content_of
from simcoll.units import number_of, parse_span

if TYPE_CHECKING:
    from simcoll.planning.grids.grid import Point

__all__ = [
    "ClusterLimits",
    "Failures",
    "Objective",
    "Space",
    "errors_of_alternative",
    "load_space",
]

_Record = TypeVar("_Record", bound=msgspec.Struct)
MAX_BYTES = 2**20
MAX_DESIGNS = 10**6
LISTS = {"parallel.split", "parallel.offload"}
"""Keys whose value is a list; only a list of lists is swept."""
_CLUSTER = ("name", "nodes", "gpus", "degraded", "slow")
"""Variants that are keys of ``[topology]``; all others are paths in the topology's file."""


class Objective(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``[objective]``: a figure to maximise or minimise, figures for the Pareto front, and tokens
    to train.

    Default of ``pareto``: the figure, with the cost of a million tokens, or with memory without
    prices; an efficiency with the speed.
    """

    maximise: str = ""
    minimise: str = ""
    pareto: tuple[str, ...] = ()
    tokens: str = ""

    @property
    def figure(self) -> str:
        """The figure to optimise."""
        return self.maximise or self.minimise or "tokens_per_second"


class SearchTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``[search]``: search all legal mappings; keys that ``[parallel]`` states are held.

    ``budget``: the most designs that are timed on all machines together; 0: 64 for each machine.
    """

    budget: int = 0


class Failures(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``[failures]``: GPU-hours per failure, times of checkpoints and restarts, and spare nodes."""

    gpu_hours: float
    checkpoint: str
    restart: str
    blocking: str = ""
    detect: str = "0"
    spares: int = 0


class ClusterLimits(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``[limits]``: limits on designs; 0: no limit. ``days`` and ``usd``: to train all tokens."""

    memory: str = ""
    gpus: int = 0
    usd_per_hour: float = 0.0
    kilowatts: float = 0.0
    days: float = 0.0
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Space:
    """The designs of a plan file.

    Attributes
    ----------
    title, file
        For the report, and for messages.
    objective
        The objective.
    documents
        For each design, the tables of a design file, and the values that differ between designs.
    terms
        Inputs of the figures besides the step: limits, cost, power and failures, as plain tables.
    inputs_hash
        Hash of the files that the designs name.
    machines
        Points without a mapping, whose legal mappings are searched.
    budget
        The most designs that a search times; 0: the default.
    """

    title: str
    file: str
    objective: Objective
    documents: tuple[tuple[dict[str, Any], dict[str, Any]], ...]
    terms: tuple[dict[str, Any], ...]
    inputs_hash: tuple[str, ...]
    machines: tuple[Point, ...] = ()
    budget: int = 0

    @property
    def list_axes(self) -> tuple[str, ...]:
        """The lists of the file."""
        cases = [case for _, case in self.documents]
        cases += [machine["case"] for machine in self.machines]
        return tuple(dict.fromkeys(name for case in cases for name in case))

    @property
    def axes(self) -> tuple[str, ...]:
        """The values that tell designs apart, in the order of the file; then those of mappings."""
        mapping = (*MAPPING_KEYS, *EXCHANGE_KEYS) if self.machines else ()
        return tuple(dict.fromkeys([*self.list_axes, *mapping]))

    def points(self, tier: int) -> tuple[Point, ...]:
        """The points of a grid, for a tier."""
        return tuple(
            {"case": case, "design": document, "terms": terms, "tier": tier, "inputs_hash": inputs}
            for (document, case), terms, inputs in zip(
                self.documents, self.terms, self.inputs_hash, strict=True
            )
        )


class _AlternativeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    model: dict[str, Any] = {}
    gpu: dict[str, Any] = {}
    topology: dict[str, Any] = {}
    parallel: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    cost: dict[str, Any] = {}
    power: dict[str, Any] = {}
    failures: dict[str, Any] = {}
    variants: dict[str, Any] = {}


def load_space(path: FilePath) -> Space:
    """Load the space of a plan file.

    Raises
    ------
    ConfigError
        With the file, the place in it, and the nearest valid choice.
    """
    file = path_of(path, "load_space")
    with blamed_on(file):
        return _space(parse_toml(read_file(file, MAX_BYTES), file), Path(file))


def _space(document: dict[str, Any], path: Path) -> Space:
    objective = _table(document, "objective", Objective)
    _check(objective)
    alternatives = convert_table(
        {"alternative": document.pop("alternative", [])}, _AlternativeTables
    ).alternative
    names = [alternative.name for alternative in alternatives]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(
                f"{name!r} is the name of another alternative", path=f"$.alternative[{place}].name"
            )
    budget = _budget(document)
    designs, terms, hashes, machines = [], [], [], []
    for alternative in alternatives or [_AlternativeTable(name="")]:
        merged = _merge(document, msgspec.to_builtins(alternative), path.parent)
        alternative_terms = _terms(merged, objective)
        _needs(objective, alternative_terms)
        with errors_of_alternative(alternative.name):
            inputs = _inputs_hash(merged)
        is_searched = budget is not None or not merged.get("parallel")
        for design, values in _expand(merged):
            case = {"alternative": alternative.name, **values} if alternative.name else values
            if is_searched:
                machines.append(_machine(design, case, alternative_terms, inputs))
                continue
            designs.append((design, case))
            terms.append(alternative_terms)
            hashes.append(inputs)
            if len(designs) > MAX_DESIGNS:
                raise ConfigError(
                    f"more than {MAX_DESIGNS:,} designs; split the file or leave values out"
                )
    title = str(document.get("title", path.stem))
    if not title.isprintable():
        raise ConfigError("the title has control characters; write it in one line", path="$.title")
    return Space(
        title,
        str(path),
        objective,
        tuple(designs),
        tuple(terms),
        tuple(hashes),
        tuple(machines),
        budget or 0,
    )


@contextmanager
def errors_of_alternative(alternative: str) -> Iterator[None]:
    """Name the alternative that an error is about, if there is one."""
    try:
        yield
    except ConfigError as error:
        if not alternative:
            raise
        message = f"alternative {alternative!r}: {error.message}"
        raise ConfigError(message, file=error.file, path=error.path) from None


def _budget(document: dict[str, Any]) -> int | None:
    """The budget of ``[search]``; None without that table."""
    if "search" not in document:
        return None
    budget = _table(document, "search", SearchTable).budget
    if not 0 <= budget <= MAX_DESIGNS:
        raise ConfigError(f"expected 0 to {MAX_DESIGNS:,}, got {budget}", path="$.search.budget")
    return budget


def _machine(
    design: dict[str, Any], case: dict[str, Any], terms: dict[str, Any], inputs: str
) -> Point:
    """A point without a mapping."""
    return {"case": case, "design": design, "terms": terms, "inputs_hash": inputs}


def _needs(objective: Objective, terms: Mapping[str, Any]) -> None:
    """Refuse a figure for which the file lacks the numbers, before anything is timed."""
    for name in (objective.figure, *objective.pareto):
        for words, table, is_present in (
            (("usd", "dollar"), "prices under [cost], such as gpu_hour", has_prices(terms)),
            (("goodput",), "[failures]", terms["failures"] is not None),
        ):
            if any(word in name for word in words) and not is_present:
                raise ConfigError(f"{name} needs {table}", path="$.objective")
        if name in {"days", "usd"} and not objective.tokens:
            raise ConfigError(f"{name} needs tokens, such as tokens = '15T'", path="$.objective")
    limits = terms["limits"]
    for name in ("days", "usd"):
        if limits[name] and not objective.tokens:
            raise ConfigError(
                "needs tokens under [objective], such as tokens = '15T'", path=f"$.limits.{name}"
            )
    for name in ("usd", "usd_per_hour"):
        if limits[name] and not has_prices(terms):
            raise ConfigError(
                "needs prices under [cost], such as gpu_hour", path=f"$.limits.{name}"
            )


class _AlternativeTables(msgspec.Struct, frozen=True):
    alternative: list[_AlternativeTable]


def _check(objective: Objective) -> None:
    """Refuse unknown figures, and a wrong direction."""
    if objective.maximise and objective.minimise:
        raise ConfigError("maximise one figure or minimise one, not both", path="$.objective")
    for place, name in (("maximise", objective.maximise), ("minimise", objective.minimise)):
        if name and name not in FIGURES:
            raise ConfigError(
                f"unknown figure {name!r}; {nearest(name, FIGURES)}", path=f"$.objective.{place}"
            )
        if name and FIGURES[name].more_is_better != (place == "maximise"):
            raise ConfigError(
                f"{place} {name}: expected {'maximise' if place == 'minimise' else 'minimise'}",
                path="$.objective",
            )
    for number, name in enumerate(objective.pareto):
        if name not in FIGURES:
            raise ConfigError(
                f"unknown figure {name!r}; {nearest(name, FIGURES)}",
                path=f"$.objective.pareto[{number}]",
            )
    if len(objective.pareto) == 1:
        raise ConfigError("expected at least two figures", path="$.objective.pareto")
    if objective.tokens:
        number_of(objective.tokens, "$.objective.tokens")


def _merge(
    document: Mapping[str, Any], alternative: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Merge an alternative into the file, with absolute paths of files."""
    merged: dict[str, Any] = {}
    for table in (*document, *alternative):
        mine, theirs = document.get(table, {}), alternative.get(table, {})
        if table == "name":
            continue
        merged[table] = (
            {**mine, **theirs} if isinstance(mine, dict) and isinstance(theirs, dict) else mine
        )
    for table, key in (
        ("model", "hf"),
        ("gpu", "name"),
        ("gpu", "calibration"),
        ("gpu", "measured"),
        ("topology", "name"),
        ("topology", "calibration"),
    ):
        value = merged.get(table, {}).get(key) if isinstance(merged.get(table, {}), dict) else None
        if isinstance(value, str) and is_file(folder / value):
            merged[table] = {**merged[table], key: str((folder / value).resolve())}
    return merged


def _terms(merged: dict[str, Any], objective: Objective) -> dict[str, Any]:
    """Check limits, cost, power and failures; of the limits, only memory stays in the design."""
    limits, cost = _table(merged, "limits", ClusterLimits), _table(merged, "cost", ClusterCost)
    power = _table(merged, "power", ClusterPower)
    for table, record in (("limits", limits), ("cost", cost), ("power", power)):
        for name, value in msgspec.structs.asdict(record).items():
            if isinstance(value, (int, float)) and not 0 <= value < inf:
                raise ConfigError(
                    f"expected a number of at least 0, got {value}", path=f"$.{table}.{name}"
                )
        for name in getattr(record, "sources", ()):
            if name not in record.__struct_fields__:
                hint = nearest(name, record.__struct_fields__)
                raise ConfigError(f"unknown key; {hint}", path=f"$.{table}.sources.{name}")
    for place, value, minimum in (
        ("cost.depreciation_years", cost.depreciation_years, 0.01),
        ("power.pue", power.pue, 1),
        ("power.switch_ports", power.switch_ports, 2),
    ):
        if value < minimum:
            raise ConfigError(f"expected at least {minimum}, got {value}", path=f"$.{place}")
    for name in ("node", "switch"):
        watts_of(getattr(power, name), f"$.power.{name}")
    failures = merged.pop("failures", None) or None
    if failures is not None:
        _check_failures(_table({"failures": failures}, "failures", Failures))
    if limits.memory:
        merged["limits"] = {"memory": limits.memory}
    tokens = number_of(objective.tokens, "$.objective.tokens") if objective.tokens else 0
    return {
        "limits": msgspec.structs.asdict(limits),
        "cost": msgspec.structs.asdict(cost),
        "power": msgspec.structs.asdict(power),
        "failures": failures,
        "tokens": tokens,
    }


def _check_failures(failures: Failures) -> None:
    """Refuse times that cannot be read, and numbers out of range."""
    for name in ("checkpoint", "restart", "detect"):
        parse_span(getattr(failures, name), path=f"$.failures.{name}")
    if not 0 < failures.gpu_hours < inf:
        raise ConfigError(
            f"expected GPU-hours above 0, got {failures.gpu_hours}", path="$.failures.gpu_hours"
        )
    if not 0 <= failures.spares < 2**31:
        raise ConfigError(
            f"expected a number of nodes, got {failures.spares}", path="$.failures.spares"
        )


def _table(document: dict[str, Any], name: str, record: type[_Record]) -> _Record:
    """Take a table out of a document, and convert it."""
    try:
        return convert_table(document.pop(name, {}), record)
    except ConfigError as error:
        raise ConfigError(error.message, path=f"$.{name}{(error.path or '$')[1:]}") from None


def _inputs_hash(merged: Mapping[str, Any]) -> str:
    """Hash of the files that a design names, so that a changed file makes other points."""
    contents: list[object] = []
    files = (
        ("model", "hf"),
        ("gpu", "name"),
        ("gpu", "calibration"),
        ("gpu", "measured"),
        ("topology", "calibration"),
    )
    for table, key in files:
        value = merged.get(table, {}).get(key)
        if isinstance(value, str) and is_file(value):
            contents.append(read_file(value, MAX_BYTES))
    names = merged.get("topology", {}).get("name", ())
    contents += [_topology_content(name) for name in ([names] if isinstance(names, str) else names)]
    return hashlib.sha256(msgspec.json.encode(contents, enc_hook=str)).hexdigest()[:16]


_topology_content = cache(content_of)


def _axes(merged: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The lists of a file by path, slowest axis first, so that topologies are loaded once for many
    designs.
    """
    axes: dict[str, list[Any]] = {}
    for key, value in merged.get("variants", {}).items():
        if not isinstance(value, list):
            raise ConfigError("expected a list of values", path=f"$.variants.{key}")
        axes[f"variants.{key}"] = value
    for table in ("topology", "gpu", "model", "parallel"):
        settings = merged.get(table, {})
        if not isinstance(settings, dict):
            raise ConfigError(f"expected a table, got {settings!r:.40}", path=f"$.{table}")
        for key, value in settings.items():
            nested = isinstance(value, list) and any(isinstance(element, list) for element in value)
            if isinstance(value, list) and (nested or f"{table}.{key}" not in LISTS):
                axes[f"{table}.{key}"] = value
    for name, values in axes.items():
        if not values:
            raise ConfigError(
                "an empty list; give at least one value, or leave the key out", path=f"$.{name}"
            )
    return axes


def _expand(merged: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Expand a file to its designs: their tables, and the values that differ."""
    axes = _axes(merged)
    fixed = {key: value for key, value in merged.items() if key != "variants"}
    for values in product(*axes.values()):
        case = dict(zip(axes, values, strict=True))
        design = {
            key: dict(value) if isinstance(value, dict) else value for key, value in fixed.items()
        }
        for place, value in case.items():
            table, _, key = place.partition(".")
            if table != "variants":
                design[table][key] = value
            elif key in _CLUSTER:
                design["topology"][key] = value
            else:
                design["topology"]["set"] = {**design["topology"].get("set", {}), key: value}
        yield (
            design,
            {
                place.removeprefix("parallel.").removeprefix("variants."): _cell(value)
                for place, value in case.items()
            },
        )


def _cell(value: object) -> object:
    """A value as a cell of a table."""
    if isinstance(value, dict):
        return " ".join(f"{key}={entry}" for key, entry in value.items()) or "none"
    return "-".join(map(str, value)) if isinstance(value, list) else value
