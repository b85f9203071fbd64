"""Names of streams."""

from __future__ import annotations

__all__ = ["LAUNCHES", "message_stream"]

LAUNCHES = "launches"
"""The stream on which a host launches the operators of its accelerator."""


def message_stream(source: int, target: int) -> str:
    """A stream for messages from one rank to another, distinct at both ends from those of other
    pairs: by distance and parity.
    """
    distance = target - source
    side = source // max(abs(distance), 1) % 2
    return f"messages {distance:+d}{' odd' if side else ''}"
