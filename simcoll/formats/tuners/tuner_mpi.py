"""Rules of MPI libraries: Open MPI's tuned (JSON) and HAN (text), and MPICH's selection (JSON)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from simcoll.errors import ConfigError, nearest
from simcoll.files.text import refuse_repeated_keys
from simcoll.formats.tuners.tuner_rules import (
    LARGEST,
    MAX_RULES,
    NO_LIMIT,
    Rule,
    refuse_line,
    whole_of,
)

__all__ = [
    "HAN",
    "MPI",
    "read_han",
    "read_mpich",
    "read_openmpi",
    "write_han",
    "write_mpich",
    "write_openmpi",
]

# Open MPI 6: coll_tuned_dynamic_rules_filename as JSON.
MPI = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
    "broadcast": "bcast",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}


def _table(text: str, file: str | None) -> dict[str, Any]:
    try:
        table = json.loads(
            text, parse_constant=lambda word: refuse_line(file, 1, f"{word} is no number")
        )
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"not a JSON file: {str(error)[:100]}", file=file) from None
    refuse_repeated_keys(text.encode(), file)
    if not isinstance(table, dict):
        raise ConfigError("expected an object", file=file, path="$")
    return table


def _get(
    table: Any, key: str, kind: type, file: str | None, place: str, default: Any = None
) -> Any:
    value = table.get(key, default) if isinstance(table, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(
            f"{key}: expected {kind.__name__}, got {str(value)[:40]!r}", file=file, path=place
        )
    return value


def _size(value: Any, file: str | None, place: str) -> int:
    if value == "inf":
        return NO_LIMIT
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ConfigError(
            f"expected a whole number or 'inf', got {str(value)[:40]!r}", file=file, path=place
        )
    return value


def read_openmpi(text: str, file: str | None) -> list[Rule]:
    """Read rules of Open MPI's tuned component."""
    kinds = {word: kind for kind, word in MPI.items()}
    table = _table(text, file)
    if table.get("rule_file_version") != 3 or table.get("module") != "tuned":
        raise ConfigError("expected rule_file_version 3 and module 'tuned'", file=file, path="$")
    rules = []
    for word, entries in _get(table, "collectives", dict, file, "$").items():
        if word not in kinds:
            raise ConfigError(
                f"unknown collective {word[:40]!r}; {nearest(word, kinds)}",
                file=file,
                path="$.collectives",
            )
        if not isinstance(entries, list):
            raise ConfigError("expected a list", file=file, path=f"$.collectives.{word}")
        for number, entry in enumerate(entries):
            place = f"$.collectives.{word}[{number}]"
            lowest = _size(_get(entry, "comm_size_min", int, file, place, 0), file, place)
            highest = _size(entry.get("comm_size_max", "inf"), file, place)
            ranks = lowest if lowest == highest else -1
            limits = (
                ()
                if ranks >= 0 or (lowest <= 0 and highest < 0)
                else (f"comm_size {lowest}..{highest if highest >= 0 else 'inf'}",)
            )
            for rule in _get(entry, "rules", list, file, place):
                algorithm = rule.get("alg") if isinstance(rule, dict) else None
                if not isinstance(algorithm, str):
                    raise ConfigError(
                        "a rule needs alg, the name of an algorithm", file=file, path=place
                    )
                low, high = (
                    _size(rule.get("msg_size_min", 0), file, place),
                    _size(rule.get("msg_size_max", "inf"), file, place),
                )
                rules.append(
                    Rule(kinds[word], low, high, algorithm, ranks=ranks, conditions=limits)
                )
    return rules


def write_openmpi(rules: Sequence[Rule]) -> str:
    """Write rules of Open MPI's tuned component."""
    collectives: dict[str, list[Any]] = {}
    for (kind, ranks), group in groupby(rules, key=lambda rule: (rule.collective, rule.ranks)):
        sizes = {} if ranks < 0 else {"comm_size_min": ranks, "comm_size_max": ranks}
        listed = [
            {
                "msg_size_min": rule.min_bytes,
                "msg_size_max": "inf" if rule.max_bytes < 0 else rule.max_bytes,
                "alg": rule.algorithm,
            }
            for rule in group
        ]
        collectives.setdefault(MPI[kind], []).append({**sizes, "rules": listed})
    return (
        json.dumps(
            {"rule_file_version": 3, "module": "tuned", "collectives": collectives}, indent=1
        )
        + "\n"
    )


# Open MPI's HAN: ompi/mca/coll/han/coll_han_dynamic_file.c. Level 2 is the whole communicator.
HAN = {
    kind: MPI[kind]
    for kind in ("all_gather", "all_reduce", "broadcast", "gather", "reduce", "scatter", "barrier")
}
HAN_COMPONENTS = ("self", "basic", "libnbc", "tuned", "sm", "adapt", "han")
_WHOLE_LEVEL = "2"


