"""Parser of events and policies, shared by the command line, scenario files and Python."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simcoll.emulator.events.kinds import POLICIES, Background, Event, LinkShare, Policy, Slow, Stop
from simcoll.errors import ConfigError, nearest, shown
from simcoll.units import parse_time

__all__ = ["parse_event", "parse_events", "parse_policy"]

FORMS = (
    "'t=1ms gpu0 -> gpu1 = 0 for 2ms', 't=1ms gpu0 <-> gpu1 background 1/4', 't=1ms rank 3 slower "
    "1.5 for 2ms' "
    "or 't=1ms rank 3 stops'"
)
MOST_EVENTS = 100_000
_TIME = r"\S+(?:\s+(?:s|ms|[uµμ]s|ns|ps|fs))?"
_WHEN = re.compile(rf"\s*t\s*=\s*({_TIME})\s+(.*)", re.ASCII | re.DOTALL)
_FOR = re.compile(rf"(.*\S)\s+for\s+({_TIME})\s*", re.ASCII | re.DOTALL)
_RANK = re.compile(r"rank\s+(\d{1,18})\s+(\S+)\s*(\S*)", re.ASCII)
_RETRIES = re.compile(rf"(\S+)\s+({_TIME})\s*(?:x\s*(\d{{1,9}}))?\s*", re.ASCII)


def parse_event(text: str) -> Event:
    """Parse an event as written on the command line.

    Raises
    ------
    ConfigError
        When the text is not an event.

    Examples
    --------
    >>> parse_event("t=1ms box0.gpu3 -> box0.nic3 = 0 for 2ms")
    LinkShare(link='box0.gpu3 -> box0.nic3', share=Fraction(0, 1), at_fs=1000000000000, for_fs=...)
    >>> parse_event("t=0 rank 3 slower 1.5")
    Slow(rank=3, factor=Fraction(3, 2), at_fs=0, for_fs=None)
    """
    if not isinstance(text, str):
        raise ConfigError(f"an event: expected text such as {FORMS}; got {shown(text)}")
    when = _WHEN.fullmatch(text)
    if when is None:
        raise ConfigError(f"event {shown(text)}: expected a time first; such as {FORMS}")
    at_fs = parse_time(when[1], what=f"time of event {shown(text)}")
    lasts = _FOR.fullmatch(when[2])
    change = (lasts[1] if lasts else when[2]).strip()
    for_fs = parse_time(lasts[2], what=f"duration of event {shown(text)}") if lasts else None
    try:
        return _event(change, at_fs, for_fs)
    except ConfigError as error:
        raise ConfigError(f"event {shown(text)}: {error.message}") from None


def _event(change: str, at_fs: int, for_fs: int | None) -> Event:
    rank = _RANK.fullmatch(change)
    if rank is not None:
        number, verb, factor = int(rank[1]), rank[2], rank[3]
        if verb == "slower" and factor:
            return Slow(number, factor, at_fs, for_fs)
        if verb == "stops" and not factor:
            if for_fs is not None:
                raise ConfigError("a rank that stops does not come back; expected no duration")
            return Stop(number, at_fs)
        if verb not in {"->", "<->"}:
            raise ConfigError(f"expected 'rank {number} slower 1.5' or 'rank {number} stops'")
    link, sign, share = change.rpartition("=")
    if not sign:
        link, sign, share = change.rpartition(" background ")
    if not sign or not link.strip():
        raise ConfigError(f"expected one of the forms {FORMS}")
    kind = LinkShare if sign == "=" else Background
    return kind(link.strip(), share.strip(), at_fs, for_fs)


def parse_events(events: Sequence[Event | str]) -> tuple[Event, ...]:
    """Events, given as objects or text.

    Raises
    ------
    ConfigError
        When an item is neither, or there are more than 100,000.
    """
    if isinstance(events, (str, LinkShare, Background, Slow, Stop)):
        raise ConfigError(f"events: expected a list, got {shown(events)} alone; put it in brackets")
    parsed: list[Event] = []
    for event in events:
        parsed.append(
            event if isinstance(event, (LinkShare, Background, Slow, Stop)) else parse_event(event)
        )
        if len(parsed) > MOST_EVENTS:
            raise ConfigError(f"more than {MOST_EVENTS} events in one run; expected fewer")
    return tuple(parsed)


def parse_policy(policy: Policy | str) -> Policy:
    """Parse a policy as written on the command line: ``"stall"``, ``"stall 67ms x 7"``,
    ``"re-route"``, ``"abort"``.

    Raises
    ------
    ConfigError
        When the text is not a policy.

    Examples
    --------
    >>> parse_policy("stall 67ms x 7").limit_fs == 8 * 67 * 10**12
    True
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise ConfigError(f"policy: expected text such as 'stall 67ms x 7', got {shown(policy)}")
    limited = _RETRIES.fullmatch(policy.strip())
    kind = policy.strip() if limited is None else limited[1]
    if kind not in POLICIES:
        raise ConfigError(f"policy {shown(policy)} is not known; {nearest(kind, POLICIES)}")
    if limited is None:
        return Policy(kind)
    timeout, retries = limited[2], limited[3]
    return Policy(kind, parse_time(timeout, what=f"timeout of policy {kind!r}"), int(retries or 0))
