"""Certificates: what was proved, as a file that ``simcoll-check`` checks anew, a program that
shares no code with simcoll.

A certificate holds a schedule or a per-rank program as it was proved, and the facts that are
claimed about it. Repeats stay repeats, so the file of a ring of a thousand ranks is small. A proof
by the symmetry of a ring names the renumbering, so that checking it takes no longer than the proof;
any other is checked in full, chunk by chunk.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from simcoll.core.collective import Collective
from simcoll.core.device_program import DeviceProgram
from simcoll.core.proof import Proof
from simcoll.core.rank_program import OPS, Instruction, RankProgram
from simcoll.core.schedule import OP_NAMES, SYNC, Repeat, Schedule, Step
from simcoll.core.wiring import wire
from simcoll.errors import ConfigError, ScheduleError
from simcoll.files.output import write_file
from simcoll.proving import DeviceProof, ProgramProof, device_schedule
from simcoll.proving import verify as prove
from simcoll.proving.deadlock import play
from simcoll.proving.symmetry import Symmetry, find_symmetry
from simcoll.terminal import printable

__all__ = [
    "MAX_BYTES",
    "MAX_INSTRUCTIONS",
    "MAX_MOVES",
    "certificate_bytes",
    "verify",
    "write_certificate",
]

FORMAT, VERSION = "simcoll-certificate", 1
MAX_BYTES = 48 << 20
"""Limit of a certificate before it is compressed; like the next two, a limit of
``simcoll-check``.
"""
MAX_MOVES = 6_000_000
"""Limit of the chunks moved by a schedule or program that is checked in full, with repeats
unrolled.
"""
MAX_INSTRUCTIONS = 50_000
"""Limit of the instructions of a program."""
NAME_LETTERS = 200
DEPTHS = (0, 1, 2, 8)
"""FIFO depths at which the checker also runs a program, besides its own."""


def verify(
    schedule: Schedule,
    *,
    exact: bool | None = None,
    salt: bytes | None = None,
    certificate: str | Path | None = None,
) -> Proof:
    """Prove that a schedule implements its collective, for all sizes, dtypes and reductions; the
    proof is remembered.

    Parameters
    ----------
    schedule
        Any schedule.
    exact
        Count every contribution instead of comparing fingerprints. Default: where the contributions
        are few.
    salt
        Repeats a proof by fingerprints, with the ``salt`` of that proof. Default: drawn anew, from
        the system's secure source.
    certificate
        File for the certificate, which ``simcoll-check`` checks without simcoll; compressed if its
        name ends in ``.gz``.

    Returns
    -------
    Proof

    Raises
    ------
    ScheduleError
        States the step, ranks, channel and chunk at fault, and the contributions found and
        expected.
    ConfigError
        When ``exact`` would need too much memory, for a salt of another length, and when the
        certificate is too large for the checker or cannot be written.

    Examples
    --------
    >>> import simcoll
    >>> simcoll.verify(simcoll.schedule("all_reduce", "ring", nranks=4)).transfers
    28
    """
    proof = prove(schedule, exact=exact, salt=salt)
    if certificate is not None:
        write_certificate(schedule, proof, certificate)
    return proof


def write_certificate(
    subject: object, proof: Proof | ProgramProof | DeviceProof, path: str | Path
) -> None:
    """Write the certificate of a proof, gzip-compressed if the name of the file ends in ``.gz``.

    Parameters
    ----------
    subject, proof
        As in :func:`certificate_bytes`.
    path
        The file. An existing one is replaced at once, or kept if the new one cannot be written.

    Raises
    ------
    ConfigError
        As :func:`certificate_bytes`, and when the file cannot be written.
    """
    content = certificate_bytes(subject, proof)
    if str(path).endswith(".gz"):
        content = gzip.compress(content, mtime=0)  # equal proofs give equal files
    write_file(path, content)


def certificate_bytes(subject: object, proof: Proof | ProgramProof | DeviceProof) -> bytes:
    """The certificate of a proof, as JSON text.

    Parameters
    ----------
    subject
        A schedule; a per-rank program, loaded from MSCCL XML or lowered from a plan; or a program
        of thread blocks, loaded from an MSCCL++ plan, in whose place a schedule is certified that
        gives every cell the same values: signals are not in the file.
    proof
        Its proof, by :func:`simcoll.verify`, :func:`~simcoll.proving.verify_program`,
        :func:`~simcoll.proving.check_lowering` or :func:`~simcoll.proving.verify_device_program`.

    Returns
    -------
    bytes
        The same for equal subjects, so that certificates can be compared.

    Raises
    ------
    ConfigError
        For anything else, for the proof of another schedule, and when the certificate is larger
        than the checker's limits.

    Examples
    --------
    >>> import json, simcoll
    >>> ring = simcoll.schedule("all_reduce", "ring", nranks=4)
    >>> json.loads(certificate_bytes(ring, simcoll.verify(ring)))["claims"]["order"]
    'run-consistent'
    """
    if isinstance(subject, Schedule) and isinstance(proof, Proof):
        return _encode(subject, _of_schedule(subject, proof, subject.title))
    if isinstance(subject, RankProgram) and isinstance(proof, ProgramProof):
        return _encode(subject, _of_program(subject, proof))
    if isinstance(subject, DeviceProgram) and isinstance(proof, DeviceProof):
        schedule = device_schedule(subject, trust_relaxed=proof.trusted)
        title = f"{schedule.title}, as a schedule that gives every cell the same values"
        return _encode(subject, _of_schedule(schedule, prove(schedule), title))
    raise ConfigError(_refusal(subject, proof))


def _refusal(subject: object, proof: object) -> str:
    """Why there is no certificate of something."""
    from simcoll.formats.goal.language import Goal

    if isinstance(subject, Goal):
        return (
            f"{subject}: no certificate: GOAL says how much is sent, not which data, so there "
            "is no collective to prove"
        )
    if isinstance(subject, (Schedule, RankProgram, DeviceProgram)):
        return f"{subject}: its certificate needs its own proof, got {proof!r:.60}"
    return f"certificates are made of schedules and programs, got {subject!r:.60}"


def _encode(subject: object, record: dict[str, Any]) -> bytes:
    """The file: each key on a line, and each block of steps, or each rank of a program."""
    blocks = record.pop("blocks", None)
    lines = [
        msgspec.json.encode(key) + b": " + msgspec.json.encode(value)
        for key, value in record.items()
    ]
    if blocks is not None:
        lines.append(
            b'"blocks": [\n  '
            + b",\n  ".join(msgspec.json.encode(block) for block in blocks)
            + b"\n ]"
        )
    data = b"{\n " + b",\n ".join(lines) + b"\n}\n"
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{subject}: its certificate has {len(data) >> 20} MiB; simcoll-check reads up to "
            f"{MAX_BYTES >> 20} MiB"
        )
    return data


def _head(subject: str, title: str, collective: Collective | None, chunks: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "subject": subject,
        "name": printable(title)[:NAME_LETTERS],
        "collective": None if collective is None else _collective(collective),
        "chunks": chunks,
    }


def _collective(collective: Collective) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": collective.kind, "nranks": collective.nranks}
    if collective.root is not None:
        record["root"] = collective.root
    if collective.kind == "send_recv":
        record["pairs"] = [list(pair) for pair in collective.pairs]
    if collective.in_place:
        record["in_place"] = True
    if collective.definition is not None:
        record["definition"] = collective.definition.record()
    return record


def _of_schedule(schedule: Schedule, proof: Proof, title: str) -> dict[str, Any]:
    if proof.of is not None and proof.of is not schedule.known:
        raise ConfigError(
            f"{schedule}: its certificate needs its own proof, got that of another schedule"
        )
    layout, moves = schedule.layout, _moves(schedule)
    symmetry = _symmetry(schedule, proof, moves)
    if symmetry is None and moves > MAX_MOVES:
        raise ConfigError(
            f"{schedule}: its {moves:,} transfers of a chunk are too many for a certificate: "
            "simcoll-check follows up to "
            f"{MAX_MOVES:,}, or a place of every kind where a schedule is symmetric under a "
            "rotation of a ring"
        )
    record = _head("schedule", title, schedule.collective, layout.chunks)
    record |= {"channels": schedule.nchannels, "divisible": schedule.divisible}
    if layout.scratch_slots:
        record["scratch"] = layout.scratch.tolist()
        if layout.scratch_pieces is not None:
            record["scratch_pieces"] = layout.scratch_pieces.tolist()
    record["claims"] = {
        "order": proof.order,
        "steps": proof.steps,
        "transfers": proof.transfers,
        "shared_chunks": proof.shared_chunks,
        "folds": proof.folds,
    }
    record["proof"] = {"kind": "full"} if symmetry is None else _renumbering(symmetry)
    record["blocks"] = [_block(block) for block in schedule.blocks()]
    return record


def _moves(schedule: Schedule) -> int:
    """Number of chunks moved by all transfers."""
    total = 0
    for block in schedule.blocks():
        steps, turns = (block.steps, block.count) if isinstance(block, Repeat) else ((block,), 1)
        total += turns * sum(int(np.where(step.op == SYNC, 1, step.count).sum()) for step in steps)
    return total


def _symmetry(schedule: Schedule, proof: Proof, moves: int) -> Symmetry | None:
    """The renumbering of ranks and places that a certificate names; None if every chunk is
    followed.

    Other proofs of few chunks for all, by one piece of each kind, are for the prover's speed: their
    certificates are full.
    """
    by_symmetry = proof.kind == "by symmetry" or (moves > MAX_MOVES and not proof.folds)
    if not by_symmetry or proof.shared_chunks:
        return None
    try:
        return find_symmetry(schedule)
    except ScheduleError:
        return None


def _renumbering(symmetry: Symmetry) -> dict[str, Any]:
    lane = symmetry.lane.tolist()
    return {
        "kind": "by symmetry",
        "rank": symmetry.rank.tolist(),
        "lane": lane[0] if len(set(lane)) == 1 else lane,
        "place": symmetry.place.tolist(),
    }


def _block(block: Step | Repeat) -> dict[str, Any]:
    """A step or repeat; the steps of barriers have no chunks, which a repeat could shift."""
    if isinstance(block, Step):
        return {"steps": [_step(block)]}
    record: dict[str, Any] = {"steps": [_step(step) for step in block.steps], "repeat": block.count}
    if not all((step.op == SYNC).all() for step in block.steps):
        # Shifts wrap around, so strides and the windows' starts count modulo the window.
        base = block.base if block.base >= 0 else block.base % block.modulus
        record |= {"stride": block.stride % block.modulus, "base": base, "modulus": block.modulus}
        record["order"] = None if block.order is None else block.order.tolist()
    return record


def _step(step: Step) -> dict[str, Any]:
    sync = step.op == SYNC
    ops = [OP_NAMES[op] for op in step.op.tolist()]
    record = {
        # A list even if constant: its length is the number of transfers.
        "src_rank": step.src_rank.tolist(),
        "src_chunk": _column(np.where(sync, 0, step.src_chunk)),
        "dst_rank": _column(step.dst_rank),
        "dst_chunk": _column(np.where(sync, 0, step.dst_chunk)),
        "count": _column(np.where(sync, 1, step.count)),
        "op": ops[0] if len(set(ops)) == 1 else ops,
        "channel": _column(step.channel),
    }
    texts = ((), ()) if step.transits is None else step.transits.columns()
    for name, column in zip(("via", "wire"), texts, strict=True):
        if any(column):
            record[name] = column[0] if len(set(column)) == 1 else list(column)
    return record


def _column(values: Any) -> Any:
    """A column as a list, or as its single value."""
    return int(values[0]) if (values == values[:1]).all() else values.tolist()


def _of_program(program: RankProgram, proof: ProgramProof) -> dict[str, Any]:
    wiring = wire(program)
    moves = int(wiring.code.count.sum())
    if program.steps > MAX_INSTRUCTIONS or moves > MAX_MOVES:
        raise ConfigError(
            f"{program}: its {program.steps:,} instructions on {moves:,} chunks are too many for a "
            "certificate: simcoll-check follows up "
            f"to {MAX_INSTRUCTIONS:,} on {MAX_MOVES:,}"
        )
    # The proof may have tried other depths than the checker does.
    tried = sorted({*DEPTHS, *(() if program.fifo_depth is None else (program.fifo_depth,))})
    least_depth = next((depth for depth in tried if play(wiring, depth).complete), None)
    collective = program.collective if proof.data else None
    record = _head("program", program.name, collective, program.chunks if proof.data else 1)
    record["claims"] = {
        "data": proof.data,
        "order": proof.order,
        "least_depth": least_depth,
        "steps": None,
        "messages": proof.messages,
    }
    record["program"] = {
        "nranks": program.nranks,
        "buffers": list(program.buffers),
        "in_place": program.in_place,
        "fifo_depth": program.fifo_depth,
        "protocol": printable(program.protocol)[:NAME_LETTERS],
        "ranks": [
            [
                {
                    "channel": lane.channel,
                    "instructions": [
                        _instruction(instruction) for instruction in lane.instructions
                    ],
                }
                for lane in lanes
            ]
            for lanes in program.lanes
        ],
    }
    return record


def _instruction(instruction: Instruction) -> dict[str, Any]:
    """An instruction, without what its operation does not use."""
    op, record = OPS[instruction.op], {"op": instruction.op}
    used: dict[str, Any] = {}
    if op != OPS["nop"]:
        used["count"] = instruction.count
    if op.reads and instruction.count:
        used["src"] = instruction.src
    if op.writes and instruction.count:
        used["dst"] = instruction.dst
    if op.receives:
        used["recv_from"] = instruction.recv_from
    if op.sends:
        used["send_to"] = instruction.send_to
    if instruction.waits:
        used["waits"] = [list(pair) for pair in instruction.waits]
    return record | used
