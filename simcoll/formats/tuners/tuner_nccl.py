"""Rules of NCCL's example tuner plugin, and of the tuner inside NCCLX, as CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simcoll.errors import ConfigError, nearest
from simcoll.formats.tuners.tuner_rules import LARGEST, NO_LIMIT, Rule, refuse_line, whole_of

__all__ = ["NCCL", "read_nccl", "read_ncclx", "write_nccl", "write_ncclx"]

NCCL = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_reduce": "allreduce",
}
NCCL_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
NCCL_PROTOCOLS = ("ll", "ll128", "simple")
NCCL_LINE = 255
"""Characters of a line that the plugin of NCCL 2.27 to 2.30 reads."""
_TRAPS = """\
# NCCL's example plugin runs what no line matches on one channel: other sizes, collectives and
# communicators. Before using it, change its "*nChannels = 1" to 0, which leaves them to NCCL.
# 0 channels in a line are as many as NCCL takes itself; -1 are one.
"""


def read_nccl(text: str, file: str | None) -> list[Rule]:
    """Read rules of NCCL's example plugin (``plugins/tuner/example``), whose lines have been the
    same since 2.27; its version 5 and later differ in their interface.
    """
    kinds = {word: kind for kind, word in NCCL.items()}
    rules = []
    for number, fields in _lines(text, file, (8, 10)):
        _check_words(fields[0], fields[3], fields[4], file, number)
        low, high = (whole_of(field, file, number, "size") for field in fields[1:3])
        channels, nodes, ranks = (
            whole_of(field, file, number, "number", -1) for field in fields[5:8]
        )
        names = ("numPipeOps", "regBuff")
        conditions = [
            f"{name}={whole_of(field, file, number, name, -1)}"
            for name, field in zip(names, fields[8:], strict=False)
            if field != "-1"
        ]
        rules.append(
            Rule(
                kinds[fields[0]],
                low,
                NO_LIMIT if high == LARGEST else high,
                fields[3],
                fields[4],
                channels,
                nodes,
                ranks,
                tuple(conditions),
            )
        )
    return rules


def _lines(text: str, file: str | None, counts: tuple[int, int]) -> list[tuple[int, list[str]]]:
    """The fields of lines that are not comments, with the numbers of the lines; commas within
    brackets divide nothing.
    """
    lines = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if len(raw) > NCCL_LINE:
            refuse_line(
                file,
                number,
                f"longer than {NCCL_LINE} characters, of which the plugin reads no more",
            )
        fields = [field.strip() for field in re.split(r",(?![^\[(]*[\])])", line)]
        fewest, highest = counts
        if not fewest <= len(fields) <= highest:
            refuse_line(file, number, f"{len(fields)} fields; expected {fewest} to {highest}")
        lines.append((number, fields))
    return lines


def _check_words(
    collective: str, algorithm: str, protocol: str, file: str | None, number: int
) -> None:
    """Refuse words that the plugin takes for allreduce, ring or simple."""
    words = (
        (collective, tuple(NCCL.values())),
        (algorithm, NCCL_ALGORITHMS),
        (protocol, NCCL_PROTOCOLS),
    )
    for word, valid in words:
        if word not in valid:
            refuse_line(file, number, f"unknown {word[:40]!r}; {nearest(word, valid)}")


def write_nccl(rules: Sequence[Rule]) -> str:
    """Write rules of NCCL's example plugin."""
    heads = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,"
    lines = [f"# {heads}nNodes,nRanks,numPipeOps,regBuff"]
    for rule in rules:
        settings = dict(condition.split("=") for condition in rule.conditions)
        fields = [
            NCCL[rule.collective],
            rule.min_bytes,
            LARGEST if rule.max_bytes < 0 else rule.max_bytes,
            rule.algorithm,
            rule.protocol,
            rule.channels,
            rule.nodes,
            rule.ranks,
            settings.get("numPipeOps", -1),
            settings.get("regBuff", -1),
        ]
        lines.append(",".join(map(str, fields)))
    return _TRAPS + "\n".join(lines) + "\n"


