"""Text workloads of ASTRA-sim 1.0, SimAI and AICB: layers with three passes each.

The first line has the strategy and, in SimAI's and AICB's dialect, the sizes of the groups; the
second the number of layers. A layer has, for forward, input gradient and weight gradient, a time of
computation, a collective and its size in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import ConfigError, shown
from simcoll.files.reader_arguments import Content, content_of

__all__ = ["AstraCall", "AstraLayer", "AstraPass", "AstraWorkload", "parse_astra_workload"]

MAX_BYTES = 64 << 20
MAX_LAYERS = 1_000_000
_COLUMNS = 12
_SETTING = re.compile(r"([A-Za-z_]{1,40}):?\s+(\d{1,12}(?:\.\d{1,6})?)(?=\s|$)")
_WHOLE = re.compile(r"\d{1,18}(?:\.\d{1,9})?")
_KINDS: Mapping[str, CollectiveKind] = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "BROADCAST": "broadcast",
}
HYBRID = (
    "HYBRID_TRANSFORMER",
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
)
"""Strategies whose weights are reduced in other groups than their activations."""
LAST_BOTTOM_LAYER = "DLRM_LAST_BOTTOM_LAYER"
_PASSES = ("forward", "input gradient", "weight gradient")


@dataclass(frozen=True, slots=True)
class AstraCall:
    """A collective of a layer.

    Attributes
    ----------
    layer, stage
        The layer's name, and ``"forward"``, ``"input gradient"`` or ``"weight gradient"``.
    kind, size_bytes
        The collective, and its size as the file states it.
    group
        ``"tp"``, ``"dp"``, ``"ep"``, ``"dp_ep"``, or ``"all"``.
    """

    layer: str
    stage: str
    kind: CollectiveKind
    size_bytes: int
    group: str


@dataclass(frozen=True, slots=True)
class AstraPass:
    """A pass of a layer: its time of computation, and the collective after it, if any."""

    time: float
    call: AstraCall | None = None


@dataclass(frozen=True, slots=True)
class AstraLayer:
    """A layer.

    Attributes
    ----------
    name
        As in the file.
    forward, input_gradient, weight_gradient
        Its passes.
    update
        Time from the end of each of its collectives until the result can be used.
    """

    name: str
    forward: AstraPass
    input_gradient: AstraPass
    weight_gradient: AstraPass
    update: float

    @property
    def passes(self) -> tuple[AstraPass, AstraPass, AstraPass]:
        """The passes, in the order of the file."""
        return self.forward, self.input_gradient, self.weight_gradient


@dataclass(frozen=True, slots=True)
class AstraWorkload:
    """A text workload.

    Attributes
    ----------
    strategy
        Such as ``HYBRID_TRANSFORMER_FWD_IN_BCKWD``.
    settings
        Numbers of the first line, such as ``all_gpus``.
    layers
        Its layers.
    checkpoints, recomputed
        Numbers of the layers whose input is kept, and of those before whose backward pass the
        layers since the last kept one are computed again.
    """

    strategy: str
    settings: dict[str, float]
    layers: tuple[AstraLayer, ...]
    checkpoints: tuple[int, ...] = ()
    recomputed: tuple[int, ...] = ()

    @property
    def calls(self) -> list[AstraCall]:
        """Collectives in the order of the file."""
        passes = [stage for layer in self.layers for stage in layer.passes]
        return [stage.call for stage in passes if stage.call is not None]

    @property
    def compute(self) -> float:
        """Sum of all times, in the unit of the file: cycles in ASTRA-sim, nanoseconds in SimAI."""
        return sum(
            layer.update + sum(stage.time for stage in layer.passes) for layer in self.layers
        )

    def ranks_of(self, group: str) -> int:
        """Number of ranks of a group; 0 where the file does not say."""
        total = int(self.settings.get("all_gpus", 0))
        tensor = int(self.settings.get("model_parallel_NPU_group", 0))
        experts, stages = int(self.settings.get("ep", 1)), int(self.settings.get("pp", 1))
        if not total or not tensor:
            return 0
        data = total // max(1, tensor * stages)
        sizes = {"all": total, "tp": tensor, "ep": experts, "dp": data}
        return sizes.get(group, data // max(1, experts))


def parse_astra_workload(content: Content, file: str | None = None) -> AstraWorkload:
    r"""Read a text workload.

    Raises
    ------
    ConfigError
        With the line of what does not fit.

    Examples
    --------
    >>> text = "DATA\n1\nconv -1 10 NONE 0 10 NONE 0 10 ALLREDUCE 4096 5\n"
    >>> workload = parse_astra_workload(text)
    >>> workload.compute, workload.calls[0].kind, workload.calls[0].size_bytes
    (35.0, 'all_reduce', 4096)
    """
    data = content_of(content, "parse_astra_workload")
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", file=file)
    numbered = [
        (number, line.split())
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1)
        if line.strip()
    ]
    if len(numbered) < 2:
        raise ConfigError("expected a strategy and a number of layers", file=file)
    strategy, *words = numbered[0][1]
    count = numbered[1][1][0]
    if not re.fullmatch(r"\d{1,7}", count) or int(count) > MAX_LAYERS:
        raise ConfigError(
            f"expected a number of layers, up to {MAX_LAYERS:,}, got {shown(count)}",
            file=file,
            path=f"line {numbered[1][0]}",
        )
    lines = numbered[2:]
    if len(lines) < int(count):
        raise ConfigError(f"expected {count} layers, got {len(lines)}", file=file)
    settings = {name: float(value) for name, value in _SETTING.findall(" ".join(words))}
    if words and _WHOLE.fullmatch(words[0]):  # as Chakra's converter reads it
        settings.setdefault(LAST_BOTTOM_LAYER, float(words[0]))
    first_line = f"line {numbered[0][0]}"
    return AstraWorkload(
        strategy,
        settings,
        tuple(
            _layer(cells, strategy, file, f"line {number}") for number, cells in lines[: int(count)]
        ),
        _listed_layers(words, "checkpoints", int(count), file, first_line),
        _listed_layers(words, "checkpoint_initiates", int(count), file, first_line),
    )


def _listed_layers(
    words: list[str], name: str, layers: int, file: str | None, path: str
) -> tuple[int, ...]:
    """Numbers of layers after a name and their count: ``checkpoints: 2 0 5``."""
    place = next((place for place, word in enumerate(words) if word.rstrip(":") == name), None)
    if place is None:
        return ()
    following = words[place + 1 :] or [""]
    number = re.compile(r"\d{1,7}")
    expected = int(following[0]) if number.fullmatch(following[0]) else -1
    listed_numbers = following[1 : max(0, expected) + 1]
    if len(listed_numbers) != expected or not all(map(number.fullmatch, listed_numbers)):
        raise ConfigError(
            f"{name}: expected a count and as many numbers of layers, got "
            f"{shown(' '.join(following[:5]))}",
            file=file,
            path=path,
        )
    numbers = sorted(map(int, listed_numbers))
    if numbers and numbers[-1] >= layers:
        raise ConfigError(
            f"{name}: expected numbers of layers, 0 to {layers - 1}, got {numbers[-1]}",
            file=file,
            path=path,
        )
    return tuple(numbers)


def _layer(cells: list[str], strategy: str, file: str | None, path: str) -> AstraLayer:
    """A layer from its cells."""
    numbers = [cells[place] for place in (2, 4, 5, 7, 8, 10, 11) if place < len(cells)]
    if len(cells) < _COLUMNS or not all(map(_WHOLE.fullmatch, numbers)):
        raise ConfigError(
            "expected a layer: name, dependency, three times of computation with a collective and "
            f"a size each, and the time of the update; got {shown(' '.join(cells))}",
            file=file,
            path=path,
        )
    layer = cells[0][:100]
    passes = []
    for number, stage in enumerate(_PASSES):
        time, title, size = cells[2 + 3 * number : 5 + 3 * number]
        name, _, suffix = title.upper().partition("_")
        if name in {"NONE", ""} or not float(size):
            passes.append(AstraPass(float(time)))
            continue
        if name not in _KINDS:
            raise ConfigError(
                f"unknown collective {shown(title)}; expected NONE, {', '.join(_KINDS)}",
                file=file,
                path=path,
            )
        default = "dp" if stage == "weight gradient" else "tp"
        group = suffix.lower() or (default if strategy in HYBRID else "all")
        call = AstraCall(layer, stage, _KINDS[name], int(float(size)), group)
        passes.append(AstraPass(float(time), call))
    forward, input_gradient, weight_gradient = passes
    update = float(cells[_COLUMNS - 1])
    return AstraLayer(layer, forward, input_gradient, weight_gradient, update)
