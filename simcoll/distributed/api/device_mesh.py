"""Device meshes: grids of ranks with a group for every row of every dimension."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from simcoll.arrays import Ints
from simcoll.distributed.api.group_calls import ProcessGroup
from simcoll.distributed.api.groups import (
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    is_initialized,
)
from simcoll.distributed.api.making_groups import count, init_process_group, new_group
from simcoll.distributed.api.subgroups import group_among
from simcoll.distributed.runtime.tasks import Arrival, wait_until
from simcoll.distributed.runtime.world import current_rank
from simcoll.errors import nearest

__all__ = ["DeviceMesh", "init_device_mesh"]

BackendConfig = tuple[str | None, Any]
"""The backend of a group and its options, each None for those of the default group."""


def _check_names(names: Sequence[str] | None, ndim: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    if len(names) != ndim:
        raise RuntimeError(
            "mesh_shape and mesh_dim_names should have same length! "
            f"Found len(mesh_dim_names): {len(names)} and len(mesh_shape):{ndim}."
        )
    if len(set(names)) != len(names):
        raise RuntimeError(
            "Each mesh_dim_name must be unique. Found repeated mesh_dim_name in mesh_dim_names "
            f"{tuple(names)}"
        )
    return tuple(names)


def _check_device(device_type: str) -> str:
    if ":" in device_type:
        raise RuntimeError(
            f"Device type with index is not supported but got {device_type}. If you maintained a "
            "`torch.device` object, it's "
            "recommended to pass in `device.type`."
        )
    return device_type


class DeviceMesh:
    """A grid of ranks, with a group for each row of each dimension. All ranks of the default group
    create it together.

    Parameters
    ----------
    device_type
        ``"cpu"`` or ``"cuda"``; has no effect.
    mesh
        Global ranks.
    mesh_dim_names
        One name per dimension.
    backend_override
        A backend and options for the groups of each dimension, None for those of the default group.

    Raises
    ------
    RuntimeError
        For a mesh larger than the world, names that do not fit, or different meshes on different
        ranks.
    ValueError
        For repeated or nonexistent ranks.
    """

    def __init__(
        self,
        device_type: str,
        mesh: ArrayLike,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: Sequence[BackendConfig] | None = None,
        _init_backend: bool = True,
        _groups: Sequence[ProcessGroup | None] | None = None,
        _root: DeviceMesh | None = None,
    ) -> None:
        self.device_type = _check_device(device_type)
        self.mesh: Ints = np.array(mesh, np.int64)
        self.mesh_dim_names = _check_names(mesh_dim_names, self.mesh.ndim)
        if not is_initialized():
            init_process_group()
        self._rank = get_rank()
        self._backends = tuple(backend_override or [(None, None)] * self.mesh.ndim)
        if len(self._backends) != self.mesh.ndim:
            raise RuntimeError(
                f"backend_override has {len(self._backends)} entries; expected one for each of the "
                f"{self.mesh.ndim} dimensions of the mesh"
            )
        self._root = self if _root is None else _root
        # One for all slices.
        self._flattened: dict[str, DeviceMesh]
        self._flattened = {} if _root is None else _root._flattened  # noqa: SLF001
        self._groups: list[ProcessGroup | None] = []
        if _groups is not None:
            self._groups = list(_groups)
        elif _init_backend:
            self._agree()
            self._groups = self._make_groups()

    def _agree(self) -> None:
        """Compare the ranks' meshes at creation: a difference would hang a later call."""
        size = get_world_size()
        if self.mesh.size > size:
            raise RuntimeError(
                f"Mesh should not be bigger than default world size {size}, but found "
                f"{self.mesh.size} ranks!"
            )
        me = current_rank()
        number, grid = count(me, "mesh"), str(self.mesh.tolist())
        key, event = f"mesh {me.generation} {number}", f"DeviceMesh (number {number})"
        wait_until(me.world.meet(me, Arrival(key, event, None, grid, tell=me.world.everyone)))

    def _make_groups(self) -> list[ProcessGroup | None]:
        world = group.WORLD
        if (
            self.mesh.ndim == 1
            and world is not None
            and self.mesh.tolist() == list(range(world.size()))
            and self._backends == ((None, None),)
        ):
            return [world]
        groups: list[ProcessGroup | None] = []
        for dim in range(self.mesh.ndim):
            rows = np.moveaxis(self.mesh, dim, -1).reshape(-1, self.mesh.shape[dim])
            name = self.mesh_dim_names[dim] if self.mesh_dim_names else str(dim)
            backend, pg_options = self._backends[dim]
            row_groups = [
                new_group(row.tolist(), None, backend, pg_options, group_desc=f"mesh_{name}")
                for row in rows
            ]
            groups.append(
                next((handle for handle in row_groups if isinstance(handle, ProcessGroup)), None)
            )
        return groups

    @staticmethod
    def from_group(
        group: ProcessGroup | Sequence[ProcessGroup],
        device_type: str,
        mesh: ArrayLike | None = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """A mesh of existing groups: one group, or one per dimension; a ValueError when they do not
        fit the mesh.
        """
        if isinstance(group, ProcessGroup):
            ranks = get_process_group_ranks(group)
            if mesh is not None and np.array(mesh).tolist() != ranks:
                raise ValueError(
                    f"Invalid mesh {np.array(mesh).tolist()} for ProcessGroup with ranks {ranks}"
                )
            return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, _groups=[group])
        groups = list(group)
        if not groups:
            raise ValueError("Expects at least one ProcessGroup to be passed")
        for name, argument in (("mesh", mesh), ("mesh_dim_names", mesh_dim_names)):
            if argument is None:
                raise ValueError(f"Must pass {name} if passing multiple ProcessGroups")
        grid = np.array(mesh, np.int64)
        if grid.ndim != len(groups):
            raise ValueError(
                "Expects mesh with ndim equal to number of ProcessGroups but got mesh "
                f"{grid.tolist()} and {len(groups)} ProcessGroups"
            )
        return DeviceMesh(device_type, grid, mesh_dim_names=mesh_dim_names, _groups=groups)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.mesh.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each dimension."""
        return self.mesh.shape

    def size(self, mesh_dim: int | None = None) -> int:
        """The number of ranks, in all or along one dimension."""
        return self.mesh.size if mesh_dim is None else self.mesh.shape[mesh_dim]

    def _dim(self, mesh_dim: int | str | None) -> int:
        if mesh_dim is None:
            if self.mesh.ndim > 1:
                raise RuntimeError(
                    f"Found the DeviceMesh have {self.mesh.ndim} dimensions. Optional kwarg "
                    "`mesh_dim` needs to be specified when "
                    "device_mesh.ndim > 1."
                )
            return 0
        if isinstance(mesh_dim, str):
            names = self.mesh_dim_names or ()
            if mesh_dim not in names:
                raise KeyError(
                    f"Mesh dimension '{mesh_dim}' does not exist; {nearest(mesh_dim, names)}"
                )
            return names.index(mesh_dim)
        if not -self.mesh.ndim <= mesh_dim < self.mesh.ndim:
            raise IndexError(
                f"mesh dimension {mesh_dim} is out of range; the mesh has {self.mesh.ndim}"
            )
        return mesh_dim % self.mesh.ndim

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """The calling rank's group along a dimension (optional for one-dimensional meshes); a
        RuntimeError outside the mesh.
        """
        dim = self._dim(mesh_dim)
        process_group = self._groups[dim] if self._groups else None
        if process_group is None:
            raise RuntimeError(
                f"rank {self._rank} is not in the mesh {self.mesh.tolist()}, or the mesh was made "
                "without groups"
            )
        return process_group

    def get_all_groups(self) -> list[ProcessGroup]:
        """The calling rank's groups, one per dimension."""
        return [self.get_group(dim) for dim in range(self.mesh.ndim)]

    def get_coordinate(self) -> tuple[int, ...] | None:
        """The calling rank's index in each dimension; None outside the mesh."""
        positions = np.argwhere(self.mesh == self._rank)
        return tuple(int(index) for index in positions[0]) if len(positions) else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """The calling rank's index along a dimension (optional for one-dimensional meshes); a
        RuntimeError outside the mesh.
        """
        return self._coordinate()[self._dim(mesh_dim)]

    def _coordinate(self) -> tuple[int, ...]:
        coordinate = self.get_coordinate()
        if coordinate is None:
            raise RuntimeError(f"rank {self._rank} is not in the mesh {self.mesh.tolist()}")
        return coordinate

    def get_rank(self) -> int:
        """The calling rank's global rank."""
        return self._rank

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The submesh along the named dimensions (in mesh order) that contains this rank."""
        if self.mesh_dim_names is None:
            raise RuntimeError("Cannot slice a DeviceMesh without mesh_dim_names!")
        chosen = (names,) if isinstance(names, str) else tuple(names)
        if len(chosen) == 1 and chosen[0] in self._flattened:
            return self._flattened[chosen[0]]
        dims = [self._dim(name) for name in chosen]
        if dims != sorted(set(dims)):
            raise KeyError(
                f"Mesh dim names {chosen} should be in ascending order. Valid mesh_dim_names are "
                f"{self.mesh_dim_names}."
            )
        coordinate = self._coordinate()
        index = tuple(
            slice(None) if dim in dims else coordinate[dim] for dim in range(self.mesh.ndim)
        )
        groups = [self._groups[dim] for dim in dims] if self._groups else []
        return DeviceMesh(
            self.device_type,
            self.mesh[index],
            mesh_dim_names=chosen,
            _groups=groups,
            _root=self._root,
        )

    def _flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """Flatten to a one-dimensional mesh, registered by name with the root mesh; all ranks call.

        Parameters
        ----------
        mesh_dim_name
            Its name. Default: the dimensions' names joined by ``_``.

        Raises
        ------
        RuntimeError
            For a mesh without names.
        ValueError
            For a name that is already taken.
        """
        if self.mesh_dim_names is None:
            raise RuntimeError("Cannot flatten a DeviceMesh without mesh_dim_names!")
        name = "_".join(self.mesh_dim_names) if mesh_dim_name is None else mesh_dim_name
        if self.mesh.ndim == 1 and name == self.mesh_dim_names[0]:
            return self
        ranks = self.mesh.reshape(-1).tolist()
        existing = self._flattened.get(name)
        if existing is not None and existing.mesh.tolist() == ranks:
            return existing
        if existing is not None or name in (self._root.mesh_dim_names or ()):
            raise ValueError(
                f"'{name}' already exists in the mesh {self._root!r}; choose another mesh_dim_name"
            )
        process_group = None
        if self.get_coordinate() is not None:
            world = group.WORLD
            covers_world = world is not None and ranks == list(range(world.size()))
            process_group = world if covers_world else group_among(ranks, f"mesh_{name}")
        flat = DeviceMesh(
            self.device_type,
            ranks,
            mesh_dim_names=(name,),
            _groups=[process_group],
            _root=self._root,
        )
        self._flattened[name] = flat
        return flat

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        names = f", mesh_dim_names={self.mesh_dim_names}" if self.mesh_dim_names else ""
        return f"DeviceMesh({self.device_type!r}, {self.mesh.tolist()}{names})"


def _backends_of(
    override: Mapping[int | str, Any], ndim: int, names: Sequence[str]
) -> list[BackendConfig]:
    """The backend and the options of each dimension."""
    unused = dict(override)
    backends: list[BackendConfig] = []
    for dim in range(ndim):
        keys = [key for key in (dim, *names[dim : dim + 1]) if key in unused]
        if len(keys) > 1:
            raise RuntimeError(
                f"Found redundant dim index {dim} and name {names[dim]} in backend_override"
            )
        value = unused.pop(keys[0]) if keys else None
        if isinstance(value, tuple):
            backend, pg_options = value
        else:
            backend, pg_options = (value, None) if isinstance(value, str) else (None, value)
        backends.append((backend, pg_options))
    if unused:
        raise RuntimeError(
            f"Found invalid keys in backend_override: got {list(unused)}, expected integers in "
            f"range [0, {ndim}) or one of {tuple(names)}"
        )
    return backends


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Mapping[int | str, Any] | None = None,
) -> DeviceMesh:
    """Make a mesh of the given shape from the first ranks, in row-major order.

    Parameters
    ----------
    backend_override
        For dimensions, by number or name: a backend, options of its groups, or a pair of both.

    Raises
    ------
    RuntimeError
        For keys of ``backend_override`` that are no dimensions; else as :class:`DeviceMesh` does.

    Examples
    --------
    >>> import simcoll.distributed as dist
    >>> def program(rank, world_size):
    ...     mesh = dist.init_device_mesh(
    ...         "cuda", (2, 2), mesh_dim_names=("dp", "tp"), backend_override={"tp": "nccl"}
    ...     )
    ...     return [dist.get_backend(mesh.get_group(name)) for name in ("dp", "tp")]
    >>> dist.spawn(program, 4).returns[0]
    ['emulator', 'nccl']
    """
    _check_device(device_type)
    _check_names(mesh_dim_names, len(mesh_shape))
    backends = None
    if backend_override is not None:
        backends = _backends_of(backend_override, len(mesh_shape), mesh_dim_names or ())
    mesh = np.arange(math.prod(mesh_shape), dtype=np.int64).reshape(tuple(mesh_shape))
    return DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names, backend_override=backends)
