"""The check of the types in the documentation's examples: what it reads, and that it refuses."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.docs import users_program
from tests.docs.test_docs import PAGES, ROOT, blocks
from tests.docs.typed_pages import PROGRAM, check, module_of, write_modules


def test_every_python_block_is_on_its_line():
    pages = {page: module_of(page) for page in PAGES}
    assert sum(bool(text) for text in pages.values()) > 30
    for page, text in pages.items():
        lines, shown = text.splitlines(), page.read_text(encoding="utf-8").splitlines()
        for block in (block for block in blocks(page) if block.language == "python"):
            last = block.line - 1 + len(block.text.splitlines())
            assert lines[block.line - 1 : last] == block.text.splitlines()
            assert [line.strip() for line in shown[block.line - 1 : last]] == [
                line.strip() for line in lines[block.line - 1 : last]
            ]
        assert sum(bool(line.strip()) for line in lines) == sum(
            bool(line.strip())
            for block in blocks(page)
            if block.language == "python"
            for line in block.text.splitlines()
        )


def test_the_whole_check_calls_it():
    assert "python -m tests.docs.typed_pages" in (ROOT / ".ci" / "run").read_text()


def test_what_the_users_program_gives_is_stored_as_its_types_say():
    assert users_program.shares == [
        0,
        Fraction(1, 2),
        Fraction(1, 4),
        Fraction(1, 4),
        *3 * [Fraction(3, 2)],
    ]
    assert {type(share) for share in users_program.shares} == {Fraction}
    assert users_program.usable == (("net", Fraction(9, 10)), ("pcie", Fraction(1, 2)))
    assert users_program.hops == (("net", 10**9),)
    assert users_program.ends == ((0, 1), (1, 2))
    assert [type(rank) for pair in users_program.ends for rank in pair] == 4 * [int]
    assert type(users_program.gathered.nranks) is int
    assert users_program.gathered.in_place is False
    assert users_program.blocks == [0, 1]
    assert users_program.pieces.scratch.dtype == np.int64
    assert type(users_program.channels) is int
    assert users_program.step.src_rank.dtype == np.int64
    assert users_program.steps == (users_program.step,)
    assert users_program.repeated.order.tolist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_wrong_types_are_refused_and_accepted_ones_are_not(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed: pip install 'simcoll[dev]'")
    assert PROGRAM.name in write_modules(tmp_path)
    (tmp_path / "wrong.py").write_text(
        "from simcoll.types import Slow\nSlow('0', [2])\nSlow(0, 2).factor.upper()\n"
    )
    said, status = check(tmp_path, [PROGRAM.name, "wrong.py"])
    assert status == 1
    assert said.count("error:") == 3
    assert said.count("wrong.py:") == 3
    assert 'expected "str | float | Fraction | Decimal"' in said
    assert '"Fraction" has no attribute "upper"' in said
