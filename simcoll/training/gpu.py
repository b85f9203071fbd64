"""GPUs: peaks, measured ceilings, memory and power from files, each number with its source.

A roofline of these numbers times the operators of a model; a table of measured operators can
replace it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simcoll.core.vocabulary import Evidence
from simcoll.errors import ConfigError, nearest, shown
from simcoll.files.paths import shipped_files
from simcoll.files.reader_arguments import Content, content_of
from simcoll.files.sourced import FactSchema
from simcoll.files.strict import read_file
from simcoll.files.text import parse_toml
from simcoll.notebook_forms import shows_facts
from simcoll.training.parallel import AttentionKernel
from simcoll.units import FS_PER_SECOND, UBPS_PER_BPS, parse_rate, parse_size, parse_time

if TYPE_CHECKING:
    from simcoll.topology import Topology

__all__ = [
    "DTYPE_BYTES",
    "EVIDENCE",
    "Gpu",
    "KernelRate",
    "check_dtype",
    "load_gpu",
    "refuse_other_gpu",
    "shipped_gpus",
]

MAX_FILE_BYTES = 2**20
DTYPE_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}
"""Bytes of an element, by data type."""
EVIDENCE: dict[Evidence, str] = {
    "measured": "a kernel was measured on this GPU",
    "steps": "published steps of this GPU imply it",
    "data sheet": "its maker states it",
    "sibling": "measured on a GPU of the same family",
    "assumed": "carried over from another family, or a guess",
}
"""What a number of a GPU file rests on."""
LOWEST: Literal["lowest"] = "lowest"
"""The evidence of a rate that a file lacks: the lowest measured share of any GPU."""


def _flops(value: Any, subject: str) -> float:
    return _with_unit(value, subject, _FLOPS, "'989 TFLOPS'")


def _watts(value: Any, subject: str) -> float:
    return _with_unit(value, subject, _WATTS, "'700 W'")


def _with_unit(value: Any, subject: str, pattern: re.Pattern[str], example: str) -> float:
    match = pattern.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(
            f"{subject}: expected text with a unit such as {example}, got {shown(value)}"
        )
    return float(match[1]) * _PREFIXES[match[2]]


def _bytes(value: Any, subject: str) -> int:
    return parse_size(value, what=subject)


def _rate(value: Any, subject: str) -> float:
    return parse_rate(value, what=subject) / UBPS_PER_BPS


def _number(value: Any, subject: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise ConfigError(f"{subject}: expected a number above 0, got {shown(value)}")
    return float(value)


def _seconds(value: Any, subject: str) -> float:
    return parse_time(value, what=subject) / FS_PER_SECOND


_FLOPS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([GTP])FLOPS\s*")
_WATTS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(k?)W\s*")
_PREFIXES = {"": 1.0, "k": 1e3, "G": 1e9, "T": 1e12, "P": 1e15}
_FACTS = FactSchema(
    {
        **{f"{table}.{dtype}": _flops for table in ("peak", "gemm") for dtype in DTYPE_BYTES},
        "attention.*": _flops,
        "attention8.*": _flops,
        "flash2.*": _flops,
        "narrow.*": _number,
        "skinny.*": _number,
        "exchange.*": _number,
        "sustained.*": _number,
        "memory.size": _bytes,
        "memory.usable": _bytes,
        "memory.bandwidth": _rate,
        "memory.measured": _rate,
        "host.bandwidth": _rate,
        "host.memory": _rate,
        "units.*": _number,
        "power.*": _watts,
        "price.*": _number,
        "kernel.*": _seconds,
        "launch.*": _seconds,
    },
    ignored=("description",),
    nouns={"peak": "data type", "gemm": "data type"},
    evidence=tuple(EVIDENCE),
)
_UNITS: dict[object, tuple[float, str]] = {
    _flops: (1e12, " TFLOPS"),
    _bytes: (1e9, " GB"),
    _rate: (1e9, " GB/s"),
    _watts: (1, " W"),
    _seconds: (1e-6, " us"),
    _number: (1, ""),
}
"""Scale and unit in which numbers of a kind are printed."""


@dataclass(frozen=True, slots=True)
class KernelRate:
    """A rate of kernels of a GPU, and what it rests on.

    Attributes
    ----------
    place
        Such as ``"gemm.fp8"``.
    value, low, high
        FLOP/s, or a share; and the range that is plausible: the value itself, or, of a rate that
        the file lacks, the lowest and the highest share measured on any GPU.
    evidence
        One of :data:`EVIDENCE`; ``"lowest"`` for a rate that the file lacks, ``"unstated"`` for
        files that state none.
    source
        Where the value comes from.
    """

    place: str
    value: float
    low: float
    high: float
    evidence: Evidence | Literal["unstated", "lowest"]
    source: str


@shows_facts
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Gpu:
    """One accelerator: FLOP/s, bytes and bytes per second, by path in its file.

    Attributes
    ----------
    name, description
        Such as ``"h100"``.
    values
        Numbers by path: ``peak.bf16`` and ``gemm.bf16`` (the highest measured rate of a dense
        matrix product) in FLOP/s, ``attention.forward`` and ``attention.backward`` (fused
        attention) in FLOP/s, ``attention8.forward`` and ``attention8.backward`` (with products of 8
        bits), ``flash2.forward`` and ``flash2.backward`` (FlashAttention-2, where it
        is not the fastest), ``memory.size`` and ``memory.usable`` (what programs can allocate) in
        bytes, ``memory.bandwidth`` and ``memory.measured`` in bytes per second, ``host.bandwidth``
        (from and to the host's memory, each) and ``host.memory`` (the GPU's share of the bandwidth
        of that memory) in bytes per second, ``units.count`` (streaming
        multiprocessors), ``power.watts`` and ``power.with_node`` (with its share of the node),
        ``price.usd_per_hour``, and ``sustained.share``: the share of the rates of single kernels
        that products reach in training, where the power limit lowers the clock, and
        ``skinny.share``: the share of the memory bandwidth at which products of few rows read their
        weights, and ``exchange.share``: the share of an all_to_all's rate at which tokens are sent
        once to each rank of an NVLink domain. In seconds:
        ``kernel.floor``, the least time of a kernel, and ``launch.eager`` and ``launch.compiled``,
        the host's time for an operator of an eager PyTorch program and for a kernel of a compiled
        one.
    sources
        Source of each number.
    evidence
        What each number rests on, a word of :data:`EVIDENCE`; a file of one's own may state none.
    """

    name: str
    description: str
    values: Mapping[str, float]
    sources: Mapping[str, str]
    evidence: Mapping[str, Evidence] = field(default_factory=dict)

    def facts(self) -> list[tuple[str, object]]:
        """Name and value of what a reader sees."""
        numbers = [(place, self.format_number(place)) for place in sorted(self.values)]
        return [("gpu", f"{self.name}, {self.description}"), *numbers]

    def number(self, place: str, default: float | None = None) -> float:
        """One number.

        Raises
        ------
        ConfigError
            When the file has none and there is no default.
        """
        value = self.values.get(place, default)
        if value is None:
            raise ConfigError(
                f"GPU {self.name!r} has no number {place!r}; {nearest(place, self.values)}"
            )
        return value

    def peak(self, dtype: str) -> float:
        """The vendor's FLOP/s of dense matrix products of a dtype.

        Raises
        ------
        ConfigError
            When the file has no number for this type.
        """
        if f"peak.{dtype}" not in self.values:
            dtypes = [place.partition(".")[2] for place in self.values if place.startswith("peak.")]
            raise ConfigError(
                f"GPU {self.name!r} has no peak for dtype {dtype!r}; it has one for "
                f"{', '.join(dtypes)}"
            )
        return self.values[f"peak.{dtype}"]

    def gemm(self, dtype: str) -> float:
        """FLOP/s of large dense matrix products in training: the highest rate of the kernel alone,
        times the share that is sustained.
        """
        return self.rate(f"gemm.{dtype}", dtype).value * self.sustained

    def attention(
        self, dtype: str, *, backward: bool = False, kernel: AttentionKernel = "fused"
    ) -> float:
        """FLOP/s of fused attention of a 16-bit type in training."""
        place = self.attention_place(kernel, backward=backward)
        return self.rate(place, dtype).value * self.sustained

    def attention_place(self, kernel: AttentionKernel, *, backward: bool) -> str:
        """Where the rate of fused attention stands: that of FlashAttention-2 if it was measured
        apart and is asked for.

        Raises
        ------
        ConfigError
            For attention in 8 bits without a rate in the file.
        """
        direction = "backward" if backward else "forward"
        if kernel == "fp8":
            if "attention8.forward" not in self.values:
                raise ConfigError(
                    f"GPU {self.name!r} has no rate of attention in 8 bits (attention8); expected "
                    "attention 'fused', 'flash2' or 'plain'"
                )
            return f"attention8.{direction}"
        place = f"flash2.{direction}"
        return place if kernel == "flash2" and place in self.values else f"attention.{direction}"

    def rate(self, place: str, dtype: str) -> KernelRate:
        """A rate of kernels alone, with its evidence.

        A rate that the file lacks is the lowest share that was measured on any GPU: of the peak
        for products (of 32 bits, or on matrix units), of the rate of products for attention. So a
        GPU without measurements does not win because nobody measured it. Of the two 16-bit types
        one stands in for the other.

        Parameters
        ----------
        place
            ``"gemm.bf16"`` and its like, ``"attention.forward"``, ``"attention.backward"``, or
            ``"sustained.share"``.
        dtype
            The type of the peak of which a share is assumed.

        Examples
        --------
        >>> rate = load_gpu("mi355x").rate("gemm.fp8", "fp8")
        >>> rate.evidence, round(rate.value / 1e12), round(rate.high / 1e12)
        ('lowest', 2232, 4375)
        """
        if place in self.values:
            value = self.values[place]
            stated = self.evidence.get(place)
            source = self.sources.get(place, "")
            return KernelRate(place, value, value, value, stated or "unstated", source)
        table, _, name = place.partition(".")
        twin = f"{table}.{_SAME_UNITS.get(name, '')}"
        if twin in self.values:
            value = self.values[twin]
            return KernelRate(
                place, value, value, value, "sibling", f"as {twin}, of the same units"
            )
        shares = _measured_shares(table, vector=dtype in _VECTOR)
        (low, lowest), (high, highest) = min(shares), max(shares)
        source = (
            f"not measured: a share of {low:.2f}{_SHARE_OF[table]}, the lowest of any GPU "
            f"({lowest}); the highest is {high:.2f} ({highest})"
        )
        if table == "sustained":
            return KernelRate(place, low, low, high, LOWEST, source)
        if table == "attention":
            products = self.rate(f"gemm.{dtype}", dtype)
            low_flops, high_flops = low * products.low, high * products.high
            return KernelRate(place, low_flops, low_flops, high_flops, LOWEST, source)
        peak = self.peak(dtype)
        return KernelRate(place, low * peak, low * peak, high * peak, LOWEST, source)

    @property
    def sustained(self) -> float:
        """Share of the single-kernel rate that products sustain in training."""
        return self.rate("sustained.share", "").value

    def format_number(self, place: str) -> str:
        """One number with its unit.

        >>> gpu = load_gpu("h100")
        >>> places = ("peak.bf16", "memory.size", "memory.bandwidth", "power.watts", "units.count")
        >>> [gpu.format_number(place) for place in places]
        ['989.4 TFLOPS', '80 GB', '3,350 GB/s', '700 W', '132']
        """
        scale, unit = _UNITS[_FACTS.kind(place)]
        return f"{self.number(place) / scale:,.6g}{unit}"

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that programs can allocate."""
        return int(self.number("memory.usable", self.number("memory.size")))


