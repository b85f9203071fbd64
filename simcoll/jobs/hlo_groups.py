"""The devices that communicate in a collective of HLO, in all notations of its text.

``replica_groups`` is a list of lists, an iota that is reshaped and transposed, or axes of a mesh;
``source_target_pairs`` are those of a permute.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from math import prod

import numpy as np

from simcoll.arrays import Ints
from simcoll.errors import shown
from simcoll.jobs.hlo_text import HloInstruction, HloModule

__all__ = ["describe_groups", "groups_of_pairs", "permute_pairs", "replica_groups"]

_LISTS = re.compile(r"\{(?:\{[\d,]*\},?)*\}$")
_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?)?$")
_MESH = re.compile(r"mesh\[([^\]]*)\]\s*(?:\{([^}]*)\})?$")
_MESH_IDS = re.compile(r"\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\)\s*\{([^}]*)\}$")
_MESH_AXIS = re.compile(r"'?([\w.\-]+)'?\s*=\s*(\d+)$")
_USED_AXIS = re.compile(r"'?([\w.\-]+)'?\s*(?::\((\d+)\)(\d+))?$")
_PAIR = re.compile(r"\{(\d{1,9}),(\d{1,9})\}")

_REDUCING = frozenset({"all-reduce", "all-gather", "reduce-scatter"})


def replica_groups(module: HloModule, instruction: HloInstruction, kind: str) -> Ints:
    """The groups of a collective: ``[groups, devices]``.

    Parameters
    ----------
    kind
        Its opcode without ``-start``.

    Raises
    ------
    ConfigError
        With the line, for a notation that is unknown, groups of different sizes, and devices that
        are not there.
    """
    text = instruction.attribute("replica_groups")
    groups = _groups_of_text(module, instruction, text)
    channel = bool(instruction.attribute("channel_id"))
    by_device = instruction.attribute("use_global_device_ids") == "true"
    everyone = np.arange(module.devices, dtype=np.int64)
    if module.partitions > 1 and not by_device and (kind in _REDUCING or not channel):
        # The numbers are those of replicas, of which there is one: with a channel all its
        # partitions take part, without one each partition alone.
        return everyone[None] if channel else everyone[:, None]
    return everyone[None] if groups is None else groups


def _groups_of_text(module: HloModule, instruction: HloInstruction, text: str) -> Ints | None:
    """The groups as they are written; None for all devices."""
    if not text or text == "{}":
        return None
    lists = _LISTS.match("".join(text.split()))
    iota, on_mesh = _IOTA.match(text), _MESH.match(text)
    if lists:
        rows = [_numbers(row) for row in re.findall(r"\{([\d,]*)\}", lists[0][1:-1])]
        if len({len(row) for row in rows}) != 1:
            raise module.refuse(instruction, "expected replica groups of one size")
        groups = np.array(rows, np.int64)
    elif iota:
        groups = _iota(module, instruction, iota)
    elif on_mesh:
        groups = _mesh_groups(module, instruction, on_mesh)
    else:
        raise module.refuse(instruction, f"unknown notation of replica groups {shown(text[:60])}")
    return _checked_groups(module, instruction, groups)


def _checked_groups(module: HloModule, instruction: HloInstruction, groups: Ints) -> Ints:
    """Refuse groups with devices that do not exist, or occur twice."""
    ranks = groups.reshape(-1)
    if not ranks.size or ranks.max() >= module.devices:
        problem = f"replica groups name device {ranks.max()}" if ranks.size else "no replica groups"
        raise module.refuse(instruction, f"{problem}; the module has {module.devices}")
    if len(np.unique(ranks)) != len(ranks):
        raise module.refuse(instruction, "a device is in two replica groups")
    return groups


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _iota(module: HloModule, instruction: HloInstruction, match: re.Match[str]) -> Ints:
    """Numbers from 0, reshaped, transposed, and reshaped to groups: ``[4,2]<=[2,4]T(1,0)``."""
    shape = _numbers(match[1])
    dimensions = _numbers(match[2]) if match[2] else shape
    order = _numbers(match[3]) if match[3] else list(range(len(dimensions)))
    if (
        prod(shape) != prod(dimensions)
        or sorted(order) != list(range(len(dimensions)))
        or prod(shape) > module.devices
        or len(shape) != 2
    ):
        raise module.refuse(instruction, f"replica groups {match[0]}: the dimensions do not fit")
    numbers = np.arange(prod(dimensions), dtype=np.int64).reshape(dimensions)
    return numbers.transpose(order).reshape(shape)


def _mesh_groups(module: HloModule, instruction: HloInstruction, match: re.Match[str]) -> Ints:
    """Groups along axes, or parts of axes, of a mesh: ``mesh['a'=2,'b'=4] {'b':(1)2}``."""
    axes = [_MESH_AXIS.match(part.strip()) for part in match[1].split(",")]
    ids = _MESH_IDS.match(instruction.attribute("device_ids"))
    used = ids[4] if ids else match[2]
    if used is None or None in axes:
        raise module.refuse(instruction, f"unknown notation of a mesh {shown(match[0][:60])}")
    sizes = {axis[1]: int(axis[2]) for axis in axes if axis}
    if prod(sizes.values()) != module.devices or len(sizes) < len(axes):
        raise module.refuse(
            instruction, f"a mesh of {prod(sizes.values())} devices; there are {module.devices}"
        )
    numbers = np.arange(module.devices, dtype=np.int64)
    if ids and ids[3]:
        numbers = np.array(_numbers(ids[3]), np.int64)
    elif ids:
        dimensions = _numbers(ids[1])
        order = _numbers(ids[2]) if ids[2] else list(range(len(dimensions)))
        if prod(dimensions) != len(numbers) or sorted(order) != list(range(len(dimensions))):
            raise module.refuse(instruction, f"device_ids {ids[0][:60]}: wrong dimensions")
        numbers = numbers.reshape(dimensions).transpose(order).reshape(-1)
    if sorted(numbers.tolist()) != list(range(module.devices)):
        raise module.refuse(instruction, "device_ids do not name each device once")
    return _along_axes(module, instruction, numbers, sizes, used)


def _along_axes(
    module: HloModule,
    instruction: HloInstruction,
    numbers: Ints,
    sizes: dict[str, int],
    used: str,
) -> Ints:
    """Move the axes, or the parts of axes, along which a group lies to the end."""
    # Every axis is cut where a used part begins or ends, so that parts become dimensions.
    cuts: dict[str, set[int]] = {name: {1, size} for name, size in sizes.items()}
    spans: list[tuple[str, int, int]] = []
    for part in filter(None, (part.strip() for part in used.split(","))):
        match = _USED_AXIS.match(part)
        if match is None or match[1] not in sizes:
            raise module.refuse(instruction, f"unknown axis {shown(part[:40])} of a mesh")
        begin = int(match[2]) if match[2] else 1
        end = begin * int(match[3]) if match[3] else sizes[match[1]]
        spans.append((match[1], begin, end))
        cuts[match[1]] |= {begin, end}
    dimensions: list[tuple[str, int, int]] = []
    for name, size in sizes.items():
        places = sorted(cuts[name])
        if any(later % earlier for earlier, later in pairwise(places)):
            raise module.refuse(instruction, f"axis {name}: its parts do not divide {size}")
        dimensions += [(name, earlier, later) for earlier, later in pairwise(places)] or [
            (name, 1, 1)
        ]
    grid = numbers.reshape([later // earlier for _, earlier, later in dimensions])
    group_axes = [
        place
        for name, begin, end in spans
        for place, (axis, earlier, later) in enumerate(dimensions)
        if axis == name and begin <= earlier and later <= end
    ]
    across = [place for place in range(len(dimensions)) if place not in group_axes]
    members = prod(grid.shape[place] for place in group_axes)
    return grid.transpose([*across, *group_axes]).reshape(-1, members)


def permute_pairs(module: HloModule, instruction: HloInstruction) -> list[tuple[int, int]]:
    """Source and destination of each message of a permute, without those to itself.

    Raises
    ------
    ConfigError
        With the line, for pairs that cannot be read or name a device twice.
    """
    text = instruction.attribute("source_target_pairs")
    pairs = [(int(source), int(target)) for source, target in _PAIR.findall(text)]
    if not pairs:
        raise module.refuse(instruction, f"source_target_pairs {shown(text[:60])}: no pairs")
    for end in zip(*pairs, strict=True):
        if len(set(end)) < len(end) or max(end) >= module.devices:
            raise module.refuse(
                instruction,
                f"source_target_pairs: expected devices below {module.devices}, each once",
            )
    return [(source, target) for source, target in pairs if source != target]


def groups_of_pairs(pairs: list[tuple[int, int]]) -> tuple[Ints, tuple[tuple[int, int], ...]]:
    """Devices that exchange messages as groups, and the pairs within each.

    Devices that are connected form a group; if the groups differ, all devices form one.

    Examples
    --------
    >>> groups, within = groups_of_pairs([(0, 2), (2, 0), (1, 3), (3, 1)])
    >>> groups.tolist(), within
    ([[0, 2], [1, 3]], ((0, 1), (1, 0)))
    """
    group_of: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    for source, target in pairs:
        into, merged = (group_of.get(device, device) for device in (source, target))
        for device in (source, target):
            group_of.setdefault(device, device)
            members.setdefault(group_of[device], [device])
        if into != merged:
            for device in members[merged]:
                group_of[device] = into
            members[into] += members.pop(merged)
    rows = sorted(sorted(devices) for devices in members.values())
    place = {device: row.index(device) for row in rows for device in row}
    within: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for source, target in pairs:
        within[group_of[source]].append((place[source], place[target]))
    patterns = {tuple(sorted(pattern)) for pattern in within.values()}
    if len(patterns) == 1 and len({len(row) for row in rows}) == 1:
        return np.array(rows, np.int64), patterns.pop()
    ranks = sorted(place)
    number = {device: position for position, device in enumerate(ranks)}
    every = tuple(sorted((number[source], number[target]) for source, target in pairs))
    return np.array([ranks], np.int64), every


def describe_groups(groups: Ints) -> str:
    """A short name for groups: their size, and the distance of their ranks.

    Examples
    --------
    >>> describe_groups(np.arange(8).reshape(2, 4)), describe_groups(np.arange(8).reshape(4, 2).T)
    ('4 by 1', '4 by 2')
    """
    steps = np.unique(np.diff(groups, axis=1))
    count = groups.shape[1]
    return f"{count} by {steps[0]}" if len(steps) == 1 else f"{count} mixed"
