"""Options that the command lines of rank programs share: what spawn takes, as text."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from simcoll.distributed.start.run_parameters import POLICY, PROTOCOL

__all__ = ["CollectiveOptions", "EventOptions", "option_values"]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class CollectiveOptions:
    """How collectives are played.

    Attributes
    ----------
    protocol
        ideal, LL, LL128 or Simple.
    algorithm
        The algorithm of collectives, where it serves.
    library
        Run what this library would, at its speed: nccl or rccl, for example.
    """

    protocol: Annotated[str, Parameter(name=["--protocol", "-p"])] = PROTOCOL
    algorithm: Annotated[str | None, Parameter(name=["--algorithm", "-a"])] = None
    library: str | None = None


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class EventOptions:
    """The record of the run, and its events.

    Attributes
    ----------
    record
        Record the run there as a workload for other topologies: a workload w.json, Chakra traces
        w.et, or a folder with both.
    fault
        An event of the run, such as "t=1ms rank 3 stops"; may be repeated.
    policy
        Policy for bytes at a dead link: stall, "stall 67ms x 7", re-route or abort.
    """

    record: str | None = None
    fault: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    policy: str = POLICY


def option_values(options: Any) -> dict[str, Any]:
    """The values of options by name, with those of the records among them.

    >>> option_values(EventOptions(policy="abort"))
    {'record': None, 'fault': (), 'policy': 'abort'}
    """
    values: dict[str, Any] = {}
    for option in fields(options):
        value = getattr(options, option.name)
        values |= option_values(value) if is_dataclass(value) else {option.name: value}
    return values
