"""Required and available memory: code that allocates by an external number checks here first."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from simcoll.errors import ConfigError
from simcoll.units import parse_size

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "VARIABLE",
    "available_bytes",
    "check_room",
    "give_back",
    "in_words",
    "largest_automatic",
    "unrequested_limit",
]

VARIABLE = "SIMCOLL_MAX_BYTES"
AUTOMATIC_BYTES = 2 << 30
"""Constant, so that a run does not depend on the machine."""
UNQUESTIONED = 64 << 20
"""Up to this size the system is not queried, which would take longer than a small run."""
KEPT = 192 << 20
"""Up to this size a process keeps freed memory."""
LARGE, LARGE_SHARE = 2 << 20, 32
"""From this size on, and from this part of the process's memory on, freed arrays go back to the
system at once after :func:`give_back`. Memory that comes from the system anew is cleared page by
page: with 2 MiB throughout, half of the time of a run of 4 million messages.
"""
MMAP_THRESHOLD = -3
"""The number of this parameter of glibc's ``mallopt``, which otherwise grows to 32 MiB."""
UNLIMITED = 1 << 60
"""Control groups report a number of about 2**63 if there is no limit."""


_CEILING: ContextVar[int | None] = ContextVar("ceiling of unrequested work", default=None)


@contextlib.contextmanager
def unrequested_limit(most_bytes: int) -> Iterator[None]:
    """Refuse work of more than so many bytes in the block, as nobody named it.

    >>> with unrequested_limit(1 << 20):
    ...     check_room(1 << 28, "proving this schedule", "fewer chunks need less")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: proving this schedule takes 256 MiB, more than the 1 MiB for ...
    """
    token = _CEILING.set(most_bytes)
    try:
        yield
    finally:
        _CEILING.reset(token)


def largest_automatic() -> int:
    """Limit of bytes that ``data="auto"`` moves.

    Raises
    ------
    ConfigError
        When the environment variable ``SIMCOLL_MAX_BYTES`` is set to something that is not a size.
    """
    text = os.environ.get(VARIABLE)
    return AUTOMATIC_BYTES if text is None else parse_size(text, what=VARIABLE)


def check_room(size_bytes: int, work: str, remedy: str) -> None:
    """Refuse work that does not fit in memory.

    Parameters
    ----------
    size_bytes
        Estimated peak memory of the work in bytes.
    work, remedy
        The work and an alternative, in the words of the message.

    Raises
    ------
    ConfigError
        States both sizes and the remedy.

    Examples
    --------
    >>> check_room(1 << 49, "proving this schedule", "fewer chunks need less")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simcoll.errors.ConfigError: proving this schedule takes 512 TiB, but only ... need less
    """
    if size_bytes <= UNQUESTIONED:
        return
    ceiling = _CEILING.get()
    if ceiling is not None and size_bytes > ceiling:
        raise ConfigError(
            f"{work} takes {in_words(size_bytes)}, more than the {in_words(ceiling)} for an "
            "algorithm that is not named; name it (-a) to play it"
        )
    free = available_bytes()
    if free is not None and size_bytes > free:
        raise ConfigError(
            f"{work} takes {in_words(size_bytes)}, but only {in_words(free)} is available; {remedy}"
        )


def in_words(size: int) -> str:
    """A size with three digits and binary prefixes.

    >>> in_words(3 << 40), in_words(1_500_000_000), in_words(12)
    ('3 TiB', '1.4 GiB', '12 B')
    """
    for prefix, factor in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.3g} {prefix}iB"
    return f"{size} B"


def available_bytes() -> int | None:
    """Bytes that this process can still allocate by machine, control group and limits; ``None`` if
    unknown.
    """
    return min(
        (free for free in (_machine(), *_control_groups(), *_limits()) if free is not None),
        default=None,
    )


def _machine() -> int | None:
    from pathlib import Path  # takes longer to load than most runs ask for

    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * int(
            next(line for line in lines if line.startswith("MemAvailable:")).split()[1]
        )
    # MacOS: total memory; Windows: unknown.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _control_groups(
    root: str | Path = "/sys/fs/cgroup", membership: str | Path = "/proc/self/cgroup"
) -> list[int]:
    """Memory left in this process's control group and its ancestors, for both versions of
    cgroups.
    """
    from pathlib import Path

    free_bytes = []
    root = Path(root)
    with contextlib.suppress(OSError):
        for line in Path(membership).read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top = root / "memory" if controllers else root
            limit, usage = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes")
                if controllers
                else ("memory.max", "memory.current")
            )
            group = top / path.strip("/")
            for ancestor in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):
                    limit_bytes = int((ancestor / limit).read_text(encoding="ascii"))
                    if limit_bytes < UNLIMITED:
                        free_bytes.append(
                            max(
                                0,
                                limit_bytes
                                - int((ancestor / usage).read_text(encoding="ascii"))
                                + _reclaimable(ancestor),
                            )
                        )
                if ancestor == top:
                    break
    return free_bytes


def _reclaimable(group: Path) -> int:
    """File pages charged to a control group that the system can reclaim."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        return int(
            next(
                line
                for line in lines
                if line.split()[0] in ("inactive_file", "total_inactive_file")
            ).split()[1]
        )
    return 0


def give_back() -> None:
    """Return freed memory to the system if the process is large: glibc keeps it, between arrays
    that live on.
    """
    from pathlib import Path

    with contextlib.suppress(AttributeError, OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        used_bytes = pages * os.sysconf("SC_PAGE_SIZE")
        if used_bytes > KEPT:
            import ctypes

            system = ctypes.CDLL(None)
            system.malloc_trim(0)
            system.mallopt(MMAP_THRESHOLD, max(LARGE, used_bytes // LARGE_SHARE))


def _limits() -> list[int]:
    """Memory left under the process's limits on address space and data."""
    if sys.platform == "win32":
        return []
    import resource
    from pathlib import Path

    try:
        pages = [
            int(field) for field in Path("/proc/self/statm").read_text(encoding="ascii").split()
        ]
    except (OSError, ValueError):
        pages = [0] * 7
    used = {resource.RLIMIT_AS: pages[0], resource.RLIMIT_DATA: pages[5]}
    page = resource.getpagesize()
    return [
        max(0, limit - count * page)
        for kind, count in used.items()
        if (limit := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY
    ]
