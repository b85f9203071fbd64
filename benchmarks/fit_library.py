"""Fit the measured numbers of the library files to the published tables.

``python benchmarks/fit_library.py`` fits all of them to all tables, writes them into
``libraries/*.toml``, then takes one step of the fit without each system (a publisher), and writes
what changes to ``measurements/left_out.csv``, which ``simcoll accuracy`` uses. It takes half a
minute on one core; ``--dry`` writes nothing. ``--only p2p`` fits the numbers whose names match
this, to the tables that depend on them, and keeps all others, which takes seconds.

The loss is the sum over rows of a robust function of log(predicted / measured), where every size
band of a table counts the fourth root of its rows, plus a penalty for the distance of each number
from its prior. Priors are NCCL's own numbers, data sheets, or round guesses; none is fitted. A
table's launch offset, which says more about the run than about the library, is taken out: the
median of measured minus predicted time up to 4 KiB; what all runs of a fabric have in common is put
back at the end. Numbers belong to a class of GPU, a fabric, or all machines; never to a table.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import cyclopts
import numpy as np

from simcoll.files.paths import data_folder
from simcoll.libraries.corrected import costs
from simcoll.libraries.library import Library, load_library
from simcoll.libraries.nccl_decision import decides, own_choices
from simcoll.libraries.prediction import choose, launched_us, picks_of
from simcoll.libraries.question import P2P, Question, class_of, question_on
from simcoll.planning.measured.measurements import PublishedTable, published_tables
from simcoll.topology.machine import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "nccl": ROOT / "libraries" / "nccl-2.27.toml",
    "rccl": ROOT / "libraries" / "rccl-2.22.toml",
}
NAMES = ("nccl", "nccl-2.27", "nccl-2.28", "nccl-2.29", "nccl-2.30", "rccl", "rccl-2.22")
KNEE = 0.12  # Beyond this error of the logarithm a row counts linearly.
TAKEN_OUT = {"nodes": 0.7, "one-process": 0.5, "torch": 0.5}
"""Share of the launch offset of a run that is taken out, by launcher or for runs over nodes; the
rest says something about the machine.
"""
LATE = 0.6
"""The same for one node with a process or thread for each GPU, if the run starts late: nothing
starts earlier than the library does.
"""
PENALTY = 0.01
STEP = 0.02


def priors() -> dict[str, tuple[float, float]]:
    """Every fitted number: prior, and how far from it, in logarithms, is one standard deviation."""
    found: dict[str, tuple[float, float]] = {}
    for kind in (
        "volta",
        "ampere",
        "hopper",
        "gh200",
        "blackwell",
        "mi300",
        "mi355",
        "host",
        "pcie",
    ):
        place = f"class.{kind}."
        if kind not in {"mi300", "mi355", "volta"}:
            found[place + "ll_base_factor"] = (0.9, 0.5)
            found[place + "ll_hop_factor"] = (1.3, 0.5)
            if kind not in {"host", "pcie"}:
                found[place + "simple_hop_factor"] = (1.5, 0.7)
                found[place + "ll_growth"] = (0.25, 0.5)
                found[place + "ll128_base_factor"] = (1.0, 0.2)
                found[place + "own_step"] = (0.4, 0.4)
                found[place + "own_step_bytes"] = (0.1, 0.7)
            found[place + "p2p_start"] = (8.0, 0.4)
            found[place + "p2p_peer"] = (0.3, 0.6)
        # NCCL counts 0.8 of a link's raw rate; through host memory every byte crosses two links.
        if kind != "mi300":  # its only tables are over nodes, where the NICs decide
            found[place + "ring_share"] = (0.5, 0.4) if kind == "host" else (0.8, 0.08)
        found[place + "p2p_share"] = (0.5, 0.4) if kind == "host" else (0.75, 0.12)
        if kind == "pcie":
            found[place + "ring_share"] = found[place + "p2p_share"] = (0.7, 0.3)
        if kind not in {"mi300", "mi355", "host", "pcie"}:
            found[place + "net_ll128_share"] = (1.0, 0.2)
            found[place + "ll_factor"] = (1.0, 0.25)
            found[place + "ll128_factor"] = (1.0, 0.1)
            found[place + "ll128_hop_factor"] = (1.0, 0.25)
            found[place + "simple_start"] = (8.0, 0.8)
        if kind in {"ampere", "hopper", "blackwell"}:
            found[place + "p2p_channel_rate"] = (20.0, 0.3)
        if kind in {"hopper", "blackwell"}:
            found[place + "net_ll_share"] = (1.0, 0.3)
        if kind in {"mi300", "mi355"}:
            found[place + "all_pairs_ll_start"] = (13.0, 0.3)
            found[place + "all_pairs_ll_share"] = (0.3, 0.3)
            found[place + "all_pairs_start"] = (20.0, 0.3)
            found[place + "all_pairs_share"] = (0.5, 0.3)
            found[place + "simple_start"] = (14.0, 0.5)
            found[place + "ll128_factor"] = (0.7, 0.3)
        if kind == "mi300":
            found[place + "mscclpp_start"] = (7.5, 0.3)
            found[place + "mscclpp_share"] = (0.3, 0.3)
        if kind in {"hopper", "blackwell"}:
            found[place + "nvls_share"] = (1.0, 0.15)
            found[place + "nvls_start"] = (25.0, 0.3)
            found[place + "nvls_fill"] = (40.0, 0.4)
    found["class.blackwell.nvls_large_share"] = (1.0, 0.1)
    found["cpu.intel.p2p_rate"] = found["cpu.amd.p2p_rate"] = (25.0, 0.3)
    # aws-ofi-nccl tells NCCL 75 us for EFA of p4.
    latencies = {
        "ib": (0.3, 0.7),
        "roce": (0.5, 0.7),
        "efa-p4": (75.0, 0.3),
        "efa-p5": (20.0, 0.3),
        "slingshot": (0.5, 0.7),
        "slingshot-alps": (0.5, 0.7),
        "tcpx": (30.0, 1.0),
        "tcpxo": (30.0, 1.0),
    }
    for fabric, latency in latencies.items():
        place = f"fabric.{fabric}."
        found[place + "latency"] = latency
        found[place + "share"] = (0.93, 0.06)
        found[place + "p2p_share"] = (0.85, 0.15)
        found[place + "p2p_peer"] = (0.5, 1.0)
        found[place + "simple_start"] = (15.0, 0.8)
        if fabric not in {"tcpx", "tcpxo"}:
            found[place + "ll_growth"] = (3.0, 0.5)
    found["fabric.slingshot.tree_share"] = found["fabric.slingshot-alps.tree_share"] = (1.0, 0.15)
    found["fabric.slingshot-alps.ll_rate"] = (20.0, 1.0)
    found |= {f"fabric.slingshot-alps.steps:{i}": (10.0, 0.8) for i in range(7)}
    found |= {f"correction.net_hop_factor:{i}": (1.0, 0.4) for i in range(3)}
    # Under LL, trees over nodes carry NCCL's rate without its correction for trees, which is
    # therefore not fitted: power 0.
    found |= {f"correction.tree_power_factor:{i}": (1.0, 0.4) for i in (1, 2)}
    found |= {
        "correction.base_factor:1": (1.0, 0.1),
        "correction.ll_growth": (0.2, 0.5),
        "correction.net_ll_share": (1.0, 0.3),
        "launcher.one_process": (3.2, 0.15),
        "launcher.one_process_peer": (1.0, 0.7),
        "correction.net_start": (20.0, 0.7),
        "correction.ring_rise": (0.02, 1.0),
        "correction.nvls_tree_share": (0.93, 0.1),
        "correction.nvls_tree_start": (25.0, 0.4),
        "correction.nvls_tree_fill": (100.0, 0.5),
        "correction.nvls_tree_fill_bytes": (2e7, 0.5),
        "correction.tree_hop_factor:0": (1.0, 0.4),
        "correction.tree_hop_factor:1": (1.0, 0.4),
        "correction.tree_hop_factor:2": (1.0, 0.4),
        "correction.nvls_tree_hop_factor:0": (1.0, 0.3),
        "correction.p2p_start": (8.4, 0.5),
        "launcher.torch": (15.0, 0.3),
        "correction.p2p_simple_start": (5.0, 0.5),
        "correction.p2p_peer": (0.3, 0.6),
        "correction.p2p_fill": (0.8, 0.5),
        "correction.p2p_own_step": (0.3, 0.5),
        "correction.p2p_net": (14.0, 0.6),
        "correction.p2p_ll_rate": (5.0, 0.3),
        "correction.p2p_net_rate": (20.0, 0.3),
    }
    return found


class Rows:
    """A table as arrays, with its machine."""

    def __init__(self, table: PublishedTable) -> None:
        self.table, self.topology, self.settings = table, table.machine(), table.settings()
        self.machine = machine(self.topology)
        self.size = np.array([size for size, _ in table.rows], float)
        self.time = np.array([time for _, time in table.rows], float) / 1000
        library = load_library(table.library_file)
        self.kind = class_of(self.machine, library).split(".")[1]
        question = question_on(table.collective, self.topology, library, self.settings)
        self.communicator = question.communicator
        self.choices = own_choices(question, self.size) if decides(question) else None
        band = np.digitize(self.size, [2**16, 2**26])
        count = np.bincount(band, minlength=3)[band]
        self.weight = count**-0.25 * np.where(band == 0, 0.7, 1.0)

    def share_system(self, tables: int) -> None:
        """Count less where a system published many tables of one machine."""
        self.weight = self.weight * tables**-0.4

    @property
    def machine_of_system(self) -> tuple[str, str]:
        """The publisher's machine."""
        return self.table.system, self.table.topology

    def question(self, library: Library) -> Question:
        """What the table asks of a library; NCCL's choice does not depend on fitted numbers."""
        return Question(
            self.table.collective, self.machine, library, self.settings, None, self.communicator
        )

    def predicted(self, libraries: dict[str, Library], size: Floats | None = None) -> Floats:
        """Times of the corrected formula, without the offset of the run."""
        question = self.question(libraries[self.table.library_file])
        sizes = self.size if size is None else size
        if self.choices and size is None:
            candidates = costs(question, sizes)
            pick = picks_of(self.choices, candidates, sizes)
        else:
            candidates, pick = choose(question, sizes)
        times_us = np.array([cost.time_us(sizes) for cost in candidates])
        return launched_us(times_us[pick, np.arange(len(sizes))], question)

    def residual(self, libraries: dict[str, Library]) -> Floats:
        """Logarithm of predicted over measured time, the launch offset taken out."""
        predicted = self.predicted(libraries)
        over_nodes = "nodes" if self.machine.domains > 1 else ""
        taken_out = TAKEN_OUT.get(self.settings.launcher, TAKEN_OUT.get(over_nodes))
        small = self.size <= 4096
        small = small if small.any() else self.size <= 2**16
        offset = (
            float(np.clip(np.median((self.time - predicted)[small]), -2, 90))
            if small.any()
            else 0.0
        )
        if taken_out is None:
            taken_out = LATE if offset > 0 else 0.0
        return np.log(np.maximum(predicted + taken_out * offset, 0.05) / self.time)

    def alone(self) -> bool:
        """Whether each GPU has its own process, and the collective its own kernels."""
        return self.settings.launcher in {"process", "thread"} and self.table.collective not in P2P

    def depends_on(self, place: str) -> bool:
        """Whether a number can matter here."""
        head, key, *_ = place.split(".")
        if "p2p" in place and self.table.collective not in P2P:
            return False
        if place.endswith("_base_factor") and head == "class":
            return key == self.kind and self.machine.domains == 1
        if head == "class":
            return key == self.kind
        if head == "cpu":
            return key == self.machine.cpu and self.machine.through_cpu
        if head == "launcher":
            return key.startswith(self.settings.launcher.replace("-", "_"))
        if head == "fabric":
            return key == self.machine.fabric and self.machine.domains > 1
        if key == "ring_rise":
            return self.machine.domains == 1
        if key.startswith("tree_hop"):
            return self.machine.domains > 1 and self.table.collective == "all_reduce"
        if "nvls" in key:
            return self.machine.switch_reduce and self.table.collective == "all_reduce"
        return self.machine.domains > 1 if "net" in key else True


