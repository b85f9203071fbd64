"""Package attributes whose modules are loaded on first use."""

from __future__ import annotations

import sys

from simcoll.moved import RENAMES

TYPE_CHECKING = False  # so that type checkers see what follows, and typing need not be imported
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

__all__ = ["lazy_attributes"]


def lazy_attributes(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, given its names by module in ``homes``.

    Names listed under the empty string are modules of the package themselves.

    >>> find, _ = lazy_attributes("simcoll", {"simcoll.errors": ["ConfigError"]})
    >>> find("ConfigError").__name__
    'ConfigError'
    """
    modules = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        name = RENAMES.get(package, {}).get(name, name)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = modules[name] or f"{package}.{name}"
        __import__(home)
        module = sys.modules[home]
        return getattr(module, name) if modules[name] else module

    def dir_names() -> list[str]:
        module = sys.modules[package]
        return sorted([*module.__all__, *(name for name in vars(module) if name.startswith("__"))])

    return find, dir_names
