"""A grid of independent points, evaluated by one function, with rows appended to a file as they
finish.

A point is a JSON object that fully describes one run. Its key is a hash of its content, so rows are
identified whatever the order, the number of workers or the machine: an interrupted run can resume,
and shards of one grid share a folder.
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
from simcoll.files.output import write_whole

if TYPE_CHECKING:
    from simcoll.planning.grids.executors import GridPool

__all__ = ["GridRun", "Point", "PointGrid", "Row", "read_rows", "run_grid", "shard_of"]

Point = dict[str, Any]
"""JSON of text, integers, booleans, lists and objects, whose content determines the key."""
Row = dict[str, Any]
"""``key``, ``point``, and either ``result`` or ``error``."""

ROWS = "rows.jsonl"
SHARD_BLOCK = 8
"""Points per block of a shard: neighbouring points share schedules and topologies."""
MAX_BATCH = 64
REPORT_S = 0.25
SYNC_S = 0.5
"""Interval of fsync, which after each row would take longer than many rows do."""


Work = Callable[[Point], Mapping[str, Any]]
"""Evaluates a point."""


def _key(work: Work, point: Point) -> str:
    identity = (__version__, f"{work.__module__}.{work.__qualname__}", point)
    return hashlib.sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class PointGrid:
    """Points in the order of the results, and the function that evaluates one.

    Attributes
    ----------
    work
        A module-level function, importable by other processes, from a point to a JSON object. Its
        :class:`ConfigError` or ``ScheduleError`` becomes the row's ``error``, so that an invalid
        point does not stop the grid.
    points
        Without duplicates.
    """

    work: Work
    points: tuple[Point, ...]
    keys: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        points_by_key: dict[str, Point] = {}
        for point in self.points:
            points_by_key.setdefault(_key(self.work, point), point)
        object.__setattr__(self, "keys", tuple(points_by_key))
        object.__setattr__(self, "points", tuple(points_by_key.values()))

    def __len__(self) -> int:
        return len(self.points)


def shard_of(grid: PointGrid, shard: str) -> PointGrid:
    """The part of a grid that one job of an array runs: ``"3/16"`` is the third of sixteen.

    Raises
    ------
    ConfigError
        For text that is not a shard.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(
            f"shard {shard!r}: expected which of how many, such as 3/16, from 1/16 to 16/16"
        )
    shard_index, shard_count = int(match[1]) - 1, int(match[2])
    return PointGrid(
        grid.work,
        tuple(
            p
            for number, p in enumerate(grid.points)
            if number // SHARD_BLOCK % shard_count == shard_index
        ),
    )


@dataclass(frozen=True, slots=True)
class GridRun:
    """The rows of a grid in its order; ``played`` of them are new."""

    rows: tuple[Row, ...]
    played: int

    @property
    def errors(self) -> dict[str, int]:
        """The reasons why points did not run, with their counts."""
        return dict(Counter(row["error"] for row in self.rows if "error" in row))


