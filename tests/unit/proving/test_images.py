"""One share of many, and one of all pieces that are images of each other, stand for all: the proof
says what the full one says, and nothing that differs goes unseen.
"""

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.core.schedule import COLUMNS, Step
from simcoll.errors import ScheduleError
from simcoll.proving import copied_shares, image_pieces, verify

BUTTERFLIES = ["rabenseifner", "swing", "bine"]


@pytest.fixture
def eager(monkeypatch):
    """Both shortcuts are tried, however small the schedule."""
    monkeypatch.setattr(copied_shares, "MANY_CELLS", 0)
    monkeypatch.setattr(copied_shares, "COMPARED_ROWS", 100)
    monkeypatch.setattr(image_pieces, "MANY_CELLS", 0)
    monkeypatch.setattr(image_pieces, "SAVED", 2)


def with_steps(schedule, steps):
    return replace(schedule, source=lambda: iter(steps))


def full_proof(schedule):
    """The proof that follows every chunk."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (copied_shares, image_pieces):
            patch.setattr(module, "MANY_CELLS", 1 << 62)
        return verify(replace(schedule), exact=False)


@pytest.mark.parametrize(
    ("name", "nranks"),
    [("rabenseifner", 32), ("swing", 32), ("bine", 32), ("rabenseifner", 24), ("rabenseifner", 40)],
)
@pytest.mark.parametrize("channels", [1, 4])
def test_it_says_what_the_full_proof_says(name, channels, nranks, eager):
    schedule = simcoll.schedule("all_reduce", name, nranks=nranks, channels=channels)
    full = full_proof(schedule)
    assert full.kind == "full"
    assert verify(schedule, exact=False) == replace(full, kind="by symmetry")


@pytest.mark.parametrize(
    ("name", "nranks", "pieces"),
    [("rabenseifner", 64, 7), ("swing", 64, 3), ("bine", 64, 3), ("rabenseifner", 96, 6)],
)
def test_few_pieces_are_followed(name, nranks, pieces, eager):
    """A piece and its images under r xor 1, 2, 4, ..., or under r + 2 and 1 - r."""
    schedule = simcoll.schedule("all_reduce", name, nranks=nranks)
    (some,), steps, count = image_pieces.one_of_images(schedule)
    assert some.layout.chunks == pieces * (2 if nranks == 96 else 1)
    whole = list(schedule.steps())
    assert (steps, count) == (len(whole), sum(map(len, whole)))


def test_one_share_of_many_channels_is_followed(eager):
    schedule = simcoll.schedule("all_reduce", "rabenseifner", nranks=16, channels=8)
    share, shares, _ = copied_shares.one_share(schedule)
    assert (shares, share.nchannels, share.layout.chunks) == (8, 1, 16)
    steps = list(share.steps())
    alone = list(simcoll.schedule("all_reduce", "rabenseifner", nranks=16).steps())
    for step, of_one in zip(steps, alone, strict=True):
        for name in COLUMNS:
            assert np.array_equal(getattr(step, name), getattr(of_one, name)), name


@pytest.mark.slow
@pytest.mark.parametrize("name", BUTTERFLIES)
def test_8192_ranks_with_eight_channels_are_proved_by_symmetry(name):
    schedule = simcoll.schedule("all_reduce", name, nranks=8192, channels=8)
    proof = verify(schedule)
    order = "position-independent" if name == "rabenseifner" else "run-consistent"
    assert (proof.kind, proof.steps, proof.transfers, proof.order) == (
        "by symmetry",
        1 + 2 * 13,
        8 * 8192 * 27,
        order,
    )


def changed(schedule, rng):
    """The schedule with one field of one transfer changed, or without that transfer."""
    steps = list(schedule.steps())
    at = int(rng.integers(len(steps)))
    columns = {name: getattr(steps[at], name).copy() for name in COLUMNS}
    row = int(rng.integers(len(steps[at])))
    n, size = schedule.nranks, schedule.layout.size
    limits = {"src_rank": n, "dst_rank": n, "src_chunk": size, "dst_chunk": size, "op": 2}
    limits["channel"] = schedule.nchannels
    field = [*limits, "count", "without"][int(rng.integers(8))]
    if field == "without" or limits.get(field) == 1:
        columns = {name: np.delete(column, row) for name, column in columns.items()}
    elif field == "count":
        columns[field][row] += 1 - 2 * (columns[field][row] > 1)
    else:
        shift = 1 + rng.integers(limits[field] - 1)
        columns[field][row] = (columns[field][row] + shift) % limits[field]
    steps[at] = Step(*columns.values())
    return with_steps(schedule, steps)


def judged(schedule):
    """What is proved, or the fault."""
    try:
        proof = verify(schedule, exact=False)
    except ScheduleError as error:
        return error.step, error.rank, error.chunk, error.channel
    return proof.order, proof.steps, proof.transfers, proof.shared_chunks


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_one_transfer_that_differs_is_judged_as_by_the_full_proof(seed, eager):
    rng = np.random.default_rng(seed)
    name = BUTTERFLIES[seed % 3]
    nranks, channels = ((16, 1), (16, 2), (12, 1), (32, 4))[int(rng.integers(4))]
    wrong = changed(simcoll.schedule("all_reduce", name, nranks=nranks, channels=channels), rng)
    verdict = judged(replace(wrong))
    with pytest.MonkeyPatch.context() as patch:
        for module in (copied_shares, image_pieces):
            patch.setattr(module, "MANY_CELLS", 1 << 62)
        assert verdict == judged(replace(wrong))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_renumbering_is_refused_if_one_transfer_has_no_image(seed, eager):
    """Whatever transfer is changed: of a piece that would be followed, or any other."""
    rng = np.random.default_rng(seed)
    schedule = simcoll.schedule("all_reduce", BUTTERFLIES[seed % 3], nranks=32)
    outline = image_pieces._outline(schedule)
    right = list(image_pieces._renumberings(schedule, outline.partners, outline.homes))
    assert right
    try:
        wrong = list(image_pieces.ranges_of_steps(changed(schedule, rng)))
    except ScheduleError:  # it leaves its buffer
        return
    assert len(image_pieces.maps_onto_itself(right, wrong)) < len(right)


def test_a_schedule_that_is_symmetric_and_wrong_is_refused(eager):
    """Without its last step, each piece lacks on all ranks but two; the images are as wrong."""
    schedule = simcoll.schedule("all_reduce", "rabenseifner", nranks=32)
    short = with_steps(schedule, list(schedule.steps())[:-1])
    assert image_pieces.one_of_images(short)[0]
    with pytest.raises(ScheduleError, match=r"is wrong at the end|never written"):
        verify(short, exact=False)


def test_a_symmetry_whose_images_add_in_other_orders_promises_no_common_order(eager):
    """Swing's pieces have brackets of their own, which only their images show."""
    swing = simcoll.schedule("all_reduce", "swing", nranks=32)
    (some,), _, _ = image_pieces.one_of_images(swing)
    assert some.layout.chunks > 1
    assert verify(swing, exact=False).order == "run-consistent" == full_proof(swing).order


def test_a_source_that_lies_about_its_copies_proves_nothing(eager):
    """It names a right schedule as the one of which it has copies, or one that is right only when
    it is followed.
    """
    right = simcoll.schedule("all_reduce", "rabenseifner", nranks=16)
    pair = simcoll.schedule("all_reduce", "rabenseifner", nranks=16, channels=2)
    short = list(pair.steps())[:-1]

    class Liar:
        def __init__(self, schedule):
            self.schedule = schedule

        def __call__(self):
            return iter(short)

    passes = iter([list(right.steps())[:-1], *[list(right.steps())] * 9])
    for claimed in (right, replace(right, source=lambda: iter(next(passes)))):
        wrong = replace(pair, source=Liar(claimed))
        with pytest.raises(ScheduleError):
            verify(wrong, exact=False)
