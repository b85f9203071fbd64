"""What checks of torch.distributed's statements work with, and their table."""

from __future__ import annotations

import importlib
import inspect
import unittest
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["TorchSession", "checks", "states"]

Check = Callable[["TorchSession"], None]
_MODULES = (
    "torch_interface",
    "torch_groups",
    "torch_messages",
    "torch_collectives",
    "torch_stores",
    "torch_further",
)


def states(*rows: str) -> Callable[[Check], Check]:
    """Name the statements that a check of the session holds."""

    def mark(check: Check) -> Check:
        check.rows = rows  # type: ignore[attr-defined]
        return check

    return mark


@cache
def checks() -> dict[str, Check]:
    """The check of each statement."""
    table: dict[str, Check] = {}
    for name in _MODULES:
        module = importlib.import_module(f"simcoll.testing.conformance.{name}")
        for check in vars(module).values():
            table.update(dict.fromkeys(getattr(check, "rows", ()), check))
    return table


class TorchSession:
    """One rank among all, in a default group."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.torch, self.dist = backend.torch, backend.dist
        self.rank, self.size = backend.world.rank, backend.world.nranks
        self.folder = backend.world.folder

    def needs(self, nranks: int) -> None:
        """Skip the check where there are fewer ranks."""
        if self.size < nranks:
            raise unittest.SkipTest(f"needs {nranks} ranks")

    def same(self, result: Any, expected: Any) -> None:
        """Compare a result with what it must be."""
        if isinstance(expected, self.torch.Tensor):
            equal = isinstance(result, self.torch.Tensor) and self.torch.equal(result, expected)
        elif isinstance(expected, list) and expected and hasattr(expected[0], "shape"):
            equal = len(result) == len(expected)
            equal = equal and all(map(self.torch.equal, result, expected))
        else:
            equal = result == expected
        if not equal:
            raise AssertionError(f"got {result!r}, expected {expected!r}")

    def raises(self, kinds: Any, call: Callable[..., Any], *args: Any, **options: Any) -> str:
        """The text of the error that a call must raise."""
        try:
            result = call(*args, **options)
        except kinds as error:
            return str(error)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} instead of {kinds}: {error}") from error
        raise AssertionError(f"no error, but {result!r}; expected {kinds}")

    def parameters(self, function: Any, names: str) -> None:
        """Compare the first parameters of a function with names."""
        actual = list(inspect.signature(function).parameters)
        expected = names.split()
        self.same([name for name in actual if name in expected], expected)

    def members(self, owner: Any, names: str) -> None:
        """Require attributes."""
        self.same([name for name in names.split() if not hasattr(owner, name)], [])

    def numbers(self, count: int = 3, rank: int | None = None) -> Any:
        """A vector that is different on every rank."""
        origin = self.rank if rank is None else rank
        return self.torch.arange(count) + 100 * (origin + 1)

    def everyone(self, count: int = 3) -> list[Any]:
        """The vectors of all ranks."""
        return [self.numbers(count, rank) for rank in range(self.size)]
