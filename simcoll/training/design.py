"""Designs: one model, one cluster and one parallelisation, read from a TOML file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from simcoll.errors import ConfigError, blamed_on, nearest, shown
from simcoll.files.paths import is_file
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.files.strict import convert_table, read_file
from simcoll.files.text import parse_toml
from simcoll.libraries.calibration import Calibration as NetworkCalibration
from simcoll.libraries.calibration import load_calibration as load_network
from simcoll.libraries.prediction_cache import topology_digest
from simcoll.notebook_forms import shows_facts
from simcoll.topology import Topology, load_topology
from simcoll.topology.degraded_links import with_degraded_links
from simcoll.topology.file_layers import beside
from simcoll.training.defaults import complete_parallel
from simcoll.training.gpu import Gpu, check_dtype, load_gpu, refuse_other_gpu, shipped_gpus
from simcoll.training.hugging_face import model_from_hf
from simcoll.training.measured_kernels import OperatorTimes, load_measured
from simcoll.training.parallel import Parallel, layers_of_chunks
from simcoll.training.step_calibration import (
    UNCALIBRATED,
    StepCalibration,
    load_calibration,
    shipped_calibration,
)
from simcoll.training.transformer import Model, shipped_model
from simcoll.units import parse_size
from simcoll.workload.mesh import Mesh, mesh_of

__all__ = [
    "PLANNING_TABLES",
    "Cluster",
    "Design",
    "DesignInputs",
    "design_from",
    "design_inputs",
    "find_gpu",
    "load_cluster",
    "load_design",
    "read_model",
    "slow_ranks",
]

MAX_FILE_BYTES = 2**20
PLANNING_TABLES = ("variants", "objective", "cost", "power", "failures", "search")
"""Tables of a design file that ask for more than one step."""


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[topology]``: the machine of a design.

    Attributes
    ----------
    name, nodes
        A shipped topology or a file, and its number of nodes.
    gpus
        Number of GPUs to use, from the first on.
    set
        Overrides of the topology file, by path: ``{"network.oversubscription" = 2}``.
    degraded
        Remaining share of capacity, by link.
    slow
        Slow-down factors of computation, by rank or range of ranks: ``{"37" = 1.1, "0-7" = 2}``.
    calibration
        A file that ``simcoll calibrate`` wrote from logs of NCCL on this machine.
    """

    name: str
    nodes: int | None = None
    gpus: int | None = None
    set: dict[str, Any] = {}
    degraded: dict[str, str | int | float] = {}
    slow: dict[str, float] = {}
    calibration: str = ""


class _DesignGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str = ""
    calibration: str = ""
    measured: str = ""
    mixed: dict[str, str] = {}


class _DesignLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    memory: str = ""


class _DesignFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    title: str = ""
    model: dict[str, Any]
    topology: Cluster
    gpu: _DesignGpu = _DesignGpu()
    parallel: Parallel = Parallel()
    limits: _DesignLimits = _DesignLimits()


