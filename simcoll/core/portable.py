"""How a schedule travels to another process: its source by name or by value, or else the steps that
it yields.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from simcoll.core.step import Repeat, Step
from simcoll.errors import ConfigError

__all__ = ["Blocks", "portable_source"]

MOST_CARRIED = 1 << 22
"""Up to this number of transfers, some 50 bytes each, the steps travel in place of a source that
cannot.
"""


class Blocks:
    """A source that holds its steps and repeats."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: Iterable[Step | Repeat]) -> None:
        self.blocks = tuple(blocks)

    def __call__(self) -> Iterator[Step | Repeat]:
        """The steps and repeats, from the first on."""
        return iter(self.blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        return Blocks, (self.blocks,)


def portable_source(
    title: str, source: Callable[..., Any], blocks: Iterable[Step | Repeat]
) -> Callable[..., Any]:
    """The source if it can be pickled, or else one that holds its steps.

    Raises
    ------
    ConfigError
        For a source that cannot be pickled and yields too many steps to carry.
    """
    if _can_travel(source):
        return source
    steps, transfers = [], 0
    for block in blocks:
        steps.append(block)
        transfers += sum(map(len, block.steps)) if isinstance(block, Repeat) else len(block)
        if transfers > MOST_CARRIED:
            raise ConfigError(
                f"{title} cannot be pickled: its source is {source!r:.60}, and its steps have more "
                f"than the {MOST_CARRIED:,} transfers "
                "that travel instead; use a function at the top level of a module, or an object "
                "that holds its data and can be called"
            )
    return Blocks(steps)


def _can_travel(source: Any) -> bool:
    # A lambda, or a function inside another.
    if isinstance(source, FunctionType) and "<" in source.__qualname__:
        return False
    try:
        pickle.dumps(source)
    except Exception:  # noqa: BLE001  whatever the objects of a caller raise
        return False
    return True
