"""``simcoll diff`` of plans: designs meet by what tells them apart, not by what all have."""

from __future__ import annotations

import json

from simcoll.planning.grids.difference import difference


def written(folder, *rows):
    """A folder with rows of a plan."""
    folder.mkdir()
    lines = (json.dumps({"key": str(number), **row}) + "\n" for number, row in enumerate(rows))
    (folder / "rows.jsonl").write_text("".join(lines))
    return folder


def design(time_fs, tier=1, sequence=4096, **parallel):
    point = {
        "case": {"tp": parallel["tp"]},
        "design": {"model": {"sequence": sequence}, "parallel": parallel},
        "terms": {"tokens": 0},
        "tier": tier,
        "inputs_hash": f"of {sequence}",
    }
    return {"point": point, "result": {"time_fs": time_fs}}


def test_a_fixed_value_that_changed_keeps_designs_together(tmp_path):
    old = written(tmp_path / "old", design(10, tp=1), design(20, tp=2))
    new = written(
        tmp_path / "new", design(30, tp=1, sequence=8192), design(60, tp=2, sequence=8192)
    )
    changes = difference(old, new)
    assert [(move.name, move.old, move.new) for move in changes.moves] == [
        ("tp=1", 10, 30),
        ("tp=2", 20, 60),
    ]
    assert changes.inputs == ("model.sequence: 4096 -> 8192",)
    assert changes.gone == changes.new == ()


def test_a_list_of_one_file_meets_the_value_of_the_other(tmp_path):
    listed = [design(10, tp=tp, pp=pp) for tp in (1, 2) for pp in (1, 2)]
    for row in listed:
        row["point"]["case"]["pp"] = row["point"]["design"]["parallel"]["pp"]
    old = written(tmp_path / "old", *listed)
    new = written(tmp_path / "new", design(11, tp=1, pp=2), design(12, tp=2, pp=2))
    changes = difference(old, new)
    assert {(move.name, move.new) for move in changes.moves} == {
        ("tp=1 pp=2", 11),
        ("tp=2 pp=2", 12),
    }
    assert changes.gone == ("tp=1 pp=1", "tp=2 pp=1")


def test_the_highest_tier_of_both_counts(tmp_path):
    old = written(tmp_path / "old", design(10, tp=1), design(11, tier=2, tp=1), design(20, tp=2))
    new = written(
        tmp_path / "new",
        *(design(12, tp=1), design(13, tier=2, tp=1)),
        *(design(20, tp=2), design(21, tier=2, tp=2)),
    )
    assert {(move.name, move.old, move.new) for move in difference(old, new).moves} == {
        ("tp=1", 11, 13),
        ("tp=2", 20, 20),
    }
