"""Options of commands that read logs of measurements."""

from __future__ import annotations

from cyclopts import Parameter

from simcoll.command_line import WHOLE, inherit_options
from simcoll.planning.measured.log_parameters import LogParameters

__all__ = ["LogOptions"]


@inherit_options(
    {
        "nodes": WHOLE,
        "collective": Parameter(name=["--collective", "-c"]),
        "library": Parameter(),
        "environment": Parameter(name="--env"),
    }
)
class LogOptions(LogParameters):
    """What a log does not say, or what replaces it."""
