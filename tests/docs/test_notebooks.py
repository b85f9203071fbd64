"""Every notebook runs from top to bottom and shows the outputs that it stores.

The cells run here without a kernel: a line of text is compared with what a cell prints, and the
forms of its last expression (text, a table, a picture) with those that the object gives a notebook.
``pytest --bless`` stores what was printed; review the diff.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
FORMS = {"text/html": "_repr_html_"}


def lines(text):
    return text.splitlines(keepends=True)


def outputs_of(source, namespace, number):
    """The outputs of a cell, as a notebook stores them."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    outputs = []
    if printed.getvalue():
        outputs.append(
            {"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())}
        )
    if value is not None:
        shown = {
            form: lines(getattr(value, method)())
            for form, method in FORMS.items()
            if hasattr(value, method)
        }
        data = {**shown, "text/plain": lines(repr(value))}
        outputs.append(
            {
                "data": data,
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return outputs


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS] == ["first-schedule.ipynb", "objects.ipynb"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_its_cells_give(path, request):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    namespace = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown = [
        outputs_of("".join(cell["source"]), namespace, number)
        for number, cell in enumerate(code, 1)
    ]
    if request.config.getoption("--bless"):
        for number, (cell, outputs) in enumerate(zip(code, shown, strict=True), 1):
            cell |= {"outputs": outputs, "execution_count": number}
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [cell["outputs"] for cell in code] == shown
    pages = [
        "".join(output["data"]["text/html"])
        for outputs in shown
        for output in outputs
        if "text/html" in output.get("data", {})
    ]
    assert any(page.startswith("<svg") for page in pages)
    assert any(page.startswith("<table") for page in pages)
