"""Meshes of ranks with named axes, and their process groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from simcoll.arrays import Ints
from simcoll.errors import ConfigError, nearest

__all__ = ["AXES", "Mesh", "mesh_of"]

Ranks: TypeAlias = "Ints"

AXES = ("tp", "cp", "dp", "pp")
"""Tensor, context, data and pipeline parallelism; expert parallelism divides the ranks of the first
three.
"""


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh of ranks, numbered along its axes, fastest first.

    Attributes
    ----------
    axes
        Name and size of each axis; ranks 0 and 1 differ in the first axis larger than 1.

    Raises
    ------
    ConfigError
        For an axis that is named twice or has a size below 1.

    Examples
    --------
    >>> mesh = Mesh((("tp", 2), ("dp", 2), ("pp", 2)))
    >>> mesh.nranks, mesh.groups("dp").tolist()
    (8, [[0, 2], [1, 3], [4, 6], [5, 7]])
    >>> mesh.groups("tp", "dp").tolist()
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        for place, (name, size) in enumerate(self.axes):
            if name in names[:place]:
                raise ConfigError(f"mesh: axis {name!r} is named twice")
            if type(size) is not int or size < 1:
                raise ConfigError(
                    f"mesh: axis {name!r}: expected a whole number, at least 1, got {size!r}"
                )

    @property
    def nranks(self) -> int:
        """The number of ranks."""
        return prod(size for _, size in self.axes)

    def size(self, axis: str) -> int:
        """Ranks along an axis; 1 for an axis that the mesh lacks."""
        return dict(self.axes).get(axis, 1)

    def coordinate(self, axis: str) -> Ranks:
        """The coordinate of each rank along an axis: ``[nranks]``."""
        stride = 1
        for name, size in self.axes:
            if name == axis:
                return np.arange(self.nranks) // stride % size
            stride *= size
        return np.zeros(self.nranks, np.int64)

    def groups(self, *axes: str) -> Ranks:
        """All groups of ranks that differ only along these axes: ``[groups, ranks]``, ranks in
        ascending order.

        Raises
        ------
        ConfigError
            For an axis that the mesh lacks.
        """
        names = [name for name, _ in self.axes]
        for axis in axes:
            if axis not in names:
                raise ConfigError(f"mesh: no axis {axis!r}; {nearest(axis, names)}")
        cube = np.arange(self.nranks).reshape([size for _, size in reversed(self.axes)])
        slow_first = list(reversed(names))
        outer = [place for place, name in enumerate(slow_first) if name not in axes]
        moved = [place for place, name in enumerate(slow_first) if name in axes]
        members = prod(self.size(axis) for axis in axes)
        return cube.transpose([*outer, *moved]).reshape(-1, members)

    def blocks(self, axes: tuple[str, ...], size: int) -> tuple[Ranks, Ranks]:
        """Split each group of some axes into runs of ``size`` ranks; returns the runs, and the
        groups across them.

        Raises
        ------
        ConfigError
            When the size does not divide the group.

        Examples
        --------
        >>> inside, across = Mesh((("dp", 4),)).blocks(("dp",), 2)
        >>> inside.tolist(), across.tolist()
        ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
        """
        rows = self.groups(*axes)
        if size < 1 or rows.shape[1] % size:
            raise ConfigError(
                f"mesh: {size} does not divide the {rows.shape[1]} ranks along {' x '.join(axes)}"
            )
        cut = rows.reshape(len(rows), -1, size)
        return cut.reshape(-1, size), cut.transpose(0, 2, 1).reshape(-1, cut.shape[1])


def mesh_of(order: str, sizes: Mapping[str, int], nranks: int) -> Mesh:
    """The mesh with an order of axes such as ``"tp-cp-dp-pp"`` that fills a cluster.

    Raises
    ------
    ConfigError
        For an order that does not name each axis once, or sizes that do not fill the cluster.

    Examples
    --------
    >>> mesh_of("tp-cp-dp-pp", {"tp": 2, "dp": 4}, 8).axes
    (('tp', 2), ('cp', 1), ('dp', 4), ('pp', 1))
    """
    names = order.split("-")
    if sorted(names) != sorted(AXES):
        raise ConfigError(
            f"order {order!r}: expected each of {', '.join(AXES)} once, such as 'tp-cp-dp-pp'"
        )
    mesh = Mesh(tuple((name, sizes.get(name, 1)) for name in names))
    if mesh.nranks != nranks:
        axes = " x ".join(f"{name} {size}" for name, size in mesh.axes)
        inner = mesh.nranks // sizes.get("dp", 1)
        fits = (
            f"dp {nranks // inner} would fill it"
            if nranks % inner == 0
            else f"no dp fills it, since {inner}, the product of the other axes, does not divide "
            f"{nranks}"
        )
        raise ConfigError(
            f"the mesh {axes} has {mesh.nranks} ranks, the cluster {nranks} GPUs; {fits}"
        )
    return mesh
