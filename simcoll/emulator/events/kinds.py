"""Event types (links that lose capacity, ranks that slow down or stop), and the policy for bytes
that meet a dead link.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from simcoll.core.vocabulary import PolicyKind
from simcoll.errors import ConfigError, nearest, shown
from simcoll.topology.values import factor
from simcoll.units import MAX_TIME_FS, Ratio, exact_time

__all__ = ["POLICIES", "Background", "Event", "LinkShare", "Policy", "Slow", "Stop"]

POLICIES: tuple[PolicyKind, ...] = ("stall", "re-route", "abort")
MOST_ABOVE, MOST_BELOW = 10**9, 10**6
"""Limits of a factor's numerator and denominator, so that a time in femtoseconds times a factor can
be computed in 64 bits.
"""


def _check_time(time_fs: object, quantity: str) -> None:
    if not isinstance(time_fs, int) or isinstance(time_fs, bool) or not 0 <= time_fs <= MAX_TIME_FS:
        raise ConfigError(
            f"{quantity} of an event: expected femtoseconds from 0 to {MAX_TIME_FS}, a whole "
            f"number; got {shown(time_fs)}"
        )


def _check_window(at_fs: int, for_fs: int | None) -> None:
    _check_time(at_fs, "time")
    if for_fs is not None:
        _check_time(for_fs, "duration")
        if not for_fs:
            raise ConfigError(
                "duration of an event: expected more than 0; omit it for an event that lasts to "
                "the end"
            )


def _share(value: Ratio, subject: str) -> Fraction:
    share = factor(value, subject, zero=True)
    if share > 1:
        raise ConfigError(f"{subject}: expected 0 to 1, got {shown(value)}")
    return share


def _window(at_fs: int, for_fs: int | None, change: str) -> str:
    return f"t={exact_time(at_fs)} {change}{'' if for_fs is None else f' for {exact_time(for_fs)}'}"


@dataclass(frozen=True, slots=True)
class LinkShare:
    """A share of the capacity of a link, a pair of links, or all links at a vertex, for a while.

    Attributes
    ----------
    link
        Name, such as ``"box0.gpu3 -> box0.nic3"``, with ``<->`` for both directions; a vertex, for
        all its links; or a link's number.
    share
        Share of the capacity, from 0 (down) to 1: a fraction, a number, or text such as ``"1/2"``.
    at_fs, for_fs
        Start and duration; ``None``: to the end.

    Examples
    --------
    >>> print(LinkShare("box0.gpu3 -> box0.nic3", 0, at_fs=10**12, for_fs=2 * 10**12))
    t=1ms box0.gpu3 -> box0.nic3 = 0 for 2ms
    """

    link: str | int
    share: Fraction
    at_fs: int = 0
    for_fs: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self, link: str | int, share: Ratio, at_fs: int = 0, for_fs: int | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_window(self.at_fs, self.for_fs)
        object.__setattr__(self, "share", _share(self.share, f"share of link {shown(self.link)}"))

    def __str__(self) -> str:
        return _window(self.at_fs, self.for_fs, f"{self.link} = {self.share}")


@dataclass(frozen=True, slots=True)
class Background:
    """Background traffic that takes a share of some links for a while; attributes as in
    :class:`LinkShare`.

    >>> print(Background("leaf0 -> spine1", "1/4"))
    t=0 leaf0 -> spine1 background 1/4
    """

    link: str | int
    share: Fraction
    at_fs: int = 0
    for_fs: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self, link: str | int, share: Ratio, at_fs: int = 0, for_fs: int | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_window(self.at_fs, self.for_fs)
        share = _share(self.share, f"background on link {shown(self.link)}")
        if share == 1:
            raise ConfigError(
                f"background on link {shown(self.link)}: expected less than all of it; a link that "
                "is down has the share 0"
            )
        object.__setattr__(self, "share", share)

    def __str__(self) -> str:
        return _window(self.at_fs, self.for_fs, f"{self.link} background {self.share}")


def _check_rank(rank: object) -> None:
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
        raise ConfigError(f"rank of an event: expected a number from 0, got {shown(rank)}")


@dataclass(frozen=True, slots=True)
class Slow:
    """A slowdown of a rank's own work: computation, copies, reductions, and overheads of sending
    and receiving.

    Attributes
    ----------
    rank
        Number of the rank in the run.
    factor
        Factor on the duration of its work, at least 1.
    at_fs, for_fs
        Start and duration; ``None``: to the end.

    Examples
    --------
    >>> print(Slow(3, "1.5", for_fs=10**13))
    t=0 rank 3 slower 3/2 for 10ms
    """

    rank: int
    factor: Fraction
    at_fs: int = 0
    for_fs: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self, rank: int, factor: Ratio, at_fs: int = 0, for_fs: int | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_rank(self.rank)
        _check_window(self.at_fs, self.for_fs)
        exact = factor(self.factor, f"factor of rank {self.rank}")
        if exact < 1 or exact.numerator > MOST_ABOVE or exact.denominator > MOST_BELOW:
            raise ConfigError(
                f"factor of rank {self.rank}: expected 1 or more, with a numerator up to "
                f"{MOST_ABOVE} and a denominator up to "
                f"{MOST_BELOW}; got {shown(str(self.factor))}"
            )
        object.__setattr__(self, "factor", exact)

    def __str__(self) -> str:
        return _window(self.at_fs, self.for_fs, f"rank {self.rank} slower {self.factor}")


@dataclass(frozen=True, slots=True)
class Stop:
    """The permanent stop of a rank.

    >>> print(Stop(3, at_fs=5 * 10**12))
    t=5ms rank 3 stops
    """

    rank: int
    at_fs: int = 0

    def __post_init__(self) -> None:
        _check_rank(self.rank)
        _check_time(self.at_fs, "time")

    def __str__(self) -> str:
        return _window(self.at_fs, None, f"rank {self.rank} stops")


Event = LinkShare | Background | Slow | Stop


@dataclass(frozen=True, slots=True)
class Policy:
    """The treatment of bytes that meet a link that is down.

    Attributes
    ----------
    kind
        ``"stall"``: they wait until the link is back. ``"re-route"``: they take another route if
        there is one, and otherwise wait. ``"abort"``: the run ends.
    timeout_fs, retries
        As on an RDMA NIC: a message that has waited for ``timeout_fs``, and again after each of
        ``retries`` retries, ends the run. A timeout of 0 means none.

    Examples
    --------
    >>> print(Policy("stall", timeout_fs=67 * 10**12, retries=7))
    stall 67ms x 7
    """

    kind: PolicyKind = "stall"
    timeout_fs: int = 0
    retries: int = 0
    limit_fs: int = field(init=False, repr=False)
    """The longest wait of a message; the end of the clock if unlimited."""

    def __post_init__(self) -> None:
        if self.kind not in POLICIES:
            raise ConfigError(
                f"policy {shown(self.kind)} is not known; {nearest(str(self.kind), POLICIES)}"
            )
        _check_time(self.timeout_fs, "timeout")
        _check_time(self.retries, "retries")
        if (self.retries and not self.timeout_fs) or (self.kind == "abort" and self.timeout_fs):
            raise ConfigError(
                f"policy {self.kind!r}: expected "
                f"{'no timeout' if self.kind == 'abort' else 'retries only with a timeout'}"
            )
        limit = 0 if self.kind == "abort" else (self.timeout_fs * (self.retries + 1) or MAX_TIME_FS)
        object.__setattr__(self, "limit_fs", min(limit, MAX_TIME_FS))

    def __str__(self) -> str:
        return (
            f"{self.kind} {exact_time(self.timeout_fs)} x {self.retries}"
            if self.timeout_fs
            else self.kind
        )
