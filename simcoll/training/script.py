"""The operations of a training step without their costs: order and dependencies on each stage.

A script depends only on a design's :class:`ScriptShape`, so that designs which differ in sizes
share one. A slot describes operations of equal cost; a row is one operation: its slot, its
micro-batch, and the rows that it depends on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from simcoll.core.vocabulary import CollectiveKind, PassKind, PipelineSchedule
from simcoll.training.parallel import GradientBuckets, SendOverlap, layers_of_chunks
from simcoll.training.pipeline import PipelineTurn, stage_order

if TYPE_CHECKING:
    from simcoll.training.design import Design

__all__ = ["Script", "ScriptRow", "ScriptShape", "Slot", "script_of", "shape_of"]

ShardedInScript: TypeAlias = Literal["none", "optimizer", "parameters"]
"""What is sharded, as far as the order of operations depends on it: sharded gradients are reduced
like whole ones for a sharded optimizer."""


@dataclass(frozen=True, slots=True)
class ScriptShape:
    """The properties of a design that determine its script.

    Attributes
    ----------
    layers
        Numbers of the layers by stage and chunk.
    micro_batches, schedule, sends_overlap, overlap_dp, buckets
        As in the design.
    shard
        What is sharded; ``"optimizer"`` with or without gradients.
    copies, expert_copies
        Whether several ranks hold the same dense parameters, and the same experts.
    experts
        Layers with experts.
    replicas
        Whether shards have replicas.
    pairs
        Whether exchanges of tokens overlap computation: that of a pass of the other direction.
    tied
        Whether first and last stage share an embedding.
    offload
        Parts offloaded to host memory.
    """

    layers: tuple[tuple[tuple[int, ...], ...], ...]
    micro_batches: int
    schedule: PipelineSchedule
    sends_overlap: SendOverlap
    overlap_dp: bool
    shard: ShardedInScript
    copies: bool
    expert_copies: bool
    experts: frozenset[int]
    replicas: bool
    tied: bool
    offload: tuple[str, ...] = ()
    buckets: GradientBuckets = "layer"
    pairs: bool = False

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return len(self.layers)

    @property
    def chunks(self) -> int:
        """Chunks per stage."""
        return len(self.layers[0])

    @property
    def gathers(self) -> bool:
        """Whether parameters are gathered layer by layer in every pass."""
        return self.shard == "parameters" and (self.copies or self.expert_copies)

    @property
    def beside(self) -> bool:
        """Whether gradient reduction overlaps the last backward passes."""
        return self.overlap_dp and (self.copies or self.expert_copies)

    @property
    def by_chunk(self) -> bool:
        """Whether gradients of a whole chunk are reduced at once."""
        return self.beside and self.buckets != "layer" and not self.gathers


def shape_of(design: Design) -> ScriptShape:
    """The shape of a design."""
    model, parallel, mesh = design.model, design.parallel, design.mesh
    layers = layers_of_chunks(model, parallel)
    copies = mesh.size("dp") * mesh.size("cp")
    spread = parallel.ep > 1
    shard = parallel.shard_in_step
    return ScriptShape(
        layers,
        design.micro_batches,
        parallel.schedule,
        parallel.sends_overlap,
        parallel.overlap_dp,
        "optimizer" if shard == "gradients" else shard,
        copies=copies > 1,
        expert_copies=spread and parallel.tp // parallel.expert_tp * copies > parallel.ep,
        experts=frozenset(filter(model.is_moe, range(model.layers))),
        replicas=parallel.shard != "none" and 0 < parallel.shard_group < copies,
        tied=model.tied and parallel.pp > 1,
        offload=parallel.offload,
        buckets=parallel.buckets,
        pairs=spread and parallel.overlap_ep and parallel.schedule == "1f1b",
    )


SlotKind: TypeAlias = CollectiveKind | Literal["turn", "update", "send", "offload"]
TurnKind: TypeAlias = PassKind | Literal["BW"]
GroupName: TypeAlias = Literal["dp", "shard", "replica", "edp", "embedding"]
SlotWork: TypeAlias = TurnKind | GroupName | Literal["", "weights"]


class Slot(NamedTuple):
    """The description of operations of equal cost.

    Attributes
    ----------
    does
        ``"turn"``, ``"update"``, ``"send"``, ``"offload"``, or the kind of a collective.
    stage
        Stage; for a send, its source.
    work
        For a pass ``"F"``, ``"B"``, ``"W"`` or ``"BW"``; for a send its direction; for a collective
        its group; for an offload the kind of its pass.
    chunk
        Chunk of a pass; for a send, its target.
    layer
        Layer of a pass or collective; -1: all; -2: parameters outside layers.
    stream
        Stream.
    alone
        Whether a pass has no pass of the other direction beside which its exchanges of tokens run.
    """

    does: SlotKind
    stage: int
    work: SlotWork = ""
    chunk: int = -1
    layer: int = -1
    stream: str = "compute"
    alone: bool = False


EVERY, BESIDE_LAYERS = -1, -2


class ScriptRow(NamedTuple):
    """An operation: the number of its slot, its micro-batch (-1: none), and the rows that it
    depends on.
    """

    slot: int
    micro: int
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Script:
    """Slots and rows of a step.

    Rows are stored by column: the garbage collector stops following plain tuples of numbers, but
    never named ones, of which the scripts of a plan have a hundred thousand.

    Attributes
    ----------
    shape
        What determines it.
    slots
        Its slots.
    slot_of_row, micro_of_row, needs_of_row
        The fields of its rows.
    """

    shape: ScriptShape
    slots: tuple[Slot, ...]
    slot_of_row: tuple[int, ...]
    micro_of_row: tuple[int, ...]
    needs_of_row: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> Iterator[ScriptRow]:
        """Its operations, in topological order."""
        return map(ScriptRow, self.slot_of_row, self.micro_of_row, self.needs_of_row)

    def stages_of(self, slot: Slot) -> tuple[int, ...]:
        """The stages that participate in a slot."""
        if slot.does == "send":
            return slot.stage, slot.chunk
        return (0, self.shape.stages - 1) if slot.work == "embedding" else (slot.stage,)


MOST_ROWS = 1 << 18
"""Scripts with this number of rows together are remembered, with some 340 bytes a row: the 77 of
10,000 designs of 1,024 GPUs have 202,000.
"""


class _LatestScripts:
    """The scripts that were asked for last, with :data:`MOST_ROWS` rows together, but at least
    one.
    """

    def __init__(self) -> None:
        self._scripts: OrderedDict[ScriptShape, Script] = OrderedDict()
        self._rows = 0
        self._lock = Lock()

    def find(self, shape: ScriptShape) -> Script:
        """The script of a shape, written if it is not remembered."""
        with self._lock:
            script = self._scripts.get(shape)
            if script is not None:
                self._scripts.move_to_end(shape)
                return script
            script = self._scripts[shape] = _ScriptWriter(shape).script()
            self._rows += len(script.slot_of_row)
            while self._rows > MOST_ROWS and len(self._scripts) > 1:
                self._rows -= len(self._scripts.popitem(last=False)[1].slot_of_row)
            return script


_LATEST = _LatestScripts()


def script_of(shape: ScriptShape) -> Script:
    """The script of a shape.

    Examples
    --------
    >>> from simcoll.training.script import ScriptShape
    >>> two = ScriptShape(
    ...     (((0,),), ((1,),)), 1, "1f1b", "never", False, "none", False, False, frozenset(),
    ...     False, False,
    ... )
    >>> made = script_of(two)
    >>> [made.slots[row.slot].does for row in made.rows]
    ['turn', 'send', 'turn', 'turn', 'send', 'turn', 'update', 'update']
    """
    return _LATEST.find(shape)


class _ScriptWriter:
    """Builds the rows of a step in topological order."""

    def __init__(self, shape: ScriptShape) -> None:
        self.shape = shape
        self.slots: dict[Slot, int] = {}
        self.slot_of_row: list[int] = []
        self.micro_of_row: list[int] = []
        self.needs_of_row: list[tuple[int, ...]] = []
        self.arrived: dict[tuple[str, int, int, int], int] = {}
        self.last: dict[int, tuple[int, ...]] = {}
        self.computed: dict[int, tuple[int, ...]] = {}
        self.synchronised: dict[int, list[int]] = {stage: [] for stage in range(shape.stages)}
        self.gathered: dict[tuple[int, int], tuple[int, ...]] = {}
        self.before: dict[int, tuple[int, ...]] = {}
        self.moved: dict[tuple[int, int, int], int] = {}
        self.waiting: list[list[tuple[int, int]]] = [[] for _ in range(shape.stages)]

    def add(self, slot: Slot, needs: tuple[int, ...], micro: int = -1) -> int:
        row = len(self.slot_of_row)
        self.slot_of_row.append(self.slots.setdefault(slot, len(self.slots)))
        self.micro_of_row.append(micro)
        self.needs_of_row.append(needs)
        return row

    def script(self) -> Script:
        shape = self.shape
        p, v, m = shape.stages, shape.chunks, shape.micro_batches
        if shape.beside and shape.shard == "optimizer":
            for stage in range(p):
                for chunk in range(v):
                    self.gathered[stage, chunk] = self._gather_before(stage, chunk)
        orders = [stage_order(p, v, m, stage, shape.schedule) for stage in range(p)]
        places = [0] * p
        while any(places[stage] < len(orders[stage]) for stage in range(p)):
            for stage in range(p):
                while places[stage] < len(orders[stage]) and self._ready(
                    stage, orders[stage][places[stage]]
                ):
                    place = places[stage]
                    previous = orders[stage][place - 1] if place else None
                    self._turn(stage, previous, *orders[stage][place : place + 2])
                    places[stage] += 1
        self._finish()
        return Script(
            shape,
            tuple(self.slots),
            tuple(self.slot_of_row),
            tuple(self.micro_of_row),
            tuple(self.needs_of_row),
        )

    def _first(self, stage: int, chunk: int) -> bool:
        return stage == 0 and chunk == 0

    def _final(self, stage: int, chunk: int) -> bool:
        return stage == self.shape.stages - 1 and chunk == self.shape.chunks - 1

    def _ready(self, stage: int, turn: PipelineTurn) -> bool:
        """Whether an earlier row sends the input of a pass from another stage."""
        begins = self._first if turn.kind == "F" else self._final
        return (
            turn.kind == "W"
            or begins(stage, turn.chunk)
            or (turn.kind, turn.micro, turn.chunk, stage) in self.arrived
        )

    def _turn(
        self,
        stage: int,
        previous: PipelineTurn | None,
        turn: PipelineTurn,
        then: PipelineTurn | None = None,
    ) -> None:
        shape, (kind, micro, chunk) = self.shape, turn
        # A backward pass runs together with the next forward pass (Megatron-LM's combined 1F1B).
        neighbour = previous if kind == "F" else then
        alone = shape.pairs and (neighbour is None or neighbour.kind == kind)
        arrival = self.arrived.pop((kind, micro, chunk, stage), None)
        needs = (*self.last.get(stage, ()), *(() if arrival is None else (arrival,)))
        if kind == "F" and micro == 0:
            needs += self.gathered.get((stage, chunk), ())
        self.last[stage] = ()
        if shape.offload:
            needs += self._fetch(stage, turn)
        split = shape.schedule == "zero-bubble"
        work: TurnKind = "BW" if kind == "B" and not split else kind
        final = micro == shape.micro_batches - 1 and kind == ("W" if split else "B")
        if (shape.gathers or (final and shape.beside and not shape.by_chunk)) and shape.layers[
            stage
        ][chunk]:
            turn_row = self._layer_by_layer(stage, turn, work, needs, final=final, alone=alone)
        else:
            turn_row = self.add(Slot("turn", stage, work, chunk, alone=alone), needs, micro)
        if shape.by_chunk and "W" in work:
            self._reduce_chunks(stage, chunk, turn_row, final=final)
        self.before[stage] = self.computed.get(stage, ())
        self.computed[stage] = (turn_row,)
        if "activations" in shape.offload and kind == "F" and then != ("B", micro, chunk):
            out = Slot("offload", stage, kind, chunk, stream="offload out")
            self.moved[stage, micro, chunk] = self.add(out, (turn_row,), micro)
        ends = self._final if kind == "F" else self._first
        if kind != "W" and not ends(stage, chunk):
            self._send(stage, turn, turn_row, alternates=then is not None and then.kind != kind)

    def _layer_by_layer(
        self,
        stage: int,
        turn: PipelineTurn,
        work: TurnKind,
        needs: tuple[int, ...],
        *,
        final: bool,
        alone: bool,
    ) -> int:
        """Add a pass layer by layer: parameters are gathered before each layer, gradients reduced
        after it.
        """
        layers = self.shape.layers[stage][turn.chunk]
        passes: list[int] = []
        for layer in layers if turn.kind == "F" else reversed(layers):
            layer_needs = () if passes else needs
            if self.shape.gathers and turn.kind != "W":  # up to two layers ahead
                layer_needs += self._collective(
                    "all_gather", stage, layer, (*needs, *passes[-2:-1]), turn.micro
                )
            slot = Slot("turn", stage, work, turn.chunk, layer, alone=alone)
            passes.append(self.add(slot, layer_needs, turn.micro))
            if "W" in work and (self.shape.gathers or (final and self.shape.beside)):
                self.synchronised[stage] += self._reduce(stage, layer, (passes[-1],), turn.micro)
        return passes[-1]

    def _reduce_chunks(self, stage: int, chunk: int, turn_row: int, *, final: bool) -> None:
        """Reduce a finished chunk: at once, or when the first stage, which lags by one pass per
        stage in between, has finished it.
        """
        if final:
            self.waiting[stage].append((chunk, stage if self.shape.buckets == "aligned" else 0))
        still_waiting = [
            (waiting_chunk, turns - 1) for waiting_chunk, turns in self.waiting[stage] if turns
        ]
        for waiting_chunk, turns in self.waiting[stage]:
            if not turns:
                self.synchronised[stage] += self._reduce(
                    stage, EVERY, (turn_row,), chunk=waiting_chunk
                )
        self.waiting[stage] = still_waiting

    def _fetch(self, stage: int, turn: PipelineTurn) -> tuple[int, ...]:
        """Fetch a pass's data from host memory during the previous pass."""
        out = self.moved.pop((stage, turn.micro, turn.chunk), None) if turn.kind == "B" else None
        if out is None and "weights" not in self.shape.offload:
            return ()
        work = "weights" if out is None else turn.kind
        needs = (*self.before.get(stage, ()), *(() if out is None else (out,)))
        return (
            self.add(
                Slot("offload", stage, work, turn.chunk, stream="offload in"), needs, turn.micro
            ),
        )

    def _send(self, stage: int, turn: PipelineTurn, turn_row: int, *, alternates: bool) -> None:
        """Send activations to the next stage, or their gradients to the previous one; whether the
        next pass has the other direction.
        """
        p, forward = self.shape.stages, turn.kind == "F"
        target = (stage + 1) % p if forward else (stage - 1) % p
        wraps = stage == p - 1 if forward else stage == 0
        chunk = turn.chunk + (wraps if forward else -wraps)
        # A stream has one direction on each stage.
        parity = "around" if wraps and p % 2 else str(stage % 2)
        send_row = self.add(
            Slot("send", stage, turn.kind, target, stream=f"send {turn.kind} {parity}"),
            (turn_row,),
            turn.micro,
        )
        self.arrived[turn.kind, turn.micro, chunk, target] = send_row
        overlap = self.shape.sends_overlap
        if overlap == "never" or (overlap == "alternate" and not alternates):
            self.last[stage] = (*self.last.get(stage, ()), send_row)

    def _reduce(
        self, stage: int, layer: int, needs: tuple[int, ...], micro: int = -1, chunk: int = -1
    ) -> tuple[int, ...]:
        kind: CollectiveKind = "all_reduce" if self.shape.shard == "none" else "reduce_scatter"
        return self._collective(kind, stage, layer, needs, micro, chunk)

    def _collective(
        self,
        kind: CollectiveKind,
        stage: int,
        layer: int,
        needs: tuple[int, ...],
        micro: int = -1,
        chunk: int = -1,
    ) -> tuple[int, ...]:
        """Add a collective over the ranks that hold the same parameters, which are fewer for
        experts.
        """
        shape, stream = self.shape, "gather" if kind == "all_gather" else "reduce"
        added: list[int] = []
        if shape.copies:
            group: GroupName = "shard" if shape.replicas else "dp"
            added.append(self.add(Slot(kind, stage, group, chunk, layer, stream), needs, micro))
            if shape.replicas and kind == "reduce_scatter":
                added.append(
                    self.add(
                        Slot("all_reduce", stage, "replica", chunk, layer, stream),
                        (added[-1],),
                        micro,
                    )
                )
        chunks = shape.layers[stage] if chunk < 0 else (shape.layers[stage][chunk],)
        all_layers = {number for chunk_layers in chunks for number in chunk_layers}
        if shape.expert_copies and shape.experts & (
            {layer} if layer >= 0 else all_layers if layer == EVERY else set()
        ):
            added.append(self.add(Slot(kind, stage, "edp", chunk, layer, stream), needs, micro))
        return tuple(added)

    def _gather_before(self, stage: int, chunk: int) -> tuple[int, ...]:
        """Gather the parameters of a chunk that the previous step has updated."""
        gathers: tuple[int, ...] = ()
        if chunk == 0 and self._has_ends(stage):
            gathers += self._collective("all_gather", stage, BESIDE_LAYERS, ())
        for layer in self.shape.layers[stage][chunk]:
            gathers += self._collective("all_gather", stage, layer, ())
        return gathers

    def _has_ends(self, stage: int) -> bool:
        """Whether a stage has the embedding or the output head."""
        return stage in {0, self.shape.stages - 1}

    def _finish(self) -> None:
        """Reduce the remaining gradients, update, and gather parameters that the next step does not
        gather itself.
        """
        shape, last = self.shape, self.shape.stages - 1
        one_by_one = shape.gathers or shape.beside
        for stage in range(shape.stages):
            for chunk, _ in self.waiting[stage]:
                self.synchronised[stage] += self._reduce(
                    stage, EVERY, self.computed[stage], chunk=chunk
                )
            if shape.by_chunk:
                continue
            if not one_by_one or self._has_ends(stage):
                layer = BESIDE_LAYERS if one_by_one else EVERY
                self.synchronised[stage] += self._reduce(stage, layer, self.computed[stage])
        if shape.tied:
            needs = (
                *self.synchronised[0],
                *self.synchronised[last],
                *self.computed[0],
                *self.computed[last],
            )
            row = self.add(Slot("all_reduce", 0, "embedding", stream="reduce"), needs)
            self.synchronised[0].append(row)
            self.synchronised[last].append(row)
        for stage in range(shape.stages):
            update_row = self.add(
                Slot("update", stage), (*self.synchronised[stage], *self.last.get(stage, ()))
            )
            if shape.shard == "optimizer" and not shape.overlap_dp:
                self._collective("all_gather", stage, EVERY, (update_row,))
