"""``simcoll plan`` from the file to the report, and the report in a browser."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from simcoll.cli import main
from simcoll.planning.designs.design_search import distinct, firsts
from simcoll.planning.designs.html_page import (
    Cell,
    Comparison,
    Page,
    ReportColumn,
    ReportTable,
    Section,
    page_html,
)
from simcoll.training.design import load_design
from simcoll.training.steps import step
from tests.support.chromium import Browser, needs_chromium
from tests.unit.planning.test_space import PLAN

DRAWN = "document.documentElement.dataset.drawn === 'light'"


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A plan, played once."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.toml").write_text(PLAN)
    assert (
        main(
            [
                "plan",
                str(folder / "plan.toml"),
                "-o",
                str(folder / "out"),
                "-j",
                "1",
                "--exact",
                "2",
            ]
        )
        == 0
    )
    return folder


@pytest.mark.slow
def test_a_plan_writes_all_of_it(planned):
    out = planned / "out"
    assert {path.name for path in out.iterdir()} == {
        "rows.jsonl",
        "results.csv",
        "best.toml",
        "trace.json.gz",
        "report.html",
    }
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    ran = [row for row in rows if row["fits"] == "yes"]
    assert len(ran) == 8  # pp 3 does not divide 8 GPUs
    assert sum(row["tier"] == "2" for row in ran) >= 2
    assert all("#" not in row["error"] and row["error"] for row in rows if row["fits"] != "yes")
    best = max(ran, key=lambda row: (row["tier"] == "2", float(row["tokens_per_second"])))
    design = load_design(out / "best.toml")
    assert step(design, tier=2, exposed=False).time_fs == int(best["time_fs"])
    assert design.hash == best["design_hash"]


@pytest.mark.slow
def test_a_plan_goes_on_and_writes_the_same_bytes(planned, tmp_path, capsys):
    rows = (planned / "out" / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_bytes(b"".join(rows[:7]) + rows[7][:30])
    assert (
        main(
            [
                "plan",
                str(planned / "plan.toml"),
                "-o",
                str(tmp_path),
                "-j",
                "1",
                "--exact",
                "2",
                "--resume",
            ]
        )
        == 0
    )
    assert "7 kept from earlier" in capsys.readouterr().out
    for name in ("rows.jsonl", "results.csv", "best.toml", "trace.json.gz", "report.html"):
        assert (tmp_path / name).read_bytes() == (planned / "out" / name).read_bytes(), name


@pytest.mark.slow
def test_no_design_is_one_clear_error(planned, tmp_path, capsys):
    (tmp_path / "none.toml").write_text(PLAN + '[limits]\nmemory = "1 MiB"\n')
    assert main(["plan", str(tmp_path / "none.toml"), "-o", str(tmp_path / "out"), "-j", "1"]) == 2
    assert (
        "none of 12 designs ran: 8 do not fit (the first: 0.6 of 0.0 GiB); 4 are impossible"
        in capsys.readouterr().err
    )


def hostile_page():
    """What files may name, where HTML and scripts could end."""
    evil = "</script><script>document.title='owned'</script><img src=http://example.com/x>"
    spec = {
        "data": {"values": [{"a": evil, "b": 1}]},
        "mark": "bar",
        "width": "container",
        "encoding": {
            "x": {"field": "b", "type": "quantitative"},
            "y": {"field": "a", "type": "nominal"},
        },
    }
    columns = [ReportColumn(evil), ReportColumn("n", number=True)]
    rows = [[Cell(evil), Cell(str(n), n)] for n in (10, 9, 100)]
    two = Comparison([evil, "b"], columns, rows[:2])
    return Page(
        evil,
        [evil],
        [
            Section(
                "x",
                evil,
                evil,
                chart=spec,
                table=ReportTable(columns, rows, sortable=True),
                comparison=two,
            )
        ],
        evil,
    )


@pytest.mark.slow
def test_a_corrected_file_needs_no_other_folder(tmp_path, capsys):
    """Where no design was possible, there are no rows to lose."""
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    batch = re.search(r"global_batch = .*", PLAN)[0]
    plan.write_text(PLAN.replace(batch, "global_batch = 7"))
    command = ["plan", str(plan), "-o", str(folder), "--jobs", "1", "--tier", "1"]
    assert main(command) == 2
    assert "no design is possible: $.model.global_batch: " in capsys.readouterr().err
    plan.write_text(PLAN)
    assert main(command) == 0
    assert "global_batch 7" not in (folder / "rows.jsonl").read_text()
    assert main(command) == 2  # these are worth keeping
    assert "rows of an earlier run" in capsys.readouterr().err


def test_nothing_in_a_name_is_html():
    text = page_html(hostile_page()).decode()
    assert "<img src=http" not in text
    assert text.count("<script") == text.count("</script>") == 5  # the data and four files of ours
    assert "default-src 'none'" in text


@needs_chromium
@pytest.mark.slow
def test_a_report_in_a_browser(planned, tmp_path):
    report = planned / "out" / "report.html"
    assert report.stat().st_size < 2_000_000
    with Browser(tmp_path) as page:
        page.scheme("light")
        page.open(report.as_uri(), DRAWN)
        charts = page.value("document.querySelectorAll('[data-chart]').length")
        assert charts == page.value("document.querySelectorAll('[data-chart] svg').length") >= 5
        assert (
            page.value("document.querySelectorAll('#chart-memory svg .mark-rect path').length") > 0
        )
        helps = page.value(
            "[...document.querySelectorAll('#sensitivity tbody tr')].map(row => "
            "row.cells[0].textContent)"
        )
        assert {"rate of matrix products", "bandwidth of scale-up links"} <= set(helps)
        names = "[...document.querySelectorAll('.card h3')].map(head => head.textContent)"
        assert page.value(names) == ["gpu.bandwidth 450 GB/s best", "gpu.bandwidth 225 GB/s"]
        for width in (1280, 390):
            page.ask(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=900,
                deviceScaleFactor=1,
                mobile=width < 500,
            )
            page.open(report.as_uri(), DRAWN)
            assert page.value("document.documentElement.scrollWidth <= innerWidth"), width
        page.ask("Emulation.clearDeviceMetricsOverride")
        page.open(report.as_uri(), DRAWN)
        marks = "document.querySelectorAll('#chart-pareto .mark-symbol path').length"
        assert page.value(marks) >= 8

        # Under the pointer, a design with its figures in full.
        symbol = (
            "document.querySelector('#chart-pareto svg .mark-symbol path').getBoundingClientRect()"
        )
        page.value("document.getElementById('chart-pareto').scrollIntoView()")
        x, y = (
            page.value(f"{symbol}.{side} + {symbol}.{size} / 2")
            for side, size in (("x", "width"), ("y", "height"))
        )
        page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        page.until(
            "document.querySelector('.vg-tooltip.visible')?.textContent.includes('tokens/s')"
        )
        assert "e+" not in page.value("document.querySelector('.vg-tooltip.visible').textContent")

        # The keyboard alone: to the head of the second column, sort, and back.
        page.value("document.querySelector('#best .scroll').focus()")
        for _ in range(2):
            page.press("Tab")
        page.press("Enter", text="\r")
        head = "document.activeElement.closest('th')"
        assert page.value(f"{head}.getAttribute('aria-sort')") == "ascending"
        column = page.value(f"{head}.cellIndex")
        cells = (
            "[...document.querySelectorAll('#best tbody tr')].map(row => "
            f"row.cells[{column}].textContent)"
        )
        first = page.value(cells)
        assert first == sorted(first)
        page.press(" ", "Space", text=" ")
        assert page.value(f"{head}.getAttribute('aria-sort')") == "descending"
        assert page.value(cells) == sorted(first, reverse=True)

        # What if: another design against the first.
        page.value("document.getElementById('compare-b').focus()")
        before = page.value("document.getElementById('compare-rows').textContent")
        page.press("ArrowDown")
        page.until(f"document.getElementById('compare-rows').textContent !== {json.dumps(before)}")

        # Dark: other ink, on a dark page.
        ink = page.value("getComputedStyle(document.body).color")
        page.scheme("dark")
        page.until("document.documentElement.dataset.drawn === 'dark'")
        assert page.value("getComputedStyle(document.body).color") != ink
        assert (
            page.value(
                "document.querySelector('#chart-pareto svg text').getAttribute('fill')"
            ).lower()
            == "#e6edf3"
        )
        symbols = "[...document.querySelectorAll('#chart-pareto .role-legend-symbol path')]"
        painted = page.value(
            f"{symbols}.flatMap(each => [each.getAttribute('fill'), each.getAttribute('stroke')])"
        )
        assert painted
        assert {"black", "#000", "#000000"}.isdisjoint(painted)

        # On paper no number is broken, and the head of a table is text, which is repeated on every
        # page.
        page.ask(
            "Emulation.setDeviceMetricsOverride",
            width=688,
            height=1017,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.ask("Emulation.setEmulatedMedia", media="print")
        tops = "new Set([...range.getClientRects()].map(each => Math.round(each.top))).size"
        broken = (
            "cell => { const range = document.createRange(); range.selectNodeContents(cell); "
            "return " + tops + " > 1 }"
        )
        assert (
            page.value(f"[...document.querySelectorAll('td.number')].filter({broken}).length") == 0
        )
        assert (
            page.value("getComputedStyle(document.querySelector('th button')).display")
            == "contents"
        )

        sizes = {
            tuple(map(float, found))
            for found in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", page.printed())
        }
        assert {(round(width), round(height)) for width, height in sizes} == {(595, 842)}  # A4
        assert set(page.requests) == {report.as_uri()}
        assert page.said == []


@needs_chromium
@pytest.mark.slow
def test_hostile_names_in_a_browser(tmp_path):
    path = Path(tmp_path) / "page.html"
    path.write_bytes(page_html(hostile_page()))
    with Browser(tmp_path) as page:
        page.scheme("light")
        page.open(path.as_uri(), DRAWN)
        assert page.value("document.title").startswith("</script>")
        assert page.value("document.images.length") == 0
        page.value("document.querySelectorAll('th button')[1].click()")
        numbers = (
            "[...document.querySelectorAll('#x tbody tr')].slice(0, 3).map(row => "
            "row.cells[1].textContent)"
        )
        assert page.value(numbers) == ["9", "10", "100"]  # as numbers, not as text
        assert set(page.requests) == {path.as_uri()}
        # The policy itself: a request that a page tries is refused.
        page.value("fetch('http://example.com/').catch(() => { document.title = 'refused' })")
        page.until("document.title === 'refused'")


def _timed(case, time_fs, memory_bytes=1):
    result = {"tier": 1, "time_fs": time_fs, "memory_bytes": memory_bytes}
    return {"point": {"case": case}, "result": result}


def test_designs_that_differ_in_nothing_are_shown_once():
    first = _timed({"topology.name": "A", "dispatch": "copies"}, 5)
    other_machine = _timed({"topology.name": "B", "dispatch": "copies"}, 5)
    more_memory = _timed({"topology.name": "A", "dispatch": "none"}, 5, 2)
    equal = _timed({"topology.name": "A", "dispatch": "once"}, 5)
    best = [first, other_machine, more_memory, equal]
    assert distinct(best) == [first, other_machine, more_memory]
    assert firsts(best) == [first, other_machine]


@pytest.mark.slow
def test_a_plan_names_the_library_of_every_alternative(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(
        '[model]\nname = "llama-3.1-8b"\nsequence = 4096\nglobal_batch = 8\n'
        '[topology]\nname = ["dgx-h100", "mi300x"]\nnodes = 1\n[parallel]\ntp = 2\n'
        'shard = "optimizer"\n[objective]\nmaximise = "tokens_per_second"\n'
    )
    assert main(["plan", "plan.toml", "--tier", "1", "-o", "out", "-j", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("# collectives are those of nccl ") for line in lines)
    rccl = "# topology.name mi300x: collectives are those of rccl "
    assert any(line.startswith(rccl) for line in lines)
