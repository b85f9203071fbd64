"""GOAL, the language of LogGOPSim and ATLAHS: sends, receives and computations of each rank, with
dependencies.

GOAL has sizes and order of messages but not their data. Only matching and absence of deadlock can
be proved, so all results from it are marked as unproved. The grammar is that of ``txt2bin.re`` of
LogGOPSim.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.errors import ConfigError, ScheduleError
from simcoll.files.reader_arguments import Content, content_of

__all__ = ["CALC", "RECV", "SEND", "Goal", "goal_text", "parse_goal"]

SEND, RECV, CALC = 1, 2, 3
WORDS = {"send": SEND, "recv": RECV, "calc": CALC}
MAX_RANKS, MAX_OPERATIONS = 1 << 20, 1 << 26
ANY = -1
"""A receive from any rank or with any tag."""

_LIMITS = {"size": 2**63 - 1, "peer": 2**32 - 2, "tag": 2**32 - 2, "cpu": 255, "nic": 255}
_OPERATION = re.compile(
    r"(?:(?P<label>[A-Za-z]\w*)\s*:\s*)?(?P<word>send|recv|calc)\s+(?P<size>\d+)(?P<bytes>b)?"
    r"(?:\s+(?P<way>to|from)\s+(?P<peer>-1|\d+))?"
    r"(?:\s+tag\s+(?P<tag>-1|\d+))?(?:\s+cpu\s+(?P<cpu>\d+))?(?:\s+nic\s+(?P<nic>\d+))?",
    re.ASCII,
)
_ORDER = re.compile(
    r"(?P<later>[A-Za-z]\w*)\s+(?P<how>requires|irequires)\s+(?P<earlier>[A-Za-z]\w*)", re.ASCII
)
_WAY = {"send": "to", "recv": "from", "calc": None}


@dataclass(frozen=True, slots=True, eq=False)
class Goal:
    """Operations of all ranks as parallel arrays, rank by rank.

    Attributes
    ----------
    start
        First operation of each rank, and the end: ``[nranks + 1]``.
    kind
        ``SEND``, ``RECV`` or ``CALC``.
    peer, size, tag, cpu, nic
        The peer rank (for a receive also -1, any), bytes or time units, tag (-1: any), and the
        rank's processor and NIC.
    later, earlier, at_start
        Dependencies, in the order of the file: operation ``later`` begins after ``earlier`` of the
        same rank has finished or, with ``at_start``, has begun.
    """

    start: Ints
    kind: NDArray[np.int8]
    peer: Ints
    size: Ints
    tag: Ints
    cpu: Ints
    nic: Ints
    later: Ints
    earlier: Ints
    at_start: NDArray[np.bool_]

    @property
    def nranks(self) -> int:
        """World size."""
        return len(self.start) - 1

    @property
    def rank(self) -> Ints:
        """Rank of every operation."""
        return np.repeat(np.arange(self.nranks), np.diff(self.start))

    def messages(self) -> tuple[Ints, Ints]:
        """Match sends and receives, as two arrays of operations.

        Sends and receives with equal ranks and tag match in order.

        Raises
        ------
        ScheduleError
            For an unmatched send or receive, and different sizes.
        ConfigError
            For receives from any rank or with any tag, whose sends depend on the times.
        """
        sends, recvs = np.flatnonzero(self.kind == SEND), np.flatnonzero(self.kind == RECV)
        rank = self.rank
        wild = recvs[(self.peer[recvs] == ANY) | (self.tag[recvs] == ANY)]
        if len(wild):
            raise ConfigError(
                f"{self.where(wild[0])} takes any rank or tag; what it gets depends on the times"
            )
        keys = [
            np.stack([operations, *ends, self.tag[operations]])
            for operations, ends in (
                (sends, (rank[sends], self.peer[sends])),
                (recvs, (self.peer[recvs], rank[recvs])),
            )
        ]
        sent, received = (key[:, np.lexsort((key[0], *key[:0:-1]))] for key in keys)
        if not np.array_equal(sent[1:], received[1:]):
            _refuse_mismatch(sent[1:], received[1:])
        sends, recvs = sent[0], received[0]
        wrong = np.flatnonzero(self.size[sends] != self.size[recvs])
        if len(wrong):
            a, b = sends[wrong[0]], recvs[wrong[0]]
            raise ScheduleError(
                f"{self.where(a)} sends {self.size[a]} bytes to {self.where(b)}, which takes "
                f"{self.size[b]}",
                rank=int(rank[a]),
            )
        return sends, recvs

    def where(self, operation: int) -> str:
        """An operation in words: ``rank 3 operation 1``."""
        rank = int(np.searchsorted(self.start, operation, "right")) - 1
        return f"rank {rank} operation {int(operation) - int(self.start[rank])}"

    def check(self) -> int:
        """Check that messages match and that everything can run; return the number of messages.

        Raises
        ------
        ScheduleError
            As :meth:`messages`, and for cyclic waits.
        ConfigError
            As :meth:`messages`.
        """
        from simcoll.proving.deadlock import levels

        sends, recvs = self.messages()
        order, _ = levels(
            len(self.kind),
            np.concatenate([self.earlier, sends]),
            np.concatenate([self.later, recvs]),
        )
        if len(order) < len(self.kind):
            stuck = np.setdiff1d(np.arange(len(self.kind)), order)
            cycle = ", ".join(self.where(operation) for operation in stuck[:4])
            raise ScheduleError(f"{len(stuck)} operations wait in a cycle, or for one: {cycle}")
        return len(sends)

    def __str__(self) -> str:
        return f"GOAL n={self.nranks}, {len(self.kind):,} operations, unproved"


def _refuse_mismatch(sent: Ints, received: Ints) -> NoReturn:
    """Raise for the first unmatched message; each column has source, destination and tag."""
    count = Counter(zip(*sent.tolist(), strict=True))
    count.subtract(zip(*received.tolist(), strict=True))
    (src, dst, tag), surplus = next(
        (key, surplus) for key, surplus in sorted(count.items()) if surplus
    )
    difference = (
        f"{abs(surplus)} more {'sends than receives' if surplus > 0 else 'receives than sends'}"
    )
    raise ScheduleError(
        f"messages from rank {src} to rank {dst} with tag {tag}: {difference}",
        rank=src if surplus > 0 else dst,
    )


class _Text:
    """A text without comments, line by line; every error names the line."""

    def __init__(self, text: str, file: str | None) -> None:
        self.file = file
        self.line = 0
        self.lines = _without_comments(text, file).split("\n")

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self.lines, 1):
            self.line = number
            stripped = line.strip()
            if stripped:
                yield stripped

    def refuse(self, message: str) -> NoReturn:
        raise ConfigError(message, file=self.file, path=f"line {self.line}")


def _without_comments(text: str, file: str | None) -> str:
    def newlines(comment: re.Match[str]) -> str:
        if comment["open"]:
            line = text.count("\n", 0, comment.start()) + 1
            raise ConfigError(
                "a comment that begins with /* does not end", file=file, path=f"line {line}"
            )
        return "\n" * comment[0].count("\n")

    return re.sub(r"//[^\n]*|/\*.*?\*/|(?P<open>/\*)", newlines, text, flags=re.DOTALL)


def parse_goal(content: Content, file: str | None = None) -> Goal:
    r"""Read GOAL text.

    Raises
    ------
    ConfigError
        With the line, for invalid syntax, ranks out of order, undefined labels, and numbers out of
        range.

    Examples
    --------
    >>> sender, receiver = "send 8b to 1 tag 0", "recv 8b from 0 tag 0"
    >>> ranks = f"rank 0 {{ \n {sender} \n }} \n rank 1 {{ \n {receiver} \n }}"
    >>> print(parse_goal(f"num_ranks 2 \n {ranks}"))
    GOAL n=2, 2 operations, unproved
    """
    content = content_of(content, "parse_goal")
    try:
        decoded = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"not a GOAL text: byte {error.start} is no text", file=file) from None
    text = _Text(decoded, file)
    lines = iter(text)
    head = re.fullmatch(r"num_ranks\s+(\d{1,9})", next(lines, ""), re.ASCII)
    if head is None or not 1 <= int(head[1]) <= MAX_RANKS:
        text.refuse(f"expected 'num_ranks' and a number from 1 to {MAX_RANKS:,} first")
    nranks = int(head[1])
    start = [0]
    rows: list[tuple[int, ...]] = []
    orders: list[tuple[int, int, bool]] = []
    for rank in range(nranks):
        _open_rank(text, lines, rank, nranks)
        _rank(text, lines, nranks, rows, orders)
        start.append(len(rows))
    kind, *values = np.array(rows, np.int64).reshape(-1, 6).T
    columns = dict(zip(("peer", "size", "tag", "cpu", "nic"), values, strict=True))
    later, earlier, begun = np.array(orders, np.int64).reshape(-1, 3).T
    starts, at_start = np.array(start, np.int64), begun == 1
    return Goal(
        starts, kind.astype(np.int8), later=later, earlier=earlier, at_start=at_start, **columns
    )


def _open_rank(text: _Text, lines: Iterator[str], rank: int, nranks: int) -> None:
    line = next(lines, "")
    match = re.fullmatch(r"rank\s+(\d{1,9})\s*(\{?)", line, re.ASCII)
    if match is None or int(match[1]) != rank:
        text.refuse(
            f"expected 'rank {rank} {{' (ranks 0 to {nranks - 1} come in order), got {line[:40]!r}"
        )
    if not match[2] and next(lines, "") != "{":
        text.refuse(f"expected '{{' after 'rank {rank}'")


def _rank(
    text: _Text,
    lines: Iterator[str],
    nranks: int,
    rows: list[tuple[int, ...]],
    orders: list[tuple[int, int, bool]],
) -> None:
    """Append the operations and dependencies of one rank."""
    labels: dict[str, int] = {}
    for line in lines:
        if line == "}":
            return
        order = _ORDER.fullmatch(line)
        if order is not None:
            for name in (order["later"], order["earlier"]):
                if name not in labels:
                    text.refuse(f"label {name[:40]!r} is not defined above")
            orders.append(
                (labels[order["later"]], labels[order["earlier"]], order["how"] == "irequires")
            )
            continue
        row, label = _operation(text, line, nranks)
        if label is not None:
            if label in labels:
                text.refuse(f"label {label[:40]!r} is defined twice")
            labels[label] = len(rows)
        if len(rows) >= MAX_OPERATIONS:
            text.refuse(f"more than {MAX_OPERATIONS:,} operations")
        rows.append(row)
    text.refuse("the file ends inside a rank; expected '}'")


def _operation(text: _Text, line: str, nranks: int) -> tuple[tuple[int, ...], str | None]:
    match = _OPERATION.fullmatch(line)
    word = "" if match is None else match["word"]
    if match is None or match["way"] != _WAY[word] or (match["bytes"] is None) != (word == "calc"):
        text.refuse(
            f"{line[:60]!r}: expected 'send 8b to 1', 'recv 8b from 0', each with 'tag 0', 'cpu "
            "0', 'nic 0' after it, "
            "'calc 500', 'label: ...', or 'a requires b', one a line"
        )
    numbers = {}
    for name, limit in _LIMITS.items():
        digits = match[name]
        if digits is not None and (len(digits) > 19 or int(digits) > limit):
            text.refuse(f"{name} {digits[:30]} is out of range; expected at most {limit}")
        numbers[name] = int(digits or 0)
    if word == "calc" and (match["tag"] is not None or match["nic"] is not None):
        text.refuse("a calc has no tag and no nic")
    if word != "calc" and not (
        numbers["peer"] < nranks and (numbers["peer"] >= 0 or word == "recv")
    ):
        text.refuse(f"rank {numbers['peer']} does not exist; ranks are 0 to {nranks - 1}")
    if word == "send" and numbers["tag"] < 0:
        text.refuse("a send has one tag; only receives take any")
    order = ("peer", "size", "tag", "cpu", "nic")
    return (WORDS[word], *(numbers[name] for name in order)), match["label"]


def goal_text(goal: Goal, comment: Sequence[str] = ()) -> bytes:
    r"""Write GOAL text, which reads back as the same operations and dependencies.

    >>> goal = parse_goal(
    ...     "num_ranks 1 \n rank 0 { \n a: calc 5 \n b: calc 6 cpu 1 \n b requires a \n }"
    ... )
    >>> text = goal_text(goal)
    >>> print(text.decode())
    num_ranks 1
    <BLANKLINE>
    rank 0 {
    l1: calc 5
    l2: calc 6 cpu 1
    l2 requires l1
    }
    <BLANKLINE>
    """
    words = {number: word for word, number in WORDS.items()}
    rank_of_order = np.searchsorted(goal.start, goal.later, "right") - 1
    by_rank = np.argsort(rank_of_order, kind="stable")
    edges = np.searchsorted(rank_of_order[by_rank], np.arange(goal.nranks + 1)).tolist()
    later, earlier, begun = (
        column[by_rank].tolist() for column in (goal.later, goal.earlier, goal.at_start)
    )
    kinds, peers, tags = goal.kind.tolist(), goal.peer.tolist(), goal.tag.tolist()
    sizes, cpus, nics = goal.size.tolist(), goal.cpu.tolist(), goal.nic.tolist()
    lines = [*(f"// {line}" for line in comment), f"num_ranks {goal.nranks}"]
    for rank in range(goal.nranks):
        begin, last = int(goal.start[rank]), int(goal.start[rank + 1])
        lines += ["", f"rank {rank} {{"]
        for index in range(begin, last):
            word = words[kinds[index]]
            ends = "" if word == "calc" else f"b {_WAY[word]} {peers[index]} tag {tags[index]}"
            cpu, nic = cpus[index], nics[index]
            units = f"{f' cpu {cpu}' * (cpu > 0)}{f' nic {nic}' * (nic > 0)}"
            lines.append(f"l{index - begin + 1}: {word} {sizes[index]}{ends}{units}")
        for order in range(edges[rank], edges[rank + 1]):
            how = "irequires" if begun[order] else "requires"
            lines.append(f"l{later[order] - begin + 1} {how} l{earlier[order] - begin + 1}")
        lines.append("}")
    return ("\n".join(lines) + "\n").encode()
