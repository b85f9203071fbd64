"""Agreement between processes before a plan runs, and blame when it does not."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from realcoll.errors import FaultError
from realcoll.meeting.messages import DIED
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from realcoll.meeting.rendezvous import Rendezvous
    from simcoll.core.plan import Plan

__all__ = ["Control", "checked_hosts", "fingerprint", "within"]

Result = TypeVar("Result")
STUCK_GRACE_S = 1.0
PART_POLL_S = 0.01


def fingerprint(plan: Plan, hosts: Sequence[int]) -> dict[str, str]:
    """Properties that must be equal in all processes before a plan may run, in readable words."""
    sizes = str(plan.sizes) if isinstance(plan.sizes, int) else ", ".join(map(str, plan.sizes.tolist()))
    return {
        "collective": str(plan.collective),
        "algorithm": plan.schedule.title,
        "count": sizes if len(sizes) < 500 else f"{sizes[:400]}... {hashlib.sha256(sizes.encode()).hexdigest()}",
        "dtype": plan.dtype.name,
        "op": str(plan.reduction) if plan.collective.spec.reduces else "none",
        "ranks": str(plan.ranks.tolist()),
        "placement": str(list(hosts)),
        "schedule": plan.schedule.content_hash(),
    }


def _listed(processes: Iterable[int]) -> str:
    found = sorted(processes)
    return f"rank{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"


class Control:
    """The seat of this process among the others.

    Parameters
    ----------
    process, size
        Number of this process and of processes (shown as ranks in messages: with one rank a process they are).
    rendezvous
        Connection to the others; ``None`` for one process alone.
    timeout_s
        Time that others may take for their part.
    """

    __slots__ = ("_rendezvous", "_turns", "broken", "process", "size", "timeout_s")

    def __init__(self, process: int, size: int, rendezvous: Rendezvous | None, timeout_s: float) -> None:
        self.process = process
        self.size = size
        self.timeout_s = timeout_s
        self.broken = ""
        self._rendezvous = rendezvous
        self._turns: dict[str, int] = {}

    def gather(self, what: str, value: bytes = b"", members: Sequence[int] | None = None) -> dict[int, bytes]:
        """The values of all members, by process.

        Raises
        ------
        FaultError
            Names the processes that did not come.
        """
        everybody = tuple(range(self.size)) if members is None else tuple(members)
        if self._rendezvous is None or everybody == (self.process,):
            return {self.process: value}
        self.check_usable()
        key = f"{what} {everybody}"
        turn = self._turns[key] = self._turns.get(key, 0) + 1
        meeting = self._rendezvous.meet(f"{key} {turn}", value, self.timeout_s, everybody)
        if meeting.late:
            raise FaultError(f"{what}: this rank arrived after the others had given up waiting", (self.process,))
        if meeting.missing:
            raise self._blamed(what, meeting.missing)
        return meeting.values

    def agree(self, offer: Mapping[str, str], members: Sequence[int]) -> None:
        """Return when all members offer the same.

        Raises
        ------
        FaultError
            Names the processes that differ from the rest and the property, or those that did not come.
        """
        offers = self.gather("start", msgspec.json.encode(offer), members)
        decoded = {process: msgspec.json.decode(value, type=dict[str, str]) for process, value in offers.items()}
        for what in offer:
            groups: dict[str, list[int]] = {}
            for process in sorted(decoded):
                groups.setdefault(decoded[process].get(what, "nothing"), []).append(process)
            if len(groups) > 1:
                # The most common offer, or that of the lowest rank, is taken to be the right one.
                (most, _), *odd = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0]))
                told = "; ".join(f"{_listed(who)}: {_short(value)}" for value, who in odd)
                message = f"ranks disagree on the {what}: {_listed(groups[most])}: {_short(most)}; {told}"
                raise FaultError(message, [process for _, who in odd for process in who])

    def trouble(self) -> bool:
        """Whether a process has died or is stuck; cheap enough to ask while waiting."""
        found = self._rendezvous
        return found is not None and (bool(found.alarm) or any(found.gone.values()))

    def stuck(self, waiting_for: Iterable[int]) -> FaultError:
        """Find the processes that hold this one up: those that do not report waiting themselves."""
        found, waited = self._rendezvous, sorted(set(waiting_for))
        if found is None:
            return FaultError(f"nothing came from {_listed(waited)}", waited)
        if any(found.gone.values()):
            return self._blamed("in flight", _culprits(found.gone))
        name = found.alarm or "stuck"
        meeting = found.meet(name, msgspec.json.encode(waited), min(STUCK_GRACE_S, self.timeout_s))
        if meeting.gone:
            return self._blamed("in flight", _culprits(meeting.gone))
        wanted = set(waited)
        for value in meeting.values.values():
            wanted.update(msgspec.json.decode(value, type=list[int]))
        idle = sorted(wanted & set(meeting.missing)) or sorted(set(meeting.missing) - {self.process}) or waited
        return FaultError(f"{_listed(idle)} did not take part within {self.timeout_s:g} s", idle)

    def _blamed(self, what: str, processes: Sequence[int]) -> FaultError:
        gone = {} if self._rendezvous is None else self._rendezvous.gone
        dead = sorted(process for process in processes if process in gone)
        # A death ends a meeting early: processes that had not come yet are not to blame.
        absent = [] if dead else sorted(processes)
        parts = [f"rank {process} {gone[process] or 'has ended'}" for process in dead]
        if absent:
            parts.append(f"{_listed(absent)} did not come within {self.timeout_s:g} s")
        return FaultError(f"{what}: {'; '.join(parts)}", [*dead, *absent])

    def watch(self, on_loss: Callable[[], None]) -> None:
        """Call a function once, from another thread, when some process dies or gives up."""
        if self._rendezvous is not None:
            self._rendezvous.watch(on_loss)

    def loss(self) -> str:
        """The processes that have died or given up, and why; empty if none has."""
        gone = {} if self._rendezvous is None else self._rendezvous.gone
        return "; ".join(f"rank {process} {gone[process]}" for process in _culprits(gone))

    def check_usable(self) -> None:
        """Refuse to go on after a failure."""
        if self.broken:
            raise FaultError(f"this transport is of no use after an earlier failure ({self.broken}); make a new one")

    def fail(self, reason: str) -> None:
        """Announce that this process gives up."""
        if not self.broken:
            self.broken = reason or "closed"
            if self._rendezvous is not None:
                self._rendezvous.fail(f"gave up: {reason}")

    def close(self) -> None:
        """Leave; in good order unless something failed before."""
        self.broken = self.broken or "closed"
        if self._rendezvous is not None:
            self._rendezvous.close()

    def part(self, patience_s: float) -> None:
        """Announce, after a failure, that this process has reported it, and give the others time to do so."""
        found = self._rendezvous
        if found is not None:
            found.leave()
            limit = time.monotonic() + patience_s
            while len(found.left - {self.process}) < self.size - 1 and time.monotonic() < limit:
                time.sleep(PART_POLL_S)


def within(timeout_s: float, call: Callable[[], Result]) -> Result:
    """The result of a call that may block forever, made by a thread.

    Raises
    ------
    TimeoutError
        When there is none in time (0: however long it takes).
    """
    found: list[Result | BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - raised below
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s or None)
    if not found:
        raise TimeoutError
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _culprits(gone: Mapping[int, str]) -> list[int]:
    """Processes that died; if none did, the first that gave up."""
    died = [process for process, reason in gone.items() if reason == DIED]
    return died or [process for process, reason in gone.items() if reason][:1]


def _short(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}..."


def checked_hosts(plan: Plan, placement: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Process of every rank of a plan.

    By default endpoint e of the plan is process e; where there are fewer processes than endpoints, neighbours share one.
    """
    endpoints = plan.ranks.tolist()
    most = max(endpoints) + 1
    if placement is None:
        return tuple(endpoint if most <= size else endpoint * size // most for endpoint in endpoints)
    found = tuple(int(process) for process in placement)
    if len(found) != plan.nranks or any(not 0 <= process < size for process in found):
        raise ConfigError(
            f"placement must name one process 0..{size - 1} for each of {plan.nranks} ranks; got {list(found)}"
        )
    return found
