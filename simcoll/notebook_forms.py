"""How objects show themselves: a line as ``repr``, a few lines as text, a table in notebooks, rows
in a data frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from simcoll.errors import ConfigError
from simcoll.terminal import printable

__all__ = ["data_frame", "fact_lines", "facts_table", "rows_table", "shows_facts"]

Facts = Sequence[tuple[str, object]]
Class = TypeVar("Class", bound=type)


def fact_lines(facts: Facts) -> str:
    """Facts as lines of text, names to the left.

    >>> print(fact_lines([("time", "3 us"), ("messages", 12)]))
    time      3 us
    messages  12
    """
    width = max((len(name) for name, _ in facts), default=0)
    return "\n".join(printable(f"{name:<{width}}  {value}") for name, value in facts)


def facts_table(facts: Facts) -> str:
    """Facts as an HTML table, a row for each.

    >>> facts_table([("time", "3 us")])
    '<table><tr><th>time</th><td>3 us</td></tr></table>'
    """
    rows = "".join(
        f"<tr><th>{_cell(name)}</th><td>{_cell(value)}</td></tr>" for name, value in facts
    )
    return f"<table>{rows}</table>"


def rows_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows of values as an HTML table below their titles.

    >>> rows_table(["rank"], [[0]])
    '<table><tr><th>rank</th></tr><tr><td>0</td></tr></table>'
    """
    head = "".join(f"<th>{_cell(title)}</th>" for title in titles)
    lines = ("".join(f"<td>{_cell(value)}</td>" for value in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    from html import escape  # only in notebooks: every process would load its table of entities

    return escape(printable(str(value)))


def data_frame(rows: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> Any:
    """Rows, or columns by name, as a ``pandas.DataFrame``.

    Raises
    ------
    ConfigError
        When pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError:
        raise ConfigError(
            "to_frame() needs pandas, which is not installed: pip install pandas; to_dict() gives "
            "the same values without it"
        ) from None
    return DataFrame(rows if isinstance(rows, Mapping) else list(rows))


def shows_facts(record: Class) -> Class:
    """Class decorator: ``repr``, text and HTML from the method ``facts()`` of a record, whose first
    value is its headline.
    """

    def show_line(self: Any) -> str:
        headline = printable(str(self.facts()[0][1]))
        return f"<{type(self).__name__}: {headline}>"

    def show_lines(self: Any) -> str:
        return fact_lines(self.facts())

    def show_table(self: Any) -> str:
        return facts_table(self.facts())

    for name, method in (
        ("__repr__", show_line),
        ("__str__", show_lines),
        ("_repr_html_", show_table),
    ):
        if name not in vars(record):
            setattr(record, name, method)
    return record