@shows_facts
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Design:
    """A training step to be timed.

    Attributes
    ----------
    title
        For tables and pictures.
    model, sequence, global_batch, dtype
        The model, tokens per sequence, sequences per step, and the dtype of matrix products.
    gpu, calibration
        The GPU and its calibration.
    cluster, topology
        The ``[topology]`` table, and the loaded topology.
    parallel, mesh
        The parallelisation, and the mesh of ranks.
    memory_limit
        Usable bytes of a GPU.
    measured
        Measured times of operators, which replace the roofline.
    network
        The calibration of collectives.
    other_gpus
        Ranks with another GPU than ``gpu``, which must be the fastest.
    """

    title: str
    model: Model
    sequence: int
    global_batch: int
    dtype: str
    gpu: Gpu
    calibration: StepCalibration
    cluster: Cluster
    topology: Topology
    parallel: Parallel
    mesh: Mesh
    memory_limit: int
    measured: OperatorTimes | None = None
    network: NetworkCalibration | None = None
    other_gpus: tuple[tuple[range, Gpu], ...] = ()

    def facts(self) -> list[tuple[str, object]]:
        """Name and value of what a reader sees."""
        axes = ", ".join(f"{axis}={size}" for axis, size in self.mesh.axes if size > 1)
        batch = f"{self.global_batch} sequences of {self.sequence} tokens"
        return [
            ("design", self.title),
            ("model", f"{self.model.name}, {self.dtype}"),
            ("step", f"{batch}, {self.micro_batches} micro-batches of a pipeline"),
            ("machine", f"{self.gpu.name} on {self.topology.name}, {self.topology.nranks} ranks"),
            ("mesh", axes or "1 rank"),
            ("calibration", self.calibrations),
        ]

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches per pipeline and step."""
        return self.global_batch // (self.mesh.size("dp") * self.parallel.micro_batch)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence

    @property
    def slow(self) -> dict[int, float]:
        """Slow ranks, with their factors."""
        return slow_ranks(self.cluster.slow)

    @property
    def calibrations(self) -> str:
        """The state of the calibration, and the hash of that of collectives if there is one."""
        return self.calibration.state + (
            f"; collectives: calibration {self.network.hash}" if self.network else ""
        )

    @property
    def hash(self) -> str:
        """Hash of everything that determines the result."""
        parts: tuple[object, ...] = (
            self.model,
            self.sequence,
            self.global_batch,
            self.dtype,
            sorted(self.gpu.values.items()),
            self.calibration.hash,
            topology_digest(self.topology),
            sorted(self.cluster.slow.items()),
            self.parallel,
            self.mesh.axes,
            self.memory_limit,
        )
        if self.measured is not None:
            parts = (*parts, sorted(self.measured.times.items()))
        if self.network is not None:
            parts = (*parts, self.network.hash)
        for ranks, gpu in self.other_gpus:
            parts = (*parts, ranks, sorted(gpu.values.items()))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def gpu_counts(self) -> list[tuple[Gpu, int]]:
        """Each kind of GPU, and how many ranks have it."""
        groups = [(gpu, len(ranks)) for ranks, gpu in self.other_gpus]
        return [(self.gpu, self.mesh.nranks - sum(count for _, count in groups)), *groups]

    @property
    def peak_flops(self) -> float:
        """FLOP/s of all GPUs, by their vendors."""
        return sum(gpu.peak(self.dtype) * count for gpu, count in self.gpu_counts)


def load_design(path: FilePath) -> Design:
    """Load a design; its paths are relative to the file. Tables of plan files are ignored.

    Raises
    ------
    ConfigError
        With the file, the place in it, and the nearest valid choice.
    """
    path = path_of(path, "load_design")
    return design_from(parse_toml(read_file(path, MAX_FILE_BYTES), path), file=path)


def design_from(document: Mapping[str, Any], *, file: str = "design") -> Design:
    """Make a design from the tables of its file.

    Raises
    ------
    ConfigError
        As :func:`load_design`.

    Examples
    --------
    >>> made = design_from({
    ...     "model": {
    ...         "name": "llama-3.1-8b", "sequence": 8192, "global_batch": 16, "dtype": "bf16",
    ...     },
    ...     "topology": {"name": "dgx-h100"},
    ...     "gpu": {"name": "h100"},
    ...     "parallel": {"tp": 2, "shard": "optimizer"},
    ... })
    >>> made.mesh.axes, made.micro_batches
    ((('tp', 2), ('cp', 1), ('dp', 4), ('pp', 1)), 4)
    """
    tables = {key: value for key, value in document.items() if key not in PLANNING_TABLES}
    with blamed_on(file):
        _refuse_lists(tables.get("parallel"))
        tables_of_file = convert_table(tables, _DesignFile)
        folder = Path(file).parent
        topology = load_cluster(tables_of_file.topology, folder)
        stated = frozenset(document.get("parallel", ()))
        return _assemble(tables_of_file, stated, topology, folder, Path(file).stem)


@dataclass(frozen=True, slots=True, eq=False)
class DesignInputs:
    """What a design file states besides its parallelisation: the model, tokens of a sequence,
    sequences of a step, and the topology.
    """

    model: Model
    sequence: int
    global_batch: int
    topology: Topology


def design_inputs(document: Mapping[str, Any], *, file: str = "design") -> DesignInputs:
    """Read the tables of a design file except ``[parallel]``.

    Raises
    ------
    ConfigError
        As :func:`load_design`.

    Examples
    --------
    >>> inputs = design_inputs({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 16},
    ...     "topology": {"name": "dgx-h100", "nodes": 2},
    ... })
    >>> inputs.model.layers, inputs.topology.nranks
    (32, 16)
    """
    ignored = {*PLANNING_TABLES, "parallel"}
    with blamed_on(file):
        tables = {key: value for key, value in document.items() if key not in ignored}
        record = convert_table(tables, _DesignFile)
        folder = Path(file).parent
        model, batch = read_model(dict(record.model), folder)
        topology = load_cluster(record.topology, folder)
    return DesignInputs(model, batch.sequence, batch.global_batch, topology)


def _refuse_lists(parallel: object) -> None:
    """Refuse lists, which define a space of designs."""
    for key, value in parallel.items() if isinstance(parallel, dict) else ():
        if isinstance(value, list) and key not in {"split", "offload", "recompute_modules"}:
            raise ConfigError(
                "a list is a space of designs, for simcoll plan; a step needs one value",
                path=f"$.parallel.{key}",
            )


def load_cluster(cluster: Cluster, folder: Path) -> Topology:
    """Load the topology of a ``[topology]`` table; paths are relative to a folder.

    Raises
    ------
    ConfigError
        As :func:`load_design`.
    """
    try:
        encoded = msgspec.msgpack.encode(cluster)
    except OverflowError as error:
        raise ConfigError(f"a number is too large: {error}", path="$.topology") from None
    return _load_topology(encoded, str(folder))


@lru_cache(maxsize=64)
def _load_topology(cluster: bytes, folder: str) -> Topology:
    """Load the topology of a cluster, cached for all designs on it."""
    table = msgspec.msgpack.decode(cluster, type=Cluster)
    overrides = {place.replace(".", "__"): value for place, value in table.set.items()}
    if table.nodes is not None and (in_set := overrides.pop("nodes", table.nodes)) != table.nodes:
        raise ConfigError(
            f"nodes is {table.nodes} here and {shown(in_set)} in set; leave one out",
            path="$.topology.nodes",
        )
    try:
        topology = load_topology(beside(Path(folder), table.name), nodes=table.nodes, **overrides)
    except ConfigError as error:
        if error.file or error.path:
            raise
        raise ConfigError(error.message, path="$.topology.name") from None
    topology = with_degraded_links(topology, table.degraded)
    if table.gpus is not None:
        topology = topology.take(table.gpus)
    for rank, factor in slow_ranks(table.slow).items():
        if rank >= topology.nranks:
            raise ConfigError(
                f"slow: {rank} is not a rank; expected 0 to {topology.nranks - 1}",
                path="$.topology.slow",
            )
        if not 1 <= factor <= 100:
            raise ConfigError(
                f"slow: rank {rank}: expected how many times longer it computes, 1 to 100, got "
                f"{factor}",
                path="$.topology.slow",
            )
    return topology


def slow_ranks(slow: Mapping[str, float]) -> dict[int, float]:
    """Factors of slow ranks, of ranges such as ``"0-7"`` too.

    Raises
    ------
    ConfigError
        For text that is neither a rank nor a range, and for a rank that is named twice.

    Examples
    --------
    >>> slow_ranks({"0-2": 2.0, "37": 1.1})
    {0: 2.0, 1: 2.0, 2: 2.0, 37: 1.1}
    """
    factors: dict[int, float] = {}
    names: dict[int, str] = {}
    for text, factor in slow.items():
        match = _RANKS.fullmatch(text)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(
                f"slow: {shown(text)} is not a rank; expected a number, or a range such as '0-7'",
                path="$.topology.slow",
            )
        for rank in range(int(match[1]), int(match[2] or match[1]) + 1):
            if rank in factors:
                raise ConfigError(
                    f"slow: rank {rank} has two factors, {factors[rank]} by {names[rank]!r} and "
                    f"{factor} by {text!r}; leave one out",
                    path="$.topology.slow",
                )
            factors[rank], names[rank] = factor, text
    return factors


_RANKS = re.compile(r"(\d{1,8})(?:-(\d{1,8}))?", re.ASCII)


def _assemble(
    record: _DesignFile, stated: frozenset[str], topology: Topology, folder: Path, stem: str
) -> Design:
    """Assemble a design after checking that its parts fit together; ``stated``: the keys of its
    ``[parallel]``.
    """
    model, batch = read_model(dict(record.model), folder)
    gpu = find_gpu(record.gpu.name, topology, folder)
    check_dtype(gpu, batch.dtype)
    if record.parallel.offload or record.parallel.offload_layers:
        gpu.number("host.bandwidth")
    calibration = UNCALIBRATED
    if record.gpu.calibration:
        calibration_path = folder / record.gpu.calibration
        calibration = (
            load_calibration(calibration_path)
            if is_file(calibration_path)
            else shipped_calibration(record.gpu.calibration)
        )
    measured = load_measured(folder / record.gpu.measured) if record.gpu.measured else None
    network = (
        load_network(folder / record.topology.calibration) if record.topology.calibration else None
    )
    groups = _other_gpus(record.gpu.mixed, topology, folder)
    limit = min(kind.memory_bytes for kind in (gpu, *(group_gpu for _, group_gpu in groups)))
    if record.limits.memory:
        limit = min(limit, parse_size(record.limits.memory, what="memory", path="$.limits.memory"))
    parallel = complete_parallel(
        record.parallel,
        stated,
        model,
        sequence=batch.sequence,
        global_batch=batch.global_batch,
        gpus=topology.nranks,
    )
    inner = parallel.tp * parallel.cp * parallel.pp
    dp = parallel.dp or max(1, topology.nranks // inner)
    mesh = mesh_of(
        parallel.order,
        {"tp": parallel.tp, "cp": parallel.cp, "dp": dp, "pp": parallel.pp},
        topology.nranks,
    )
    layers_of_chunks(model, parallel)
    _divides(model, batch, parallel, dp)
    return Design(
        title=record.title or stem,
        model=model,
        sequence=batch.sequence,
        global_batch=batch.global_batch,
        dtype=batch.dtype,
        gpu=gpu,
        calibration=calibration,
        cluster=record.topology,
        topology=topology,
        parallel=parallel,
        mesh=mesh,
        memory_limit=limit,
        measured=measured,
        network=network,
        other_gpus=groups,
    )


def _other_gpus(
    mixed: Mapping[str, str], topology: Topology, folder: Path
) -> tuple[tuple[range, Gpu], ...]:
    """Ranges of ranks with another GPU, in order."""
    place = "$.gpu.mixed"
    groups = []
    for text, name in mixed.items():
        match = _RANKS.fullmatch(text)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"{shown(text)}: expected ranks, such as '64-127'", path=place)
        ranks = range(int(match[1]), int(match[2] or match[1]) + 1)
        if ranks.stop > topology.nranks:
            raise ConfigError(
                f"{shown(text)}: expected ranks from 0 to {topology.nranks - 1}", path=place
            )
        path = folder / name
        groups.append((ranks, load_gpu(path if is_file(path) else name)))
    groups.sort(key=lambda group: group[0].start)
    for (ranks, _), (next_ranks, _) in pairwise(groups):
        if next_ranks.start < ranks.stop:
            raise ConfigError(f"rank {next_ranks.start} is named twice", path=place)
    return tuple(groups)


class _Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of ``[model]`` besides the model's sizes."""

    sequence: int
    global_batch: int
    dtype: str = "bf16"


