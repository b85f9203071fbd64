"""What checks of torch.distributed's statements work with, and their table."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from simcoll.testing.conformance.rank_session import RankSession, checks_of, states

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


@cache
def checks() -> dict[str, Check]:
    """The check of each statement."""
    table: dict[str, Check] = {}
    for name in _MODULES:
        module = importlib.import_module(f"simcoll.testing.conformance.{name}")
        table.update(checks_of(vars(module)))
    return table


class TorchSession(RankSession):
    """One rank among all, in a default group."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend.world.rank, backend.world.nranks)
        self.backend = backend
        self.torch, self.dist = backend.torch, backend.dist
        self.folder = backend.world.folder

    def equal(self, result: Any, expected: Any) -> bool:
        """Whether a result, which may be a tensor or a list of tensors, is what it must be."""
        if isinstance(expected, self.torch.Tensor):
            return isinstance(result, self.torch.Tensor) and self.torch.equal(result, expected)
        if isinstance(expected, list) and expected and hasattr(expected[0], "shape"):
            equal_lengths = len(result) == len(expected)
            return equal_lengths and all(map(self.torch.equal, result, expected))
        return super().equal(result, expected)

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