def read_han(text: str, file: str | None) -> list[Rule]:
    """Read rules of Open MPI's HAN."""
    words = _words(text)
    kinds = {word: kind for kind, word in HAN.items()}

    def take() -> tuple[int, str]:
        entry = next(words, None)
        if entry is None:
            raise ConfigError("the file ends inside a rule", file=file)
        return entry

    def number(subject: str) -> int:
        line, word = take()
        return whole_of(word, file, line, subject)

    def name(valid: Sequence[str]) -> str:
        line, word = take()
        if word not in valid:
            refuse_line(file, line, f"unknown {word[:40]!r}; {nearest(word, valid)}")
        return word

    rules = []
    for _ in range(number("number of collectives")):
        kind = kinds[name(tuple(kinds))]
        for _ in range(number("number of levels")):
            level = name(("0", "1", _WHOLE_LEVEL))
            for place in range(number("number of configurations")):
                size = number("configuration size")
                if place == 0 and size != 1:
                    raise ConfigError(
                        f"the first configuration size is {size}; expected 1", file=file
                    )
                limits: list[tuple[int, str]] = []
                for _ in range(number("number of sizes")):
                    limits.append((number("message size"), name(HAN_COMPONENTS)))
                    if len(limits) > MAX_RULES:
                        raise ConfigError(f"more than {MAX_RULES:,} rules", file=file)
                ends = [*(low - 1 for low, _ in limits[1:]), NO_LIMIT]
                conditions = (() if level == _WHOLE_LEVEL else (f"level={level}",)) + (
                    () if size == 1 else (f"configuration={size}",)
                )
                rules += [
                    Rule(kind, low, end, component, conditions=conditions)
                    for (low, component), end in zip(limits, ends, strict=False)
                ]
    line, surplus = next(words, (0, ""))
    if surplus:
        refuse_line(file, line, f"{surplus[:40]!r} after the last rule")
    return rules


def _words(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        for word in line.partition("#")[0].split():
            yield number, word


def write_han(rules: Sequence[Rule]) -> str:
    """Write rules of Open MPI's HAN."""
    groups = [
        (kind, list(group)) for kind, group in groupby(rules, key=lambda rule: rule.collective)
    ]
    lines = [f"{len(groups)} # collectives"]
    for kind, group in groups:
        lines += [
            HAN[kind],
            "1 # level",
            f"{_WHOLE_LEVEL} # the whole communicator",
            "1 # configuration",
            "1 # and more nodes",
        ]
        lines += [
            f"{len(group)} # sizes",
            *(f"{rule.min_bytes} {rule.algorithm}" for rule in group),
        ]
    return "\n".join(lines) + "\n"


# MPICH: MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE, as maint/tuning/coll of MPICH 5.
_MPICH_SIZES = re.compile(r"(avg_msg_size|total_msg_size|per_proc_msg_size)(<=|<)([0-9]{1,18})")


def read_mpich(text: str, file: str | None) -> list[Rule]:
    """Read a selection file of MPICH; unknown collectives are skipped."""
    kinds = {word: kind for kind, word in MPI.items()}
    rules: list[Rule] = []

    def walk(
        table: Any, kind: str, limits: tuple[int, int], conditions: tuple[str, ...], place: str
    ) -> None:
        low, high = limits
        if not isinstance(table, dict):
            raise ConfigError("expected an object", file=file, path=place)
        for key, inner in table.items():
            name, _, value = key.partition("=")
            size = _MPICH_SIZES.fullmatch(key)
            if name == "algorithm":
                options = tuple(f"{option}" for option in inner) if isinstance(inner, dict) else ()
                rules.append(Rule(kind, low, high, value, conditions=conditions + options))
            elif size is not None:
                last = int(size[3]) - (size[2] == "<")
                walk(
                    inner,
                    kind,
                    (low, last if high < 0 else min(last, high)),
                    conditions,
                    f"{place}.{key}",
                )
                low = last + 1
            elif value == "any" or key == "comm_type=intra":
                walk(inner, kind, (low, high), conditions, f"{place}.{key}")
            else:
                walk(inner, kind, (low, high), (*conditions, key), f"{place}.{key}")

    for key, table in _table(text, file).items():
        name, _, value = key.partition("=")
        if name != "collective":
            raise ConfigError(
                f"unknown key {key[:40]!r}; expected 'collective=...'", file=file, path="$"
            )
        if value in kinds:
            walk(table, kinds[value], (0, NO_LIMIT), (), f"$.{key}")
    return rules


def write_mpich(rules: Sequence[Rule]) -> str:
    """Write a selection file of MPICH."""
    table: dict[str, Any] = {}
    for kind, group in groupby(rules, key=lambda rule: rule.collective):
        measure = (
            "avg_msg_size" if kind in {"all_reduce", "broadcast", "reduce"} else "total_msg_size"
        )
        inner: dict[str, Any] = {}
        for rule in group:
            key = f"{measure}=any" if rule.max_bytes < 0 else f"{measure}<={rule.max_bytes}"
            inner[key] = {f"algorithm={rule.algorithm}": {}}
        table[f"collective={MPI[kind]}"] = {"comm_type=intra": inner}
    return json.dumps(table, indent=1) + "\n"
