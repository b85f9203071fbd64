"""``simcoll list``: the shipped names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simcoll.errors import ConfigError, nearest
from simcoll.terminal import say

__all__ = ["LISTED", "list_names"]

Lines = list[tuple[str, ...]]


def list_names(what: str | None = None, /) -> None:
    """List topologies, algorithms, libraries, scenarios, collectives, protocols, GPUs, models,
    calibrations or plans.

    Parameters
    ----------
    what
        topologies, algorithms, libraries, scenarios, collectives, protocols, gpus, models,
        calibrations or plans. Default: the number of each.
    """
    if what is None:
        _print_columns(
            [(f"simcoll list {name}", str(_many(make()))) for name, make in _LISTINGS.items()]
        )
        return
    if what not in _LISTINGS:
        raise ConfigError(f"cannot list {what!r}; {nearest(what, LISTED)}")
    _print_columns(_LISTINGS[what]())


def _topologies() -> Lines:
    from simcoll.topology import shipped_topologies

    return list(shipped_topologies().items())


def _libraries() -> Lines:
    from simcoll.libraries.library import shipped_libraries

    return list(shipped_libraries().items())


def _scenarios() -> Lines:
    from simcoll.planning.sweeps.scenario import shipped_scenarios

    return list(shipped_scenarios().items())


def _plans() -> Lines:
    from simcoll.files.paths import shipped_files
    from simcoll.files.text import parse_toml

    commands = (("plan", "plans"), ("sweep", "sweeps"), ("goodput", "goodput"))
    return [
        (
            f"simcoll {command} {name}",
            str(parse_toml(path.read_bytes(), str(path)).get("title", "")),
        )
        for command, kind in commands
        for name, path in shipped_files(f"scenarios/{kind}").items()
    ]


def _gpus() -> Lines:
    from simcoll.training.gpu import shipped_gpus

    return list(shipped_gpus().items())


def _calibrations() -> Lines:
    from simcoll.training.step_calibration import shipped_calibrations

    return list(shipped_calibrations().items())


def _models() -> Lines:
    from simcoll.training.transformer import shipped_model, shipped_models

    head = ("model", "parameters", "met by a token", "source of its sizes")
    rows = [
        (
            name,
            f"{shipped_model(name).parameters / 1e9:.1f}B",
            f"{shipped_model(name).active_parameters / 1e9:.1f}B",
            source,
        )
        for name, source in shipped_models().items()
    ]
    return [head, *rows]


def _algorithms() -> Lines:
    from simcoll.algorithms import ALGORITHMS
    from simcoll.algorithms.imported import entry_point_names

    cost = "time (a latency, b s/byte, g s/byte reduced, s size)"
    head = ("collective", "algorithm", "ranks", "made for", "parameters", cost)
    rows = [
        (a.collective, a.name, a.ranks, a.topologies, " ".join(a.params) or "-", a.cost)
        for a in ALGORITHMS
    ]
    of_others = [
        ("-", name, "-", "-", "-", "of an installed package") for name in entry_point_names()
    ]
    return [head, *rows, *of_others]


def _collectives() -> Lines:
    from simcoll.core.collective import KINDS

    return [(name, kind.summary) for name, kind in KINDS.items()]


def _protocols() -> Lines:
    from simcoll.core.protocol import PROTOCOL_NAMES, protocol

    return [(name, protocol(name).summary) for name in PROTOCOL_NAMES]


def _many(rows: Lines) -> int:
    """Rows of a table without its titles."""
    return len(rows) - (rows[0][0] in {"collective", "model"})


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


_LISTINGS: dict[str, Callable[[], Lines]] = {
    "topologies": _topologies,
    "algorithms": _algorithms,
    "libraries": _libraries,
    "scenarios": _scenarios,
    "collectives": _collectives,
    "protocols": _protocols,
    "gpus": _gpus,
    "models": _models,
    "calibrations": _calibrations,
    "plans": _plans,
}
LISTED = tuple(_LISTINGS)
"""The available lists."""
