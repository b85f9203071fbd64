"""Compare two folders of results point by point, across versions of simcoll and topologies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from simcoll.errors import ConfigError, nearest
from simcoll.files.paths import is_file
from simcoll.files.strict import read_file
from simcoll.planning.grids.grid import Point, read_rows

__all__ = ["Difference", "MovedPoint", "difference", "parse_share"]

_Rows: TypeAlias = Sequence[Mapping[str, Any]]
MAX_BYTES = 2**30
FILES = ("topology", "algorithm", "choice")
"""Keys whose values may be file names."""
NO_HASHES = "_hash"
"""Suffix of keys that hash an input's content, which do not identify a point."""


@dataclass(frozen=True, slots=True)
class MovedPoint:
    """A point that ran in both.

    Attributes
    ----------
    name
        The values that identify the point.
    old, new
        The figure in each folder.
    """

    name: str
    old: float
    new: float

    @property
    def change(self) -> float:
        """Relative change; infinite from 0."""
        if self.old == self.new:
            return 0.0
        return (self.new - self.old) / abs(self.old) if self.old else float("inf")


@dataclass(frozen=True, slots=True)
class Difference:
    """Two folders compared.

    Attributes
    ----------
    metric
        Name of the figure.
    moves
        The points that ran in both, the largest change first.
    gone, new
        Names of points that ran only in the first folder (with the second's error, if any), and
        only in the second.
    inputs
        Of plans and goodput files, values outside their lists that differ between the folders, such
        as ``"model.sequence: 4096 -> 8192"``.
    """

    metric: str
    moves: tuple[MovedPoint, ...]
    gone: tuple[str, ...]
    new: tuple[str, ...]
    inputs: tuple[str, ...] = ()

    def beyond(self, threshold: float) -> tuple[MovedPoint, ...]:
        """The moves above a threshold (a share: 0.01 is one percent)."""
        return tuple(move for move in self.moves if abs(move.change) > threshold)


def parse_share(text: str) -> float:
    """Parse a share: ``"1%"`` or ``"0.01"``.

    >>> parse_share("1%"), parse_share("0.02")
    (0.01, 0.02)
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise ConfigError(f"threshold {text!r}: expected a share, such as 1% or 0.01")
    return share


def difference(old_folder: Path, new_folder: Path, metric: str = "time_fs") -> Difference:
    """Compare one figure of two folders that ``simcoll run``, ``sweep``, ``plan`` or ``goodput``
    wrote.

    Raises
    ------
    ConfigError
        When a folder has no results, or none with such a figure.
    """
    rows: Sequence[_Rows] = [_rows_of(folder) for folder in (old_folder, new_folder)]
    inputs: tuple[str, ...] = ()
    if all("case" in row["point"] for run in rows for row in run):
        inputs = _changed_inputs(*rows)
        rows = _rows_by_design(*rows)
    old, new = (_records(run) for run in rows)
    names = _names([record.point for record in (*old.values(), *new.values())])
    moves, gone = [], []
    for key, record in old.items():
        if metric not in record.figures:
            continue
        new_record = new.get(key)
        name = names(record.point) + record.mark
        if new_record is not None and metric in new_record.figures:
            moves.append(MovedPoint(name, record.figures[metric], new_record.figures[metric]))
        else:
            gone.append(name + (f": {new_record.error}" if new_record is not None else ""))
    if not moves and not gone:
        figures = {name for record in old.values() for name in record.figures}
        raise ConfigError(f"no figure {metric!r}; {nearest(metric, figures)}", file=str(old_folder))
    added = [
        names(record.point) + record.mark
        for key, record in new.items()
        if metric in record.figures and (key not in old or metric not in old[key].figures)
    ]
    moves.sort(key=lambda move: (-abs(move.change), move.name))
    return Difference(metric, tuple(moves), tuple(sorted(gone)), tuple(sorted(added)), inputs)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class _PointRecord:
    """A point, its numbers, its error, and its mark of missing proof."""

    point: Point
    figures: Mapping[str, Any]
    error: str
    mark: str


def _rows_of(folder: Path) -> _Rows:
    """Read the rows of a folder."""
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(
            f"{problem}; expected a folder that simcoll run, sweep, plan or goodput wrote",
            file=str(folder),
        )
    rows: _Rows = list(read_rows(folder).values())
    if not rows and is_file(folder / "results.json"):
        rows = [_row(run) for run in _runs(folder / "results.json")]
    if not rows:
        raise ConfigError("has no rows.jsonl and no results.json of simcoll", file=str(folder))
    return rows


def _leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """The values of nested tables, by path."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, f"{place}.{key}" if place else key)
    else:
        yield place, value


def _inputs_of(point: Point) -> dict[str, object]:
    """All values of a point outside its case, by the names that a case would give them."""
    document = {key: value for key, value in point.items() if key not in {"case", "tier", "seed"}}
    values_by_name = {}
    for path, value in _leaves(document):
        name = path
        for prefix in ("design.parallel.", "design.topology.set.", "design.", "terms."):
            name = name.removeprefix(prefix)
        if not name.endswith(NO_HASHES):
            values_by_name[name] = value
    return values_by_name