def read_model(table: dict[str, Any], folder: Path) -> tuple[Model, _Batch]:
    """Read the model (by name, from a Hugging Face file, or by its sizes) and its training
    parameters.
    """
    batch_keys = {
        key: table.pop(key) for key in ("sequence", "global_batch", "dtype") if key in table
    }
    try:
        batch = convert_table(batch_keys, _Batch)
    except ConfigError as error:
        raise ConfigError(error.message, path=f"$.model{(error.path or '$')[1:]}") from None
    for name in ("sequence", "global_batch"):
        if getattr(batch, name) < 1:
            raise ConfigError(
                f"expected at least 1, got {getattr(batch, name)}", path=f"$.model.{name}"
            )
    if "hf" in table:
        path = table.pop("hf")
        if table or not isinstance(path, str):
            raise ConfigError(
                f"expected hf = 'config.json' and no sizes beside it, got {path!r} and "
                f"{sorted(table)}",
                path="$.model.hf",
            )
        return model_from_hf(folder / path), batch
    if "layers" in table:
        try:
            return convert_table(table, Model), batch
        except ConfigError as error:
            raise ConfigError(error.message, path=f"$.model{(error.path or '$')[1:]}") from None
    name = table.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            "missing; expected name, hf, or the sizes from layers on", path="$.model.name"
        )
    for key in table:
        if key not in Model.__struct_fields__:
            choices = [*Model.__struct_fields__, "hf", "sequence", "global_batch", "dtype"]
            raise ConfigError(
                f"unknown key; {nearest(key, choices)}",
                path=f"$.model.{key}",
            )
    shipped = shipped_model(name)
    return (
        convert_table({**msgspec.structs.asdict(shipped), **table}, Model) if table else shipped
    ), batch