def with_numbers(library: Library, numbers: dict[str, float]) -> Library:
    """The library with some numbers changed; ``place:2`` is one of a list.

    What RCCL's file states itself of launchers and corrections is not fitted.
    """
    changes: dict[str, float | tuple[float, ...]] = {}
    for place, value in numbers.items():
        name, _, index = place.partition(":")
        if library.name == "rccl" and name not in library.borrowed and "class." not in name:
            continue
        if index:
            row = list(changes.get(name, library.numbers(name)))  # type: ignore[arg-type]
            row[int(index)] = value
            changes[name] = tuple(row)
        else:
            changes[name] = value
    return library.with_values(changes)


def libraries(numbers: dict[str, float]) -> dict[str, Library]:
    """The libraries with these numbers, by the name of their file."""
    return {name: with_numbers(load_library(name), numbers) for name in NAMES}


class Fit:
    """Levenberg-Marquardt on the logarithms of the numbers."""

    def __init__(self, tables: list[Rows], only: str = "") -> None:
        self.tables, self.priors = (
            tables,
            {name: prior for name, prior in priors().items() if re.search(only, name)},
        )
        self.names = list(self.priors)
        self.prior = np.log([value for value, _ in self.priors.values()])
        self.spread = np.array([spread for _, spread in self.priors.values()])
        ends = np.cumsum([len(rows.size) for rows in tables])
        self.place = [
            slice(end - len(rows.size), end) for rows, end in zip(tables, ends, strict=True)
        ]
        self.weight = np.concatenate([rows.weight for rows in tables])
        # A single number gains little of the loss of all tables, and takes seconds.
        self.least_gain = 1e-7 if only else 1e-4

    def numbers(self, x: Floats) -> dict[str, float]:
        """The numbers at a point."""
        numbers = dict(zip(self.names, np.exp(x).tolist(), strict=True))
        for name in self.names:  # a latency by size never falls
            place, _, index = name.partition(":")
            if place.endswith(".steps") and index != "0":
                before = f"{place}:{int(index) - 1}"
                numbers[name] = max(numbers[name], numbers[before])
        return numbers

    def residuals(self, x: Floats) -> Floats:
        """Of all rows."""
        found = libraries(self.numbers(x))
        return np.concatenate([rows.residual(found) for rows in self.tables])

    def loss(self, r: Floats, x: Floats) -> float:
        """Robust sum of squares, and the penalty."""
        robust = 2 * KNEE**2 * (np.sqrt(1 + (r / KNEE) ** 2) - 1)
        return float(
            (self.weight**2 * robust).sum()
            + PENALTY * (((x - self.prior) / self.spread) ** 2).sum()
        )

    def slopes(self, x: Floats, r: Floats) -> Floats:
        """Jacobian of the residuals, each column only where the number matters."""
        found = np.zeros((len(r), len(x)))
        for column, name in enumerate(self.names):
            moved = x.copy()
            moved[column] += STEP
            changed = libraries(self.numbers(moved))
            for rows, place in zip(self.tables, self.place, strict=True):
                if rows.depends_on(name):
                    found[place, column] = (rows.residual(changed) - r[place]) / STEP
        return found

    def run(
        self, start: Floats | None = None, rounds: int = 10, slopes: Floats | None = None
    ) -> Floats:
        """Descend until little is gained; ``slopes`` are those at the start, where they are
        known.
        """
        x = (self.prior if start is None else start).copy()
        r = self.residuals(x)
        best = self.loss(r, x)
        for _ in range(rounds):
            self.known = self.slopes(x, r) if slopes is None else slopes
            slopes, before, damping = None, best, 1e-3
            for _ in range(6):  # as long as these slopes lead downhill
                weight = self.weight**2 / np.sqrt(1 + (r / KNEE) ** 2)
                normal = (self.known * weight[:, None]).T @ self.known + PENALTY * np.diag(
                    self.spread**-2
                )
                downhill = (self.known * weight[:, None]).T @ r + PENALTY * (
                    x - self.prior
                ) / self.spread**2
                step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -downhill)
                trial = x + np.clip(step, -0.5, 0.5)
                r_trial = self.residuals(trial)
                loss = self.loss(r_trial, trial)
                if loss < best * (1 - self.least_gain):
                    x, r, best, damping = trial, r_trial, loss, damping / 3
                elif damping > 1:
                    break
                else:
                    damping *= 10
            if before - best < before * 20 * self.least_gain:
                break
        return x