def load_gpu(name: str | Path) -> Gpu:
    """Load a shipped GPU by name, or a file.

    Raises
    ------
    ConfigError
        With the file, the place in it, and the nearest valid choice.

    Examples
    --------
    >>> gpu = load_gpu("h100")
    >>> round(gpu.gemm("bf16") / gpu.peak("bf16"), 3), gpu.sources["gemm.bf16"][:20]
    (0.666, 'stas00/ml-engineerin')
    """
    text = str(name)
    shipped = shipped_files("gpus")
    if text in shipped:
        return _load(shipped[text])
    if text.endswith(".toml") or "/" in text or "\\" in text:
        return parse_gpu(read_file(text, MAX_FILE_BYTES), text)
    raise ConfigError(
        f"unknown GPU {text!r}; {nearest(text, shipped)}; or give the path of a .toml file"
    )


def check_dtype(gpu: Gpu, dtype: str, *, path: str = "$.model.dtype") -> None:
    """Refuse a type of products for which a GPU has no peak.

    Raises
    ------
    ConfigError
        With the types that it has, and the place of the type in a design file.
    """
    try:
        gpu.peak(dtype)
    except ConfigError as error:
        raise ConfigError(error.message, path=path) from None


def refuse_other_gpu(name: str, topology: Topology, place: str | None = None) -> None:
    """Refuse a shipped GPU on a topology that names another shipped one.

    Memory sizes of one GPU (``a100-40``) count as one.

    Raises
    ------
    ConfigError
        With both names.
    """
    trait = topology.traits.get("gpu", "").lower().replace(" ", "-")
    models = {shipped.partition("-")[0] for shipped in shipped_files("gpus")}
    model = trait.partition("-")[0]
    if model in models and not (f"{name}-".startswith(f"{trait}-") or trait.startswith(f"{name}-")):
        raise ConfigError(
            f"GPU {name!r} on topology {topology.name!r}, whose GPUs are "
            f"{topology.traits['gpu']}; name {trait}, or state the topology's GPU "
            f"(traits.gpu={name.upper()})",
            path=place,
        )


