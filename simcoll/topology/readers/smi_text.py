"""The matrix in the text of ``nvidia-smi topo -m``: raw, quoted, wrapped by a terminal, in a page,
or among other output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from simcoll.errors import ConfigError

__all__ = ["NEARNESS", "DeviceMatrix", "matrix_of_text"]

MAX_DEVICES = 128
NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_OLD_NAMES = {"SOC": "SYS"}
"""Words of drivers before 384, and their present names."""
_PEER_WORDS = re.compile(r"OK|N/A|[CGTP]?NS|DR|U|\?")
"""Cells of ``nvidia-smi topo -p2p``, which may stand in the same file."""
_GPU = re.compile(r"GPU\d{1,3}")
_NVLINKS = re.compile(r"NV\d{1,3}")
_TITLES = ("CPU", "NUMA", "GPU")
"""First words of the titles of columns after the devices: CPU Affinity, NUMA Affinity, GPU NUMA
ID.
"""
_NIC_LEGEND = re.compile(r"^\W*(NIC\d{1,3}):\s*\S", re.MULTILINE)
_MARKUP = re.compile(r"\x1b\[[0-9;]*m|^[ \t]*(?:>[> \t]*)?(?:\|(?=.*\|))?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DeviceMatrix:
    """How the GPUs and NICs of a node are joined.

    Attributes
    ----------
    gpus
        Number of GPUs, which are the first devices.
    words
        For each pair of devices ``X``, ``NV`` and a number of links, or a word of ``NEARNESS``.
    numa
        NUMA node of each GPU; empty where it is not stated.
    source
        The command whose output it is.
    """

    gpus: int
    words: list[list[str]]
    numa: list[str]
    source: str = "nvidia-smi topo -m"


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    line: int


def matrix_of_text(text: str, file: str) -> DeviceMatrix:
    r"""The matrix of a text.

    Parameters
    ----------
    text, file
        The text, and its name for messages.

    Raises
    ------
    ConfigError
        For a text without a matrix, with a part of one, or with matrices that differ.

    Examples
    --------
    >>> rows = "> GPU0 GPU1 mlx5_0\n> GPU0 X SOC PIX\n> GPU1 SOC X SYS\n> mlx5_0 PIX SYS X"
    >>> matrix = matrix_of_text(rows, "matrix.txt")
    >>> matrix.gpus, matrix.words[0]
    (2, ['X', 'SYS', 'PIX'])
    """
    plain = _MARKUP.sub("", text).replace("|", " ")
    of_hosts = _by_label(plain)
    if of_hosts:
        first_label, *labels = of_hosts
        matrix = _with_wraps(of_hosts[first_label], file)
        for label in labels:
            if _with_wraps(of_hosts[label], file) != matrix:
                raise ConfigError(
                    f"the matrices of {first_label!r} and {label!r} differ; expected one "
                    "node a file",
                    file=file,
                )
        return matrix
    return _with_wraps(plain, file)


_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?"
_LABEL = re.compile(
    rf"[ \t]*((?:{_TIME})?(?:(?:(?<=\S)[ \t]+)?"
    r"(?:std(?:out|err)[ \t]+[FP]|\[[\d,]+\](?:<std\w+>)?:?|\d+:"
    r"|[\w.\-]+:|\([^()\n]{1,80}\)))?)(?=[ \t]|$)"
)
"""What launchers, containers and parallel shells write before each line."""


def _by_label(text: str) -> dict[str, str]:
    """The lines of each label that stands before a header, without it; empty if there is none."""
    lines = text.split("\n")
    parts: dict[str, list[str]] = {}
    for line in lines:
        match = _LABEL.match(line)
        words = line[match.end() :].split() if match and match[1] else []
        if match and words[:1] == ["GPU0"] and words[1:2] != ["X"]:
            parts.setdefault(_without_time(match[1]), [])
    for line in lines:
        match = _LABEL.match(line)
        if match and (part := parts.get(_without_time(match[1]))) is not None:
            part.append(line[match.end() :])
    return {label: "\n".join(part) for label, part in parts.items()}


def _without_time(label: str) -> str:
    """A label with the same text for every time."""
    return re.sub(_TIME, "TIME", label)


def _with_wraps(plain: str, file: str) -> DeviceMatrix:
    """The matrix of a plain text that a terminal may have wrapped."""
    try:
        return _matrix(plain, file)
    except ConfigError:
        joined = _without_wraps(plain)
        if joined is None:
            raise
        try:
            return _matrix(joined, file)
        except ConfigError:
            pass
        raise


def _without_wraps(text: str) -> str | None:
    """The text with lines joined that a terminal has wrapped inside a word: those of the greatest
    length.
    """
    lines = text.split("\n")
    width = max(map(len, lines), default=0)
    wrapped = sum(len(line) == width for line in lines)
    if width < 40 or wrapped < 2:
        return None
    return "".join(line if len(line) == width else f"{line}\n" for line in lines)


def _matrix(text: str, file: str) -> DeviceMatrix:
    words = [
        _Word(word, number)
        for number, line in enumerate(text.split("\n"), 1)
        for word in line.split()
    ]
    matrices: list[tuple[int, DeviceMatrix]] = []
    place, peer_access = 0, False
    while (start := _next_header(words, place)) is not None:
        devices, cells, place = _rows(words, start, file)
        peers = {cell for row in cells for cell in row[0]} - {"X"}
        if peers and all(map(_PEER_WORDS.fullmatch, peers)):
            peer_access = True
            continue
        matrices.append((words[start].line, _square(devices, cells, file)))
    if not matrices:
        raise ConfigError(
            "a matrix of nvidia-smi topo -p2p: it tells who may reach whom; use that of topo -m"
            if peer_access
            else "no header line that begins with GPU0; is this the output of nvidia-smi topo -m?",
            file=file,
        )
    (line, matrix), *copies = matrices
    for copy_line, copy in copies:
        if copy != matrix:
            raise ConfigError(
                f"the matrices at lines {line} and {copy_line} differ; expected one node a file",
                file=file,
                path=f"line {copy_line}",
            )
    legend = _NIC_LEGEND.findall(text)
    if len(legend) > len(matrix.words) - matrix.gpus:
        raise ConfigError(
            f"{len(matrix.words) - matrix.gpus} columns of NICs, and a legend of {len(legend)}: "
            "columns are cut off; print it with a wider terminal or into a file",
            file=file,
            path=f"line {line}",
        )
    return matrix


def _next_header(words: Sequence[_Word], begin: int) -> int | None:
    """The position of GPU0 in the next header: it is followed by no X."""
    for place in range(begin, len(words) - 1):
        if words[place].text == "GPU0" and words[place + 1].text != "X":
            return place
    return None


def _rows(
    words: Sequence[_Word], start: int, file: str
) -> tuple[list[str], list[tuple[list[str], list[str], _Word]], int]:
    """The devices of a header, the cells, further columns and label of each row below it, and the
    position after them.
    """
    header: list[str] = []
    place = start
    while place < len(words) and not (place > start and words[place].text == "GPU0"):
        header.append(words[place].text)
        place += 1
    devices = list(_devices(header))
    gpus = sum(_GPU.fullmatch(device) is not None for device in devices)
    expected = [f"GPU{gpu}" for gpu in range(gpus)]
    if devices[:gpus] != expected or len(set(devices)) < len(devices) or len(devices) > MAX_DEVICES:
        raise ConfigError(
            f"expected column headers GPU0, GPU1, ... and NICs after them, at most {MAX_DEVICES}; "
            f"got {' '.join(devices)[:80]}",
            file=file,
            path=f"line {words[start].line}",
        )
    rows: list[tuple[list[str], list[str], _Word]] = []
    while place < len(words) and words[place].text in devices:
        label = words[place]
        cells: list[str] = []
        place += 1
        while place < len(words) and len(cells) < len(devices):
            if words[place].text in devices or words[place].text == "Legend:":
                break
            cells.append(words[place].text)
            place += 1
        further: list[str] = []
        while place < len(words) and words[place].text not in devices:
            if words[place].text == "Legend:" or _is_row(words, place):
                break
            further.append(words[place].text)
            place += 1
        rows.append((cells, further, label))
        if place + 1 < len(words) and _GPU.fullmatch(words[place + 1].text):
            break  # the header of another matrix
        if place < len(words) and _is_row(words, place) and words[place].text not in devices:
            raise ConfigError(
                f"a row of {words[place].text}, and no column of it; lines are cut off",
                file=file,
                path=f"line {words[place].line}",
            )
    return devices, rows, place


def _is_row(words: Sequence[_Word], place: int) -> bool:
    """Whether a row of cells begins here: a name, then at least two words of a matrix."""
    following = [word.text for word in words[place + 1 : place + 3]]
    return (
        len(following) == 2
        and all(map(_is_cell, following))
        and not _is_cell(words[place].text)
        and re.search(r"[A-Za-z]", words[place].text) is not None
        and words[place].text != "N/A"
    )


def _is_cell(text: str) -> bool:
    return text in {"X", *NEARNESS, *_OLD_NAMES} or _NVLINKS.fullmatch(text) is not None


def _devices(header: Sequence[str]) -> Iterator[str]:
    """The names of devices in a header, up to the titles of other columns."""
    for title in header:
        if title in _TITLES:
            return
        yield title


def _square(
    devices: list[str], rows: list[tuple[list[str], list[str], _Word]], file: str
) -> DeviceMatrix:
    """The matrix of some rows: square, the same in both directions, and nothing cut off."""

    def refuse(message: str, line: int | None = None) -> NoReturn:
        raise ConfigError(message, file=file, path=None if line is None else f"line {line}")

    words: dict[str, list[str]] = {}
    further: dict[str, list[str]] = {}
    for cells, affinity, label in rows:
        for cell in cells:
            if not _is_cell(cell):
                refuse(
                    f"unknown word {cell[:20]!r}; expected X, NV and a number, or one of "
                    f"{', '.join(NEARNESS)}",
                    label.line,
                )
        if len(cells) < len(devices):
            refuse(
                f"{len(cells)} cells; expected one for each of {len(devices)} devices", label.line
            )
        if label.text in words:
            refuse(f"two rows of {label.text}", label.line)
        words[label.text] = [_OLD_NAMES.get(cell, cell) for cell in cells]
        further[label.text] = affinity
    for device in devices:
        if device not in words:
            refuse(f"no row of {device}")
    matrix = [words[device] for device in devices]
    for a in range(len(matrix)):
        for b in range(len(matrix)):
            if (matrix[a][b] == "X") != (a == b) or matrix[a][b] != matrix[b][a]:
                refuse(
                    f"{devices[a]} to {devices[b]} is {matrix[a][b]}, and back {matrix[b][a]}; "
                    "expected the same, X for a device itself"
                )
    gpus = [device for device in devices if _GPU.fullmatch(device)]
    return DeviceMatrix(len(gpus), matrix, [_numa(further[device]) for device in gpus])


def _numa(further: Sequence[str]) -> str:
    """The NUMA node in the columns after the devices, which are CPU and NUMA affinity."""
    return further[1] if len(further) > 1 and further[1] != "N/A" else ""
