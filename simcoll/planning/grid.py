"""A grid of independent points, each played by one function, its rows appended to a file as they finish.

A point is a JSON object that says all about one run. Its key is a hash of its content, so a row is found again whatever the order, the
number of workers or the place where it was made: a run that was stopped goes on, and shards of one grid share a folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import uuid4

import msgspec

from simcoll import __version__
from simcoll.errors import ConfigError, InternalError, SimcollError
from simcoll.formats.output import write_whole

if TYPE_CHECKING:
    from simcoll.planning.executors import Pool

__all__ = ["Grid", "GridRun", "Point", "Row", "read_rows", "run_grid", "shard_of"]

Point = dict[str, Any]
"""JSON: text, whole numbers, booleans, lists and objects; what a point holds decides its key."""
Row = dict[str, Any]
"""``key``, ``point``, and either ``result`` or ``error``."""

ROWS = "rows.jsonl"
SHARD_BLOCK = 8
"""Neighbours in a grid share schedules and topologies, so shards take blocks of points."""
MAX_BATCH = 64
REPORT_S = 0.25
SYNC_S = 0.5
"""How long rows may be in the system's memory alone: a wait for the disk after each would take longer than many a row."""


Work = Callable[[Point], Mapping[str, Any]]
"""Plays a point."""


def _key(work: Work, point: Point) -> str:
    told = (__version__, f"{work.__module__}.{work.__qualname__}", point)
    return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Grid:
    """Points in the order in which results list them, and the function that plays one.

    Attributes
    ----------
    work
        A function of a module, so that another process finds it: takes a point, gives a JSON object. A :class:`ConfigError` or
        ``ScheduleError`` of it becomes the row's ``error``: one point that does not fit stops no grid.
    points
        Each once; the second of two equal ones is dropped.
    """

    work: Work
    points: tuple[Point, ...]
    keys: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        named: dict[str, Point] = {}
        for point in self.points:
            named.setdefault(_key(self.work, point), point)
        object.__setattr__(self, "keys", tuple(named))
        object.__setattr__(self, "points", tuple(named.values()))

    def __len__(self) -> int:
        return len(self.points)


