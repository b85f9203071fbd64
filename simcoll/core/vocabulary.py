"""The words of the domain that records hold and code compares: kinds, protocols, axes, states.

Each vocabulary is a ``Literal``, so that a comparison with a word that is not in it is an error of
mypy (``strict_equality``). At run time its words are plain strings, as in files and on the command
line. Text from outside becomes a word where it is checked: after ``if text not in KINDS: raise``,
mypy knows ``text`` as a :data:`CollectiveKind`, because the keys of the table are. mypy does not
look into ``word in {"a", "b"}``; ``tests/laws/test_vocabulary.py`` does.

Names that others may add to (engines, algorithms, libraries, transports) are no vocabulary.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = [
    "Axis",
    "BoundKind",
    "CallKind",
    "CollectiveKind",
    "Connection",
    "DataMode",
    "DesignedFor",
    "Evidence",
    "Fabric",
    "GpuGeneration",
    "InstructionName",
    "Interconnect",
    "LinkKind",
    "NcclAlgorithm",
    "NcclProtocol",
    "NodeKind",
    "OperationState",
    "OrderLevel",
    "PairReduction",
    "PassKind",
    "PipelineSchedule",
    "PolicyKind",
    "PredictedAlgorithm",
    "ProofKind",
    "ProofMethod",
    "RankSet",
    "ReductionName",
    "Sharding",
    "TogetherKind",
    "TransferOp",
]

CollectiveKind: TypeAlias = Literal[
    "broadcast",
    "reduce",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "send_recv",
    "barrier",
    "custom",
]
"""What a collective means; :data:`simcoll.core.collective.KINDS` has the definitions of all but
``custom``, which brings its own (:class:`simcoll.core.definition.Definition`).
"""

CallKind: TypeAlias = CollectiveKind | Literal["meeting"]
"""What ranks call in a workload: a collective, or a meeting, which moves no bytes."""

TogetherKind: TypeAlias = CallKind | Literal["send"]
"""What ranks do together in recorded runs and traces: a call, or one message."""

RankSet: TypeAlias = Literal["all", "root", "sources", "destinations"]
"""The ranks of a collective that have an input, or an output."""

TransferOp: TypeAlias = Literal["copy", "reduce", "sync", "multicast", "switch_reduce"]
"""What a transfer does to its destination (:data:`simcoll.core.step.OP_NAMES`)."""

PairReduction: TypeAlias = Literal["sum", "product", "min", "max", "band", "bor", "bxor"]
"""What two values become (:data:`simcoll.core.reduction.REDUCTIONS`)."""

ReductionName: TypeAlias = PairReduction | Literal["avg", "premul_sum"]
"""What the inputs of a collective become."""

OrderLevel: TypeAlias = Literal[
    "", "any", "rank-consistent", "run-consistent", "position-independent"
]
"""What a proof says of the order of reductions (:data:`simcoll.core.proof.LEVELS`); empty where
nothing is reduced.
"""

ProofKind: TypeAlias = Literal["full", "by symmetry"]
"""Whether every chunk was followed, or some that stand for the rest."""

ProofMethod: TypeAlias = Literal["exact", "fingerprint"]
"""How contributions are compared."""

DesignedFor: TypeAlias = Literal["any", "boxes", "torus", "switch", "sharp", "direct"]
"""The topologies of an algorithm (:class:`simcoll.algorithms.registered.Algorithm`)."""

Evidence: TypeAlias = Literal["measured", "steps", "data sheet", "sibling", "assumed"]
"""What a rate of a GPU rests on (:data:`simcoll.training.gpu.EVIDENCE`)."""

BoundKind: TypeAlias = Literal["bandwidth", "latency"]
"""What limits a collective."""

InstructionName: TypeAlias = Literal[
    "nop",
    "send",
    "recv",
    "recv_copy_send",
    "recv_reduce_send",
    "recv_reduce_copy",
    "recv_reduce_copy_send",
    "copy",
    "reduce",
]
"""What a lane of a rank's program does (:data:`simcoll.core.rank_program.OPS`)."""

NcclAlgorithm: TypeAlias = Literal[
    "tree", "ring", "collnet", "collnet_chain", "nvls", "nvls_tree", "pat"
]
"""The algorithms that NCCL chooses from."""

PredictedAlgorithm: TypeAlias = (
    NcclAlgorithm | Literal["grouped", "symmetric", "all_pairs", "mscclpp"]
)
"""Those that a prediction names; ``grouped``: sends and receives in a group; ``symmetric``: kernels
for registered buffers; ``all_pairs`` and ``mscclpp``: those of MSCCL and MSCCL++ in RCCL.
"""

NcclProtocol: TypeAlias = Literal["LL", "LL128", "Simple"]
"""NCCL's protocols. A :class:`simcoll.core.protocol.Protocol` of one's own may have any name."""

NodeKind: TypeAlias = Literal["gpu", "nic", "switch", "cpu", "pcie"]
"""Kinds of vertices (:data:`simcoll.topology.NODE_KINDS`)."""

LinkKind: TypeAlias = Literal["nvlink", "link", "pcie", "cpu", "net"]
"""Kinds of links (:data:`simcoll.topology.LINK_KINDS`)."""

Connection: TypeAlias = Literal["nvlink", "xgmi", "link", "pcie", "cpu", "net", "host", ""]
"""What connects the ranks of a domain: a kind of link, AMD's xGMI, host memory, or nothing."""

Interconnect: TypeAlias = Literal["switch", "mesh", "links", "pcie"]
"""What joins the GPUs of a node in a family of topologies."""

Fabric: TypeAlias = Literal[
    "ib",
    "roce",
    "efa-p4",
    "efa-p5",
    "slingshot",
    "slingshot-alps",
    "tcpx",
    "tcpxo",
    "socket",
]
"""Networks between nodes (:data:`simcoll.topology.machine.FABRICS`)."""

GpuGeneration: TypeAlias = Literal["volta", "ampere", "hopper", "blackwell", "mi300", "mi355"]
"""Generations of GPUs (:data:`simcoll.topology.machine.GENERATIONS`)."""

Axis: TypeAlias = Literal["tp", "cp", "dp", "pp", "ep", "edp"]
"""Axes of a mesh: tensor, context, data, pipeline and expert parallelism, and the data parallelism
of experts.
"""

Sharding: TypeAlias = Literal["none", "optimizer", "gradients", "parameters"]
"""What data parallelism splits: nothing (DDP), ZeRO-1, ZeRO-2, ZeRO-3."""

PipelineSchedule: TypeAlias = Literal["1f1b", "zero-bubble"]
"""The order of passes in a pipeline."""

PassKind: TypeAlias = Literal["F", "B", "W"]
"""A pass of a micro-batch: forward, backward, gradients of weights alone."""

PolicyKind: TypeAlias = Literal["stall", "re-route", "abort"]
"""What happens to bytes that meet a link that is down."""

OperationState: TypeAlias = Literal["scheduled", "started", "completed"]
"""Status of an operation in a flight record."""

DataMode: TypeAlias = Literal["auto", "exact", "none"]
"""Whether a run moves data."""
