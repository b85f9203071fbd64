"""Writes certificates of attacked schedules apart from the package, and asks the independent
checker about them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from simcoll.errors import ConfigError, ScheduleError
from simcoll.types import COPY, Repeat
from tests.support.exact_player import Definition, integers, rows_by_step

OPS = ("copy", "reduce", "sync", "multicast", "switch_reduce")


def collective_of(collective) -> dict:
    """The definition of a collective, with the keys that apply to it."""
    subject = {
        "kind": collective.kind,
        "nranks": collective.nranks,
        "in_place": collective.in_place,
    }
    if collective.root is not None:
        subject["root"] = collective.root
    if collective.pairs:
        subject["pairs"] = [list(pair) for pair in collective.pairs]
    return subject


def _step(step) -> dict:
    names = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")
    columns = {name: integers(column) for name, column in zip(names, step.columns, strict=True)}
    columns["op"] = [OPS[op] if 0 <= op < len(OPS) else op for op in columns["op"]]
    return columns


def certificate(subject, verdict, **changes) -> dict:
    """The certificate of a schedule: of its true claims, or of the weakest ones if it is wrong."""
    layout, collective = subject.layout, subject.collective
    means, blocks, steps, transfers = Definition(collective, layout.chunks), [], 0, 0
    kept_blocks = [block for block in subject.source() if hasattr(block, "steps") or len(block)]
    for block in kept_blocks:
        if isinstance(block, Repeat):
            kept = [step for step in block.steps if len(step)]
            order = None if block.order is None else integers(block.order)
            blocks.append(
                {
                    "steps": [_step(step) for step in kept],
                    "repeat": block.count,
                    "stride": block.stride,
                    "base": block.base,
                    "modulus": block.modulus,
                    "order": order,
                }
            )
        else:
            blocks.append({"steps": [_step(block)]})
    with contextlib.suppress(Exception):  # rows that cannot be counted are refused anyway
        for rows in rows_by_step(kept_blocks):
            steps += bool(rows)
            for a, b, c, d, _, op, _ in rows:
                transfers += not (
                    op == COPY and (a, means.canonical(a, b)) == (c, means.canonical(c, d))
                )
    order = verdict.order if verdict.right else "any" if means.reduces else ""
    return {
        "format": "simcoll-certificate",
        "version": 1,
        "subject": "schedule",
        "name": "attack",
        "collective": collective_of(collective),
        "chunks": layout.chunks,
        "channels": subject.nchannels,
        "divisible": subject.divisible,
        "scratch": np.asarray(layout.scratch).tolist(),
        "scratch_pieces": None
        if layout.scratch_pieces is None
        else np.asarray(layout.scratch_pieces).tolist(),
        "blocks": blocks,
        "proof": {"kind": "full"},
        "claims": {
            "order": order,
            "steps": steps,
            "transfers": transfers,
            "shared_chunks": True,
            "folds": True,
        },
        **changes,
    }


def program_certificate(program, verdict, player, **changes) -> dict:
    """The certificate of a per-rank program: of its true claims, or of the weakest ones if it is
    wrong.
    """
    ranks, messages = [], 0
    for lanes in program.lanes:
        ranks.append([])
        for lane in lanes:
            rows = []
            for instruction in lane.instructions:
                row = {
                    "op": instruction.op,
                    "src": int(instruction.src),
                    "dst": int(instruction.dst),
                    "count": int(instruction.count),
                }
                row |= {"waits": [list(map(int, wait)) for wait in instruction.waits]}
                row |= {
                    "recv_from": int(instruction.recv_from),
                    "send_to": int(instruction.send_to),
                }
                # Only what an operation uses can be written.
                rows.append(
                    {
                        key: value
                        for key, value in row.items()
                        if row["op"] in USERS.get(key, (row["op"],))
                    }
                )
                messages += "send_to" in rows[-1]
            ranks[-1].append({"channel": int(lane.channel), "instructions": rows})
    order = (
        verdict.order
        if verdict.right
        else "any"
        if Definition(program.collective, program.chunks).reduces
        else ""
    )
    least = player.least_depth() if player is not None else 0
    return {
        "format": "simcoll-certificate",
        "version": 1,
        "subject": "program",
        "name": "attack",
        "collective": collective_of(program.collective),
        "chunks": program.chunks,
        "claims": {
            "data": True,
            "order": order,
            "least_depth": least,
            "steps": None,
            "messages": messages,
        },
        "program": {
            "nranks": program.nranks,
            "buffers": list(map(int, program.buffers)),
            "in_place": program.in_place,
            "fifo_depth": program.fifo_depth,
            "protocol": "",
            "ranks": ranks,
        },
        **changes,
    }


USERS = {
    "src": (
        "send",
        "recv_reduce_send",
        "recv_reduce_copy",
        "recv_reduce_copy_send",
        "copy",
        "reduce",
    ),
    "dst": (
        "recv",
        "recv_copy_send",
        "recv_reduce_copy",
        "recv_reduce_copy_send",
        "copy",
        "reduce",
    ),
    "recv_from": (
        "recv",
        "recv_copy_send",
        "recv_reduce_send",
        "recv_reduce_copy",
        "recv_reduce_copy_send",
    ),
    "send_to": ("send", "recv_copy_send", "recv_reduce_send", "recv_reduce_copy_send"),
}
"""Operations that use a field."""


def has_checker() -> bool:
    return importlib.util.find_spec("simcoll_check") is not None


def checker_words(content: dict | bytes) -> str:
    """The words of the checker for a certificate that it accepts.

    Raises
    ------
    ScheduleError
        If it says that something is wrong.
    ConfigError
        If it cannot read the certificate, or it is beyond its limits.
    """
    import simcoll_check

    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    handle, path = tempfile.mkstemp(suffix=".json")
    said = io.StringIO()
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                status = simcoll_check.main([path])
            except SystemExit as end:
                status = end.code
    finally:
        Path(path).unlink()
    words = said.getvalue().strip()
    if status == 0:
        return words
    raise (ScheduleError if status == 1 else ConfigError)(words or f"status {status}")
