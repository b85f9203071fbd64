"""Workloads: the computations and communications of ranks, with streams, order and dependencies.

Ranks with equal behaviour form a class. Operations of one stream run on each rank in the order of the workload; ``after`` names
operations that must finish first, on each rank those that it participates in. The file format is JSON: :func:`write_workload` and
:func:`read_workload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from simcoll.core.collective import KINDS
from simcoll.core.reduction import parse_dtype
from simcoll.errors import ConfigError, blamed_on, nearest
from simcoll.files.reader_arguments import Content, content_of
from simcoll.files.strict import decode_json

__all__ = [
    "Call", "Compute", "Inside", "Operation", "Rules", "Send", "Workload", "call_inside", "read_workload", "write_workload",
]  # fmt: skip

FORMAT = "simcoll workload 1"


class Inside(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A collective that a computation waits for, such as those of tensor parallelism.

    Attributes
    ----------
    kind, group, size_bytes
        As in a :class:`Call`.
    count
        Number of such collectives, spread evenly over the pieces of the computation.
    imbalance
        Load of the most loaded rank over the mean (all_to_all only).
    hidden_fs
        Computation of the same piece that each collective overlaps: only a longer collective is waited for.
    share
        Share of the multiprocessors that it takes from that computation while it runs.
    """

    kind: str
    group: str
    size_bytes: int
    count: int = 1
    imbalance: float = 1.0
    hidden_fs: int = 0
    share: float = 0.0


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="op", tag="compute"):
    """A computation on every rank of a class.

    Attributes
    ----------
    id
        Unique in the workload.
    on
        The class.
    time_fs
        Duration in femtoseconds, without the collectives inside.
    stream, after
        Stream, and dependencies.
    inside
        Collectives that it waits for, in ``pieces`` equal pieces.
    least_fs
        Minimum duration, with the collectives inside: the host's launch time.
    name
        For tables and timelines, which group operations by name.
    flops
        FLOPs on each rank, for utilisation.
    """

    id: str
    on: str
    time_fs: int
    stream: str = "compute"
    after: tuple[str, ...] = ()
    inside: tuple[Inside, ...] = ()
    pieces: int = 1
    least_fs: int = 0
    name: str = ""
    flops: float = 0.0


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="op", tag="call"):
    """A collective on every group of an axis that lies in some classes.

    Attributes
    ----------
    id, stream, after, name
        As in a :class:`Compute`.
    on
        The classes; empty: all groups.
    kind, size_bytes
        The collective, and its size as nccl-tests counts it: the larger of a rank's input and output. Without bytes it only orders.
        ``"meeting"``: the ranks of a group wait for each other, which takes no time.
    group
        The axis: a name in ``Workload.groups``.
    algorithm
        Its algorithm; empty: chosen by the rules of the workload, or the library.
    imbalance
        Load of the most loaded rank over the mean (all_to_all only).
    dtype, root
        Element type (empty: bytes), and the group rank of the root, if any.
    sizes
        Elements of uneven blocks: one row, or a row per sender of an all_to_all; empty for even blocks.
    """

    id: str
    kind: str
    group: str
    size_bytes: int
    on: tuple[str, ...] = ()
    stream: str = "communication"
    after: tuple[str, ...] = ()
    algorithm: str = ""
    imbalance: float = 1.0
    name: str = ""
    dtype: str = ""
    root: int = 0
    sizes: tuple[tuple[int, ...], ...] = ()

    @property
    def asked(self) -> tuple[object, ...]:
        """The properties that determine the plan, besides the ranks."""
        return self.kind, self.size_bytes, self.imbalance, self.algorithm, self.dtype, self.root, self.sizes

    @property
    def moves(self) -> bool:
        """Whether messages are sent, possibly without bytes."""
        return bool(self.size_bytes or self.sizes)


class Send(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="op", tag="send"):
    """A message from each rank of a class to the rank at the same position in another.

    Attributes
    ----------
    id, stream, after, name
        As in a :class:`Compute`; the stream is the same at both ends.
    source, target
        The classes.
    size_bytes
        Size of each message.
    group
        The axis that the traffic is attributed to.
    """

    id: str
    source: str
    target: str
    size_bytes: int
    stream: str = "send"
    after: tuple[str, ...] = ()
    group: str = "pp"
    name: str = ""


Operation: TypeAlias = Compute | Call | Send