def run_grid(
    grid: PointGrid,
    folder: Path,
    pool: GridPool,
    *,
    resume: bool = False,
    shard: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GridRun:
    """Evaluate the points that have no row yet.

    Parameters
    ----------
    folder
        Folder of the rows: ``rows.jsonl``, or ``rows-3-of-16.jsonl`` for a shard. Rows are appended
        as they arrive. Local worker processes save rows not handed over yet in
        ``rows-in-hand-*.jsonl``, so that ``kill -9`` of all processes loses no finished row, only
        the one in progress on each worker; other workers also lose rows of the last moment.
    pool
        The executor. The same points give the same rows with every executor.
    resume
        Continue from the rows in the folder, of any shard; otherwise a folder with rows, except
        those of the grid's other shards, is refused, unless no point ran: these are replaced.
    progress
        Called with the number of points done and the total, at least four times a second.

    Raises
    ------
    ConfigError
        When the folder has rows and ``resume`` is not given, when rows cannot be read or written,
        when another run writes them, when a worker dies or has another version of simcoll.
    KeyboardInterrupt
        After Ctrl-C; finished rows are in the file.
    """
    shard_grid = shard_of(grid, shard) if shard else grid
    name = f"rows-{shard.replace('/', '-of-')}.jsonl" if shard else ROWS
    saved_rows = read_rows(folder) if resume else _read_files(_not_of_other_shards(folder, name))
    # Where no point ran, the file was wrong; its correction needs no other folder.
    worthless = not resume and all("error" in row for row in saved_rows.values())
    if saved_rows and not resume and not worthless:
        raise ConfigError(
            f"has {len(saved_rows):,} rows of an earlier run; --resume continues with them, "
            "--output names another folder",
            file=str(folder),
        )
    earlier = {} if worthless else saved_rows
    rows = {key: earlier[key] for key in shard_grid.keys if key in earlier}
    todo = [
        point
        for key, point in zip(shard_grid.keys, shard_grid.points, strict=True)
        if key not in rows
    ]
    resumed_count, grid_keys = len(rows), frozenset(shard_grid.keys)
    with _Appended(folder / name) as file:
        if worthless:
            file.clear()
        if not shard:  # other shards may be at work
            _adopt(folder, file)
        hands = folder if pool.shares_folder else None
        for new, hand in _play(
            shard_grid, todo, pool, lambda: progress and progress(len(rows), len(shard_grid)), hands
        ):
            if not {row["key"] for row in new}.issubset(grid_keys):
                raise ConfigError(
                    f"a worker has another version of simcoll than this one, {__version__}; its "
                    "rows are not kept"
                )
            file.append(new)
            rows.update((row["key"], row) for row in new)
            if hand is not None:
                hand.unlink(missing_ok=True)
    return GridRun(tuple(rows[key] for key in shard_grid.keys), len(rows) - resumed_count)


def read_rows(folder: Path) -> dict[str, Row]:
    """Read the rows of a folder by key, from all shards; a truncated last line is skipped.

    Raises
    ------
    ConfigError
        With the line, for a file that does not consist of rows.
    """
    return _read_files(_files(folder))


def _files(folder: Path) -> list[Path]:
    """The files of rows; empty if there is no folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.match("rows*.jsonl"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot be read: {getattr(error, 'strerror', error)}", file=str(folder)
        ) from None


def _not_of_other_shards(folder: Path, name: str) -> list[Path]:
    """The files of rows except those of the other shards, which may be running; ``name``: this
    shard's file.
    """
    files = _files(folder)
    if name == ROWS:
        return files
    other_shards = re.compile(
        r"rows-(in-hand-.*|\d+" + re.escape(re.sub(r"^rows-\d+", "", name)) + ")"
    )
    return [path for path in files if path.name == name or not other_shards.fullmatch(path.name)]


def _read_files(paths: Iterable[Path]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
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
            has_outcome = isinstance(row.get("result"), dict) or isinstance(row.get("error"), str)
            if (
                not isinstance(row.get("key"), str)
                or not isinstance(row.get("point"), dict)
                or not has_outcome
            ):
                raise ConfigError(
                    "not a row of a grid; remove the line, and --resume plays its point again",
                    file=str(path),
                    path=f"line {number}",
                )
            rows[row["key"]] = row
    return rows


def _adopt(folder: Path, file: _Appended) -> None:
    """Add rows that workers of a killed run had not handed over."""
    files = _files(folder)
    hands = [path for path in files if path.match("rows-in-hand-*.jsonl")]
    if not hands:
        return
    elsewhere = _read_files(path for path in files if path not in hands)
    file.append([row for key, row in _read_files(hands).items() if key not in elsewhere])
    for hand in hands:
        hand.unlink()


class _Appended:
    """An append-only file of lines, readable while it grows, and synced every :data:`SYNC_S` and at
    the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._synced = -SYNC_S

    def __enter__(self) -> Self:
        flags = (
            os.O_RDWR
            | os.O_APPEND
            | os.O_CREAT
            | getattr(os, "O_NOFOLLOW", 0)
            | getattr(os, "O_NONBLOCK", 0)
        )
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
        """Lock out other runs, and drop a truncated last line."""
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise ConfigError("cannot be written: it is no file", file=str(self.path))
        if _lock_fails(self._file):
            raise ConfigError(
                "another run is writing it; wait for its end, name another folder with --output, "
                "or run shards",
                file=str(self.path),
            )
        with open(self._file, "rb", closefd=False) as stream:
            content = stream.read()
        if not content.endswith(b"\n"):
            os.ftruncate(self._file, content.rfind(b"\n") + 1)

    def __exit__(self, *_: object) -> None:
        try:
            self._write(b"", at_once=True)
        finally:
            os.close(self._file)

    def clear(self) -> None:
        """Remove all lines."""
        os.ftruncate(self._file, 0)

    def append(self, rows: Sequence[Row]) -> None:
        """Write whole lines, which survive this process, and sync periodically, so that they
        survive the machine.
        """
        self._write(b"".join(map(_line, rows)))

    def _write(self, content: bytes, *, at_once: bool = False) -> None:
        try:
            write_whole(self._file, content)
            if at_once or time.monotonic() - self._synced >= SYNC_S:
                os.fsync(self._file)
                self._synced = time.monotonic()
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=str(self.path)) from None


