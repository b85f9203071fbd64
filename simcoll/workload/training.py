"""From a design to the workload of one training step.

The step begins with the first forward pass and ends when all parameters are updated (and gathered, where the next step does not do
that beside its own computation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from simcoll.workload.chunks import Costs
from simcoll.workload.gpu import DTYPE_BYTES
from simcoll.workload.layers import in_fs, optimizer_seconds
from simcoll.workload.memory import WEIGHT_BYTES
from simcoll.workload.pipeline import Turn, stage_order
from simcoll.workload.workload import Call, Compute, Send, Workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from simcoll.workload.chunks import Work
    from simcoll.workload.design import Design
    from simcoll.workload.workload import Operation

Counts: TypeAlias = tuple[int, int]
"""Ordinary parameters, and those of experts."""

__all__ = ["FLOPS_FORMULA", "training_step"]

FLOPS_FORMULA = (
    "6 for each token and each parameter of a matrix that it meets, the head included, and of attention "
    "3 x layers x heads x (key width + value width) x sequence for each token: the causal half"
)


def training_step(design: Design) -> Workload:
    """The workload of one training step.

    Examples
    --------
    >>> from simcoll.workload.design import design_from
    >>> made = training_step(design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 8},
    ...     "topology": {"name": "dgx-h100"}, "parallel": {"tp": 4, "pp": 2},
    ... }))
    >>> sorted(made.classes), sorted(made.groups)
    (['stage0', 'stage1'], ['tp'])
    """
    costs = Costs(design)
    writer = _Writer(design, costs)
    writer.write()
    needed, done = costs.flops()
    groups = process_groups(design)
    used = {name for operation in writer.operations for name in _groups_in(operation)}
    return Workload(
        design.mesh.nranks,
        stages_of(design),
        {name: found for name, found in groups.items() if name in used},
        tuple(writer.operations),
        design.title,
        design.tokens,
        needed,
        done,
    )


def _groups_in(operation: Operation) -> tuple[str, ...]:
    if isinstance(operation, Compute):
        return tuple(inner.group for inner in operation.inside)
    return (operation.group,) if isinstance(operation, Call) else ()


def stages_of(design: Design) -> dict[str, NDArray[np.int64]]:
    """Ranks of every stage, in the same order of the other axes."""
    return {f"stage{place}": ranks for place, ranks in enumerate(design.mesh.groups("tp", "cp", "dp"))}


def process_groups(design: Design) -> dict[str, NDArray[np.int64]]:
    """The process groups of every axis: tp, cp, dp (with cp, whose ranks hold the same parameters), ep and edp, shard and replica."""
    mesh, parallel = design.mesh, design.parallel
    found = {"tp": mesh.groups("tp"), "cp": mesh.groups("cp"), "dp": mesh.groups("cp", "dp")}
    if parallel.ep > 1:
        found["ep"], found["edp"] = mesh.blocks(("tp", "cp", "dp"), parallel.ep)
    if 0 < parallel.shard_group < found["dp"].shape[1]:
        found["shard"], found["replica"] = mesh.blocks(("cp", "dp"), parallel.shard_group)
    if parallel.pp > 1 and design.model.tied:
        found["embedding"] = mesh.groups("pp")[:, [0, -1]]
    return found


class _Writer:
    """Operations of a step, in an order in which each comes after what it waits for."""

    def __init__(self, design: Design, costs: Costs) -> None:
        self.design = design
        self.costs = costs
        self.parallel = design.parallel
        self.operations: list[Operation] = []
        self.arrived: dict[tuple[str, int, int, int], str] = {}
        self.last: dict[int, tuple[str, ...]] = {}
        self.synchronised: dict[int, list[str]] = {stage: [] for stage in range(design.parallel.pp)}
        self.gathered: dict[tuple[int, int], tuple[str, ...]] = {}
        self.groups = process_groups(design)
        self.ranks = design.mesh.size("dp") * design.mesh.size("cp")
        self.sharded = design.parallel.shard == "parameters" and self.ranks > 1

    def add(self, operation: Operation) -> str:
        self.operations.append(operation)
        return operation.id

    def write(self) -> None:
        p, v, m = self.parallel.pp, self.parallel.virtual, self.design.micro_batches
        if self.parallel.overlap_dp and self.parallel.shard in {"optimizer", "gradients"} and self.ranks > 1:
            for stage in range(p):
                for chunk in range(v):
                    self.gathered[stage, chunk] = self._gather_parameters(stage, chunk)
        orders = [stage_order(p, v, m, stage, self.parallel.schedule) for stage in range(p)]
        places = [0] * p
        while any(places[stage] < len(orders[stage]) for stage in range(p)):
            for stage in range(p):
                while places[stage] < len(orders[stage]) and self._ready(stage, orders[stage][places[stage]]):
                    self._turn(stage, orders[stage][places[stage]])
                    places[stage] += 1
        for stage in range(p):
            self._finish(stage)

    def _ready(self, stage: int, turn: Turn) -> bool:
        """Whether what a turn needs from another stage was sent by an operation before."""
        if turn.kind == "W" or self._begins(stage, turn):
            return True
        return (turn.kind, turn.micro, turn.chunk, stage) in self.arrived

    def _begins(self, stage: int, turn: Turn) -> bool:
        at = self.costs.is_first if turn.kind == "F" else self.costs.is_last
        return at(stage, turn.chunk)

    def _turn(self, stage: int, turn: Turn) -> None:
        kind, micro, chunk = turn
        came = self.arrived.pop((kind, micro, chunk, stage), None)
        after = (*self.last.get(stage, ()), *((came,) if came else ()))
        if kind == "F" and micro == 0:
            after += self.gathered.get((stage, chunk), ())
        self.last[stage] = ()
        split = self.parallel.schedule == "zero-bubble"
        work = "BW" if kind == "B" and not split else kind
        final = micro == self.design.micro_batches - 1 and kind == ("W" if split else "B")
        one_by_one = self.sharded or (final and self.parallel.overlap_dp and self.ranks > 1)
        if one_by_one and self.costs.chunks[stage][chunk]:
            done = self._layer_by_layer(stage, turn, work, after, final=final)
        else:
            done = self._compute(stage, turn, self.costs.turn(work, stage, chunk), after, "")
        if kind != "W" and not self._ends(stage, turn):
            self._send(stage, turn, done)

    def _ends(self, stage: int, turn: Turn) -> bool:
        at = self.costs.is_last if turn.kind == "F" else self.costs.is_first
        return at(stage, turn.chunk)

    def _compute(
        self, stage: int, turn: Turn, work: Work, after: tuple[str, ...], suffix: str, slower: float = 0.0
    ) -> str:
        name = {"F": "forward", "B": "backward", "W": "weights"}[turn.kind]
        return self.add(
            Compute(
                id=f"{name} {turn.micro}.{turn.chunk} of stage {stage}{suffix}", on=f"stage{stage}",
                time_fs=round(work.time_fs * (1 + slower)),
                after=after, inside=work.inside, pieces=work.pieces, least_fs=work.least_fs, name=name, flops=work.flops,
            )
        )  # fmt: skip

    def _layer_by_layer(self, stage: int, turn: Turn, work: str, after: tuple[str, ...], *, final: bool) -> str:
        """A turn beside collectives of its layers: parameters are gathered before, gradients reduced after them."""
        layers = self.costs.chunks[stage][turn.chunk]
        done: list[str] = []
        slower = self.design.calibration.overlap
        for layer in layers if turn.kind == "F" else reversed(layers):
            needs = after if not done else ()
            tag = f" layer {layer}"
            where = f"{turn.micro}.{turn.chunk} {turn.kind} of stage {stage}{tag}"
            if self.sharded and turn.kind != "W":  # gathered up to two layers ahead
                needs += self._gather(stage, where, self.costs.layer_parameters(layer), (*after, *done[-2:-1]))
            done.append(
                self._compute(stage, turn, self.costs.turn(work, stage, turn.chunk, (layer,)), needs, tag, slower)
            )
            reduces = turn.kind == "W" or (turn.kind == "B" and self.parallel.schedule != "zero-bubble")
            if reduces and (self.sharded or (final and self.parallel.overlap_dp)):
                self.synchronised[stage] += self._reduce(stage, where, self.costs.layer_parameters(layer), (done[-1],))
        return done[-1]

    def _reduce(self, stage: int, where: str, counts: Counts, after: tuple[str, ...]) -> tuple[str, ...]:
        """Reduce the gradients of so many parameters over the ranks that hold the same."""
        kind = "all_reduce" if self.parallel.shard == "none" else "reduce_scatter"
        return self._collective(kind, stage, where, counts, DTYPE_BYTES[self.parallel.gradients], after)

    def _gather(self, stage: int, where: str, counts: Counts, after: tuple[str, ...]) -> tuple[str, ...]:
        """Gather so many parameters from the ranks that share them."""
        return self._collective("all_gather", stage, where, counts, WEIGHT_BYTES, after)

    def _collective(
        self, kind: str, stage: int, where: str, counts: Counts, width: float, after: tuple[str, ...]
    ) -> tuple[str, ...]:
        inner = "shard" if "shard" in self.groups and self.parallel.shard != "none" else "dp"
        stream = "gather" if kind == "all_gather" else "reduce"
        made: list[str] = []
        for count, group in zip(counts, (inner, "edp" if self.parallel.ep > 1 else inner), strict=True):
            size, n = round(count * width), self.groups[group].shape[1]
            if size and n > 1:
                made.append(self._call(kind, stage, group, size - size % n, after, where, stream))
                if group == "shard" and kind == "reduce_scatter":
                    made.append(self._call("all_reduce", stage, "replica", size // n, (made[-1],), where, stream))
        return tuple(made)

    def _call(
        self, kind: str, stage: int, group: str, size: int, after: tuple[str, ...], where: str, stream: str
    ) -> str:
        return self.add(
            Call(
                id=f"{kind} {group} {where}", kind=kind, group=group, size_bytes=max(1, size), on=(f"stage{stage}",),
                stream=stream, after=after, name=f"{kind} {group}",
            )
        )  # fmt: skip

    def _beside(self, stage: int) -> tuple[int, int]:
        """Parameters of a stage that are in no layer: embedding, head, last norm."""
        layers = [self.costs.layer_parameters(layer) for chunk in self.costs.chunks[stage] for layer in chunk]
        dense, experts = self.costs.parameters[stage]
        return dense - sum(each[0] for each in layers), experts - sum(each[1] for each in layers)

    def _send(self, stage: int, turn: Turn, done: str) -> None:
        """Activations to the next stage, or their gradients to the one before."""
        p, forward = self.parallel.pp, turn.kind == "F"
        target = (stage + 1) % p if forward else (stage - 1) % p
        wraps = (stage == p - 1) if forward else (stage == 0)
        chunk = turn.chunk + (wraps if forward else -wraps)
        rows = self.parallel.micro_batch * (self.design.sequence // self.parallel.cp)
        size = 2 * rows * self.design.model.hidden // (self.parallel.tp if self.parallel.sequence_parallel else 1)
        parity = "around" if wraps and p % 2 else str(stage % 2)
        made = self.add(
            Send(
                id=f"send {turn.kind} {turn.micro}.{turn.chunk} of stage {stage}", source=f"stage{stage}", target=f"stage{target}",
                size_bytes=size, stream=f"send {turn.kind} {parity}", after=(done,),
                name="activations" if forward else "gradients of activations",
            )
        )  # fmt: skip
        self.arrived[turn.kind, turn.micro, chunk, target] = made
        if not self.parallel.sends_overlap:
            self.last[stage] = (*self.last.get(stage, ()), made)

    def _gather_parameters(self, stage: int, chunk: int) -> tuple[str, ...]:
        """Parameters of a chunk as the step before has updated them."""
        made: tuple[str, ...] = ()
        where = f"of chunk {chunk} of stage {stage}"
        if chunk == 0:
            made += self._gather(stage, f"{where} beside layers", self._beside(stage), ())
        for layer in self.costs.chunks[stage][chunk]:
            made += self._gather(stage, f"{where} layer {layer}", self.costs.layer_parameters(layer), ())
        return made

    def _finish(self, stage: int) -> None:
        """Reduce what is left, update, and gather what the next step does not."""
        self._last_reductions(stage)
        if self.parallel.pp > 1 and self.design.model.tied and stage == self.parallel.pp - 1:
            self._tied_embedding()
        if stage == self.parallel.pp - 1:
            for each in range(self.parallel.pp):
                self._update(each)

    def _last_reductions(self, stage: int) -> None:
        if self.ranks == 1 and self.parallel.ep == 1:
            return
        one_by_one = self.sharded or self.parallel.overlap_dp
        counts = self._beside(stage) if one_by_one else self.costs.parameters[stage]
        self.synchronised[stage] += self._reduce(stage, f"of stage {stage}", counts, self._last_computation(stage))

    def _last_computation(self, stage: int) -> tuple[str, ...]:
        on = f"stage{stage}"
        return next(
            ((each.id,) for each in reversed(self.operations) if isinstance(each, Compute) and each.on == on), ()
        )

    def _tied_embedding(self) -> None:
        """First and last stage hold copies of one embedding."""
        last = self.parallel.pp - 1
        size = round(
            self.design.model.vocabulary
            * self.design.model.hidden
            // self.parallel.tp
            * DTYPE_BYTES[self.parallel.gradients]
        )
        made = self.add(
            Call(
                id="all_reduce embedding", kind="all_reduce", group="embedding", size_bytes=size,
                on=("stage0", f"stage{last}"), stream="reduce",
                after=(*self.synchronised[0], *self.synchronised[last], *self._last_computation(0), *self._last_computation(last)),
                name="all_reduce embedding",
            )
        )  # fmt: skip
        self.synchronised[0].append(made)
        self.synchronised[last].append(made)

    def _update(self, stage: int) -> None:
        dense, experts = self.costs.parameters[stage]
        if self.parallel.shard != "none":
            over = self.groups["shard" if "shard" in self.groups else "dp"].shape[1]
            dense = -(-dense // over)
            experts = -(-experts // (self.groups["edp"].shape[1] if self.parallel.ep > 1 else over))
        fixed = self.design.calibration.step_ms * 1e-3
        after = (*self.synchronised[stage], *self.last.get(stage, ()))
        done = self.add(
            Compute(
                id=f"update of stage {stage}", on=f"stage{stage}", after=after, name="optimizer",
                time_fs=in_fs(optimizer_seconds(self.design, dense + experts) + fixed),
            )
        )  # fmt: skip
        if self.parallel.shard in {"optimizer", "gradients"} and not self.parallel.overlap_dp:
            self._gather(stage, f"of stage {stage}", self.costs.parameters[stage], (done,))
