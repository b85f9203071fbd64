"""Workloads: the computations and communications of ranks, with streams, order and dependencies.

Ranks with equal behaviour form a class. Operations of one stream run on each rank in the order of
the workload; ``after`` names operations that must finish first, on each rank those that it
participates in. The file format is JSON: :func:`write_workload` and :func:`read_workload`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from simcoll.core.collective import KINDS
from simcoll.core.reduction import parse_dtype
from simcoll.core.vocabulary import CallKind, CollectiveKind
from simcoll.errors import ConfigError, blamed_on, listed, nearest
from simcoll.files.reader_arguments import Content, content_of
from simcoll.files.strict import decode_json
from simcoll.moved import renamed_attributes
from simcoll.notebook_forms import shows_facts

__all__ = [
    "CallOperation",
    "ComputeOperation",
    "Inside",
    "Operation",
    "RepeatOperation",
    "Rules",
    "SendOperation",
    "Workload",
    "WorkloadPart",
    "call_inside",
    "map_operations",
    "operations_with_counts",
    "read_workload",
    "unrolled_count",
    "write_workload",
]

FORMAT = "simcoll workload 1"


class Inside(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A collective that a computation waits for, such as those of tensor parallelism.

    Attributes
    ----------
    kind, group, size_bytes
        As in a :class:`CallOperation`.
    count
        Number of such collectives, spread evenly over the pieces of the computation.
    imbalance
        Load of the most loaded rank over the mean (all_to_all only).
    hidden_fs
        Computation of the same piece that each collective overlaps: only a longer collective is
        waited for.
    share
        Share of the multiprocessors that it takes from that computation while it runs.
    """

    kind: CollectiveKind
    group: str
    size_bytes: int
    count: int = 1
    imbalance: float = 1.0
    hidden_fs: int = 0
    share: float = 0.0


class ComputeOperation(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="op",
    tag="compute",
    omit_defaults=True,
):
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
    scope
        Its place in the program, from the outside in, such as ``"backward 1/Llama/layers.3"``:
        phase and modules, which are rows of timelines.
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
    scope: str = ""
    flops: float = 0.0


