"""Every format of algorithms: what it writes it reads, with the same messages; what is cut short it
refuses.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

import simcoll
from simcoll.errors import ConfigError, SimcollError
from simcoll.formats.goal.language import SEND, Goal
from simcoll.formats.recognise import recognise
from simcoll.formats.schedules.schedule_files import (
    FORMATS,
    algorithm_content,
    parse_algorithm,
    schedule_of,
)
from tests.support.fuzzing import READERS, schedules

NAMED = {"argnames": "each", "ids": lambda each: each.name}
ONLY_READ = {"mscclpp-old"}


def messages(loaded):
    """What every rank sends to every other, as a share of everything."""
    sent = Counter()
    if isinstance(loaded, Goal):
        rank = [
            r
            for r in range(len(loaded.start) - 1)
            for _ in range(loaded.start[r + 1] - loaded.start[r])
        ]
        for src, kind, peer, size in zip(rank, loaded.kind, loaded.peer, loaded.size, strict=True):
            sent[src, int(peer)] += int(size) * int(kind == SEND)
    else:
        for step in schedule_of(loaded).steps():
            for src, dst, count in zip(step.src_rank, step.dst_rank, step.count, strict=True):
                sent[int(src), int(dst)] += int(count) * int(src != dst)
    whole = sent.total() or 1
    return {pair: Fraction(share, whole) for pair, share in sent.items() if share}


@pytest.mark.slow
@pytest.mark.parametrize(
    argvalues=[each for each in FORMATS if each.name not in ONLY_READ], **NAMED
)
def test_what_a_format_writes_it_reads(each):
    written = 0
    for schedule in schedules():
        try:
            content = algorithm_content(schedule, each)
        except ConfigError as error:
            assert "cannot hold" in str(error)  # noqa: PT017  what plays the files lacks a collective
            continue
        assert recognise(content) == each.name
        once = parse_algorithm(content)
        twice = parse_algorithm(algorithm_content(once, each))
        assert messages(schedule) == messages(once) == messages(twice)
        if not isinstance(once, Goal):
            assert (
                schedule_of(once).collective == schedule_of(twice).collective == schedule.collective
            )
            assert simcoll.verify(schedule_of(twice))
        written += 1
    assert written >= 3


@pytest.mark.parametrize(argvalues=FORMATS, **NAMED)
def test_every_format_is_written_or_only_read(each):
    assert (each.write is None) == (each.name in ONLY_READ)
    assert (each.endings == ()) == (each.write is None)


@pytest.mark.slow
@pytest.mark.parametrize(
    argvalues=[each for each in FORMATS if each.name not in ONLY_READ], **NAMED
)
def test_what_is_cut_short_is_refused(each):
    for content in READERS[each.name].seeds():
        for end in (len(content) // 3, len(content) // 2, len(content) * 2 // 3):
            with pytest.raises(SimcollError):
                each.read(content[:end], "cut")
