"""Options for disturbances of runs, and for the participating ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from simcoll.command_line import WHOLE
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.planning.sweeps.disturbance import RunDisturbance
    from simcoll.topology import Topology

__all__ = ["Disturbed"]

_SEVERAL = Parameter(negative=(), show_default=False)


@Parameter(name="*")
@dataclass(frozen=True)
class Disturbed:
    """Disturbances of the runs, and the participating ranks.

    Parameters
    ----------
    jitter
        Longest random delay of a message, such as 1us.
    seed
        Seed of random delays. Default: 0.
    straggler
        A slow rank: "rank 3: +10 %" takes that much longer for its work and for bytes over its
        GPU's links. May be repeated.
    background
        Background traffic on a link: "box0.gpu3 -> box0.nic3: 20 %". May be repeated.
    fault
        An event during every run, such as "t=1ms box0.gpu3 -> box0.nic3 = 0 for 2ms", "t=0 leaf0 ->
        spine1 background 1/4", "t=1ms rank 3 slower 1.5 for 2ms" or "t=1ms rank 3 stops". May be
        repeated.
    policy
        Treatment of bytes at a link that is down: stall, "stall 67ms x 7", re-route or abort.
    ranks
        The participating ranks, in this order: 0-7,16-23. Default: all.
    """

    jitter: str | None = None
    seed: Annotated[int | None, WHOLE] = None
    straggler: Annotated[tuple[str, ...], _SEVERAL] = ()
    background: Annotated[tuple[str, ...], _SEVERAL] = ()
    fault: Annotated[tuple[str, ...], _SEVERAL] = ()
    policy: str | None = None
    ranks: str | None = None

    @property
    def disturbs(self) -> bool:
        """Whether any disturbance is requested."""
        return bool(self.jitter is not None or self.straggler or self.background or self.fault)

    def disturbance(self) -> RunDisturbance:
        """The disturbance."""
        from simcoll.planning.sweeps.disturbance import disturbance

        if self.seed is not None and self.jitter is None:
            raise ConfigError("--seed is for --jitter: nothing else is random")
        if self.policy is not None and not self.fault:
            raise ConfigError("--policy is for --fault: no link goes down")
        rule = self.policy or "stall"
        jitter = "0" if self.jitter is None else self.jitter
        return disturbance(
            self.straggler, self.background, jitter, self.seed or 0, self.fault, rule
        )

    def keys(self, jitter: str) -> dict[str, Any]:
        """The scenario keys that the options override; ``jitter`` is the file's."""
        if self.seed is not None and (self.jitter or jitter) in {"", "0"}:
            raise ConfigError("--seed is for --jitter: nothing else is random")
        values = {
            "jitter": self.jitter,
            "seed": self.seed,
            "stragglers": self.straggler or None,
            "background": self.background or None,
            "faults": self.fault or None,
            "policy": self.policy,
            "ranks": self.ranks,
        }
        return {key: value for key, value in values.items() if value is not None}

    def select_ranks(self, machine: Topology) -> Topology:
        """The machine with the participating ranks."""
        from simcoll.planning.sweeps.disturbance import parse_ranks

        return machine if self.ranks is None else machine.with_ranks(parse_ranks(self.ranks))
