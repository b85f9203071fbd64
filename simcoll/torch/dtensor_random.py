"""Random numbers of DTensors on simulated GPUs: shards differ, and replicas are equal.

On GPUs, PyTorch's tracker gives each shard its part of one sequence, by an offset into the
generator's. The generator of a run is the CPU's, which has no offsets; so every operator draws one
number from it, which is equal on ranks of one seed, and seeds each shard with that and its offset.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed._local_tensor import enabled_local_tensor_mode
from torch.distributed.tensor import _dispatch, _random

from simcoll.torch.rank_threads import RankThread, current_thread
from simcoll.torch.replacing import for_ranks

__all__ = ["random_replacements"]


_DIFFERENT_SEEDS = (
    "ranks of one mesh draw random numbers with different seeds, or unequally often since the same "
    "seed (as trunc_normal_ of shards does), so that replicas of a DTensor differ, on GPUs "
    "too: call torch.manual_seed with the same seed on all of them"
)


class _Draw(NamedTuple):
    number: int
    shape: tuple[int, ...]
    placements: tuple[Any, ...]


class _Draws:
    """What ranks of a mesh have drawn: equal numbers, if their seeds are, for the same tensors.

    Draws are kept until every rank of the mesh has drawn as often.
    """

    def __init__(self) -> None:
        self._turns: Counter[tuple[int, Any]] = Counter()
        self._drawn: dict[tuple[Any, int], list[_Draw]] = {}

    def check(self, spec: Any, number: int) -> None:
        """Note a finding where the draw of this rank differs from the first one."""
        mesh, draw = spec.mesh, _Draw(number, tuple(spec.shape), tuple(spec.placements))
        thread = current_thread()
        turn = self._turns[thread.number, mesh]
        self._turns[thread.number, mesh] += 1
        draws = self._drawn.setdefault((mesh, turn), [])
        if draws and draws[0] != draw:
            thread.tell("a random operator", _DIFFERENT_SEEDS)
        draws.append(draw)
        if len(draws) == mesh.size():
            del self._drawn[mesh, turn]


class _RankTracker(_random.OffsetBasedRNGTracker):
    """PyTorch's tracker on the generator of a rank."""

    draws: _Draws

    def __init__(self, device_mesh: Any, run_state_sync: bool = True) -> None:
        self._device = torch.device("cpu")
        self._device_handle = torch.cpu
        self._use_distribute_region = True
        mode = enabled_local_tensor_mode() if run_state_sync else None
        if mode is not None:
            states = mode._per_rank_rng_states
            states.update(dict.fromkeys(states, states[min(states)]))
        elif run_state_sync:
            state = torch.get_rng_state()
            torch.distributed.broadcast(state, 0)
            torch.set_rng_state(state)
        del device_mesh

    @contextlib.contextmanager
    def _distribute_region(
        self, spec: Any, generator: torch.Generator | None = None
    ) -> Iterator[None]:
        """Run an operator with the generator of its shard."""
        if not self.distribute_region_enabled:
            yield
            return
        offset, _ = self._compute_rng_offsets(spec)
        mode = enabled_local_tensor_mode()
        if mode is not None:
            with _ranks_in_one(mode, offset, generator):
                yield
            return
        drawn = _draw(torch.default_generator if generator is None else generator)
        if generator is None:
            self.draws.check(spec, drawn)
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(_seed_of_shard(drawn, int(offset)))
        try:
            yield
        finally:
            torch.set_rng_state(state)


def _draw(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator))


def _seed_of_shard(drawn: int, offset: int) -> int:
    text = hashlib.sha256(f"{drawn} {offset}".encode()).digest()
    return int.from_bytes(text[:8], "little")


@contextlib.contextmanager
def _ranks_in_one(mode: Any, offset: Any, generator: torch.Generator | None) -> Iterator[None]:
    """The same for the ranks that PyTorch itself plays in one (``LocalTensorMode``), which has a
    state of the generator for each.
    """
    states = mode._per_rank_rng_states
    later: dict[int, tuple[torch.Tensor, dict[int, torch.Tensor]]] = {}
    with mode.disable():
        drawn = None if generator is None else _draw(generator)
        for rank, (state, _) in list(states.items()):
            of_rank = torch._C.Generator("cpu")
            of_rank.set_state(state)
            number = _draw(of_rank) if drawn is None else drawn
            later[rank] = of_rank.get_state(), {}
            of_rank.manual_seed(_seed_of_shard(number, _of_rank(offset, rank)))
            states[rank] = of_rank.get_state(), {}
    try:
        yield
    finally:
        states.update(later)


def _of_rank(number: int | torch.SymInt, rank: int) -> int:
    """A number that may be another one on each of these ranks."""
    if not isinstance(number, torch.SymInt):
        return number
    equal: int | None = number.node.maybe_as_int()
    return int(number.node._local_ints[rank]) if equal is None else equal


@for_ranks
def _can_be_random(_thread: RankThread, standard: Callable[[Any], bool], device_mesh: Any) -> bool:
    return device_mesh.device_type == "cpu" or standard(device_mesh)


def random_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions of random DTensors, where scripts see GPUs."""
    tracker = type("_TrackerOfRun", (_RankTracker,), {"draws": _Draws()})
    supported = _can_be_random(_random.is_rng_supported_mesh)
    return [
        (_random, "is_rng_supported_mesh", supported),
        (_dispatch, "is_rng_supported_mesh", supported),
        (_random, "OffsetBasedRNGTracker", tracker),
        (_random, "_rng_tracker", None),
    ]
