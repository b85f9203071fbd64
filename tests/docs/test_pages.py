"""The documentation hangs together: links lead somewhere, every page and every public name is
found.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.cli import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def links(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [(link.partition("#")[0], link.partition("#")[2]) for link in found if "://" not in link]


def anchors(page):
    heads = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / path).resolve() for path, _ in links(index)}
    assert [page.name for page in PAGES[2:] if page not in linked and page != index] == []


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "reference" / "python-api.md").read_text()
    assert [name for name in simcoll.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_command_is_in_the_reference():
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    commands = [name for name in app if not name.startswith("-")]
    assert len(commands) >= 5
    assert [name for name in commands if f"\n## {name}\n" not in text] == []


def test_the_readme_fits_on_a_screen():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 90


def test_every_benchmark_is_described():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    commands = [
        path
        for path in sorted((ROOT / "benchmarks").rglob("*.py"))
        if 'if __name__ == "__main__":' in path.read_text()
    ]
    assert [path.stem for path in commands if not re.search(rf"\b{path.stem}\b", text)] == []


ALGORITHM_PAGE = ROOT / "docs" / "reference" / "algorithms.md"
HEAD = (
    "| collective | algorithm | ranks | topologies | parameters | order | time |\n"
    "|---|---|---|---|---|---|---|\n"
)


def test_the_table_of_algorithms_is_printed_from_the_registry(request):
    """``pytest --bless`` prints it anew."""
    text = ALGORITHM_PAGE.read_text()
    before, rest = text.split(HEAD)
    after = rest.partition("\n\n")[2]
    rows = [
        f"| {found.collective} | `{found.name}` | {found.ranks} | {found.topologies} | "
        f"{', '.join(f'`{name}`' for name in found.params) or '-'} | {found.order or '-'} | "
        f"{found.cost} |"
        for found in ALGORITHMS
    ]
    printed = f"{before}{HEAD}{chr(10).join(rows)}\n\n{after}"
    if request.config.getoption("--bless"):
        ALGORITHM_PAGE.write_text(printed)
    assert ALGORITHM_PAGE.read_text() == printed


QUOTES_PAGE = ROOT / "docs" / "explanation" / "algorithms.md"
QUOTED_FUNCTIONS = {
    "Ring": ("ring.py", "all_reduce", True),
    "Recursive doubling": ("recursive.py", "doubling_all_reduce", False),
    "Bruck": ("bruck.py", "all_gather", False),
    "Hierarchical": ("hierarchical.py", "all_reduce", False),
    "Several operands at once": ("multiplying.py", "all_reduce", False),
}
"""Of each section: the file and function that it quotes, and whether with its decorator."""


def function_source(file, name, decorated):
    text = (ROOT / "simcoll" / "algorithms" / file).read_text()
    [function] = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    first = function.decorator_list[0].lineno if decorated else function.lineno
    return "\n".join(text.splitlines()[first - 1 : function.end_lineno])


def test_sections_quote_the_algorithm_of_their_title(request):
    """``pytest --bless`` quotes anew."""
    before, *sections = QUOTES_PAGE.read_text().split("\n## ")
    titles = [section.splitlines()[0] for section in sections if "```py\n" in section]
    assert titles == list(QUOTED_FUNCTIONS)
    for place, section in enumerate(sections):
        title = section.splitlines()[0]
        if title in QUOTED_FUNCTIONS:
            head, _, rest = section.partition("```py\n")
            tail = rest.partition("\n```\n")[2]
            source = function_source(*QUOTED_FUNCTIONS[title])
            sections[place] = f"{head}```py\n{source}\n```\n{tail}"
    printed = "\n## ".join([before, *sections])
    if request.config.getoption("--bless"):
        QUOTES_PAGE.write_text(printed)
    assert QUOTES_PAGE.read_text() == printed
