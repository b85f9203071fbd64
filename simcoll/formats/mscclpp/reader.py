"""Reader of MSCCL++ execution plans: programs of thread blocks that load, store and signal.

The reader follows the executor, not the language that writes the plans: it refuses plans that the
executor loads but runs differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import lcm

from simcoll.core.collective import Collective
from simcoll.core.device_program import DeviceProgram
from simcoll.errors import ConfigError, nearest
from simcoll.files.reader_arguments import Content, FilePath, content_of, path_of
from simcoll.files.strict import decode_json, read_file
from simcoll.formats.mscclpp.blocks import MAX_PARTS, PlanPlace, PlanRank, every_operation
from simcoll.formats.mscclpp.document import PLAN_PROTOCOLS, PlanDocument

__all__ = ["load_mscclpp_plan", "parse_mscclpp_plan"]

MAX_BYTES = 64 << 20
MAX_CELLS = 1 << 20
MAX_SEMAPHORES = 16

_KINDS: Mapping[str, str | None] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    **dict.fromkeys(("sendrecv", "test", "custom")),
}


def load_mscclpp_plan(path: FilePath) -> DeviceProgram:
    """Read an MSCCL++ execution plan.

    Returns
    -------
    DeviceProgram
        Not proved yet: see :func:`simcoll.proving.verify_device_program`.

    Raises
    ------
    ConfigError
        As :func:`parse_mscclpp_plan`, or when the file cannot be read.
    """
    path = path_of(path, "load_mscclpp_plan", "parse_mscclpp_plan")
    return parse_mscclpp_plan(read_file(path, MAX_BYTES), path)


def parse_mscclpp_plan(content: Content, file: str | None = None) -> DeviceProgram:
    """Read the content of an MSCCL++ execution plan.

    Raises
    ------
    ConfigError
        When it is not a plan, has the format before August 2025, exceeds a limit of the executor,
        or requests something that the executor does differently; the message gives the position.
    """
    content = content_of(content, "parse_mscclpp_plan")
    if b'"inputChunks"' in content:
        raise ConfigError(
            "this is an execution plan of the format before August 2025 (inputChunks, "
            "chunkGroups), which today's executor does not load; "
            "write it anew with today's mscclpp.language",
            file=file,
        )
    plan = decode_json(content, PlanDocument, file)
    top = PlanPlace(file, "$")
    if plan.protocol not in PLAN_PROTOCOLS:
        top.at(".protocol").refuse(
            f"unknown protocol {plan.protocol!r}; {nearest(plan.protocol, PLAN_PROTOCOLS)}"
        )
    if plan.collective not in _KINDS:
        top.at(".collective").refuse(
            f"unknown collective {plan.collective!r}; {nearest(plan.collective, _KINDS)}"
        )
    if not plan.gpus:
        top.at(".gpus").refuse("there are no gpus")
    pieces = _pieces(top, plan)
    shape = _shape(top, plan, pieces)
    gpus = [PlanRank(top.at(f".gpus[{rank}]"), plan, shape, rank) for rank in range(len(plan.gpus))]
    if plan.reuse_resources and any(
        operation.name == "pipeline"
        for gpu in plan.gpus
        for block in gpu.threadblocks
        for operation in block.ops
    ):
        top.refuse(
            "reuse_resources with pipelines: which slices share scratch depends on the size, so it "
            "is not followed"
        )
    return replace(shape, blocks=tuple(gpu.blocks() for gpu in gpus))


def _pieces(top: PlanPlace, plan: PlanDocument) -> int:
    """The number of cells per chunk, such that each thread block's part of a region is a whole
    number of cells.
    """
    pieces, units = 1, set()
    for rank, gpu in enumerate(plan.gpus):
        for number, block in enumerate(gpu.threadblocks):
            for operation in every_operation(block.ops):
                if operation.tbg_info is not None:
                    place = top.at(f".gpus[{rank}].threadblocks[{number}]")
                    place.within("tbg_size", operation.tbg_info.tbg_size, 1, MAX_PARTS)
                    place.within(
                        "tb_id", operation.tbg_info.tb_id, 0, operation.tbg_info.tbg_size - 1
                    )
                    pieces = lcm(pieces, operation.tbg_info.tbg_size)
                if operation.iter_context is not None:
                    units.add(operation.iter_context.unit_size)
                    pieces = lcm(pieces, 2)  # two slices show how one follows the other
    if len(units) > 1:
        top.refuse(f"pipelines of several unit sizes, {sorted(units)}, are not followed together")
    if pieces > MAX_PARTS:
        top.refuse(
            f"groups of thread blocks cut chunks into {pieces} parts; at most {MAX_PARTS} are "
            "followed"
        )
    return pieces


def _shape(top: PlanPlace, plan: PlanDocument, pieces: int) -> DeviceProgram:
    """The program without its operations."""
    n, first_gpu = len(plan.gpus), plan.gpus[0]
    for rank, gpu in enumerate(plan.gpus):
        place = top.at(f".gpus[{rank}]")
        if gpu.id != rank:
            place.at(".id").refuse(
                f"id is {gpu.id}; gpus are indexed by rank, so {rank} is expected"
            )
        for name in ("input_chunks", "output_chunks", "scratch_chunks"):
            chunks = place.within(name, getattr(gpu, name), 0, MAX_CELLS)
            if chunks == 0 and name != "scratch_chunks":
                place.refuse(f"{name} is 0, by which the executor divides")
        if (gpu.input_chunks, gpu.output_chunks) != (
            first_gpu.input_chunks,
            first_gpu.output_chunks,
        ):
            place.refuse(
                f"{gpu.input_chunks} input and {gpu.output_chunks} output chunks; "
                f"gpu 0 has {first_gpu.input_chunks} and {first_gpu.output_chunks}"
            )
    kind = _KINDS[plan.collective]
    collective, chunks = None, 1
    if kind is not None:
        collective = Collective(kind, n, in_place=plan.inplace)
        chunks = first_gpu.input_chunks // max(collective.input_slots, 1)
        expected = (chunks * collective.input_slots, chunks * collective.output_slots)
        if not chunks or expected != (first_gpu.input_chunks, first_gpu.output_chunks):
            top.at(".gpus[0]").refuse(
                f"{first_gpu.input_chunks} input and {first_gpu.output_chunks} output chunks do "
                f"not fit an {plan.collective} of {n} ranks"
            )
    scratch = max(gpu.scratch_chunks for gpu in plan.gpus)
    plain = scratch * (2 if plan.protocol == "LL" else 1)
    buffers = (
        first_gpu.input_chunks * pieces,
        first_gpu.output_chunks * pieces,
        plain * pieces,
        scratch * pieces,
    )
    if sum(buffers) * n > MAX_CELLS:
        top.refuse(
            f"{sum(buffers)} cells on each of {n} ranks; at most {MAX_CELLS} in all are followed"
        )
    semaphores = []
    for rank, gpu in enumerate(plan.gpus):
        place = top.at(f".gpus[{rank}].semaphores")
        place.within("number of semaphores", len(gpu.semaphores), 0, MAX_SEMAPHORES)
        semaphores.append(
            tuple(
                place.within("init_value", semaphore.init_value, 0, 2**31)
                for semaphore in gpu.semaphores
            )
        )
    name = plan.name if plan.name.isprintable() and len(plan.name) <= 200 else "plan"
    return DeviceProgram(
        name,
        tuple(() for _ in plan.gpus),
        buffers,
        collective,
        chunks * pieces,
        pieces,
        plan.inplace,
        "LL" if plan.protocol == "LL" else "Simple",
        tuple(semaphores),
        plan.min_message_size,
        plan.max_message_size,
    )
