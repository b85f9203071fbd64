"""Exchanges between neighbours: on a torus, and of the halo of a grid with its corners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simcoll.core.collective import Collective
from simcoll.core.schedule import Layout, Schedule, Step, transfers
from simcoll.core.step import joined
from simcoll.errors import ConfigError

__all__ = ["halo_exchange", "torus_exchange", "two_phases", "with_neighbours"]

SIDES = ((0, -1), (0, 1), (-1, 0), (1, 0))
"""Row and column of the neighbours that share an edge: west, east, north, south."""
CORNERS = ((-1, -1), (-1, 1), (1, -1), (1, 1))
"""And of those that share a corner."""


def _grid(nranks: int, dims: Sequence[int] | None) -> tuple[int, ...]:
    """The sizes of a grid: those given, or the two most equal ones."""
    if dims is None:
        rows = next(size for size in range(int(nranks**0.5), 0, -1) if nranks % size == 0)
        return rows, nranks // rows
    sizes = tuple(int(size) for size in dims)
    if min(sizes, default=0) < 1 or int(np.prod(sizes)) != nranks:
        raise ConfigError(f"dims={dims!r}: expected sizes whose product is {nranks} ranks")
    return sizes


def torus_exchange(nranks: int, *, dims: Sequence[int] | None = None) -> Collective:
    """Every rank of a torus sends a block to either neighbour in every dimension
    (MPI_Neighbor_alltoall); output slots are in the order of input slots: the block that came from
    there.

    >>> print(torus_exchange(6, dims=(2, 3)).definition.outputs[0])
    ((13,), (12,), (11,), (6,))
    """
    sizes = _grid(nranks, dims)
    place = np.stack(np.unravel_index(np.arange(nranks), sizes))
    nslots = 2 * len(sizes)
    inputs = np.arange(nranks * nslots).reshape(nranks, nslots)
    outputs = np.zeros_like(inputs)
    for slot in range(nslots):
        dimension, forward = divmod(slot, 2)
        neighbour = place.copy()
        neighbour[dimension] = (place[dimension] + (1 if forward else -1)) % sizes[dimension]
        sender = np.ravel_multi_index(tuple(neighbour), sizes)
        outputs[:, slot] = sender * nslots + 2 * dimension + 1 - forward
    return Collective.custom("torus_exchange", inputs.tolist(), outputs.tolist())


def halo_exchange(nranks: int, *, dims: Sequence[int] | None = None) -> Collective:
    """Every rank of a grid gets the edges of its neighbours and the corners of the diagonal ones.

    A rank's input slots are what it sends to its neighbours west, east, north and south, then to
    the diagonal ones, as far as there are any; output slots are what comes from these. Edges
    towards west and east have size class 0, towards north and south 1, corners 2.

    >>> halo = halo_exchange(4, dims=(2, 2))
    >>> halo.definition.inputs[0], halo.definition.outputs[0]
    ((0, 1, 2), ((3,), (7,), (11,)))
    """
    sizes = _grid(nranks, dims)
    if len(sizes) != 2:
        raise ConfigError(f"dims={dims!r}: a halo exchange has two dimensions")
    numbers: dict[tuple[int, int], int] = {}
    directions: list[int] = []
    inputs: list[list[int]] = [[] for _ in range(nranks)]
    for rank in range(nranks):
        for direction, neighbour in _around(rank, sizes):
            numbers[rank, neighbour] = len(numbers)
            inputs[rank].append(numbers[rank, neighbour])
            directions.append(0 if direction < 2 else 1 if direction < 4 else 2)
    outputs = [
        [numbers[neighbour, rank] for _, neighbour in _around(rank, sizes)]
        for rank in range(nranks)
    ]
    classes = sorted(set(directions))  # a grid of one row has no corners
    used = [classes.index(size_class) for size_class in directions]
    return Collective.custom("halo_exchange", inputs, outputs, sizes=used)


def _around(rank: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Direction and rank of every neighbour in a grid without wrapping."""
    row, column = divmod(rank, sizes[1])
    for direction, (down, right) in enumerate((*SIDES, *CORNERS)):
        if 0 <= row + down < sizes[0] and 0 <= column + right < sizes[1]:
            yield direction, (row + down) * sizes[1] + column + right


def with_neighbours(collective: Collective) -> Schedule:
    """All blocks of a :func:`torus_exchange` at once, a channel for each direction.

    >>> import simcoll
    >>> print(simcoll.verify(with_neighbours(torus_exchange(6))))
    proved (full, exact): 24 transfers in 1 step
    """
    definition = collective.definition
    if definition is None or definition.name != "torus_exchange":
        raise ConfigError(f"with_neighbours serves torus_exchange, not {collective}")
    layout = Layout(collective)
    nslots = collective.input_slots

    def steps() -> Iterator[Step]:
        contribution = definition.summands.reshape(-1, nslots)
        receiver, slot = np.indices(contribution.shape)
        sender, sender_slot = np.divmod(contribution, nslots)
        yield transfers(
            sender, layout.input(sender_slot), receiver, layout.output(slot), channel=sender_slot
        )

    return Schedule("with_neighbours", layout, steps, nslots)


def two_phases(collective: Collective, *, dims: Sequence[int] | None = None) -> Schedule:
    """A :func:`halo_exchange` without diagonal messages: corners travel with the edges to the west
    and east, and from there to the north and south.

    ``dims`` are those of the collective.

    >>> import simcoll
    >>> print(simcoll.verify(two_phases(halo_exchange(4))))
    proved (full, exact): 16 transfers in 2 steps
    """
    n = collective.nranks
    sizes = _grid(n, dims)
    if collective != halo_exchange(n, dims=dims):
        raise ConfigError(f"two_phases serves halo_exchange of dims={sizes}, not {collective}")
    slots = [{peer: slot for slot, (_, peer) in enumerate(_around(r, sizes))} for r in range(n)]
    corner = (
        collective.nblocks
        - 1
        - int(collective.definition is not None and collective.definition.has_gaps)
    )
    # A scratch slot for each corner that passes through: from west or east, to north or south.
    layout = Layout(collective, scratch=[corner] * 4 if min(sizes) > 1 else [])

    def steps() -> Iterator[Step]:
        across: list[Step] = []
        down: list[Step] = []
        for rank in range(n):
            row = rank // sizes[1]
            for direction, peer in _around(rank, sizes):
                source, target = layout.input(slots[rank][peer]), layout.output(slots[peer][rank])
                if direction < 4:
                    (across if direction < 2 else down).append(
                        transfers(rank, source, peer, target)
                    )
                    continue
                relay = row * sizes[1] + peer % sizes[1]
                waiting = layout.scratch_at(direction - 4)
                across.append(transfers(rank, source, relay, waiting))
                down.append(transfers(relay, waiting, peer, target))
        for moves in (across, down):
            if moves:
                yield joined(moves)

    return Schedule("two_phases", layout, steps)
