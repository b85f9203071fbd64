"""Protocol models: wire bytes and fixed delays of a transfer, as parameters; the engines have no
protocol branches.

``ideal`` is the latency-bandwidth model of the textbooks: a message costs the latency of its path
and its bytes, nothing else. The ``nccl`` models (LL, LL128, Simple) carry the constants of NCCL's
own cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from simcoll.errors import ConfigError, nearest, shown
from simcoll.units import MAX_INT64, Ratio, format_rate, format_time

__all__ = ["GENERATIONS", "IDEAL", "PROTOCOL_NAMES", "Protocol", "ideal", "nccl", "protocol"]


def _fraction(value: Ratio, name: str, maximum: int | None = None) -> Fraction:
    """A positive number, exactly."""
    try:
        factor = Fraction(value)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        factor = Fraction(0)
    if factor <= 0 or (maximum is not None and factor > maximum):
        limit = "" if maximum is None else f" and at most {maximum}"
        raise ConfigError(f"{name} must be a number above 0{limit}, got {value!r}")
    return factor


def _by_kind(pairs: Any, name: str) -> tuple[tuple[str, Any], ...]:
    """Pairs of a link kind and its value, as tuples."""
    try:
        return tuple((kind, value) for kind, value in pairs)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{name} must be pairs (link kind, value), such as [('net', 1)]; got {shown(pairs)}"
        ) from None


@dataclass(frozen=True, slots=True, repr=False)
class Protocol:
    """Cost parameters of a message, in addition to its path.

    Attributes
    ----------
    name
        Shown in every output.
    header_bytes
        Extra wire bytes per message.
    wire_factor
        Wire bytes per byte of payload (LL sends a flag with every word: 2).
    launch_fs
        Delay before every rank's first step, in femtoseconds.
    send_overhead_fs, receive_overhead_fs
        Fixed delays of a message at its sender, and at its receiver after its last byte has
        arrived, in femtoseconds.
    occupancy_fs
        ``((link kind, femtoseconds), ...)``: added to the send overhead of messages whose path has
        this slowest kind of link.
    hop_latency_fs
        ``((link kind, femtoseconds), ...)``: latency of messages whose path has this slowest kind
        of link, instead of the path's own latency. Other messages have the path's own latency.
    add_path_latency
        Whether ``hop_latency_fs`` is added to the path's latency instead of replacing it.
    reduce_as_per_byte, copy_as_per_byte
        Cost of combining a received byte, and of copying a byte within one rank, in attoseconds (1
        / (1.5 TB/s) is 667).
    fifo_depth
        Messages a sender may run ahead of its receiver on one connection (source, destination,
        channel). 0 is rendezvous: a transfer starts when both ends have finished their earlier
        steps on the channel, and its overhead and latency come before its flow. With a FIFO the
        overhead occupies only the sender, and the latency follows the flow (LogGP).
    channel_rate_uBps, rank_rate_uBps
        Highest rate of one rank in each direction, on one channel and over all channels, in
        micro-bytes per second; 0: no limit.
    use_efficiency
        Whether link capacities are reduced to the measured efficiency that the topology states for
        their kind.
    link_shares
        ``((link kind, share), ...)``: usable share of the capacity of such links, instead of the
        topology's efficiency; above 0, at most 1.
    jitter_fs, seed
        Every message has up to ``jitter_fs`` of extra latency, given by a hash of ``seed`` and the
        message's number.
    """

    name: str
    header_bytes: int = 0
    wire_factor: Fraction = Fraction(1)
    launch_fs: int = 0
    send_overhead_fs: int = 0
    receive_overhead_fs: int = 0
    occupancy_fs: tuple[tuple[str, int], ...] = ()
    hop_latency_fs: tuple[tuple[str, int], ...] = ()
    add_path_latency: bool = False
    reduce_as_per_byte: int = 0
    copy_as_per_byte: int = 0
    fifo_depth: int = 0
    channel_rate_uBps: int = 0
    rank_rate_uBps: int = 0
    use_efficiency: bool = False
    link_shares: tuple[tuple[str, Fraction], ...] = ()
    jitter_fs: int = 0
    seed: int = 0

    def __repr__(self) -> str:
        settings = [f"name={self.name!r}"]
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name != "name" and value != entry.default:
                settings.append(f"{entry.name}={value!r}")
        return f"Protocol({', '.join(settings)})"

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            header_bytes: int = 0,
            wire_factor: Ratio = Fraction(1),
            launch_fs: int = 0,
            send_overhead_fs: int = 0,
            receive_overhead_fs: int = 0,
            occupancy_fs: Sequence[tuple[str, int]] = (),
            hop_latency_fs: Sequence[tuple[str, int]] = (),
            add_path_latency: bool = False,
            reduce_as_per_byte: int = 0,
            copy_as_per_byte: int = 0,
            fifo_depth: int = 0,
            channel_rate_uBps: int = 0,
            rank_rate_uBps: int = 0,
            use_efficiency: bool = False,
            link_shares: Sequence[tuple[str, Ratio]] = (),
            jitter_fs: int = 0,
            seed: int = 0,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "wire_factor", _fraction(self.wire_factor, "wire_factor"))
        for name in ("occupancy_fs", "hop_latency_fs", "link_shares"):
            object.__setattr__(self, name, _by_kind(getattr(self, name), name))
        shares = tuple(
            (kind, _fraction(share, f"link_shares of {kind}", 1))
            for kind, share in self.link_shares
        )
        object.__setattr__(self, "link_shares", shares)
        numbers = {
            entry.name: getattr(self, entry.name) for entry in fields(self) if entry.type == "int"
        }
        numbers |= {f"occupancy_fs of {kind}": occupancy for kind, occupancy in self.occupancy_fs}
        numbers |= {f"hop_latency_fs of {kind}": latency for kind, latency in self.hop_latency_fs}
        for name, value in numbers.items():
            if type(value) is not int or value < 0:
                raise ConfigError(
                    f"{name} of protocol {self.name!r} must be a whole number, at least 0; got "
                    f"{shown(value)}"
                )
            if value > MAX_INT64:
                raise ConfigError(
                    f"{name} of protocol {self.name!r} must be at most {MAX_INT64}, got "
                    f"{shown(value)}"
                )

    @property
    def summary(self) -> str:
        """The parameters that are not zero, in words."""
        parts = [f"{format_time(self.launch_fs)} launch"] if self.launch_fs else []
        parts += [f"{format_time(fs)} a {kind} hop" for kind, fs in self.hop_latency_fs]
        if self.add_path_latency or not self.hop_latency_fs:
            parts.append("the path's own latency")
        parts += [
            f"{format_time(fs)} of the sender a {kind} hop" for kind, fs in self.occupancy_fs if fs
        ]
        parts.append(f"{float(self.wire_factor):.3g} bytes on the wire per byte")
        if self.fifo_depth:
            parts.append(f"a FIFO of {self.fifo_depth}")
        if self.channel_rate_uBps:
            parts.append(f"at most {format_rate(self.channel_rate_uBps)} a channel")
        if self.rank_rate_uBps:
            parts.append(f"at most {format_rate(self.rank_rate_uBps)} a rank")
        parts += [f"{float(share):.3g} of {kind} links" for kind, share in self.link_shares]
        return ", ".join(parts)


IDEAL = Protocol("ideal")


def ideal(*, launch_fs: int = 0, header_bytes: int = 0, reduce_as_per_byte: int = 0) -> Protocol:
    """The latency-bandwidth model, with optional constants.

    >>> ideal() == IDEAL
    True
    """
    return Protocol(
        "ideal",
        launch_fs=launch_fs,
        header_bytes=header_bytes,
        reduce_as_per_byte=reduce_as_per_byte,
    )


_US = 10**9
# Constants of NCCL 2.30's cost model (src/graph/tuning.cc): hop latency in nanoseconds, by the
# slowest link on the path.
_HOP_NS = {
    ("tree", "LL"): {"nvlink": 600, "pcie": 1000, "net": 5000},
    ("tree", "LL128"): {"nvlink": 1250, "pcie": 1900, "net": 8500},
    ("tree", "Simple"): {"nvlink": 4000, "pcie": 4000, "net": 14000},
    ("ring", "LL"): {"nvlink": 600, "pcie": 1000, "net": 2700},
    ("ring", "LL128"): {"nvlink": 1900, "pcie": 2500, "net": 4000},
    ("ring", "Simple"): {"nvlink": 3400, "pcie": 5700, "net": 14000},
}
_BASE_NS = {
    ("tree", "LL"): 6800,
    ("tree", "LL128"): 14000,
    ("tree", "Simple"): 8400,
    ("ring", "LL"): 6600,
    ("ring", "LL128"): 14000,
    ("ring", "Simple"): 8400,
}
# LL stores 4 bytes of flag with 4 of data; LL128 8 of 128 bytes.
_WIRE = {"LL": Fraction(2), "LL128": Fraction(128, 120), "Simple": Fraction(1)}
# Highest GB/s of one channel under LL128, ring, by GPU generation (perChMaxRingLL128Bws).
_CHANNEL_LL128 = {"volta": 20_000, "ampere": 20_000, "hopper": 36_700, "blackwell": 40_000}
GENERATIONS = tuple(_CHANNEL_LL128)
"""GPU generations for which NCCL has constants."""
# A received byte is combined at the speed of the copy engine of one GPU; NCCL folds it into the
# link bandwidth.
_FLAVOURS = ("LL", "LL128", "Simple")
PROTOCOL_NAMES = ("ideal", *_FLAVOURS)


def nccl(flavour: str, *, pattern: str = "ring", generation: str = "hopper") -> Protocol:
    """NCCL's LL, LL128 or Simple protocol with the constants of NCCL 2.30's own cost model.

    Parameters
    ----------
    flavour
        ``LL``, ``LL128`` or ``Simple``.
    pattern
        ``ring`` or ``tree``: which row of hop latencies applies.
    generation
        GPU generation for the per-channel limit of LL128: volta, ampere, hopper or blackwell.

    Raises
    ------
    ConfigError
        For an unknown flavour, pattern or generation.

    Examples
    --------
    >>> nccl("LL").wire_factor, dict(nccl("Simple").hop_latency_fs)["net"]
    (Fraction(2, 1), 14000000000)
    """
    if flavour not in _FLAVOURS:
        raise ConfigError(f"unknown NCCL protocol {flavour!r}; {nearest(flavour, _FLAVOURS)}")
    if pattern not in ("ring", "tree"):
        raise ConfigError(f"unknown pattern {pattern!r}; {nearest(pattern, ['ring', 'tree'])}")
    if generation not in _CHANNEL_LL128:
        raise ConfigError(
            f"unknown GPU generation {generation!r}; {nearest(generation, _CHANNEL_LL128)}"
        )
    return Protocol(
        flavour,
        wire_factor=_WIRE[flavour],
        launch_fs=_BASE_NS[pattern, flavour] * _US // 1000,
        hop_latency_fs=tuple(
            (kind, ns * _US // 1000) for kind, ns in _HOP_NS[pattern, flavour].items()
        ),
        channel_rate_uBps=_CHANNEL_LL128[generation] * 10**12 if flavour == "LL128" else 0,
        use_efficiency=True,
    )


def protocol(name: str, *, pattern: str = "ring", generation: str = "hopper") -> Protocol:
    """A protocol by name: ``ideal``, ``LL``, ``LL128`` or ``Simple``.

    Raises
    ------
    ConfigError
        For an unknown name.

    Examples
    --------
    >>> protocol("ideal") is IDEAL
    True
    """
    if name not in PROTOCOL_NAMES:
        raise ConfigError(f"unknown protocol {name!r}; {nearest(name, PROTOCOL_NAMES)}")
    return IDEAL if name == "ideal" else nccl(name, pattern=pattern, generation=generation)
