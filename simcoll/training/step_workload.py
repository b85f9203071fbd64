"""Build the workload of one training step from a design.

The step begins with the first forward pass and ends when all parameters are updated (and gathered,
unless the next step does that during its computation).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from msgspec import structs

from simcoll.arrays import Ints
from simcoll.core.facts import FactStore
from simcoll.core.vocabulary import CollectiveKind
from simcoll.training.chunks import ChunkCosts
from simcoll.training.gpu import DTYPE_BYTES
from simcoll.training.layers import in_fs, optimizer_seconds
from simcoll.training.memory import OPTIMIZER_BYTES, WEIGHT_BYTES, offloaded_bytes
from simcoll.training.script import (
    BESIDE_LAYERS,
    EVERY,
    Script,
    ScriptRow,
    ScriptShape,
    Slot,
    script_of,
    shape_of,
)
from simcoll.workload.mesh import Mesh
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Operation,
    SendOperation,
    Workload,
)

if TYPE_CHECKING:
    from simcoll.training.design import Design

__all__ = ["FLOPS_FORMULA", "EqualSlots", "StepParts"]

FLOPS_FORMULA = (
    "6 for each token and each parameter of a matrix that it meets, the head included, and of "
    "attention "
    "3 x layers x heads x (key width + value width) x sequence for each token: the causal half, "
    "less what windows leave out"
)
_NAMES = {"F": "forward", "B": "backward", "W": "weights", "BW": "backward"}


@dataclass(frozen=True, slots=True)
class EqualSlots:
    """Slots of a script that have equal operations in every design, of which one is priced.

    Attributes
    ----------
    slots
        The first slot of each kind.
    number_of_slot
        For each slot of the script the place of its first among them.
    rows
        How many rows of the script are of each kind.
    """

    slots: tuple[Slot, ...]
    number_of_slot: tuple[int, ...]
    rows: tuple[int, ...]


def _equal_slots_of(script: Script) -> EqualSlots:
    """Find the slots of a script that differ in nothing."""
    shape = script.shape
    numbers: dict[object, int] = {}
    firsts: list[Slot] = []
    number_of_slot: list[int] = []
    for slot in script.slots:
        number = numbers.setdefault(_kind_of(slot, shape), len(firsts))
        if number == len(firsts):
            firsts.append(slot)
        number_of_slot.append(number)
    rows = [0] * len(firsts)
    for slot_number, count in Counter(script.slot_of_row).items():
        rows[number_of_slot[slot_number]] += count
    return EqualSlots(tuple(firsts), tuple(number_of_slot), tuple(rows))


def _kind_of(slot: Slot, shape: ScriptShape) -> object:
    """What the operation of a slot depends on: of its layers, whether they have experts; in a pass,
    whether they are at the ends of their chunk, which receive activations; and whether the chunk
    has the embedding or the output head.
    """
    passes = slot.does == "turn"
    if not passes and slot.stream not in {"gather", "reduce"}:
        return slot
    if passes or slot.chunk >= 0:
        chunk_layers = shape.layers[slot.stage][slot.chunk]
        ends = (
            (slot.stage, slot.chunk) == (0, 0),
            (slot.stage, slot.chunk) == (shape.stages - 1, shape.chunks - 1),
        )
    if slot.layer >= 0:
        kind: object = slot.layer in shape.experts
        if passes:
            at_ends = slot.layer == chunk_layers[0], slot.layer == chunk_layers[-1]
            kind = kind, at_ends, ends
    elif slot.layer == EVERY and slot.chunk >= 0:
        kind = tuple(layer in shape.experts for layer in chunk_layers), ends
    else:
        return slot
    return slot._replace(chunk=0, layer=min(slot.layer, 0)), kind


_equal_slots: FactStore[Script, EqualSlots] = FactStore(_equal_slots_of)


class StepParts:
    """A design, its script, and the operation of every slot.

    Attributes
    ----------
    design, script, costs
        The design, its operations, and their costs.

    Examples
    --------
    >>> from simcoll.training.design import design_from
    >>> made = StepParts(design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 8},
    ...     "topology": {"name": "dgx-h100"}, "parallel": {"tp": 4, "pp": 2},
    ... })).workload()
    >>> sorted(made.classes), sorted(made.groups)
    (['stage0', 'stage1'], ['tp'])
    """

    def __init__(self, design: Design) -> None:
        self.design = design
        self.script: Script = script_of(shape_of(design))
        self.costs = ChunkCosts(design)
        parallel = design.parallel
        self.groups = process_groups(
            design.mesh, parallel.ep, parallel.shard_group, parallel.expert_axes
        )

    def workload(self, more_fs: Mapping[int, int] | None = None) -> Workload:
        """Build the workload of the script; ``more``: additional time of single rows'
        computations.
        """
        longer = more_fs or {}
        equal = self.equal_slots
        by_number = list(map(self.operation, equal.slots))
        slots = [by_number[number] for number in equal.number_of_slot]
        rows = tuple(self.script.rows)
        ids = [
            _identity(self.script.slots[row.slot], row, number) for number, row in enumerate(rows)
        ]
        operations: list[Operation] = []
        for number, row in enumerate(rows):
            slot_operation = slots[row.slot]
            needs = tuple(ids[earlier] for earlier in row.needs)
            operations.append(
                _with_identity(slot_operation, ids[number], needs, longer.get(number, 0))
            )
        used = {name for operation in slots for name in _groups_in(operation)}
        needed, performed = self.costs.flops()
        return Workload(
            self.design.mesh.nranks,
            stages_of(self.design.mesh),
            {name: ranks for name, ranks in self.groups.items() if name in used},
            tuple(operations),
            self.design.title,
            self.design.tokens,
            needed,
            performed,
        )

    def ground(self) -> Workload:
        """Classes and groups of the workload, without operations."""
        parallel = self.design.parallel
        return _ground_of(self.design.mesh, parallel.ep, parallel.shard_group, parallel.expert_axes)

    @property
    def equal_slots(self) -> EqualSlots:
        """The slots of its script, by which of them have equal operations."""
        return _equal_slots(self.script)

    def operation(self, slot: Slot) -> Operation:
        """The operation of a slot, without its ID and dependencies."""
        if slot.does == "turn":
            return self._computation(slot)
        if slot.does == "update":
            return self._update(slot)
        if slot.does == "offload":
            return self._offload(slot)
        return self._send(slot) if slot.does == "send" else self._collective(slot)

    def _computation(self, slot: Slot) -> ComputeOperation:
        layers = None if slot.layer == EVERY else (slot.layer,)
        work = self.costs.turn(slot.work, slot.stage, slot.chunk, layers, alone=slot.alone)
        return ComputeOperation(
            id="",
            on=f"stage{slot.stage}",
            time_fs=work.time_fs,
            inside=work.inside,
            pieces=work.pieces,
            least_fs=work.least_fs,
            name=_NAMES[slot.work],
            flops=work.flops,
        )

    def _update(self, slot: Slot) -> ComputeOperation:
        dense, experts = self.costs.parameters[slot.stage]
        if self.design.parallel.shard != "none":
            shards = self.groups["shard" if "shard" in self.groups else "dp"].shape[1]
            dense = -(-dense // shards)
            experts = -(
                -experts // (self.groups["edp"].shape[1] if "edp" in self.groups else shards)
            )
        fixed = self.design.calibration.step_ms * 1e-3
        seconds = optimizer_seconds(self.design, dense + experts)
        # Its state comes and goes at once, part by part beside the update.
        if "optimizer" in self.design.parallel.offload:
            seconds = max(
                seconds,
                OPTIMIZER_BYTES * (dense + experts) / self.design.gpu.number("host.bandwidth"),
            )
        time_fs = in_fs(seconds + fixed)
        return ComputeOperation(id="", on=f"stage{slot.stage}", time_fs=time_fs, name="optimizer")

    def _offload(self, slot: Slot) -> ComputeOperation:
        """Movement of weights or activations from or to host memory: time on a separate stream."""
        weights, activations = offloaded_bytes(self.design, slot.stage, slot.chunk)
        outwards, alone = slot.stream == "offload out", slot.work == "weights"
        size = (0 if outwards else weights) + (0 if alone else activations)
        time_fs = in_fs(size / self.design.gpu.number("host.bandwidth"))
        return ComputeOperation(
            id="", on=f"stage{slot.stage}", time_fs=time_fs, stream=slot.stream, name=slot.stream
        )

    def _send(self, slot: Slot) -> SendOperation:
        design, parallel = self.design, self.design.parallel
        rows = parallel.micro_batch * (design.sequence // parallel.cp)
        size = (
            2
            * rows
            * design.model.hidden
            // (parallel.tp if parallel.sequence_parallel or parallel.scatter_gather else 1)
        )
        name = "activations" if slot.work == "F" else "gradients of activations"
        return SendOperation(
            id="",
            source=f"stage{slot.stage}",
            target=f"stage{slot.chunk}",
            size_bytes=size,
            stream=slot.stream,
            name=name,
        )

    def _collective(self, slot: Slot) -> CallOperation:
        group, on = slot.work, tuple(f"stage{stage}" for stage in self.script.stages_of(slot))
        size, n = round(self._bytes(slot)), self.groups[group].shape[1]
        if group == "replica":
            size //= self.groups["shard"].shape[1]
        return CallOperation(
            id="",
            kind=cast("CollectiveKind", slot.does),
            group=group,
            size_bytes=max(1, size - size % n),
            on=on,
            stream=slot.stream,
            name=f"{slot.does} {group}",
        )

    def _bytes(self, slot: Slot) -> float:
        """Bytes of the gradients that a collective reduces, or of the parameters that it gathers
        (embedding and head in 16 bits).
        """
        parallel, model = self.design.parallel, self.design.model
        reduces = slot.stream == "reduce"
        width = DTYPE_BYTES[parallel.gradients if reduces else parallel.gathered]
        if slot.work == "embedding":
            return width * (model.vocabulary * model.hidden // parallel.tp)
        layers, ends, experts = self._counts(slot)
        if slot.work == "edp":
            return width * experts
        parameters = layers if "edp" in self.groups else layers + experts
        return width * parameters + ends * (width if reduces else max(width, WEIGHT_BYTES))

    def _counts(self, slot: Slot) -> tuple[int, int, int]:
        """Parameters of a collective for a layer, chunk or stage: of layers, of embedding or head,
        and of experts.
        """
        parameters_of = self.costs.layer_parameters
        if slot.layer >= 0:
            dense, experts = parameters_of(slot.layer)
            return dense, 0, experts
        chunks = self.costs.chunks[slot.stage]
        total = self.costs.parameters[slot.stage][0]
        ends = total - sum(parameters_of(layer)[0] for chunk in chunks for layer in chunk)
        if slot.layer == BESIDE_LAYERS:
            return 0, ends, 0
        counts = [
            parameters_of(layer)
            for chunk in (chunks if slot.chunk < 0 else chunks[slot.chunk : slot.chunk + 1])
            for layer in chunk
        ]
        if (
            slot.chunk >= 0
            and not self.costs.is_first(slot.stage, slot.chunk)
            and not self.costs.is_last(slot.stage, slot.chunk)
        ):
            ends = 0
        return sum(dense for dense, _ in counts), ends, sum(experts for _, experts in counts)


def _identity(slot: Slot, row: ScriptRow, number: int) -> str:
    """An ID for messages and timelines, unique in a step."""
    layer = {EVERY: "", BESIDE_LAYERS: " beside layers"}.get(slot.layer, f" layer {slot.layer}")
    micro = f" of micro-batch {row.micro}" if row.micro >= 0 else ""
    if slot.does == "turn":
        return f"{number}: {slot.work} of stage {slot.stage} chunk {slot.chunk}{layer}{micro}"
    if slot.does == "send":
        return f"{number}: {slot.work} from stage {slot.stage} to {slot.chunk}{micro}"
    return f"{number}: {slot.does} {slot.work} of stage {slot.stage}{layer}{micro}"


def _with_identity(
    operation: Operation, name: str, needs: tuple[str, ...], more_fs: int
) -> Operation:
    if isinstance(operation, ComputeOperation):
        later = {"time_fs": operation.time_fs + more_fs, "least_fs": operation.least_fs + more_fs}
        return structs.replace(operation, id=name, after=needs, **later)
    return structs.replace(operation, id=name, after=needs)


def _groups_in(operation: Operation) -> tuple[str, ...]:
    if isinstance(operation, ComputeOperation):
        return tuple(inner.group for inner in operation.inside)
    return (operation.group,) if isinstance(operation, CallOperation) else ()


@lru_cache(maxsize=256)
def stages_of(mesh: Mesh) -> dict[str, Ints]:
    """Ranks of each stage, in the same order of the other axes."""
    return {f"stage{place}": ranks for place, ranks in enumerate(mesh.groups("tp", "cp", "dp"))}


@lru_cache(maxsize=256)
def _ground_of(mesh: Mesh, ep: int, shard_group: int, expert_axes: tuple[str, ...]) -> Workload:
    """The classes and groups of a mesh, checked once for all designs on it."""
    groups = process_groups(mesh, ep, shard_group, expert_axes)
    return Workload(mesh.nranks, stages_of(mesh), groups, ())


@lru_cache(maxsize=256)
def process_groups(
    mesh: Mesh, ep: int, shard_group: int, expert_axes: tuple[str, ...]
) -> dict[str, Ints]:
    """The process groups of each axis: tp, cp, dp (with cp, whose ranks hold the same parameters),
    ep and edp, shard and replica.
    """
    axes_groups = {"tp": mesh.groups("tp"), "cp": mesh.groups("cp"), "dp": mesh.groups("cp", "dp")}
    if ep > 1:
        axes_groups["ep"], axes_groups["edp"] = mesh.blocks(expert_axes, ep)
    if 0 < shard_group < axes_groups["dp"].shape[1]:
        axes_groups["shard"], axes_groups["replica"] = mesh.blocks(("cp", "dp"), shard_group)
    axes_groups["embedding"] = (
        mesh.groups("pp")[:, [0, -1]] if mesh.size("pp") > 1 else mesh.groups("pp")
    )
    return axes_groups