def _changed_inputs(old: _Rows, new: _Rows) -> tuple[str, ...]:
    """Values that are one in each folder, but another."""
    values: list[dict[str, set[str]]] = []
    for rows in (old, new):
        by_name: dict[str, set[str]] = {}
        for row in rows:
            for name, value in _inputs_of(row["point"]).items():
                by_name.setdefault(name, set()).add(str(value))
        values.append(by_name)
    changes = []
    for name in dict.fromkeys([*values[0], *values[1]]):
        old_values, new_values = (by_name.get(name, {"none"}) for by_name in values)
        if len(old_values) == len(new_values) == 1 and old_values != new_values:
            changes.append(f"{name}: {old_values.pop()} -> {new_values.pop()}")
    return tuple(changes)


def _rows_by_design(*runs: _Rows) -> list[_Rows]:
    """Rows whose points are only what tells designs of one folder apart, so that designs of two
    files with other fixed values meet.

    A list in one file that is a single value in the other counts as a list in both. Of the tiers
    in which both folders timed a design, the highest counts.
    """
    keys = dict.fromkeys(name for rows in runs for row in rows for name in row["point"]["case"])

    def identity(point: Point) -> Point:
        inputs = {**_inputs_of(point), **point["case"]}
        case = {name: inputs[name] for name in keys if name in inputs}
        return {"case": case, **{name: point[name] for name in ("seed",) if name in point}}

    designs = []
    for rows in runs:
        timed: dict[tuple[str, int], Mapping[str, Any]] = {}
        for row in rows:
            point = identity(row["point"])
            timed[repr(point), row["point"].get("tier", 0)] = {**row, "point": point}
        designs.append(timed)
    tiers: dict[str, int] = {}
    for name, tier in sorted(set.intersection(*(set(timed) for timed in designs))):
        tiers[name] = max(tier, tiers.get(name, 0))
    return [
        [row for (name, tier), row in timed.items() if tiers.get(name, tier) == tier]
        for timed in designs
    ]


def _records(rows: _Rows) -> dict[bytes, _PointRecord]:
    """Points by identity."""
    records: dict[bytes, _PointRecord] = {}
    short = {name: _short([str(row["point"].get(name)) for row in rows]) for name in FILES}
    for row in rows:
        point = {
            name: value for name, value in row["point"].items() if not name.endswith(NO_HASHES)
        }
        point |= {
            name: short[name].get(str(point[name]), point[name]) for name in FILES if name in point
        }
        result = row.get("result", {})
        numbers = {name: value for name, value in result.items() if _is_number(value)}
        mark = " unproved" if str(result.get("proof", "")).startswith("unproved") else ""
        records[msgspec.json.encode(point, order="sorted")] = _PointRecord(
            point, numbers, str(row.get("error", "")), mark
        )
    return records


def _row(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a scenario's run to a grid row; a run that was cut off has no figures."""
    return (
        {"point": _point(run), "error": run["cut"]}
        if "cut" in run
        else {"point": _point(run), "result": run}
    )


def _short(names: Sequence[str]) -> dict[str, str]:
    """File names without folders where they remain unique, since a grid may run from another
    folder.
    """
    files = sorted({name for name in names if "/" in name})
    last = [name.rpartition("/")[2] for name in files]
    unambiguous = len({*last}) == len(files) and {*last}.isdisjoint(names)
    return dict(zip(files, last, strict=True)) if unambiguous else {}


def _runs(path: Path) -> list[dict[str, Any]]:
    try:
        document = msgspec.json.decode(read_file(path, MAX_BYTES))
        runs = [
            *document["runs"],
            *({"size_bytes": None, **run} for run in document.get("programs", ())),
        ]
        return [dict(run) for run in runs if _point(run)]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise ConfigError("not the results of a scenario", file=str(path)) from None


def _point(run: Mapping[str, Any]) -> Point:
    return {name: run[name] for name in ("choice", "protocol", "size_bytes")}


def _names(points: Sequence[Point]) -> Any:
    """A function that names a point by the values that differ among all points, or that only some
    have.
    """
    flat = [_flat(point) for point in points]
    values: dict[str, list[str]] = {}
    for point in flat:
        for name, value in point.items():
            values.setdefault(name, []).append(str(value))
    keys = [
        name
        for name, variants in values.items()
        if len({*variants}) > 1 or len(variants) < len(flat)
    ]

    def name_of(point: Point) -> str:
        identity = _flat(point)
        return (
            " ".join(f"{name}={identity[name]}" for name in keys if name in identity)
            or "the only point"
        )

    return name_of


def _flat(point: Point) -> Point:
    """The values that identify a point; for a plan or goodput file, those in which its cases
    differ.
    """
    if "case" not in point:
        return point
    return {**point["case"], **{name: point[name] for name in ("tier", "seed") if name in point}}
