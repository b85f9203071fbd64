"""Messages between the processes of a job and their rendezvous server."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from simcoll.distributed.server.frames import Limits, Refusal

__all__ = [
    "DIED",
    "LIMITS",
    "MAX_WAIT_S",
    "SAID",
    "SERVICE",
    "TOLD",
    "Address",
    "Alarm",
    "Bye",
    "Departed",
    "Fail",
    "Gone",
    "Join",
    "Meet",
    "Met",
    "format_address",
]

SERVICE = "realcoll-meeting/1"
LIMITS = Limits(max_message_bytes=1 << 20)
MAX_WAIT_S = 1e8
DIED = "died"

Address: TypeAlias = tuple[str, int] | str
"""Host and port, or the name of a local socket (in Linux's abstract namespace, which leaves no
file).
"""

_Process = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Join(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """Register as a process of the job."""

    process: _Process


class Meet(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=2):
    """Contribute a value to a meeting, and wait up to a time limit for the other members."""

    name: Annotated[str, msgspec.Meta(max_length=1 << 20)]
    members: tuple[_Process, ...]
    value: bytes
    timeout_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)]


class Fail(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=3):
    """Give up, with a reason."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=4000)]


class Bye(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=4):
    """End in order."""


class Gone(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=5):
    """A process is gone; the reason is empty after a normal end."""

    process: int
    reason: str


class Departed(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=6):
    """A process has finished."""

    process: int


class Alarm(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=7):
    """A meeting called by stuck processes to find the one that blocks them."""

    name: str


class Met(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=8):
    """The result of a meeting.

    Attributes
    ----------
    values
        Each member's value, by process; incomplete if ``missing`` is not empty.
    missing
        Members that did not arrive in time.
    late
        Whether the others had given up before this process arrived.
    gone
        Why processes had died or given up by then.
    """

    name: str
    values: dict[int, bytes]
    missing: tuple[int, ...] = ()
    late: bool = False
    gone: dict[int, str] = {}


SAID: msgspec.msgpack.Decoder[Join | Meet | Fail | Bye] = msgspec.msgpack.Decoder(
    Join | Meet | Fail | Bye
)
TOLD: msgspec.msgpack.Decoder[Gone | Departed | Alarm | Met | Refusal] = msgspec.msgpack.Decoder(
    Gone | Departed | Alarm | Met | Refusal
)


def format_address(address: Address) -> str:
    """Format an address."""
    return (
        f"{address[0]}:{address[1]}"
        if isinstance(address, tuple)
        else repr(address.replace("\0", "@"))
    )