def _lock_fails(descriptor: int) -> bool:
    """Lock a file until it is closed; True if another process has locked it. Some file systems lack
    locks.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        pass
    return False


Batch = tuple[list[Point], "Path | None"]
"""The points of a worker, and the file of its rows not handed over yet."""


def _play(
    grid: PointGrid,
    todo: Iterable[Point],
    pool: GridPool,
    report: Callable[[], object],
    hands: Path | None,
) -> Iterator[tuple[list[Row], Path | None]]:
    """Yield new rows as the pool returns them, with the file that held them in the meantime."""
    # Invariant: every point of `todo` is in `waiting`, in a batch of `running`, or in a row already
    # yielded. A worker answers after `hold_s` with the rows of a prefix of its batch. The remaining
    # points return to the head of the queue in their order, because neighbours share a topology and
    # a schedule, which the next worker then builds once for all of them.
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
                running[pool.executor.submit(_some, grid.work, batch, pool.hold_s, hand)] = (
                    batch,
                    hand,
                )
            wait(running, timeout=REPORT_S, return_when=FIRST_COMPLETED)
            for future in [future for future in running if future.done()]:
                rows, (batch, hand) = future.result(), running.pop(future)
                waiting.extendleft(reversed(batch[len(rows) :]))
                yield rows, hand
            report()
    except pool.lost as error:
        raise ConfigError(
            f"a worker died, perhaps for want of memory ({type(error).__name__}); finished rows "
            "are kept: --resume continues with them, "
            "and fewer workers (--jobs) need less"
        ) from None
    except pool.gone as error:
        raise ConfigError(
            f"the scheduler does not answer any more ({type(error).__name__}); finished rows are "
            "kept: --resume continues with them"
        ) from None
    except KeyboardInterrupt:
        yield from _in_hand(running)
        raise


def _in_hand(running: Mapping[Future[list[Row]], Batch]) -> Iterator[tuple[list[Row], Path | None]]:
    """After Ctrl-C: collect finished rows, and those that workers finish in a moment."""
    pending = [future for future in running if not future.cancel()]
    for future in wait(pending, timeout=4 * REPORT_S).done:
        if future.exception() is None:
            yield future.result(), running[future][1]


def _some(
    work: Work, points: Sequence[Point], hold_s: float, hand: Path | None = None
) -> list[Row]:
    """Evaluate the first points, at least one, until ``hold_s`` seconds have passed; ``hand``: a
    file for rows in the meantime.
    """
    rows, end = [], time.monotonic() + hold_s
    for point in points:
        rows.append(_row(work, point))
        if hand is not None:
            _keep(hand, rows[-1])
        if time.monotonic() > end:
            break
    return rows


def _keep(hand: Path, row: Row) -> None:
    """Append a row, ignoring failures, which the receiver of the rows will notice too."""
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