Late = dict[str, dict[str, list[float]]]
"""What small rows take longer than the formula, by the place of a fabric's start and by system."""


def late_starts(tables: list[Rows], numbers: dict[str, float]) -> Late:
    """Time of a start over nodes beyond NCCL's constants, with a process for each GPU."""
    places = [place for place in load_library("nccl").values if place.endswith(".launch")]
    without = libraries(numbers | dict.fromkeys(places, 0.0))
    late: Late = {place: {} for place in places}
    for rows in tables:
        place, small = f"fabric.{rows.machine.fabric}.launch", rows.size <= 2**14
        if place in late and small.any() and rows.machine.domains > 1 and rows.alone():
            more = float(np.median((rows.time - rows.predicted(without))[small]))
            late[place].setdefault(rows.table.system, []).append(more)
    return late


def starts(late: Late, without: str = "") -> dict[str, float]:
    """The start of each fabric: the median over systems.

    Two systems without it are added, so that one alone says nothing.
    """
    results = {}
    for place, systems in late.items():
        medians = [np.median(values) for system, values in systems.items() if system != without]
        results[place] = max(0.0, float(np.median([0.0, 0.0, *medians])))
    return results


def written(text: str, numbers: dict[str, float]) -> str:
    """A library file with its fitted numbers replaced."""
    head, lines = "", []
    for line in text.splitlines():
        title = re.fullmatch(r"\[(.+)\]", line)
        head = title[1] if title else head
        match = re.fullmatch(r"(\w+)( = \{ value = )(.*)(, source = .*)", line)
        if match:
            place = f"{head}.{match[1]}"
            items = match[3].split(", ")
            for index, item in enumerate(items):
                value = numbers.get(f"{place}:{index}" if match[3].startswith("[") else place)
                if value is not None:
                    items[index] = re.sub(r"\d[\d.]*(?:e[+-]?\d+)?", f"{value:.4g}", item)
            lines.append(match[1] + match[2] + ", ".join(items) + match[4])
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def start_of(place: str) -> float:
    """The number of the shipped file, from which the search starts."""
    name, _, index = place.partition(":")
    of_nccl = load_library("nccl")
    # RCCL states some numbers of its own, such as its share of LL over nodes.
    values = (of_nccl if name in of_nccl.values else load_library("rccl")).numbers(name)
    return max(values[int(index or 0)], 1e-6)


