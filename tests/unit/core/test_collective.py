"""The table of collectives, against the definitions of MPI 4.1 chapter 6 written out here rank by
rank.
"""

from __future__ import annotations

import numpy as np
import pytest

from simcoll.core.collective import ALL, KINDS, Collective

SIZES = (1, 2, 3, 4, 5, 7, 8, 16)
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def meaning(kind, n, root):
    """``{(rank, output slot): (source rank or ALL, input slot)}``."""
    ranks = range(n)
    return {
        "broadcast": {(r, 0): (root, 0) for r in ranks},
        "reduce": {(root, 0): (ALL, 0)},
        "all_reduce": {(r, 0): (ALL, 0) for r in ranks},
        "all_gather": {(r, j): (j, 0) for r in ranks for j in ranks},
        "reduce_scatter": {(r, 0): (ALL, r) for r in ranks},
        "gather": {(root, j): (j, 0) for j in ranks},
        "scatter": {(r, 0): (root, r) for r in ranks},
        "all_to_all": {(r, j): (j, r) for r in ranks for j in ranks},
        "barrier": {},
    }[kind]


def collectives():
    for n in SIZES:
        for kind in KINDS:
            if kind == "send_recv":
                continue
            for root in range(n) if kind in ROOTED else [None]:
                yield Collective(kind, n, root=root)


def table(collective):
    found = {}
    for rank in range(collective.nranks):
        if collective.has_output(rank) and collective.output_slots:
            slots = np.arange(collective.output_slots)
            source, slot = collective.source(np.full(len(slots), rank), slots)
            found.update(
                {(rank, j): (int(s), int(c)) for j, s, c in zip(slots, source, slot, strict=True)}
            )
    return found


def test_every_output_is_what_the_definition_says():
    for collective in collectives():
        assert table(collective) == meaning(collective.kind, collective.nranks, collective.root), (
            collective
        )


def test_who_has_input_and_output():
    for collective in collectives():
        ranks = np.arange(collective.nranks)
        only_root = (ranks == collective.root).tolist()
        everyone = [True] * collective.nranks
        kind = collective.kind
        assert collective.has_input(ranks).tolist() == (
            only_root if kind in ("broadcast", "scatter") else everyone
        )
        assert collective.has_output(ranks).tolist() == (
            only_root if kind in ("reduce", "gather") else everyone
        )


def test_an_output_and_its_source_are_the_same_block():
    # Sizes belong to blocks: the data of an output slot must have the size of the input slot that
    # it comes from.
    for collective in collectives():
        for (rank, slot), (source, source_slot) in table(collective).items():
            for origin in range(collective.nranks) if source == ALL else [source]:
                out = collective.output_block(np.array([rank]), np.array([slot]))
                into = collective.input_block(np.array([origin]), np.array([source_slot]))
                assert out == into, (collective, rank, slot)
                assert 0 <= int(out[0]) < collective.nblocks


def test_every_block_is_somewhere():
    for collective in collectives():
        rank, slot = (
            np.arange(collective.nranks)[:, None],
            np.arange(collective.input_slots)[None, :],
        )
        blocks = collective.input_block(rank, slot)[
            collective.has_input(np.arange(collective.nranks))
        ]
        assert sorted(set(blocks.ravel().tolist())) == list(range(collective.nblocks))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].alias])
@pytest.mark.parametrize("n", SIZES)
def test_what_is_aliased_in_place_holds_the_same_block(kind, n):
    collective = Collective(kind, n, in_place=True)
    for rank in range(n):
        for slot in range(min(collective.input_slots, collective.output_slots)):
            into, out = KINDS[kind].alias(np.array([rank]), np.array([slot]))
            assert 0 <= int(into[0]) < collective.input_slots
            assert 0 <= int(out[0]) < collective.output_slots
            assert collective.input_block(np.array([rank]), into) == collective.output_block(
                np.array([rank]), out
            )


def test_send_recv():
    pairs = ((0, 1), (1, 0), (3, 3), (4, 2))
    collective = Collective("send_recv", 5, pairs=pairs)
    assert table(collective) == {(dst, 0): (src, 0) for src, dst in pairs}
    assert collective.has_input(np.arange(5)).tolist() == [True, True, False, True, True]
    assert collective.has_output(np.arange(5)).tolist() == [True, True, True, True, False]
    assert collective.output_block(np.array([2]), np.array([0])).tolist() == [4]
    assert table(Collective("send_recv", 2)) == {}


def test_defaults_and_text():
    assert Collective("broadcast", 3).root == 0
    assert Collective("all_reduce", 3).root is None
    here = Collective("reduce", 3, root=2, in_place=True)
    assert here.in_place
    assert str(here) == "reduce n=3 root=2 in place"
    assert str(Collective("send_recv", 3, pairs=((0, 1),))) == "send_recv n=3 1 pairs"
    assert Collective("reduce", 3, root=2) == Collective("reduce", 3, root=2)
    assert len({Collective("reduce", 3, root=r) for r in (0, 1, 0)}) == 2


def test_every_kind_says_what_it_does():
    assert all(kind.summary for kind in KINDS.values())