def call_inside(operation: Compute, inner: Inside) -> Call:
    """One of the collectives that a computation waits for."""
    return Call(
        id="", kind=inner.kind, group=inner.group, size_bytes=inner.size_bytes, on=(operation.on,), imbalance=inner.imbalance
    )  # fmt: skip


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Selection of plans and protocols, as :func:`simcoll.distributed.spawn` does with these arguments.

    Attributes
    ----------
    protocol
        Name of a protocol.
    library
        A communication library whose choices are used; empty: none.
    """

    protocol: str = "ideal"
    library: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Operations of all ranks.

    Attributes
    ----------
    nranks
        Ranks are 0 to ``nranks - 1``.
    classes
        Ranks of each class; every rank is in exactly one.
    groups
        Process groups of each axis: ``[groups, ranks]``.
    operations
        In topological order.
    title, tokens, model_flops, hardware_flops
        For results: title, tokens of the whole program, and FLOPs of matrix products needed by the model and performed with
        recomputation.
    rules
        Selection of plans and protocols; None: as NCCL would.
    """

    nranks: int
    classes: Mapping[str, NDArray[np.int64]]
    groups: Mapping[str, NDArray[np.int64]]
    operations: tuple[Operation, ...]
    title: str = ""
    tokens: int = 0
    model_flops: float = 0.0
    hardware_flops: float = 0.0
    rules: Rules | None = None

    def __post_init__(self) -> None:
        _check_classes(self.classes, self.nranks)
        _check_groups(self.groups, self.nranks)
        _check_operations(self)

    def involved(self, operation: Operation) -> tuple[str, ...]:
        """The classes that participate in an operation."""
        if isinstance(operation, Compute):
            return (operation.on,)
        if isinstance(operation, Send):
            return tuple(dict.fromkeys((operation.source, operation.target)))
        return operation.on or tuple(self.classes)

    def groups_of(self, call: Call) -> NDArray[np.int64]:
        """The groups of a call that lie in its classes.

        Raises
        ------
        ConfigError
            When a group has ranks inside and outside the classes.
        """
        found = self.groups[call.group]
        if not call.on:
            return found
        member = np.zeros(self.nranks, bool)
        for name in call.on:
            member[self.classes[name]] = True
        inside = member[found]
        if (inside.any(axis=1) != inside.all(axis=1)).any() or not inside.any():
            raise ConfigError(
                f"operation {call.id!r}: a group of {call.group!r} is only partly in {', '.join(call.on)}, or none is"
            )
        return found[inside.all(axis=1)]


def _check_classes(classes: Mapping[str, NDArray[np.int64]], nranks: int) -> None:
    counts = np.zeros(nranks, np.int64)
    for name, ranks in classes.items():
        wrong = ranks[(ranks < 0) | (ranks >= nranks)]
        if len(wrong):
            raise ConfigError(f"class {name!r}: rank {wrong[0]} is not among 0 to {nranks - 1}")
        np.add.at(counts, ranks, 1)
    off = np.flatnonzero(counts != 1)
    if len(off):
        where = [name for name, ranks in classes.items() if off[0] in ranks]
        said = f"is in {' and '.join(map(repr, where))}" if where else "is in no class"
        raise ConfigError(f"rank {off[0]} {said}; each must be in exactly one, once")


def _check_groups(groups: Mapping[str, NDArray[np.int64]], nranks: int) -> None:
    for name, found in groups.items():
        ranks = found.reshape(-1)
        if found.ndim != 2 or not len(ranks) or ranks.min() < 0 or ranks.max() >= nranks:
            raise ConfigError(f"group {name!r}: expected lists of equally many ranks, 0 to {nranks - 1}")
        if len(np.unique(ranks)) != len(ranks):
            raise ConfigError(f"group {name!r}: a rank is in two groups")


def _check_operations(workload: Workload) -> None:
    """Check that all names are defined before their use, which excludes cyclic waits."""
    ids = {operation.id: place for place, operation in enumerate(workload.operations)}
    seen: set[str | tuple[str, tuple[str, ...]]] = set()
    for operation in workload.operations:
        where = f"operation {operation.id!r}"
        if operation.id in seen:
            raise ConfigError(f"{where} is a duplicate")
        for name in workload.involved(operation):
            if name not in workload.classes:
                raise ConfigError(f"{where}: unknown class {name!r}; {nearest(name, workload.classes)}")
        for other in operation.after:
            if other not in ids:
                raise ConfigError(f"{where}: after: unknown operation {other!r}; {nearest(other, ids)}")
            if other not in seen:
                raise ConfigError(
                    f"{where} is after {other!r}, which comes later: in a cycle of dependencies nothing can start"
                )
        seen.add(operation.id)
        _check_sizes(workload, operation, where)
        if isinstance(operation, Call) and (operation.group, operation.on) not in seen:
            seen.add((operation.group, operation.on))
            workload.groups_of(operation)


