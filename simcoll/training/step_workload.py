"""Build the workload of one training step from a design.

The step begins with the first forward pass and ends when all parameters are updated (and gathered,
unless the next step does that during its computation).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, cast

from msgspec import structs

from simcoll.arrays import Ints
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

__all__ = ["FLOPS_FORMULA", "StepParts"]

FLOPS_FORMULA = (
    "6 for each token and each parameter of a matrix that it meets, the head included, and of "
    "attention "
    "3 x layers x heads x (key width + value width) x sequence for each token: the causal half, "
    "less what windows leave out"
)
_NAMES = {"F": "forward", "B": "backward", "W": "weights", "BW": "backward"}


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
        by_slot = cache(self.operation)
        slots = [by_slot(self.representative(slot)) for slot in self.script.slots]
        ids = [
            _identity(self.script.slots[row.slot], row, number)
            for number, row in enumerate(self.script.rows)
        ]
        operations: list[Operation] = []
        for number, row in enumerate(self.script.rows):
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
        return Workload(self.design.mesh.nranks, stages_of(self.design.mesh), self.groups, ())

    def representative(self, slot: Slot) -> Slot:
        """A slot with an equal operation, the same for all slots of layers that differ in
        nothing.
        """
        return slot if slot.layer < 0 else slot._replace(layer=self._first_equal[slot.layer])

    @cached_property
    def _first_equal(self) -> dict[int, int]:
        """For each layer the first of its chunk that differs in nothing: the layers at the ends of
        a chunk have what the others do not, and so do layers with experts.
        """
        layer_of_kind: dict[tuple[object, ...], int] = {}
        equal = {}
        for stage, stage_chunks in enumerate(self.costs.chunks):
            for chunk, layers in enumerate(stage_chunks):
                for layer in layers:
                    ends = layer == layers[0], layer == layers[-1]
                    kind = stage, chunk, ends, self.design.model.is_moe(layer)
                    equal[layer] = layer_of_kind.setdefault(kind, layer)
        return equal

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
