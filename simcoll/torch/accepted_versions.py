"""The versions of PyTorch that :mod:`simcoll.torch` runs with.

Imported before what uses PyTorch's internals, so that another version is named, and not the first
of its internals that has changed.
"""

from __future__ import annotations

import warnings

ADVICE = "simcoll.torch needs PyTorch 2.13, 2.14 or 2.15: pip install 'simcoll[torch]'"
OLDEST, NEWEST = (2, 13), (2, 15)

try:
    # Its functions keep the default group of their import, which has to be none.
    import torch.distributed.nn.functional as _functional  # noqa: F401
    from torch import __version__, distributed
except ImportError as _error:
    raise ImportError(ADVICE) from _error

__all__ = ["RELEASE", "check_version", "distributed"]


def _release_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def check_version(version: str) -> None:
    """Refuse an older version, and warn of a newer one.

    >>> check_version("2.14.1+cu130")

    Raises
    ------
    ImportError
        For an older version.
    """
    release = _release_of(version)
    if release < OLDEST:
        raise ImportError(f"{ADVICE} (this is {version})")
    if release > NEWEST:
        warnings.warn(
            f"simcoll.torch was tested with PyTorch 2.13 to 2.15, and this is {version}: it may "
            "end in errors of PyTorch's internals",
            stacklevel=2,
        )


RELEASE = _release_of(__version__)
"""The installed release, such as (2, 13)."""
check_version(__version__)
