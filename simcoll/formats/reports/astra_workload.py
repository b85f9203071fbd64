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

__all__ = ["AstraCall", "AstraWorkload", "parse_astra_workload"]

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
class AstraWorkload:
    """A text workload.

    Attributes
    ----------
    strategy
        Such as ``HYBRID_TRANSFORMER_FWD_IN_BCKWD``.
    settings
        Numbers of the first line, such as ``all_gpus``.
    layers
        Number of layers.
    compute
        Sum of all times of computation, in the unit of the file: cycles in ASTRA-sim, nanoseconds
        in SimAI.
    calls
        Collectives in the order of the file.
    """

    strategy: str
    settings: dict[str, float]
    layers: int
    compute: float
    calls: tuple[AstraCall, ...]

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
    strategy = numbered[0][1][0]
    settings = dict(_SETTING.findall(" ".join(numbered[0][1][1:])))
    count = numbered[1][1][0]
    if not re.fullmatch(r"\d{1,7}", count) or int(count) > MAX_LAYERS:
        raise ConfigError(
            f"expected a number of layers, up to {MAX_LAYERS:,}, got {shown(count)}",
            file=file,
            path=f"line {numbered[1][0]}",
        )
    layers = numbered[2:]
    if len(layers) < int(count):
        raise ConfigError(f"expected {count} layers, got {len(layers)}", file=file)
    calls: list[AstraCall] = []
    compute = 0.0
    for number, cells in layers[: int(count)]:
        compute += _layer(cells, strategy, calls, file, f"line {number}")
    numbers = {name: float(value) for name, value in settings.items()}
    return AstraWorkload(strategy, numbers, int(count), compute, tuple(calls))


def _layer(
    cells: list[str], strategy: str, calls: list[AstraCall], file: str | None, path: str
) -> float:
    """Add the collectives of a layer; returns its time of computation."""
    numbers = [cells[place] for place in (2, 4, 5, 7, 8, 10, 11) if place < len(cells)]
    if len(cells) < _COLUMNS or not all(map(_WHOLE.fullmatch, numbers)):
        raise ConfigError(
            "expected a layer: name, dependency, three times of computation with a collective and "
            f"a size each, and the time of the update; got {shown(' '.join(cells))}",
            file=file,
            path=path,
        )
    compute = float(cells[_COLUMNS - 1])
    for number, stage in enumerate(_PASSES):
        time, title, size = cells[2 + 3 * number : 5 + 3 * number]
        compute += float(time)
        name, _, suffix = title.upper().partition("_")
        if name in {"NONE", ""} or not float(size):
            continue
        if name not in _KINDS:
            raise ConfigError(
                f"unknown collective {shown(title)}; expected NONE, {', '.join(_KINDS)}",
                file=file,
                path=path,
            )
        default = "dp" if stage == "weight gradient" else "tp"
        group = suffix.lower() or ("all" if strategy in {"DATA", "MICRO", "MODEL"} else default)
        calls.append(AstraCall(cells[0][:100], stage, _KINDS[name], int(float(size)), group))
    return compute