def shard_of(grid: Grid, shard: str) -> Grid:
    """The part of a grid that one job of an array runs: ``"3/16"`` is the third of sixteen.

    Raises
    ------
    ConfigError
        For text that names no shard.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"shard {shard!r}: expected which of how many, such as 3/16, from 1/16 to 16/16")
    which, many = int(match[1]) - 1, int(match[2])
    return Grid(grid.work, tuple(p for at, p in enumerate(grid.points) if at // SHARD_BLOCK % many == which))


@dataclass(frozen=True, slots=True)
class GridRun:
    """The rows of a grid: ``rows`` in its order, of which ``played`` are new."""

    rows: tuple[Row, ...]
    played: int

    @property
    def errors(self) -> dict[str, int]:
        """What kept points from running, and how many."""
        return dict(Counter(row["error"] for row in self.rows if "error" in row))


def run_grid(
    grid: Grid,
    folder: Path,
    pool: Pool,
    *,
    resume: bool = False,
    shard: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GridRun:
    """Play the points that have no row yet.

    Parameters
    ----------
    folder
        Has the rows: ``rows.jsonl``, or ``rows-3-of-16.jsonl`` of a shard. Rows are there as soon as this function has them. Processes
        of this machine keep those that they have not handed over yet in ``rows-in-hand-*.jsonl``, so that after ``kill -9`` of
        everything no finished row is lost, only the one that each worker was playing; from other workers also those of the last moment.
    pool
        Who plays. Whoever it is, the same points give the same rows.
    resume
        Go on with what the folder has, whichever shard wrote it; otherwise a folder with rows is refused, save those of a grid's other
        shards.
    progress
        Called with the points done and the points in all, at least four times a second.

    Raises
    ------
    ConfigError
        When the folder has rows and ``resume`` is not given, when rows cannot be read or written, when another run writes them, when a
        worker dies or has another version of simcoll.
    KeyboardInterrupt
        After Ctrl-C; what was done is in the file.
    """
    wanted = shard_of(grid, shard) if shard else grid
    name = f"rows-{shard.replace('/', '-of-')}.jsonl" if shard else ROWS
    known = read_rows(folder) if resume else _read(_not_of_other_shards(folder, name))
    if known and not resume:
        raise ConfigError(
            f"has {len(known):,} rows of an earlier run; --resume goes on with them, --output names another folder",
            file=str(folder),
        )
    rows = {key: known[key] for key in wanted.keys if key in known}
    todo = [point for key, point in zip(wanted.keys, wanted.points, strict=True) if key not in rows]
    before, asked = len(rows), frozenset(wanted.keys)
    with _Appended(folder / name) as file:
        if not shard:  # other shards may be at work
            _adopt(folder, file)
        hands = folder if pool.near else None
        for new, hand in _play(wanted, todo, pool, lambda: progress and progress(len(rows), len(wanted)), hands):
            if not {row["key"] for row in new}.issubset(asked):
                raise ConfigError(
                    f"a worker has another version of simcoll than this one, {__version__}; its rows are not kept"
                )
            file.append(new)
            rows.update((row["key"], row) for row in new)
            if hand is not None:
                hand.unlink(missing_ok=True)
    return GridRun(tuple(rows[key] for key in wanted.keys), len(rows) - before)


def read_rows(folder: Path) -> dict[str, Row]:
    """The rows of a folder by key, from all its shards; a torn last line is left out.

    Raises
    ------
    ConfigError
        For a file that is no file of rows, with the line.
    """
    return _read(_files(folder))


def _files(folder: Path) -> list[Path]:
    """The files of rows; none where there is no folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.match("rows*.jsonl"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', error)}", file=str(folder)) from None


def _not_of_other_shards(folder: Path, name: str) -> list[Path]:
    """The files of rows without those of the other shards of a cut, which may be at work now; ``name``: the file of this one."""
    found = _files(folder)
    if name == ROWS:
        return found
    others = re.compile(r"rows-(in-hand-.*|\d+" + re.escape(re.sub(r"^rows-\d+", "", name)) + ")")
    return [path for path in found if path.name == name or not others.fullmatch(path.name)]


def _read(paths: Iterable[Path]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for path in paths:
        if not path.is_file():
            continue  # a pipe would be waited for
        try:
            *lines, _torn = path.read_bytes().split(b"\n")
        except FileNotFoundError:  # rows in hand that were handed over since the folder was listed
            continue
        except OSError as error:
            raise ConfigError(f"cannot read: {error.strerror}", file=str(path)) from None
        for number, line in enumerate(lines, 1):
            try:
                row = msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError):
                row = {}
            if not isinstance(row.get("key"), str) or not isinstance(row.get("point"), dict):
                raise ConfigError("not a row of a grid; remove the line, and --resume plays its point again", file=str(path),
                                  path=f"line {number}")  # fmt: skip
            found[row["key"]] = row
    return found


def _adopt(folder: Path, file: _Appended) -> None:
    """Add the rows that workers of a run that was killed had not handed over."""
    files = _files(folder)
    hands = [path for path in files if path.match("rows-in-hand-*.jsonl")]
    if not hands:
        return
    elsewhere = _read(path for path in files if path not in hands)
    file.append([row for key, row in _read(hands).items() if key not in elsewhere])
    for hand in hands:
        hand.unlink()


class _Appended:
    """A file of lines that other programs may read while it grows; the disk has them :data:`SYNC_S` later, and at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._synced = -SYNC_S

    def __enter__(self) -> Self:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            self._file = os.open(self.path, flags, 0o666)
        except OSError as error:
            why = "it is a link" if self.path.is_symlink() else error.strerror
            raise ConfigError(f"cannot be written: {why}", file=str(self.path)) from None
        try:
            self._take()
        except ConfigError:
            os.close(self._file)
            raise
        return self

    def _take(self) -> None:
        """Keep other runs out, and drop a torn last line."""
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise ConfigError("cannot be written: it is no file", file=str(self.path))
        if _is_taken(self._file):
            raise ConfigError(
                "another run is writing it; wait for its end, name another folder with --output, or run shards",
                file=str(self.path),
            )
        with open(self._file, "rb", closefd=False) as stream:
            content = stream.read()
        if not content.endswith(b"\n"):
            os.ftruncate(self._file, content.rfind(b"\n") + 1)

    def __exit__(self, *_: object) -> None:
        try:
            self._written(b"", at_once=True)
        finally:
            os.close(self._file)

    def append(self, rows: Sequence[Row]) -> None:
        """Write whole lines, which survive the end of this process; now and then wait until they survive that of the machine, too."""
        self._written(b"".join(map(_line, rows)))

    def _written(self, content: bytes, *, at_once: bool = False) -> None:
        try:
            write_whole(self._file, content)
            if at_once or time.monotonic() - self._synced >= SYNC_S:
                os.fsync(self._file)
                self._synced = time.monotonic()
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=str(self.path)) from None


def _is_taken(descriptor: int) -> bool:
    """Lock a file until it is closed; True where another process has done so. Some file systems have no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        pass
    return False


Batch = tuple[list[Point], "Path | None"]
"""Points that a worker has, and the file of its rows that are not handed over yet."""


def _play(
    grid: Grid, todo: Iterable[Point], pool: Pool, report: Callable[[], object], hands: Path | None
) -> Iterator[tuple[list[Row], Path | None]]:
    """New rows, as they come back from the pool, with the file in which they are meanwhile."""
    waiting = deque(todo)
    running: dict[Future[list[Row]], Batch] = {}
    report()
    try:
        while waiting or running:
            while waiting and len(running) < pool.ahead * pool.workers():
                # Small near the end, so that no worker has the last ones alone.
                size = max(1, min(MAX_BATCH, len(waiting) // (4 * pool.workers())))
                batch = [waiting.popleft() for _ in range(size)]
                hand = None if hands is None else hands / f"rows-in-hand-{uuid4().hex}.jsonl"
                running[pool.executor.submit(_some, grid.work, batch, pool.hold_s, hand)] = batch, hand
            wait(running, timeout=REPORT_S, return_when=FIRST_COMPLETED)
            for future in [each for each in running if each.done()]:
                rows, (batch, hand) = future.result(), running.pop(future)
                waiting.extendleft(reversed(batch[len(rows) :]))
                yield rows, hand
            report()
    except pool.lost as error:
        raise ConfigError(
            f"a worker died, perhaps for want of memory ({type(error).__name__}); all finished rows are kept: --resume goes on with them, "
            "and fewer workers (--jobs) need less"
        ) from None
    except KeyboardInterrupt:
        yield from _in_hand(running)
        raise


def _in_hand(running: Mapping[Future[list[Row]], Batch]) -> Iterator[tuple[list[Row], Path | None]]:
    """After Ctrl-C: what is done, and what workers will have done in a moment."""
    left = [future for future in running if not future.cancel()]
    for future in wait(left, timeout=4 * REPORT_S).done:
        if future.exception() is None:
            yield future.result(), running[future][1]


def _some(work: Work, points: Sequence[Point], hold_s: float, hand: Path | None = None) -> list[Row]:
    """The rows of the first points, at least one, until ``hold_s`` seconds have passed; ``hand``: a file for them meanwhile."""
    rows, end = [], time.monotonic() + hold_s
    for point in points:
        rows.append(_row(work, point))
        if hand is not None:
            _keep(hand, rows[-1])
        if time.monotonic() > end:
            break
    return rows


def _keep(hand: Path, row: Row) -> None:
    """Append a row; where that cannot be, whoever gets the rows finds it out, too."""
    with suppress(OSError), hand.open("ab", buffering=0) as file:
        file.write(_line(row))


def _line(row: Row) -> bytes:
    return msgspec.json.encode(row, order="sorted") + b"\n"


def _row(work: Work, point: Point) -> Row:
    row: Row = {"key": _key(work, point), "point": point}
    try:
        row["result"] = work(point)
    except InternalError:
        raise
    except SimcollError as error:
        row["error"] = str(error)
    # As it will be read again.
    return cast("Row", msgspec.json.decode(msgspec.json.encode(row, order="sorted")))