class CallOperation(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="op",
    tag="call",
    omit_defaults=True,
):
    """A collective on every group of an axis that lies in some classes.

    Attributes
    ----------
    id, stream, after, name, scope
        As in a :class:`ComputeOperation`.
    on
        The classes; empty: all groups.
    kind, size_bytes
        The collective, and its size as nccl-tests counts it: the larger of a rank's input and
        output. Without bytes it only orders. ``"meeting"``: the ranks of a group wait for each
        other, which takes no time.
    group
        The axis: a name in ``Workload.groups``.
    algorithm
        Its algorithm; empty: chosen by the rules of the workload, or the library.
    imbalance
        Load of the most loaded rank over the mean (all_to_all only).
    dtype, root
        Element type (empty: bytes), and the group rank of the root, if any.
    sizes
        Elements of uneven blocks: one row, or a row per sender of an all_to_all; empty for even
        blocks.
    pairs
        Source and destination of each message of a ``"send_recv"``, as group ranks; each rank at
        most once as source and once as destination. ``size_bytes`` is the size of each message.
    service_fs
        Its measured time from the arrival of the last rank of a group; None: predicted on the
        topology. A call with a given time moves no messages, so it loads no links.
    """

    id: str
    kind: CallKind
    group: str
    size_bytes: int
    on: tuple[str, ...] = ()
    stream: str = "communication"
    after: tuple[str, ...] = ()
    algorithm: str = ""
    imbalance: float = 1.0
    name: str = ""
    scope: str = ""
    dtype: str = ""
    root: int = 0
    sizes: tuple[tuple[int, ...], ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    service_fs: int | None = None

    @property
    def plan_key(self) -> tuple[object, ...]:
        """The properties that determine the plan, besides the ranks."""
        return (
            self.kind,
            self.size_bytes,
            self.imbalance,
            self.algorithm,
            self.dtype,
            self.root,
            self.sizes,
            *self.pairs,
        )

    @property
    def moves(self) -> bool:
        """Whether messages are sent, possibly without bytes."""
        return self.service_fs is None and bool(self.size_bytes or self.sizes)

    @property
    def communicates(self) -> bool:
        """Whether it has bytes, or a given time, that count for its axis."""
        return bool(self.size_bytes or self.service_fs)


class SendOperation(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="op",
    tag="send",
    omit_defaults=True,
):
    """A message from each rank of a class to the rank at the same position in another.

    Attributes
    ----------
    id, stream, after, name, scope
        As in a :class:`ComputeOperation`; the stream is the same at both ends.
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
    scope: str = ""


Operation: TypeAlias = ComputeOperation | CallOperation | SendOperation


class RepeatOperation(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="op",
    tag="repeat",
):
    """A loop: operations that are performed several times, one iteration after another.

    Streams continue from one iteration into the next, without a barrier. ``after`` of an operation
    inside names operations of the same iteration, or of what surrounds the loop; operations outside
    name the loop itself.

    Attributes
    ----------
    id
        Unique in the workload, as are those of the operations inside.
    count
        Number of iterations, at least 1.
    operations
        The operations of an iteration, which may be loops.
    """

    id: str
    count: int
    operations: tuple[ComputeOperation | CallOperation | SendOperation | RepeatOperation, ...]


WorkloadPart: TypeAlias = Operation | RepeatOperation


def operations_with_counts(
    parts: Iterable[WorkloadPart], count: int = 1
) -> Iterator[tuple[Operation, int]]:
    """The operations of a workload, each once, with the number of times that it is performed.

    Examples
    --------
    >>> work = ComputeOperation(id="layer", on="all", time_fs=10)
    >>> loop = RepeatOperation(id="layers", count=4, operations=(work,))
    >>> [(operation.id, count) for operation, count in operations_with_counts([loop])]
    [('layer', 4)]
    """
    for part in parts:
        if isinstance(part, RepeatOperation):
            yield from operations_with_counts(part.operations, count * part.count)
        else:
            yield part, count


def map_operations(
    parts: Iterable[WorkloadPart], change: Callable[[Operation], Operation]
) -> tuple[WorkloadPart, ...]:
    """The same parts with each operation changed, inside loops too."""
    return tuple(
        msgspec.structs.replace(part, operations=map_operations(part.operations, change))
        if isinstance(part, RepeatOperation)
        else change(part)
        for part in parts
    )


def unrolled_count(parts: Iterable[WorkloadPart]) -> int:
    """The number of operations without loops."""
    return sum(count for _, count in operations_with_counts(parts))


MOST_UNROLLED = 1_000_000
"""Limit of a workload whose loops are unrolled: a gigabyte of operations and messages."""


def call_inside(operation: ComputeOperation, inner: Inside) -> CallOperation:
    """One of the collectives that a computation waits for."""
    return CallOperation(
        id="",
        kind=inner.kind,
        group=inner.group,
        size_bytes=inner.size_bytes,
        on=(operation.on,),
        imbalance=inner.imbalance,
    )


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Selection of plans and protocols, as :func:`simcoll.distributed.spawn` does with these
    arguments.

    Attributes
    ----------
    protocol
        Name of a protocol.
    library
        A communication library whose choices are used; empty: none.
    """

    protocol: str = "ideal"
    library: str = ""


@shows_facts
@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
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
        In topological order; a :class:`RepeatOperation` holds operations of its own.
    title, tokens, model_flops, hardware_flops
        For results: title, tokens of the whole program, and FLOPs of matrix products needed by the
        model and performed with recomputation.
    rules
        Selection of plans and protocols; None: as NCCL would.
    """

    nranks: int
    classes: Mapping[str, NDArray[np.int64]]
    groups: Mapping[str, NDArray[np.int64]]
    operations: tuple[WorkloadPart, ...]
    title: str = ""
    tokens: int = 0
    model_flops: float = 0.0
    hardware_flops: float = 0.0
    rules: Rules | None = None

    def __post_init__(self) -> None:
        _check_classes(self.classes, self.nranks)
        _check_groups(self.groups, self.nranks)
        _check_operations(self)

    def with_operations(self, operations: tuple[WorkloadPart, ...]) -> Workload:
        """The same workload with some of its operations, or with operations that lack bytes of
        theirs, each after some of those before it: they need no further check, which takes a
        twentieth of the time to play them.
        """
        copy = object.__new__(Workload)
        for name in (column.name for column in fields(self)):
            object.__setattr__(copy, name, getattr(self, name))
        object.__setattr__(copy, "operations", operations)
        return copy

    def facts(self) -> list[tuple[str, object]]:
        """Name and value of what a reader sees."""
        title = f"{self.title}: " if self.title else ""
        kinds = Counter(type(part).__name__.removesuffix("Operation") for part in self.operations)
        parts = ", ".join(f"{count:,} {kind.lower()}" for kind, count in kinds.items())
        return [
            ("workload", f"{title}{self.nranks} ranks, {len(self.operations):,} operations"),
            ("operations", parts or "none"),
            ("classes", f"{len(self.classes)} of ranks that behave alike"),
            ("groups", listed(self.groups) or "none"),
        ]

    def unroll(self) -> tuple[Operation, ...]:
        """The operations with every iteration of every loop, for those that cannot play loops.

        Raises
        ------
        ConfigError
            For more than a million operations.
        """
        if not any(isinstance(part, RepeatOperation) for part in self.operations):
            return cast("tuple[Operation, ...]", self.operations)
        count = unrolled_count(self.operations)
        if count > MOST_UNROLLED:
            raise ConfigError(
                f"its loops unroll to {count:,} operations, more than {MOST_UNROLLED:,}; tier 1 "
                "plays loops without unrolling them"
            )
        return tuple(_iterations(self.operations, "", {}))

    def classes_of(self, operation: Operation) -> tuple[str, ...]:
        """The classes that participate in an operation."""
        if isinstance(operation, ComputeOperation):
            return (operation.on,)
        if isinstance(operation, SendOperation):
            return tuple(dict.fromkeys((operation.source, operation.target)))
        return operation.on or tuple(self.classes)

    def groups_of(self, call: CallOperation) -> NDArray[np.int64]:
        """The groups of a call that lie in its classes.

        Raises
        ------
        ConfigError
            When a group has ranks inside and outside the classes.
        """
        groups = self.groups[call.group]
        if not call.on:
            return groups
        member = np.zeros(self.nranks, bool)
        for name in call.on:
            member[self.classes[name]] = True
        in_classes = member[groups]
        if (in_classes.any(axis=1) != in_classes.all(axis=1)).any() or not in_classes.any():
            raise ConfigError(
                f"operation {call.id!r}: a group of {call.group!r} is only partly in "
                f"{', '.join(call.on)}, or none is"
            )
        return groups[in_classes.all(axis=1)]


def _iterations(
    parts: Iterable[WorkloadPart], suffix: str, names: Mapping[str, tuple[str, ...]]
) -> Iterator[Operation]:
    """Operations of all iterations; those of a loop have the iteration in their ids.

    ``names`` holds, for each id that may be named, the operations that stand for it.
    """
    names = dict(names)
    for part in parts:
        name = f"{part.id}{suffix}"
        if not isinstance(part, RepeatOperation):
            predecessors = tuple(new for needed in part.after for new in names[needed])
            names[part.id] = (name,)
            yield msgspec.structs.replace(part, id=name, after=predecessors)
            continue
        for iteration in range(part.count):
            body = list(_iterations(part.operations, f"{suffix}[{iteration}]", names))
            yield from body
        names[part.id] = tuple(operation.id for operation in body)


def _check_classes(classes: Mapping[str, NDArray[np.int64]], nranks: int) -> None:
    counts = np.zeros(nranks, np.int64)
    for name, ranks in classes.items():
        wrong = ranks[(ranks < 0) | (ranks >= nranks)]
        if len(wrong):
            raise ConfigError(f"class {name!r}: rank {wrong[0]} is not among 0 to {nranks - 1}")
        np.add.at(counts, ranks, 1)
    off = np.flatnonzero(counts != 1)
    if len(off):
        owners = [name for name, ranks in classes.items() if off[0] in ranks]
        problem = f"is in {' and '.join(map(repr, owners))}" if owners else "is in no class"
        raise ConfigError(f"rank {off[0]} {problem}; each must be in exactly one, once")


def _check_groups(groups: Mapping[str, NDArray[np.int64]], nranks: int) -> None:
    for name, members in groups.items():
        ranks = members.reshape(-1)
        if members.ndim != 2 or not len(ranks) or ranks.min() < 0 or ranks.max() >= nranks:
            raise ConfigError(
                f"group {name!r}: expected lists of equally many ranks, 0 to {nranks - 1}"
            )
        if len(np.unique(ranks)) != len(ranks):
            raise ConfigError(f"group {name!r}: a rank is in two groups")


def _check_operations(workload: Workload) -> None:
    """Check that all names are defined before their use, which excludes cyclic waits."""
    _OperationChecks(workload, _ids(workload.operations)).check(workload.operations, frozenset())


def _ids(parts: Iterable[WorkloadPart]) -> list[str]:
    ids = []
    for part in parts:
        ids.append(part.id)
        if isinstance(part, RepeatOperation):
            ids += _ids(part.operations)
    return ids


@dataclass(eq=False)
class _OperationChecks:
    """Checks of operations in their order, loop by loop."""

    workload: Workload
    ids: list[str]
    names: set[str] = field(default_factory=set)
    axes: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)

    def check(self, parts: Iterable[WorkloadPart], defined: frozenset[str]) -> None:
        """Check the operations of a loop or the workload; ``defined`` are those before it."""
        visible = set(defined)
        for part in parts:
            subject = f"operation {part.id!r}"
            if part.id in self.names:
                raise ConfigError(f"{subject} is a duplicate")
            self.names.add(part.id)
            if isinstance(part, RepeatOperation):
                if part.count < 1 or not part.operations:
                    raise ConfigError(
                        f"{subject}: expected a count of at least 1 and at least one operation"
                    )
                self.check(part.operations, frozenset(visible))
            else:
                self._operation(part, visible, subject)
            visible.add(part.id)

    def _operation(self, operation: Operation, visible: set[str], subject: str) -> None:
        workload = self.workload
        for name in workload.classes_of(operation):
            if name not in workload.classes:
                raise ConfigError(
                    f"{subject}: unknown class {name!r}; {nearest(name, workload.classes)}"
                )
        for needed in operation.after:
            if needed in visible:
                continue
            if needed not in self.ids:
                raise ConfigError(
                    f"{subject}: after: unknown operation {needed!r}; {nearest(needed, self.ids)}"
                )
            if needed in self.names and needed != operation.id:
                raise ConfigError(
                    f"{subject} is after {needed!r}, which is inside a loop; expected the loop"
                )
            raise ConfigError(
                f"{subject} is after {needed!r}, which comes later: in a cycle of dependencies "
                "nothing can start"
            )
        _check_sizes(workload, operation, subject)
        if (
            isinstance(operation, CallOperation)
            and (operation.group, operation.on) not in self.axes
        ):
            self.axes.add((operation.group, operation.on))
            workload.groups_of(operation)


def _check_sizes(workload: Workload, operation: Operation, subject: str) -> None:
    if isinstance(operation, ComputeOperation):
        if min(operation.time_fs, operation.least_fs) < 0 or operation.pieces < 1:
            raise ConfigError(f"{subject}: expected a time of at least 0 and at least one piece")
        for inner in operation.inside:
            if inner.count < 0 or inner.hidden_fs < 0 or not 0 <= inner.share < 1:
                raise ConfigError(
                    f"{subject}: inside: expected a count, a hidden time and a share below 1, of "
                    "at least 0"
                )
            _check_call(
                workload, inner.kind, inner.group, inner.size_bytes, inner.imbalance, subject
            )
    elif isinstance(operation, CallOperation):
        kind = "barrier" if operation.kind == "meeting" else operation.kind
        if operation.kind == "send_recv" and operation.pairs:
            kind = "all_to_all"  # its pairs are checked below
        _check_call(
            workload, kind, operation.group, operation.size_bytes, operation.imbalance, subject
        )
        members = workload.groups[operation.group].shape[1]
        _check_pairs(operation, members, subject)
        if operation.service_fs is not None and operation.service_fs < 0:
            raise ConfigError(
                f"{subject}: service_fs: expected at least 0, got {operation.service_fs}"
            )
        if not 0 <= operation.root < members:
            raise ConfigError(
                f"{subject}: root: expected a group rank, 0 to {members - 1}, got {operation.root}"
            )
        _check_blocks(operation, subject)
    else:
        ends = [len(workload.classes[name]) for name in (operation.source, operation.target)]
        if ends[0] != ends[1] or operation.source == operation.target:
            raise ConfigError(
                f"{subject}: expected two classes of equally many ranks, got {ends[0]} and "
                f"{ends[1]}"
            )
        if operation.size_bytes < 0:
            raise ConfigError(
                f"{subject}: size_bytes: expected at least 0, got {operation.size_bytes}"
            )


def _check_call(
    workload: Workload, kind: str, group: str, size_bytes: int, imbalance: float, subject: str
) -> None:
    if kind not in KINDS or kind == "send_recv":
        valid = [name for name in KINDS if name != "send_recv"]
        raise ConfigError(f"{subject}: unknown collective {kind!r}; {nearest(kind, valid)}")
    if group not in workload.groups:
        raise ConfigError(f"{subject}: unknown group {group!r}; {nearest(group, workload.groups)}")
    if size_bytes < 0 or not imbalance >= 1:
        raise ConfigError(
            f"{subject}: expected a size of at least 0 and an imbalance of at least 1"
        )


def _check_pairs(call: CallOperation, members: int, subject: str) -> None:
    """Check that the pairs of a send_recv, and of nothing else, are group ranks."""
    if call.pairs and call.kind != "send_recv":
        raise ConfigError(f"{subject}: pairs are for send_recv; got a {call.kind}")
    for end, ranks in zip(("source", "destination"), zip(*call.pairs, strict=True), strict=False):
        wrong = [rank for rank in ranks if not 0 <= rank < members]
        if wrong:
            raise ConfigError(
                f"{subject}: pairs: expected group ranks, 0 to {members - 1}, got {wrong[0]}"
            )
        if len(set(ranks)) < len(ranks):
            twice = next(rank for rank in ranks if ranks.count(rank) > 1)
            raise ConfigError(f"{subject}: pairs: rank {twice} is the {end} of two messages")
    for source, target in call.pairs:
        if source == target:
            raise ConfigError(f"{subject}: pairs: rank {source} sends to itself")


def _check_blocks(call: CallOperation, subject: str) -> None:
    """Check the element type and uneven blocks of a call; binding checks that they fit its
    group.
    """
    if call.dtype:
        parse_dtype(call.dtype)
    if any(size < 0 for row in call.sizes for size in row):
        raise ConfigError(f"{subject}: sizes: expected numbers of elements, at least 0")


class _WorkloadFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: str
    nranks: int
    classes: dict[str, list[int]]
    groups: dict[str, list[list[int]]] = {}
    operations: list[ComputeOperation | CallOperation | SendOperation | RepeatOperation]
    title: str = ""
    tokens: int = 0
    model_flops: float = 0.0
    hardware_flops: float = 0.0
    rules: Rules | None = None


def write_workload(workload: Workload) -> bytes:
    """Encode a workload as JSON."""
    document = _WorkloadFile(
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
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def read_workload(content: Content, file: str | None = None) -> Workload:
    """Decode a workload from JSON.

    Raises
    ------
    ConfigError
        With the file and the place in it.

    Examples
    --------
    >>> total = CallOperation(id="sum", kind="all_reduce", group="dp", size_bytes=8)
    >>> workload = Workload(2, {"all": np.arange(2)}, {"dp": np.array([[0, 1]])}, (total,))
    >>> read_workload(write_workload(workload)).operations == workload.operations
    True
    """
    document = decode_json(content_of(content, "read_workload"), _WorkloadFile, file)
    if document.format != FORMAT:
        raise ConfigError(
            f"expected {FORMAT!r}, got {document.format!r}", file=file, path="$.format"
        )
    if not 1 <= document.nranks < 2**24:
        raise ConfigError(
            f"expected 1 to {2**24 - 1} ranks, got {document.nranks}", file=file, path="$.nranks"
        )
    for name, groups in document.groups.items():
        if len({len(group) for group in groups}) != 1:
            raise ConfigError(
                "expected lists of equally many ranks", file=file, path=f"$.groups.{name}"
            )
    with blamed_on(file):
        try:
            return Workload(
                document.nranks,
                {name: np.array(ranks, np.int64) for name, ranks in document.classes.items()},
                {name: np.array(groups, np.int64) for name, groups in document.groups.items()},
                tuple(document.operations),
                document.title,
                document.tokens,
                document.model_flops,
                document.hardware_flops,
                document.rules,
            )
        except (OverflowError, ValueError) as error:
            raise ConfigError(f"ranks must be whole numbers of 64 bits: {error}") from None


__getattr__ = renamed_attributes(__name__, __name__)