def find_gpu(name: str, topology: Topology, folder: Path) -> Gpu:
    """Load the GPU by name; by default the topology's."""
    if name:
        gpu_path = folder / name
        if is_file(gpu_path):
            return load_gpu(gpu_path)
        gpu = load_gpu(name)
        refuse_other_gpu(name, topology, "$.gpu.name")
        return gpu
    trait = topology.traits.get("gpu", "").lower()
    if trait not in shipped_gpus():
        description = (
            f"topology {topology.name!r} names {trait!r}"
            if trait
            else f"topology {topology.name!r} names none"
        )
        raise ConfigError(
            f"missing; {description}; {nearest(trait, shipped_gpus())}", path="$.gpu.name"
        )
    return load_gpu(trait)


class _Division(NamedTuple):
    """A quantity of a model that is cut into equal parts, and the keys that say how many."""

    subject: str
    total: int
    parts: int
    keys: str

    def check(self) -> None:
        if self.total % self.parts:
            raise ConfigError(
                f"{self.subject} {self.total}: not divisible by {self.keys} = {self.parts}",
                path="$.parallel",
            )


def _divides(model: Model, sizes: _Batch, parallel: Parallel, dp: int) -> None:
    """Refuse sizes that do not divide evenly: batch, sequence, heads, matrices and experts."""
    share = dp * parallel.micro_batch
    if sizes.global_batch % share:
        lower = sizes.global_batch // share * share
        nearest_batch = (
            share
            if lower == 0
            else min((lower, lower + share), key=lambda batch: abs(batch - sizes.global_batch))
        )
        raise ConfigError(
            f"global_batch {sizes.global_batch} does not divide over {dp} data-parallel ranks with "
            "micro-batches of "
            f"{parallel.micro_batch}; the nearest that does is {nearest_batch}",
            path="$.model.global_batch",
        )
    if parallel.virtual > 1 and (sizes.global_batch // share) % parallel.pp:
        count = sizes.global_batch // share
        raise ConfigError(
            f"interleaving needs micro-batches in multiples of pp {parallel.pp}; there are {count}",
            path="$.parallel.virtual",
        )
    heads = parallel.tp * (parallel.cp if parallel.context == "ulysses" else 1)
    divisions = [
        _Division("heads", model.heads, heads, "tp" if heads == parallel.tp else "tp x cp"),
        _Division("inner width of the MLP", model.inner, parallel.tp, "tp"),
        _Division(
            "sequence",
            sizes.sequence,
            parallel.cp * (parallel.tp if parallel.sequence_parallel else 1),
            "cp (x tp with sequence_parallel)",
        ),
        _Division(
            f"ranks for experts ({' x '.join(parallel.expert_axes)})",
            parallel.tp // parallel.expert_tp * parallel.cp * dp,
            parallel.ep,
            "ep",
        ),
        _Division(
            "ranks of a shard (dp x cp)", dp * parallel.cp, parallel.shard_group or 1, "shard_group"
        ),
    ]
    if parallel.ep > 1:
        if not model.experts:
            raise ConfigError(f"ep {parallel.ep}: the model has no experts", path="$.parallel.ep")
        if parallel.imbalance > parallel.ep:
            raise ConfigError(
                f"imbalance {parallel.imbalance}: one of {parallel.ep} ranks has at most "
                f"{parallel.ep} times the mean",
                path="$.parallel.imbalance",
            )
        divisions.append(_Division("experts", model.experts, parallel.ep, "ep"))
    if parallel.expert_tp > 1 and model.experts:
        width = model.expert_inner
        divisions.append(_Division("inner width of an expert", width, parallel.expert_tp, "tp"))
    for division in divisions:
        division.check()