# NCCLX: comms/ncclx/.../meta/tuner/README.md of github.com/meta-pytorch/torchcomms.
_RANGE = re.compile(
    r"(?P<opens>[\[(])\s*(?P<low>[0-9]{0,18})\s*,\s*(?P<high>[0-9]{0,18})\s*(?P<closes>[\])])"
)


def read_ncclx(text: str, file: str | None) -> list[Rule]:
    """Read rules of the tuner inside NCCLX, which counts bytes for each rank."""
    kinds = {word: kind for kind, word in NCCL.items()}
    rules = []
    for number, fields in _lines(text, file, (7, 10)):
        _check_words(fields[0], fields[2], fields[3], file, number)
        channels = whole_of(fields[4], file, number, "number", -1)
        per_rank = _range_of(fields[1], file, number)
        nodes, local = (_range_of(field, file, number) for field in fields[5:7])
        names = ("numPipeOps", "regBuff", "chunkSize")
        optional = [
            f"{name}={whole_of(field, file, number, name, -1)}"
            for name, field in zip(names, fields[7:], strict=False)
            if field not in {"-1", "0" if name == "chunkSize" else "-1"}
        ]
        is_exact = all(low == high for low, high in (nodes, local))
        if is_exact:
            ranks = nodes[0] * local[0]
            low, high = per_rank[0] * ranks, per_rank[1]
            high = NO_LIMIT if high == NO_LIMIT else (high + 1) * ranks - 1
            shape, conditions = (nodes[0], ranks), optional
        else:
            low, high, shape = 0, NO_LIMIT, (-1, -1)
            labels = ("bytesPerRank", "nNodes", "nLocalRanks")
            matches = zip(labels, (fields[1], fields[5], fields[6]), strict=True)
            conditions = [f"{name}={field}" for name, field in matches if field != "*"]
            conditions += optional
        rules.append(
            Rule(
                kinds[fields[0]],
                low,
                high,
                fields[2],
                fields[3],
                channels,
                *shape,
                conditions=tuple(conditions),
            )
        )
    return rules


def _range_of(text: str, file: str | None, number: int) -> tuple[int, int]:
    """The ends of a range such as ``[1,4)``, ``5`` or ``*``; NO_LIMIT without an upper one."""
    if text == "*":
        return 0, NO_LIMIT
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text), int(text)
    match = _RANGE.fullmatch(text)
    if match is None:
        refuse_line(
            file, number, f"{text[:40]!r}: expected a number, '*', or a range such as '[1,4)'"
        )
    opens, closes = match["opens"], match["closes"]
    low_text, high_text = match["low"], match["high"]
    low = int(low_text or 0) + (opens == "(" and bool(low_text))
    high = int(high_text) - (closes == ")") if high_text else NO_LIMIT
    if high != NO_LIMIT and low > high:
        refuse_line(file, number, f"{text[:40]!r} is empty")
    return low, high


def write_ncclx(rules: Sequence[Rule]) -> str:
    """Write rules of the tuner inside NCCLX; sizes are rounded to whole bytes of a rank."""
    heads = "collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks"
    lines = [f"# {heads}"]
    for rule in rules:
        ranks, nodes = max(rule.ranks, 1), max(rule.nodes, 1)
        low = -(-rule.min_bytes // ranks)
        high = "" if rule.max_bytes < 0 else str(rule.max_bytes // ranks)
        if high and low > int(high):
            raise ConfigError(
                f"format 'ncclx' cannot say {rule}: it counts whole bytes of each of {ranks} ranks"
            )
        fields = [
            NCCL[rule.collective],
            f"[{low},{high}]" if high else f"[{low},)",
            rule.algorithm,
            rule.protocol,
            rule.channels,
            nodes if rule.nodes > 0 else "*",
            ranks // nodes if rule.ranks > 0 else "*",
        ]
        lines.append(",".join(map(str, fields)))
    return "\n".join(lines) + "\n"
