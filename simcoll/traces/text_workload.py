"""Text workloads of ASTRA-sim 1.0, SimAI and AICB as workloads.

A file has layers, and its strategy says in which order their passes run: what computation waits
for which collective. The orders are those of ASTRA-sim's training loops. Every rank does the same,
so a workload has one class; it is one iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simcoll.errors import ConfigError, listed, nearest
from simcoll.formats.reports.astra_workload import (
    HYBRID,
    LAST_BOTTOM_LAYER,
    AstraCall,
    AstraLayer,
    AstraWorkload,
)
from simcoll.units import MAX_TIME_FS, counted
from simcoll.workload.workload import CallOperation, ComputeOperation, Operation, Workload

__all__ = ["text_workload"]

_FS = 10**6
"""Of the unit of the files: a nanosecond, and a cycle of ASTRA-sim's clock of 1 GHz."""
MOST_RANKS = 1 << 20
_BY_NODES = ("HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA")
"""Strategies whose groups are the dimensions of a network: inside a node, and across nodes."""


def text_workload(
    parsed: AstraWorkload,
    nranks: int | None = None,
    ranks_per_node: int | None = None,
    *,
    title: str = "",
    file: str | None = None,
) -> tuple[Workload, list[str]]:
    r"""Make a workload of a text workload, and say what it leaves out.

    Parameters
    ----------
    parsed
        The file's content.
    nranks, ranks_per_node
        Those of the machine, for files that do not say how many ranks they have, and for
        strategies that divide ranks by nodes.
    title
        Of the workload.
    file
        For errors.

    Raises
    ------
    ConfigError
        For a strategy whose order or groups the file does not hold, and for numbers of ranks that
        do not divide.

    Examples
    --------
    >>> from simcoll.formats.reports.astra_workload import parse_astra_workload
    >>> text = "DATA\n1\nconv -1 10 NONE 0 10 NONE 0 10 ALLREDUCE 4096 5\n"
    >>> workload, _ = text_workload(parse_astra_workload(text), nranks=4)
    >>> [operation.id for operation in workload.operations]
    ['0 conv forward', '0 conv weight gradient', '0 conv weight gradient all', '0 conv update']
    """
    iterate = _ITERATIONS.get(parsed.strategy)
    if iterate is None:
        raise ConfigError(
            f"strategy {parsed.strategy[:60]!r} has no order of passes that is known here; "
            f"{nearest(parsed.strategy, _ITERATIONS)}",
            file=file,
            path="line 1",
        )
    if parsed.compute * _FS > MAX_TIME_FS:
        raise ConfigError(
            f"computation of {parsed.compute:.3g} ns, more than the 2.5 hours that a workload may "
            "take",
            file=file,
        )
    shape = _shape(parsed, nranks, file)
    groups = _groups(parsed, shape, ranks_per_node, file)
    passes = _PassOrder(parsed, groups, file)
    iterate(passes)
    calls = [part for part in passes.operations if isinstance(part, CallOperation)]
    workload = Workload(
        shape.nranks,
        {"all": np.arange(shape.nranks)},
        {name: groups[name] for name in sorted({call.group for call in calls})},
        tuple(passes.operations),
        title,
    )
    return workload, _notes(parsed, shape, passes)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The ranks of a stage: tensor parallelism innermost, then experts, then the other data."""

    nranks: int
    tensor: int
    experts: int
    stages: int

    @property
    def data(self) -> int:
        return self.nranks // self.tensor


def _shape(parsed: AstraWorkload, nranks: int | None, file: str | None) -> _Shape:
    """The numbers of ranks, from the first line or the machine."""
    names = ("model_parallel_NPU_group", "ep", "pp")
    tensor, experts, stages = (int(parsed.settings.get(name, 1)) for name in names)
    total = int(parsed.settings.get("all_gpus", 0))
    if min(tensor, experts, stages) < 1:
        raise ConfigError(
            f"{listed(names)}: expected at least 1 each, got {tensor}, {experts} and {stages}",
            file=file,
            path="line 1",
        )
    if not total and nranks is None:
        raise ConfigError(
            "the file does not say how many ranks it has: give --topology, whose ranks they are",
            file=file,
        )
    total = total or (nranks or 0) * stages
    if total > MOST_RANKS or total % (tensor * experts * stages):
        raise ConfigError(
            f"{total:,} ranks: expected at most {MOST_RANKS:,}, and a multiple of "
            f"model_parallel_NPU_group x ep x pp = {tensor} x {experts} x {stages}",
            file=file,
            path="line 1",
        )
    return _Shape(total // stages, tensor, experts, stages)


def _groups(
    parsed: AstraWorkload, shape: _Shape, ranks_per_node: int | None, file: str | None
) -> dict[str, NDArray[np.int64]]:
    """The groups of ranks by name."""
    ranks = np.arange(shape.nranks)
    if parsed.strategy in _BY_NODES:
        if ranks_per_node is None or shape.nranks % ranks_per_node:
            raise ConfigError(
                f"{parsed.strategy} divides ranks by the nodes of a network, which the file does "
                "not describe: give --topology, a machine of equal nodes",
                file=file,
            )
        nodes = ranks.reshape(-1, ranks_per_node)
        in_node, between = ("tp", "dp") if parsed.strategy == _BY_NODES[0] else ("dp", "tp")
        return {in_node: nodes, between: nodes.T, "all": ranks[None, :]}
    by_axis = ranks.reshape(shape.data // shape.experts, shape.experts, shape.tensor)
    return {
        "all": ranks[None, :],
        "tp": ranks.reshape(-1, shape.tensor),
        "dp": ranks.reshape(shape.data, shape.tensor).T,
        "ep": by_axis.transpose(0, 2, 1).reshape(-1, shape.experts),
        "dp_ep": by_axis.transpose(1, 2, 0).reshape(shape.experts * shape.tensor, -1),
    }


@dataclass(eq=False)
class _PassOrder:
    """Builds the operations of one iteration in order; ``awaited`` delays what comes next."""

    parsed: AstraWorkload
    groups: Mapping[str, NDArray[np.int64]]
    file: str | None
    operations: list[Operation] = field(default_factory=list)
    latest: str = ""
    awaited: list[str] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    parts_gathered: int = 0

    @property
    def layers(self) -> tuple[AstraLayer, ...]:
        return self.parsed.layers

    def _id(self, text: str) -> str:
        """An id that is unique: of a layer that is computed again, too."""
        number = self.ids[text] = self.ids.get(text, 0) + 1
        return text if number == 1 else f"{text} again" + (f" {number}" if number > 2 else "")

    def compute(self, place: int, stage: str, time: float) -> None:
        """Compute a pass of a layer, after what is awaited."""
        if not time and not self.awaited:
            return
        name = f"{place} {self.layers[place].name} {stage}"
        operation = ComputeOperation(
            id=self._id(name),
            on="all",
            time_fs=round(time * _FS),
            after=tuple(dict.fromkeys(self.awaited)),
            name=stage,
        )
        self.awaited.clear()
        self.operations.append(operation)
        self.latest = operation.id

    def communicate(self, place: int, call: AstraCall | None) -> str:
        """Begin a collective after the latest computation; returns what its result waits for."""
        if call is None:
            return ""
        group = call.group
        if group not in self.groups:
            raise ConfigError(
                f"layer {place} ({call.layer}), {call.stage}: group {group[:40]!r}: "
                f"{nearest(group, self.groups)}",
                file=self.file,
            )
        size_bytes, members = call.size_bytes, self.groups[group].shape[1]
        if members == 1:
            return ""
        if call.kind == "all_gather" and not _counts_whole(self.parsed):
            size_bytes *= members
            self.parts_gathered += 1
        predecessors = dict.fromkeys([self.latest, *self.awaited] if self.latest else self.awaited)
        operation = CallOperation(
            id=self._id(f"{place} {call.layer} {call.stage} {group}"),
            kind=call.kind,
            group=group,
            size_bytes=size_bytes,
            stream=group,
            after=tuple(predecessors),
            name=f"{call.stage} {group}",
        )
        self.operations.append(operation)
        layer = self.layers[place]
        if not layer.update:
            return operation.id
        update = ComputeOperation(
            id=self._id(f"{place} {layer.name} update"),
            on="all",
            time_fs=round(layer.update * _FS),
            stream=f"update {group}",
            after=(operation.id,),
            name="update",
        )
        self.operations.append(update)
        return update.id

    def wait(self, result: str) -> None:
        """Let the next computation wait for a collective."""
        if result:
            self.awaited.append(result)

    def forward(self, places: Sequence[int]) -> None:
        """Forward passes, each of which waits for its collective."""
        for place in places:
            stage = self.layers[place].forward
            self.compute(place, "forward", stage.time)
            self.wait(self.communicate(place, stage.call))


def _counts_whole(parsed: AstraWorkload) -> bool:
    """Whether the size of an all_gather is that of its output, as in SimAI and AICB."""
    return parsed.strategy.startswith("HYBRID_TRANSFORMER")


def _data(passes: _PassOrder) -> None:
    """Gradients of weights are reduced beside the rest of the backward pass."""
    layers = passes.layers
    for place, layer in enumerate(layers):
        passes.compute(place, "forward", layer.forward.time)
    for place in reversed(range(len(layers))):
        layer = layers[place]
        passes.compute(place, "weight gradient", layer.weight_gradient.time)
        passes.communicate(place, layer.weight_gradient.call)
        if place:
            passes.compute(place, "input gradient", layer.input_gradient.time)


def _hybrid(passes: _PassOrder) -> None:
    """Gradients of inputs are sent beside those of weights, and awaited after them."""
    _backward_after_forward(passes, transformer=False)


def _transformer(passes: _PassOrder) -> None:
    """Gradients of inputs are awaited at once, and layers may be computed again."""
    _backward_after_forward(passes, transformer=True)


def _backward_after_forward(passes: _PassOrder, *, transformer: bool) -> None:
    layers, parsed = passes.layers, passes.parsed
    passes.forward(range(len(layers)))
    for place in reversed(range(len(layers))):
        layer = layers[place]
        if place in parsed.recomputed:
            passes.forward(range(_last_checkpoint(passes, place), place))
        passes.compute(place, "input gradient", layer.input_gradient.time)
        sends = transformer or place > 0
        result = passes.communicate(place, layer.input_gradient.call) if sends else ""
        if transformer:
            passes.wait(result)
        passes.compute(place, "weight gradient", layer.weight_gradient.time)
        if parsed.strategy != "MODEL":
            passes.communicate(place, layer.weight_gradient.call)
        if not transformer:
            passes.wait(result)


def _last_checkpoint(passes: _PassOrder, place: int) -> int:
    earlier = [number for number in passes.parsed.checkpoints if number < place]
    if not earlier:
        raise ConfigError(
            f"checkpoint_initiates: layer {place} computes again from a checkpoint before it, and "
            "there is none",
            file=passes.file,
            path="line 1",
        )
    return earlier[-1]


def _recommendation(passes: _PassOrder) -> None:
    """DLRM: the embeddings of layer 0 are exchanged beside the layers below the interaction."""
    layers, parsed = passes.layers, passes.parsed
    last_bottom = int(parsed.settings.get(LAST_BOTTOM_LAYER, -1))
    if not 0 <= last_bottom < len(layers):
        raise ConfigError(
            f"{LAST_BOTTOM_LAYER}: expected the number of a layer, 0 to {len(layers) - 1}",
            file=passes.file,
            path="line 1",
        )
    embeddings = ""
    for place, layer in enumerate(layers):
        passes.compute(place, "forward", layer.forward.time)
        call = layer.forward.call
        if call is not None and call.kind == "all_to_all":
            result = passes.communicate(place, call)
            embeddings = result if place == 0 else embeddings
        if place == last_bottom:
            passes.wait(embeddings)
    for place in reversed(range(len(layers))):
        layer = layers[place]
        passes.compute(place, "weight gradient", layer.weight_gradient.time)
        passes.communicate(place, layer.weight_gradient.call)
        if place:
            passes.compute(place, "input gradient", layer.input_gradient.time)
        if place == last_bottom + 1:
            passes.communicate(0, layers[0].input_gradient.call)


def _inference(passes: _PassOrder) -> None:
    """Forward passes alone."""
    passes.forward(range(len(passes.layers)))


def _micro(passes: _PassOrder) -> None:
    """The collectives of the weights alone, one after another."""
    for place, layer in enumerate(passes.layers):
        passes.communicate(place, layer.weight_gradient.call)


_ITERATIONS: Mapping[str, Callable[[_PassOrder], None]] = {
    "DATA": _data,
    "MODEL": _hybrid,
    "HYBRID_DATA_MODEL": _hybrid,
    "HYBRID_MODEL_DATA": _hybrid,
    "HYBRID_TRANSFORMER": _transformer,
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD": _transformer,
    "HYBRID_DLRM": _recommendation,
    "HYBRID_DLRM_ENHANCED": _recommendation,
    "DISTRIBUTED_INFERENCE": _inference,
    "MICRO": _micro,
}


def _notes(parsed: AstraWorkload, shape: _Shape, passes: _PassOrder) -> list[str]:
    """What the file does not hold, and how it was read."""
    reading = (
        "one iteration; times are nanoseconds (cycles of ASTRA-sim's clock of 1 GHz), and the "
        "collectives of each group run one after another"
    )
    notes = [reading]
    if shape.stages > 1:
        message = int(parsed.settings.get("pp_comm", 0))
        size = f" of {message:,} bytes" if message else ""
        notes.append(
            f"one stage of {shape.stages}, on {shape.nranks:,} of {shape.nranks * shape.stages:,} "
            f"ranks: the file has no order of the stages, so their messages{size} and the bubble "
            "of the pipeline are not in the time"
        )
    if parsed.strategy in HYBRID and "all_gpus" not in parsed.settings:
        notes.append(f"the file does not say how many ranks it has: all {shape.nranks:,} are used")
    if passes.parts_gathered:
        notes.append(
            f"{counted(passes.parts_gathered, 'all_gather')}: sizes are those of a rank's part, "
            "as ASTRA-sim takes them; SimAI takes them for the whole"
        )
    return notes