def _check_sizes(workload: Workload, operation: Operation, where: str) -> None:
    if isinstance(operation, Compute):
        if min(operation.time_fs, operation.least_fs) < 0 or operation.pieces < 1:
            raise ConfigError(f"{where}: expected a time of at least 0 and at least one piece")
        for inner in operation.inside:
            if inner.count < 0 or inner.hidden_fs < 0 or not 0 <= inner.share < 1:
                raise ConfigError(
                    f"{where}: inside: expected a count, a hidden time and a share below 1, of at least 0"
                )
            _check_call(workload, inner.kind, inner.group, inner.size_bytes, inner.imbalance, where)
    elif isinstance(operation, Call):
        kind = "barrier" if operation.kind == "meeting" else operation.kind
        _check_call(workload, kind, operation.group, operation.size_bytes, operation.imbalance, where)
        members = workload.groups[operation.group].shape[1]
        if not 0 <= operation.root < members:
            raise ConfigError(f"{where}: root: expected a group rank, 0 to {members - 1}, got {operation.root}")
        _check_blocks(operation, where)
    else:
        ends = [len(workload.classes[name]) for name in (operation.source, operation.target)]
        if ends[0] != ends[1] or operation.source == operation.target:
            raise ConfigError(f"{where}: expected two classes of equally many ranks, got {ends[0]} and {ends[1]}")
        if operation.size_bytes < 0:
            raise ConfigError(f"{where}: size_bytes: expected at least 0, got {operation.size_bytes}")


def _check_call(workload: Workload, kind: str, group: str, size_bytes: int, imbalance: float, where: str) -> None:
    if kind not in KINDS or kind == "send_recv":
        valid = [name for name in KINDS if name != "send_recv"]
        raise ConfigError(f"{where}: unknown collective {kind!r}; {nearest(kind, valid)}")
    if group not in workload.groups:
        raise ConfigError(f"{where}: unknown group {group!r}; {nearest(group, workload.groups)}")
    if size_bytes < 0 or not imbalance >= 1:
        raise ConfigError(f"{where}: expected a size of at least 0 and an imbalance of at least 1")


def _check_blocks(call: Call, where: str) -> None:
    """Check the element type and uneven blocks of a call; binding checks that they fit its group."""
    if call.dtype:
        parse_dtype(call.dtype)
    if any(size < 0 for row in call.sizes for size in row):
        raise ConfigError(f"{where}: sizes: expected numbers of elements, at least 0")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: str
    nranks: int
    classes: dict[str, list[int]]
    groups: dict[str, list[list[int]]] = {}
    operations: list[Compute | Call | Send]
    title: str = ""
    tokens: int = 0
    model_flops: float = 0.0
    hardware_flops: float = 0.0
    rules: Rules | None = None


def write_workload(workload: Workload) -> bytes:
    """Encode a workload as JSON."""
    made = _File(
        format=FORMAT,
        nranks=workload.nranks,
        classes={name: ranks.tolist() for name, ranks in workload.classes.items()},
        groups={name: groups.tolist() for name, groups in workload.groups.items()},
        operations=list(workload.operations),
        title=workload.title,
        tokens=workload.tokens,
        model_flops=workload.model_flops,
        hardware_flops=workload.hardware_flops,
        rules=workload.rules,
    )
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


def read_workload(content: Content, file: str | None = None) -> Workload:
    """Decode a workload from JSON.

    Raises
    ------
    ConfigError
        With the file and the place in it.

    Examples
    --------
    >>> two = {"all": np.arange(2)}
    >>> made = Workload(2, two, {"dp": np.array([[0, 1]])}, (Call(id="sum", kind="all_reduce", group="dp", size_bytes=8),))
    >>> read_workload(write_workload(made)).operations == made.operations
    True
    """
    read = decode_json(content_of(content, "read_workload"), _File, file)
    if read.format != FORMAT:
        raise ConfigError(f"expected {FORMAT!r}, got {read.format!r}", file=file, path="$.format")
    if not 1 <= read.nranks < 2**24:
        raise ConfigError(f"expected 1 to {2**24 - 1} ranks, got {read.nranks}", file=file, path="$.nranks")
    for name, groups in read.groups.items():
        if len({len(group) for group in groups}) != 1:
            raise ConfigError("expected lists of equally many ranks", file=file, path=f"$.groups.{name}")
    with blamed_on(file):
        try:
            return Workload(
                read.nranks,
                {name: np.array(ranks, np.int64) for name, ranks in read.classes.items()},
                {name: np.array(groups, np.int64) for name, groups in read.groups.items()},
                tuple(read.operations), read.title, read.tokens, read.model_flops, read.hardware_flops, read.rules,
            )  # fmt: skip
        except (OverflowError, ValueError) as error:
            raise ConfigError(f"ranks must be whole numbers of 64 bits: {error}") from None
