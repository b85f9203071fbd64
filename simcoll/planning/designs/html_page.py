"""Self-contained HTML pages: sections of text, tables and Vega-Lite charts, with the libraries
embedded.

A page makes no request: its content security policy refuses all sources, and charts are
interpreted, not evaluated.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from simcoll import __version__

__all__ = [
    "Cell",
    "Comparison",
    "FigureCard",
    "Page",
    "ReportColumn",
    "ReportTable",
    "Section",
    "page_html",
]

SCRIPTS = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js", "report.js")


class ReportColumn(msgspec.Struct, frozen=True):
    """A column: its title and unit, whether it holds numbers, and whether more is better (1), less
    (-1) or neither (0).
    """

    title: str
    unit: str = ""
    number: bool = False
    better: int = 0


class Cell(msgspec.Struct, frozen=True):
    """A cell: its text, and its sort key."""

    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Columns and rows; ``sortable`` by a click or the keyboard."""

    columns: Sequence[ReportColumn]
    rows: Sequence[Sequence[Cell]]
    sortable: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows, any two of which a reader can compare side by side."""

    names: Sequence[str]
    columns: Sequence[ReportColumn]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class FigureCard:
    """A card of a page: a name with a mark, a headline with its title and interval, and facts in
    pairs.

    A card without a headline has a ``reason`` instead.
    """

    name: str
    mark: str = ""
    headline: str = ""
    title: str = ""
    interval: str = ""
    facts: Sequence[tuple[str, str]] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page, under a heading: cards, text, a list, a chart, a table, or a comparison.

    ``chart`` is a Vega-Lite specification.
    """

    id: str
    title: str
    text: str = ""
    cards: Sequence[FigureCard] = ()
    sentences: Sequence[str] = ()
    chart: Mapping[str, Any] | None = None
    table: ReportTable | None = None
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page: title, introduction, sections, and footer."""

    title: str
    summary: Sequence[str]
    sections: list[Section]
    footer: str = ""


def _asset(name: str) -> str:
    return (
        importlib.resources.files("simcoll.planning")
        .joinpath("html", name)
        .read_text(encoding="utf-8")
    )


def page_html(page: Page) -> bytes:
    """Render a page as HTML, deterministic to the byte.

    Examples
    --------
    >>> page_html(Page("A <title>", ["One sentence."], [])).count(b"A &lt;title&gt;")
    2
    """
    from jinja2 import Environment
    from markupsafe import Markup

    compared = next((section.comparison for section in page.sections if section.comparison), None)
    data = {
        "charts": {section.id: section.chart for section in page.sections if section.chart},
        "compare": None
        if compared is None
        else {"columns": compared.columns, "rows": compared.rows},
    }
    # Inside a script element only "<" could end it.
    script_data = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    template = Environment(autoescape=True, trim_blocks=False).from_string(
        _asset("report.html.jinja")
    )
    text = template.render(
        title=page.title,
        summary=page.summary,
        footer=page.footer,
        version=__version__,
        sections=[
            {
                "id": section.id,
                "title": section.title,
                "text": section.text,
                "cards": section.cards,
                "sentences": section.sentences,
                "chart": bool(section.chart),
                "table": section.table,
                "compare": section.comparison.names if section.comparison else None,
            }
            for section in page.sections
        ],
        licences=_asset("LICENSES.txt"),
        style=Markup(_asset("report.css")),  # noqa: S704 - our own file
        data=Markup(script_data),  # noqa: S704 - our own files, and escaped above
        scripts=[Markup(_asset(name)) for name in SCRIPTS],  # noqa: S704 - our own files
    )
    return text.encode()
