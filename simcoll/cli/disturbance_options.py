"""Options for disturbances of runs, and for the participating ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from simcoll.command_line import WHOLE, override_options
from simcoll.errors import ConfigError
from simcoll.planning.sweeps.run_conditions import SeededConditions

if TYPE_CHECKING:
    from simcoll.planning.sweeps.disturbance import RunDisturbance
    from simcoll.topology import Topology

__all__ = ["Disturbed"]


@override_options(
    SeededConditions,
    {
        "jitter": Parameter(),
        "seed": WHOLE,
        "stragglers": Parameter(name="--straggler", negative=()),
        "background": Parameter(negative=()),
        "faults": Parameter(name="--fault", negative=()),
        "policy": Parameter(),
        "ranks": Parameter(),
    },
)
class Disturbed:
    """Disturbances of the runs, and the participating ranks."""

    @property
    def choices(self) -> dict[str, Any]:
        """The options that are present, by the key of a file that each overrides."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def disturbs(self) -> bool:
        """Whether any disturbance is requested."""
        return not self.choices.keys().isdisjoint({"jitter", "stragglers", "background", "faults"})

    def disturbance(self) -> RunDisturbance:
        """The disturbance."""
        from simcoll.planning.sweeps.disturbance import disturbance

        choices = self.choices
        if "seed" in choices and "jitter" not in choices:
            raise ConfigError("--seed is for --jitter: nothing else is random")
        if "policy" in choices and "faults" not in choices:
            raise ConfigError("--policy is for --fault: no link goes down")
        return disturbance(**choices)

    def keys(self, jitter: str) -> dict[str, Any]:
        """The scenario keys that the options override; ``jitter`` is the file's."""
        choices = self.choices
        if "seed" in choices and (choices.get("jitter") or jitter) in {"", "0"}:
            raise ConfigError("--seed is for --jitter: nothing else is random")
        return choices

    def select_ranks(self, machine: Topology) -> Topology:
        """The machine with the participating ranks."""
        from simcoll.planning.sweeps.disturbance import parse_ranks

        ranks = self.choices.get("ranks")
        return machine if ranks is None else machine.with_ranks(parse_ranks(ranks))
