"""Counts of names that fit any value, of names that occur twice, of dense files, and of values that
are unpacked by position; the counts of the whole package may only fall.

``python -m tests.support.names`` prints them, and writes them to ``tests/laws/names.json`` if none
has grown.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASELINE = ROOT / "tests" / "laws" / "names.json"
FILLER_WORDS = (
    "found each own made known given here there asked told held where which first other whole at "
    "before after taken kept left one "
    "both these alike near beside over under apart inside outside anew same those everywhere more "
    "most least wanted shown meant said "
    "read written counted named sought seen done rest way many much usual back way along what "
    "others got thing stuff item placed lie "
    "now either such"
)
FILLER = frozenset(FILLER_WORDS.split())
"""Names that fit any value: as the whole name of a variable or parameter, they say nothing of
it.
"""
IRREGULAR_WORDS = (
    "told said made kept held taken seen found given known left lost met shown "
    "written read put cut sent met played"
)
IRREGULAR = frozenset(IRREGULAR_WORDS.split())
PYTORCH = frozenset({"boxed", "coalesced"})
"""Last words of functions whose names PyTorch chose."""
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
MOST_TOKENS = 12
"""Mean number of tokens on a line of code, above which a file is dense."""


def bound_name(node: ast.AST) -> str | None:
    """The name that a parameter or an assignment binds, without leading underscores."""
    if isinstance(node, ast.arg):
        return node.arg.strip("_")
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id.strip("_")
    return None


def is_participle(name: str) -> bool:
    """Whether the last word of a function's name is a participle."""
    word = name.strip("_").split("_")[-1]
    if word in PYTORCH:
        return False
    return word in IRREGULAR or (len(word) > 4 and word.endswith(("ed", "en")))


MOST_UNPACKED = 3
"""Number of values that may be unpacked by position; more need a record with names."""


def unpackings(node: ast.AST) -> int:
    """How many times a statement or a comprehension unpacks too many values by position.

    Assigning as many values as there are names is none, and neither is numbering names by a range.
    """
    if isinstance(node, ast.Assign):
        value = node.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "range":
            return 0
        targets = [] if isinstance(value, (ast.Tuple, ast.List)) else node.targets
    elif isinstance(node, (ast.For, ast.comprehension)):
        targets = [node.target]
    else:
        return 0
    return sum(
        isinstance(part, (ast.Tuple, ast.List))
        and isinstance(part.ctx, ast.Store)
        and len(part.elts) > MOST_UNPACKED
        for target in targets
        for part in ast.walk(target)
    )


def tokens_a_line(text: str) -> float:
    """Mean number of tokens on a line of code; docstrings count as one token, comments and blank
    lines as none.
    """
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in LAYOUT
    ]
    return len(tokens) / max(len({token.start[0] for token in tokens}), 1)


TEXT = re.compile(r'''#[^\n]*|"""(?s:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'''')
"""A comment or a string."""
WORD_OR_SIGN = re.compile(r"\w+|[^\w\s]")


def is_dense(text: str) -> bool:
    """Whether the lines of a module have too many tokens.

    Most have not even too many words and signs, of which no token has less than one; to look for
    tokens takes ten times as long.
    """
    plain = TEXT.sub(lambda match: "" if match[0][0] == "#" else "s", text)
    lines = sum(bool(line.strip()) for line in plain.splitlines())
    rough = len(WORD_OR_SIGN.findall(plain)) / max(lines, 1)
    return rough > MOST_TOKENS and tokens_a_line(text) > MOST_TOKENS


def count_names() -> dict:
    """All counts of the two packages."""
    filler, participles, unpacked = Counter(), 0, 0
    classes, modules, dense = defaultdict(set), defaultdict(set), []
    for package in ("simcoll", "realcoll"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            modules[path.stem].add(path)
            for node in ast.walk(ast.parse(text)):
                name = bound_name(node)
                filler[name] += name in FILLER
                unpacked += unpackings(node)
                if isinstance(node, ast.ClassDef):
                    classes[node.name.strip("_")].add(path)
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    participles += is_participle(node.name)
            if is_dense(text):
                dense.append(path.relative_to(ROOT).as_posix())
    return {
        "filler": dict(sorted((+filler).items())),
        "participles": participles,
        "unpacked": unpacked,
        "classes": sorted(name for name, paths in classes.items() if len(paths) > 1),
        "modules": sorted(
            name
            for name, paths in modules.items()
            if len(paths) > 1 and name not in {"__init__", "__main__", "run"}
        ),
        "dense": dense,
    }


def grown(counts: dict, baseline: dict) -> list[str]:
    """What has grown beyond the baseline."""
    words = [
        f"{word}: {count} bindings, {baseline['filler'].get(word, 0)} before"
        for word, count in counts["filler"].items()
        if count > baseline["filler"].get(word, 0)
    ]
    if counts["participles"] > baseline["participles"]:
        words.append(
            f"functions named by a participle: {counts['participles']}, {baseline['participles']} "
            "before"
        )
    if counts["unpacked"] > baseline["unpacked"]:
        words.append(
            f"more than {MOST_UNPACKED} values unpacked by position: {counts['unpacked']}, "
            f"{baseline['unpacked']} before"
        )
    for kind in ("classes", "modules", "dense"):
        words += [f"{kind}: {name}" for name in counts[kind] if name not in baseline[kind]]
    return words


def main() -> int:
    counts = count_names()
    for kind, value in counts.items():
        print(
            f"{kind}: {sum(value.values()) if isinstance(value, dict) else value if isinstance(value, int) else len(value)}"
        )
    growth = (
        grown(counts, json.loads(BASELINE.read_text(encoding="utf-8"))) if BASELINE.exists() else []
    )
    print("\n".join(growth))
    if not growth:
        BASELINE.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    return bool(growth)


if __name__ == "__main__":
    sys.exit(main())
