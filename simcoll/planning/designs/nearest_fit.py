"""Alternatives of which no design fits: their nearest design, and the least change that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from simcoll.errors import ConfigError
from simcoll.planning.grids.grid import Row
from simcoll.training.design import design_from
from simcoll.training.memory import memory_by_stage
from simcoll.training.parallel import Parallel

__all__ = ["MissingAlternative", "alternative_name", "missing_alternatives"]


@dataclass(frozen=True, slots=True)
class MissingAlternative:
    """An alternative without a design that ran, and why: one line for people."""

    name: str
    reason: str


def alternative_name(case: Mapping[str, Any]) -> str:
    """The alternative of a design: its name, or what tells its machine from others; empty for a
    plan of one machine.

    >>> alternative_name({"topology.name": "dgx-h100", "tp": 4})
    'topology.name dgx-h100'
    """
    if "alternative" in case:
        return str(case["alternative"])
    return ", ".join(f"{name} {value}" for name, value in case.items() if _is_of_machine(name))


def _is_of_machine(name: str) -> bool:
    """Whether a list is of the machine and not of the mapping."""
    return "." in name or name in _MACHINE_KEYS


_MACHINE_KEYS = {"degraded", "slow", "nodes", "gpus"}
"""Lists of a machine whose names have no table."""


def missing_alternatives(rows: Sequence[Row]) -> list[MissingAlternative]:
    """The alternatives of a plan of which no design ran, in the order of the file.

    Parameters
    ----------
    rows
        All designs of the plan.

    Examples
    --------
    >>> point = {"case": {"alternative": "A", "tp": 3}, "design": {}}
    >>> missing_alternatives([{"point": point, "error": "8 heads over tp = 3"}])
    [MissingAlternative(name='A', reason='no design is possible: 8 heads over tp = 3')]
    """
    alternatives: dict[str, list[Row]] = {}
    for row in rows:
        alternatives.setdefault(alternative_name(row["point"]["case"]), []).append(row)
    return [
        MissingAlternative(name, _reason(designs))
        for name, designs in alternatives.items()
        if not any(row.get("result", {}).get("fits") == "yes" for row in designs)
    ]


def _reason(designs: Sequence[Row]) -> str:
    """Why none of an alternative's designs ran."""
    tight = [row for row in designs if "result" in row]
    if not tight:
        return f"no design is possible: {designs[0].get('error', 'none was timed')}"
    # A design that runs, but too long or too dear, is nearer than one that does not run.
    nearest = min(tight, key=lambda row: ("time_fs" not in row["result"], row["result"]["excess"]))
    result = nearest["result"]
    machine = f" on {result['gpus']:,} GPUs" if "gpus" in result else ""
    reason = f"no design fits{machine}; nearest {result['fits']}{_with(nearest['point']['case'])}"
    return f"{reason}; {_remedy(nearest)}" if result["fits"].endswith("GiB") else reason


def _with(case: Mapping[str, Any]) -> str:
    """The values that tell a design from others of its alternative."""
    values = [
        f"{name} = {value}"
        for name, value in case.items()
        if name != "alternative" and not _is_of_machine(name)
    ]
    return f" with {', '.join(values)}" if values else ""


def _remedy(row: Row) -> str:
    """The smallest change of the parallelism with which a design would fit, or come closest."""
    document = row["point"]["design"]
    present = design_from(document, file="plan")
    closest = (row["result"]["memory_bytes"], "no change of its parallelism needs less")
    for changes in _changes(present.parallel):
        try:
            design = design_from(
                {**document, "parallel": {**document.get("parallel", {}), **changes}}, file="plan"
            )
        except ConfigError:
            continue
        need = max(stage.total for stage in memory_by_stage(design))
        if need <= design.memory_limit:
            return f"fits with {_values(changes)}: {need / 2**30:.1f} GiB"
        closest = min(closest, (need, f"still {need / 2**30:.1f} GiB with {_values(changes)}"))
    return closest[1]


def _changes(parallel: Parallel) -> Iterator[dict[str, Any]]:
    """Changes that save memory, those that cost the least time first."""
    choices = []
    for name, savers in _SAVERS.items():
        present = getattr(parallel, name)
        values = [
            (name, present * value if name in _DEGREES else value, cost) for value, cost in savers
        ]
        choices.append([(name, present, 0), *values])
    combinations = []
    for chosen in product(*choices):
        changes = {name: value for name, value, cost in chosen if cost}
        if changes and all(getattr(parallel, name) != value for name, value in changes.items()):
            combinations.append((sum(cost for _, _, cost in chosen), changes))
    combinations.sort(key=lambda pair: pair[0])
    return (changes for _, changes in combinations)


_SAVERS: dict[str, tuple[tuple[Any, int], ...]] = {
    "shard": (("optimizer", 1),),
    "sequence_parallel": ((True, 1),),
    "recompute": (("selective", 2), ("full", 6)),
    "micro_batch": ((1, 2),),
    "cp": ((2, 4), (4, 7)),
    "pp": ((2, 5), (4, 8)),
}
"""By key, values that save memory, with a rank of what they cost in time. Sharding and sequence
parallelism move as many bytes as without, selective recomputation repeats the core of attention,
full recomputation a third of the step; degrees of parallelism are factors."""
_DEGREES = ("cp", "pp")


def _values(changes: Mapping[str, Any]) -> str:
    """Changes as lines of a plan file would state them."""
    return ", ".join(
        f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
        for name, value in changes.items()
    )
