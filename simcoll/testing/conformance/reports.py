"""The verdicts of a suite as text, HTML and JUnit's XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from xml.etree import ElementTree as ET  # only written

from simcoll.testing.conformance.suite import Verdict

__all__ = ["html_report", "junit_report", "text_report"]

STYLE = """
body { font: 14px/1.4 sans-serif; margin: 2em; max-width: 75em }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: 2px 8px }
td { border-top: 1px solid #ddd; vertical-align: top } .pass { color: #060 }
.fail { color: #b00; font-weight: bold } .skip { color: #777 }
"""


def _counts(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.status for verdict in verdicts)
    return ", ".join(f"{counts[status]} {status}" for status in ("pass", "fail", "skip"))


def text_report(title: str, verdicts: Sequence[Verdict]) -> str:
    """Counts of each section, and every failure with its reason."""
    sections = list(dict.fromkeys(verdict.statement.section for verdict in verdicts))
    width = max(map(len, sections))
    lines = [title]
    for section in sections:
        members = [verdict for verdict in verdicts if verdict.statement.section == section]
        lines.append(f"  {section:{width}}  {_counts(members)}")
    lines.append(f"  {'all':{width}}  {_counts(verdicts)}")
    for verdict in verdicts:
        if verdict.status == "fail":
            statement = verdict.statement
            lines.append(f"{statement.row} fails: {statement.text}")
            lines += [f"    {fault}" for fault in verdict.faults[:3]]
    return "\n".join(lines)


def html_report(title: str, verdicts: Sequence[Verdict]) -> str:
    """A page with a row for each statement."""
    rows = []
    for verdict in verdicts:
        statement = verdict.statement
        rows.append(
            f'<tr><td><a href="{statement.place}">{statement.row}</a></td>'
            f"<td>{escape(statement.text)}</td><td>{statement.subject}</td>"
            f'<td class="{verdict.status}">{verdict.status}</td>'
            f"<td>{verdict.played}</td><td>{escape(verdict.reason)}</td></tr>"
        )
    head = "<tr><th>row<th>statement<th>applies to<th>verdict<th>played<th>reason</tr>"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{escape(title)}</h1><p>{_counts(verdicts)}</p>"
        f"<table>{head}{''.join(rows)}</table></html>\n"
    )


def junit_report(title: str, verdicts: Sequence[Verdict]) -> bytes:
    """A test case for each statement."""
    counts = Counter(verdict.status for verdict in verdicts)
    suite = ET.Element(
        "testsuite",
        name=title,
        tests=str(len(verdicts)),
        failures=str(counts["fail"]),
        skipped=str(counts["skip"]),
    )
    for verdict in verdicts:
        statement = verdict.statement
        name = f"{statement.row} {statement.text}"
        case = ET.SubElement(suite, "testcase", classname=statement.section, name=name)
        if verdict.status == "fail":
            failure = ET.SubElement(case, "failure", message=verdict.reason)
            failure.text = "\n".join(verdict.faults)
        elif verdict.status == "skip":
            ET.SubElement(case, "skipped", message=verdict.reason)
    document: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return document
