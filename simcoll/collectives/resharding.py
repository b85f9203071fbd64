"""Resharding: a tensor in p shards on some ranks becomes q shards on others."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

import numpy as np

from simcoll.core.collective import Collective
from simcoll.core.schedule import Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

__all__ = ["reshard", "shard_to_shard"]


def reshard(nranks: int, *, senders: int | None = None) -> Collective:
    """The first ranks hold a tensor in equal shards, the others get it in equal shards of their
    own number, as when weights go from training to inference.

    Blocks are the pieces that both numbers of shards are multiples of. Default: a third of the
    ranks send.

    >>> reshard(5, senders=2).definition.inputs[0], reshard(5, senders=2).definition.outputs[2]
    ((0, 1, 2), ((0,), (1,)))
    """
    sending = max(1, nranks // 3) if senders is None else senders
    if not 1 <= sending < nranks:
        raise ConfigError(f"senders={sending}: expected 1 to {nranks - 1} of {nranks} ranks")
    receiving = nranks - sending
    pieces = np.arange(lcm(sending, receiving))
    nothing: list[list[int]] = [[]]
    inputs = pieces.reshape(sending, -1).tolist() + nothing * receiving
    outputs = nothing * sending + pieces.reshape(receiving, -1).tolist()
    return Collective.custom("reshard", inputs, outputs)


def shard_to_shard(collective: Collective) -> Schedule:
    """Every sender sends every receiver what both shards share, as one message.

    >>> import simcoll
    >>> print(simcoll.verify(shard_to_shard(reshard(5, senders=2))))
    proved (full, exact): 4 transfers in 1 step
    """
    definition = collective.definition
    if definition is None or definition.name != "reshard":
        raise ConfigError(f"shard_to_shard serves reshard, not {collective}")
    layout = Layout(collective)
    pieces = np.arange(definition.contributions)
    sending = sum(1 for slots in definition.inputs if slots)
    shard, part = len(pieces) // sending, len(pieces) // (collective.nranks - sending)
    pair = np.stack([pieces // shard, sending + pieces // part])
    begin = np.flatnonzero(np.any(np.diff(pair, prepend=-1) != 0, axis=0))

    def steps() -> Iterator[Step]:
        yield transfers(
            pair[0][begin],
            layout.input(begin % shard),
            pair[1][begin],
            layout.output(begin % part),
            count=np.diff(begin, append=len(pieces)),
        )

    return Schedule("shard_to_shard", layout, steps)
