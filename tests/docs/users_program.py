"""What a user may give to the constructors of public records, all of it accepted by
``mypy --strict`` and by the constructors.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np

import simcoll
from simcoll.types import Background, LinkShare, Protocol, Slow

shares: list[Fraction] = [
    LinkShare("gpu0 -> switch", 0, at_fs=30 * 10**9, for_fs=10**12).share,
    LinkShare(3, "1/2").share,
    Background("gpu1 <-> switch", "1/4").share,
    Background("gpu1", 0.25).share,
    Slow(1, "1.5").factor,
    Slow(1, Decimal("1.5"), for_fs=10**12).factor,
    Slow(1, Fraction(3, 2)).factor,
]
slow = Protocol(
    "slow",
    launch_fs=10**10,
    wire_factor=2,
    hop_latency_fs=[("net", 10**9)],
    link_shares=[("net", "9/10"), ("pcie", 0.5)],
)
factor: Fraction = slow.wire_factor
hops: tuple[tuple[str, int], ...] = slow.hop_latency_fs
usable: tuple[tuple[str, Fraction], ...] = slow.link_shares

sent = simcoll.Collective("send_recv", 4, pairs=[(0, 1), [np.int64(1), 2]])
ends: tuple[tuple[int, int], ...] = sent.pairs
gathered = simcoll.Collective("all_gather", np.int32(4), in_place=np.bool_(False))
layout = simcoll.Layout(gathered, np.int64(1), [0, 1])
blocks: list[int] = layout.scratch.tolist()
pieces = simcoll.Layout(gathered, 2, np.array([3, 1], np.uint8), scratch_pieces=(0, 1))
made = simcoll.Schedule("made", layout, list, nchannels=np.int64(2))
channels: int = made.nchannels
narrow = np.array([0, 1], np.int8)
step = simcoll.types.Step(narrow, narrow, narrow, narrow, narrow, narrow, narrow)
wide: list[int] = step.src_rank.tolist()
repeated = simcoll.types.Repeat([step], np.int64(2), 0, 0, 4, order=[0, 1, 2, 3])
steps: tuple[simcoll.types.Step, ...] = repeated.steps
