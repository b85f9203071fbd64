"""Dynamic rules of Open MPI 4 and 5, as text: numbers, each rule from a size on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from simcoll.errors import ConfigError, nearest
from simcoll.formats.tuners.tuner_rules import MAX_RULES, NO_LIMIT, Rule, refuse_line, whole_of

__all__ = ["read_openmpi_text", "write_openmpi_text"]

# ompi/mca/coll/base/coll_base_functions.h of Open MPI 4.1 and 5.0: COLLTYPE_T.
_COLLECTIVES = {
    "all_gather": 0,
    "all_reduce": 2,
    "all_to_all": 3,
    "barrier": 6,
    "broadcast": 7,
    "gather": 9,
    "reduce": 11,
    "reduce_scatter": 12,
    "scatter": 15,
}
_LAST_COLLECTIVE = 21
# ompi/mca/coll/tuned/coll_tuned_*_decision.c of Open MPI 5.0: numbers of algorithms, from 1 on.
_ALGORITHMS = {
    "all_gather": "linear bruck recursive_doubling ring neighbor two_proc sparbit direct-messaging",
    "all_reduce": "basic_linear nonoverlapping recursive_doubling ring segmented_ring rabenseifner "
    "allgather_reduce",
    "all_to_all": "linear pairwise modified_bruck linear_sync two_proc",
    "barrier": "linear double_ring recursive_doubling bruck two_proc tree",
    "broadcast": "basic_linear chain pipeline split_binary_tree binary_tree binomial knomial "
    "scatter_allgather scatter_allgather_ring",
    "gather": "basic_linear binomial linear_sync",
    "reduce": "linear chain pipeline binary binomial in-order_binary rabenseifner knomial",
    "reduce_scatter": "non-overlapping recursive_halving ring butterfly",
    "scatter": "basic_linear binomial linear_nb",
}
DEFAULT = 0
"""The number that leaves the choice to the library."""


def read_openmpi_text(text: str, file: str | None) -> list[Rule]:
    """Read rules of tuned of Open MPI 4 and 5; rules that leave the choice to it are left out.

    A number of ranks counts for all numbers up to the next one, as in the library.
    """
    words = _words(text)
    begin, word = next(words, (1, ""))
    fields_of_rule = 4
    if word.startswith("rule-file-version-"):
        if word != "rule-file-version-2":
            refuse_line(file, begin, f"unknown version {word[:40]!r}; valid: 1 (none), 2")
        fields_of_rule = 5
        begin, word = next(words, (begin, ""))

    def number(subject: str) -> int:
        line, word = next(words, (0, ""))
        if not word:
            raise ConfigError(f"the file ends before a {subject}", file=file)
        return whole_of(word, file, line, subject)

    rules: list[Rule] = []
    kinds = {ours: kind for kind, ours in _COLLECTIVES.items()}
    for _ in range(whole_of(word, file, begin, "number of collectives")):
        collective = number("collective")
        if collective > _LAST_COLLECTIVE:
            raise ConfigError(
                f"unknown collective {collective}; valid: 0 to {_LAST_COLLECTIVE}", file=file
            )
        tables: list[tuple[int, list[tuple[int, int, tuple[int, ...]]]]] = []
        for _ in range(number("number of communicator sizes")):
            ranks = number("communicator size")
            table = []
            for _ in range(number("number of message sizes")):
                size, algorithm = number("message size"), number("algorithm")
                options = tuple(number("option") for _ in range(fields_of_rule - 2))
                table.append((size, algorithm, options))
                if len(rules) + len(table) > MAX_RULES:
                    raise ConfigError(f"more than {MAX_RULES:,} rules", file=file)
            tables.append((ranks, table))
        if collective in kinds:
            rules += _rules_of_tables(kinds[collective], tables, file)
    line, surplus = next(words, (0, ""))
    if surplus:
        refuse_line(file, line, f"{surplus[:40]!r} after the last rule")
    return rules


def _words(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        for word in line.partition("#")[0].split():
            yield number, word


def _rules_of_tables(
    kind: str,
    tables: Sequence[tuple[int, Sequence[tuple[int, int, tuple[int, ...]]]]],
    file: str | None,
) -> Iterator[Rule]:
    """The rules of a collective, from its tables by number of ranks."""
    if not tables:
        return
    names = _ALGORITHMS[kind].split()
    upper_ranks = [*(ranks - 1 for ranks, _ in tables[1:]), NO_LIMIT]
    for (ranks, table), upper in zip(tables, upper_ranks, strict=True):
        limits: tuple[str, ...] = ()
        if ranks > 0 or upper != NO_LIMIT:
            limits = (f"comm_size {ranks}..{upper if upper >= 0 else 'inf'}",)
        if ranks == upper:
            limits = ()
        if not table:
            continue
        ends = [*(size - 1 for size, _, _ in table[1:]), NO_LIMIT]
        for (size, algorithm, options), end in zip(table, ends, strict=True):
            if algorithm == DEFAULT:
                continue
            if algorithm > len(names):
                raise ConfigError(
                    f"unknown algorithm {algorithm} of {kind}; valid: 0 to {len(names)}", file=file
                )
            labels = zip(("fan_in_out", "segment_bytes", "max_requests"), options, strict=False)
            conditions = tuple(f"{label}={option}" for label, option in labels if option)
            yield Rule(
                kind,
                size,
                end,
                names[algorithm - 1],
                ranks=ranks if ranks == upper else -1,
                conditions=limits + conditions,
            )


def write_openmpi_text(rules: Sequence[Rule]) -> str:
    """Write rules of tuned of Open MPI 4 and 5; other sizes and numbers of ranks are left to it.

    Raises
    ------
    ConfigError
        For an algorithm that it does not have.
    """
    groups = [
        (kind, list(group)) for kind, group in groupby(rules, key=lambda rule: rule.collective)
    ]
    lines = [f"{len(groups)} # collectives"]
    for kind, group in groups:
        by_ranks = [(ranks, list(part)) for ranks, part in groupby(group, key=lambda r: r.ranks)]
        tables: dict[int, list[tuple[int, int]]] = {}
        for ranks, part in by_ranks:
            tables[max(ranks, 0)] = _table(kind, part)
            if ranks >= 0:
                tables.setdefault(ranks + 1, [(0, DEFAULT)])
        lines.append(f"{_COLLECTIVES[kind]} # {kind}")
        lines.append(f"{len(tables)} # communicator sizes")
        for ranks, table in tables.items():
            lines += [f"{ranks} # ranks", f"{len(table)} # sizes"]
            lines += [f"{size} {algorithm} 0 0" for size, algorithm in table]
    return "\n".join(lines) + "\n"


def _table(kind: str, rules: Sequence[Rule]) -> list[tuple[int, int]]:
    """Sizes and the algorithm from each of them on; gaps are left to the library."""
    names = _ALGORITHMS[kind].split()
    table: list[tuple[int, int]] = []
    begin: int | None = 0
    for rule in rules:
        if rule.algorithm not in names:
            raise ConfigError(
                f"Open MPI 4 and 5 have no {rule.algorithm[:40]!r} for {kind}; "
                f"{nearest(rule.algorithm, names)}"
            )
        if begin is not None and rule.min_bytes > begin:
            table.append((begin, DEFAULT))
        table.append((rule.min_bytes, names.index(rule.algorithm) + 1))
        begin = None if rule.max_bytes < 0 else rule.max_bytes + 1
    if begin is not None:
        table.append((begin, DEFAULT))
    return table
