"""The page of diagnoses: each case has the place that the page says, none is wrong, and four of
five causes are named first or second.
"""

from collections import Counter
from pathlib import Path

import diagnosis_page
import pytest
from diagnosis_page import Case, cases, hung_jobs, hung_verdict, verdict_of

from simcoll.formats.logs.nccl_tests import load_log
from simcoll.planning.measured.causes import CAUSES

PAGE = Path(__file__).parents[3] / "docs" / "diagnosis.md"
EVERY = cases()
CELLS = 5


def rows():
    """The rows of the page, in the order of the cases."""
    text = PAGE.read_text(encoding="utf-8").partition("## Hung jobs")[0]
    lines = [line for line in text.splitlines() if line[:3] in {"| [", "| ("}]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_the_page_has_all_cases_with_few_wrong_answers():
    table = rows()
    assert len(table) == len(EVERY) >= 38
    assert all(len(cells) == CELLS for cells in table)
    places = Counter(cells[2] for cells in table)
    assert places["wrong"] == 0
    slow = len(table) - places["right"]
    assert places["first"] + places["second"] >= 0.8 * slow


def test_the_cases_have_names_of_causes_and_logs_that_are_read():
    for case in EVERY:
        assert set(case.causes) <= {*CAUSES, diagnosis_page.SOUND, diagnosis_page.MISUSE}
        assert set(case.excluded) <= set(CAUSES)
        log = load_log(diagnosis_page.CASES / f"{case.name}.log")
        assert log.tables
        assert not log.notes or diagnosis_page.MISUSE in case.causes


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EVERY)), ids=[case.name for case in EVERY])
def test_a_case_has_the_place_that_the_page_says(number):
    verdict = verdict_of(EVERY[number])
    cells = rows()[number]
    assert (verdict.place, verdict.answer) == (cells[2], cells[4].removesuffix(" |"))


def test_the_cause_of_every_hung_job_is_the_first_finding():
    text = PAGE.read_text(encoding="utf-8").partition("## Hung jobs")[2]
    for job in hung_jobs():
        verdict = hung_verdict(job)
        assert verdict.place == "first"
        assert f"| {job.settled} | first | {verdict.answer} |" in text


def test_an_excluded_cause_in_front_is_wrong():
    case = Case("x", "", "dgx-h100", ("few_nics",), ("sockets",), "", "quoted")
    place = diagnosis_page._place
    assert place(case, ("sockets", "few_nics")) == "wrong"
    assert place(case, ("pcie", "acs", "slow_link", "few_nics")) == "later"
    assert place(case, ()) == "unexplained"
