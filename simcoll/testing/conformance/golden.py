"""Results of the suite's cases as gloo computed them: a judge of the oracle from outside.

``python -m simcoll.testing.conformance.golden`` records them anew, with the torch that is there.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from simcoll.arrays import Array
from simcoll.core.collective import Collective
from simcoll.errors import ConfigError
from simcoll.files.output import write_file
from simcoll.testing.collective_cases import Case, CaseOperation
from simcoll.testing.conformance.statement_cases import CASES
from simcoll.testing.conformance.suite_backends import find_backend

__all__ = ["golden_cases", "golden_results", "main", "result_text"]

RANKS = (2, 3, 4)
MORE_RANKS = (5, 8)
"""World sizes with the first and the last case of each statement."""
FILE = "golden.json.xz"
MOST_BYTES = 512
"""Larger results are recorded as their SHA-256."""
DEADLINE_S = 30


def golden_cases() -> Iterator[Case]:
    """All cases of all statements that have results, and further coalesced ones, each once."""
    texts = set()
    for nranks in (*RANKS, *MORE_RANKS):
        for cases_of in (*CASES.values(), _coalesced):
            cases = [
                case
                for case in cases_of(nranks)
                if not any(operation.mistake for operation in case.operations)
            ]
            for case in cases if nranks in RANKS else (*cases[:1], *cases[1:][-1:]):
                if repr(case) not in texts:
                    texts.add(repr(case))
                    yield case


def _coalesced(nranks: int) -> Iterator[Case]:
    """Collectives that torch coalesces."""
    everyone = tuple(range(nranks))
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        collective = Collective(kind, nranks)
        for dtype in ("float32", "int64"):
            operations = tuple(
                CaseOperation(collective, everyone, counts, dtype, seed=counts, asynchronous=True)
                for counts in (1, 5, 37)
            )
            yield Case(nranks, operations, coalesced=True)


def result_text(output: Array | None) -> str | None:
    """A result as it is recorded: its bytes in hexadecimal digits, or their SHA-256; objects as
    Python writes them.

    Zeros have no sign, which depends on the order of a sum, and True is 1: gloo's sums of bool are
    the numbers of ranks.
    """
    if output is None:
        return None
    if output.dtype.kind == "O":
        text = f"objects:{output.tolist()}"
        return text if len(text) <= MOST_BYTES else _digest(text.encode())
    values = np.ascontiguousarray(output)
    values = (
        values.view(np.uint8) != 0 if values.dtype.kind == "b" else values + values.dtype.type(0)
    )
    content: bytes = values.tobytes()
    if len(content) <= MOST_BYTES:
        return content.hex()
    return _digest(content)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@cache
def golden_results() -> dict[str, list[list[str | None]]]:
    """The recorded results: by the text of a case, for each rank and operation."""
    content = (files("simcoll.testing.conformance") / FILE).read_bytes()
    recorded: dict[str, list[list[str | None]]] = json.loads(lzma.decompress(content))["cases"]
    return recorded


def _record() -> tuple[dict[str, list[list[str | None]]], int]:
    """The results of gloo for the cases that it takes, whatever they are, and the number of those
    that it refuses.
    """
    recorded, refused = {}, 0
    backend = find_backend("torch:gloo")
    with backend.runner() as runner:
        for case in golden_cases():
            if any(operation.memory == "strided" for operation in case.operations):
                continue  # gloo takes the elements of most calls as if they had no gaps
            outcomes = runner.play(backend.target, case, DEADLINE_S)
            if any(not outcome.outputs or outcome.refused for outcome in outcomes):
                refused += 1
                continue
            recorded[repr(case)] = [
                [result_text(output) for output in outcome.outputs] for outcome in outcomes
            ]
    return recorded, refused


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the results into a file; by default the one that is shipped."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        import torch
    except ImportError:
        raise ConfigError("recording needs torch: pip install 'simcoll[torch]'") from None
    recorded, refused = _record()
    text = json.dumps({"torch": torch.__version__, "cases": recorded})
    content = lzma.compress(text.encode(), preset=9)
    write_file(words[0] if words else Path(__file__).with_name(FILE), content)
    sys.stdout.write(
        f"{len(recorded)} cases recorded with gloo of torch {torch.__version__}, {refused} "
        f"refused, {len(content) / 1e6:.2f} MB\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