def left_out_numbers(fit: Fit, x: Floats, late: Late) -> Iterator[tuple[str, dict[str, float]]]:
    """The numbers without each system: one step of the fit without its rows, from the whole
    optimum, with the slopes and weights there.
    """
    r = fit.residuals(x)
    slopes = fit.slopes(x, r)
    weight = fit.weight**2 / np.sqrt(1 + (r / KNEE) ** 2)
    normal = (slopes * weight[:, None]).T @ slopes + PENALTY * np.diag(fit.spread**-2)
    downhill = (slopes * weight[:, None]).T @ r + PENALTY * (x - fit.prior) / fit.spread**2
    for system in dict.fromkeys(rows.table.system for rows in fit.tables):
        rows_of = np.concatenate(
            [np.full(len(rows.size), rows.table.system == system) for rows in fit.tables]
        )
        weighted = slopes[rows_of] * weight[rows_of, None]
        step = np.linalg.solve(
            normal - weighted.T @ slopes[rows_of], weighted.T @ r[rows_of] - downhill
        )
        without = fit.numbers(x + step)
        yield system, without | starts(late, without=system)


def main(*, only: str = "", dry: bool = False) -> None:
    """Fit all numbers, or those whose names match ``only``, also without each system; write them
    unless ``dry``.
    """
    began = perf_counter()
    wanted = [name for name in priors() if re.search(only, name)]
    tables = [Rows(table) for table in published_tables(added=True)]
    tables = [rows for rows in tables if not only or any(rows.depends_on(name) for name in wanted)]
    counts = Counter(rows.machine_of_system for rows in tables)
    for rows in tables:
        rows.share_system(counts[rows.machine_of_system])
    fit = Fit(tables, only)
    x = fit.run(np.log([start_of(name) for name in fit.names]))
    whole = fit.numbers(x)
    # What starting over nodes takes follows from all other numbers.
    late = {} if only else late_starts(tables, whole)
    whole |= starts(late)
    print(
        f"{len(tables)} tables, {len(fit.weight)} rows, {len(whole)} numbers: loss "
        f"{fit.loss(fit.residuals(x), x):.4f} after {perf_counter() - began:.0f} s"
    )
    lines = [["system", "place", "value"]]
    if only:
        with (data_folder("measurements") / "left_out.csv").open(newline="") as stream:
            lines = [line for line in csv.reader(stream) if not re.search(only, line[1])]
    for system, numbers in left_out_numbers(fit, x, late):
        lines += [
            [system, place, f"{value:.5g}"]
            for place, value in numbers.items()
            if abs(value - whole[place]) > 0.002 * whole[place]
        ]
    if dry:
        return
    for name, file in FILES.items():
        of_file = {
            place: value
            for place, value in whole.items()
            if name == "nccl" or place.startswith("class.")
        }
        file.write_text(written(file.read_text(), of_file))
    with (data_folder("measurements") / "left_out.csv").open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    cyclopts.run(main)
