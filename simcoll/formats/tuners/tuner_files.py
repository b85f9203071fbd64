"""Tuning files of libraries: NCCL's tuner plugin, NCCLX, Open MPI's tuned and HAN, MPICH, oneCCL.

All map a collective, a number of ranks and a range of sizes to an algorithm, by the library's name.
A rule that a format cannot express is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from simcoll.errors import ConfigError, nearest
from simcoll.formats.tuners.tuner_mpi import (
    HAN,
    MPI,
    read_han,
    read_mpich,
    read_openmpi,
    write_han,
    write_mpich,
    write_openmpi,
)
from simcoll.formats.tuners.tuner_nccl import (
    NCCL,
    read_nccl,
    read_ncclx,
    write_nccl,
    write_ncclx,
)
from simcoll.formats.tuners.tuner_openmpi_text import read_openmpi_text, write_openmpi_text
from simcoll.formats.tuners.tuner_rules import NO_LIMIT, Rule, refuse_line

__all__ = ["TUNER_FORMATS", "Rule", "TunerFormat", "tuner_format"]

MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class TunerFormat:
    """A format of such files.

    Attributes
    ----------
    name
        The name for ``simcoll tune --format``.
    names
        Its names of collectives.
    read, write
        Reader, from content and file name; and writer, to content.
    """

    name: str
    names: Mapping[str, str]
    read: Callable[[str, str | None], list[Rule]]
    write: Callable[[Sequence[Rule]], str]

    def parse(self, content: bytes, file: str | None = None) -> list[Rule]:
        """Read rules.

        Raises
        ------
        ConfigError
            With the line or path.
        """
        if len(content) > MAX_BYTES:
            raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", file=file)
        try:
            return self.read(content.decode(), file)
        except UnicodeDecodeError as error:
            raise ConfigError(f"no text: byte {error.start}", file=file) from None

    def dump(self, rules: Sequence[Rule]) -> bytes:
        """Write rules; they are read back before they are returned.

        Raises
        ------
        ConfigError
            For rules that the format cannot express.
        """
        for rule in rules:
            if rule.collective not in self.names:
                raise ConfigError(
                    f"format {self.name!r} has no {rule.collective}; it has {', '.join(self.names)}"
                )
        content = self.write(rules).encode()
        again = self.parse(content)
        if again != list(rules):
            lost = next((rule for rule in rules if rule not in again), rules[0])
            raise ConfigError(f"format {self.name!r} cannot say {lost}")
        return content


# oneCCL: CCL_ALLREDUCE="recursive_doubling:0-8192;ring:8193-max".
_ONECCL = {
    "all_reduce": "ALLREDUCE",
    "all_gather": "ALLGATHER",
    "all_to_all": "ALLTOALL",
    "broadcast": "BCAST",
    "reduce": "REDUCE",
    "reduce_scatter": "REDUCE_SCATTER",
}


def _read_oneccl(text: str, file: str | None) -> list[Rule]:
    kinds = {f"CCL_{word}": kind for kind, word in _ONECCL.items()}
    rules = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        setting = re.fullmatch(r'(?:export\s+)?([A-Z_]+)="?([^"]*)"?', line)
        if setting is None or setting[1] not in kinds:
            name = setting[1] if setting else line
            refuse_line(file, number, f"unknown setting {name[:40]!r}; {nearest(name[:40], kinds)}")
        for part in setting[2].split(";"):
            name, _, limits = part.partition(":")
            bounds = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18}|max)", limits or "0-max")
            if not name or bounds is None:
                refuse_line(
                    file, number, f"{part[:40]!r}: expected 'ring:0-8192', with 'max' for no limit"
                )
            rules.append(
                Rule(
                    kinds[setting[1]],
                    int(bounds[1]),
                    NO_LIMIT if bounds[2] == "max" else int(bounds[2]),
                    name,
                )
            )
    return rules


def _write_oneccl(rules: Sequence[Rule]) -> str:
    lines = []
    for kind, group in groupby(rules, key=lambda rule: rule.collective):
        parts = [
            f"{rule.algorithm}:{rule.min_bytes}-{'max' if rule.max_bytes < 0 else rule.max_bytes}"
            for rule in group
        ]
        lines.append(f'export CCL_{_ONECCL[kind]}="{";".join(parts)}"')
    return "\n".join(lines) + "\n"


def _read_any_openmpi(text: str, file: str | None) -> list[Rule]:
    """Rules of tuned: JSON of Open MPI 6, or text of 4 and 5."""
    is_json = text.lstrip().startswith(("{", "["))
    return (read_openmpi if is_json else read_openmpi_text)(text, file)


TUNER_FORMATS: Mapping[str, TunerFormat] = {
    tuner_format.name: tuner_format
    for tuner_format in (
        TunerFormat("nccl-csv", NCCL, read_nccl, write_nccl),
        TunerFormat("ncclx", NCCL, read_ncclx, write_ncclx),
        TunerFormat("openmpi", MPI, _read_any_openmpi, write_openmpi),
        TunerFormat("openmpi-text", MPI, _read_any_openmpi, write_openmpi_text),
        TunerFormat("openmpi-han", HAN, read_han, write_han),
        TunerFormat("mpich", MPI, read_mpich, write_mpich),
        TunerFormat("oneccl", _ONECCL, _read_oneccl, _write_oneccl),
    )
}


def tuner_format(name: str) -> TunerFormat:
    r"""Look up a format by name.

    Raises
    ------
    ConfigError
        For an unknown name.

    Examples
    --------
    >>> small = Rule("all_reduce", 0, 8192, "recursive_doubling")
    >>> tuner_format("oneccl").dump([small, Rule("all_reduce", 8193, -1, "ring")])
    b'export CCL_ALLREDUCE="recursive_doubling:0-8192;ring:8193-max"\n'
    """
    if name not in TUNER_FORMATS:
        raise ConfigError(f"unknown tuner format {name!r}; {nearest(name, TUNER_FORMATS)}")
    return TUNER_FORMATS[name]