def shipped_gpus() -> dict[str, str]:
    """Names of the shipped GPUs, each with its one-line description."""
    return {name: _load(path).description for name, path in shipped_files("gpus").items()}


_SAME_UNITS = {"fp16": "bf16", "bf16": "fp16"}
"""Types whose products the same units compute equally fast."""
_VECTOR = {"fp32"}
"""Types whose products need no matrix units; they reach a larger share of a lower peak."""
_SHARE_OF = {"gemm": " of the peak", "attention": " of the rate of products", "sustained": ""}


@cache
def _measured_shares(table: str, *, vector: bool) -> tuple[tuple[float, str], ...]:
    """Shares that shipped GPUs reached, each with its GPU: ``"gemm"``: of the peak, measured
    products, of ``vector`` units or of matrix units; ``"attention"``: of the rate of products,
    where both were measured; ``"sustained"``: what published steps imply.
    """
    needed = {"steps"} if table == "sustained" else {"measured"}
    shares = []
    for path in shipped_files("gpus").values():
        gpu = _load(path)
        products = "gemm.bf16" if "gemm.bf16" in gpu.values else "gemm.fp16"
        for place, value in gpu.values.items():
            kind, _, name = place.partition(".")
            if kind != table or gpu.evidence.get(place) not in needed:
                continue
            if table == "gemm":
                if (name in _VECTOR) == vector:
                    shares.append((value / gpu.peak(name), gpu.name))
            elif table == "sustained":
                shares.append((value, gpu.name))
            elif gpu.evidence.get(products) == "measured":
                shares.append((value / gpu.values[products], gpu.name))
    return tuple(shares)


@cache
def _load(path: Path) -> Gpu:
    return parse_gpu(path.read_bytes(), path.name)


def parse_gpu(content: Content, file: str) -> Gpu:
    """A GPU from the text of its file.

    Raises
    ------
    ConfigError
        With the place in the file.
    """
    content = content_of(content, "parse_gpu")
    document = parse_toml(content, file)
    description = document.get("description", "")
    if not isinstance(description, str):
        raise ConfigError(
            f"expected text, got {shown(description)}", file=file, path="$.description"
        )
    values, sources = _FACTS.read(document, file)
    evidence = {
        place: word
        for place, text in _FACTS.evidence_of(document, file).items()
        for word in EVIDENCE
        if word == text
    }
    for needed in ("memory.size", "memory.bandwidth"):
        if needed not in values:
            raise ConfigError("missing", file=file, path=f"$.{needed}")
    return Gpu(Path(file).stem, description, values, sources, evidence)
