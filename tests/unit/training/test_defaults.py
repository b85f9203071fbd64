"""Defaults of a design file, and what a result says about a design without them."""

from __future__ import annotations

import csv

import pytest

from simcoll.files.paths import data_folder
from simcoll.files.text import parse_toml
from simcoll.training.design import design_from
from simcoll.training.parallel import Parallel
from simcoll.training.steps import step

EXCEPT = {"overlap_pp", "offload"}
"""Keys whose default is no value that a file can state."""


def design(nodes=8, model="llama-3.1-70b", sequence=8192, global_batch=128, **parallel):
    return design_from(
        {
            "model": {"name": model, "sequence": sequence, "global_batch": global_batch},
            "topology": {"name": "dgx-h100", "nodes": nodes},
            "parallel": parallel,
        }
    )


def test_a_step_is_that_of_a_well_run_job():
    parallel = design(tp=4, pp=4).parallel
    assert (parallel.shard, parallel.recompute) == ("optimizer", "selective")
    assert parallel.overlap_dp
    assert parallel.sequence_parallel
    assert parallel.virtual == 5  # 80 layers: as in Megatron Bridge's recipe of 70B on H100


@pytest.mark.parametrize(
    ("parallel", "chunks"),
    [
        ({"tp": 8, "pp": 1}, 1),
        ({"tp": 4, "pp": 4, "schedule": "zero-bubble"}, 1),
        ({"tp": 4, "pp": 4, "split": [20, 20, 20, 20]}, 1),
        ({"tp": 4, "pp": 4, "split": [10] * 8}, 2),
        ({"tp": 4, "pp": 4, "virtual": 1}, 1),
        ({"tp": 1, "pp": 16, "micro_batch": 4}, 1),  # eight micro-batches on 16 stages
    ],
)
def test_pipelines_are_interleaved_where_that_is_legal(parallel, chunks):
    assert design(**parallel).parallel.virtual == chunks


@pytest.mark.parametrize(
    ("sequence", "global_batch", "parallel", "degree"),
    [
        (16_384, 64, {}, 1),
        (32_768, 16, {}, 4),
        (131_072, 4, {}, 16),  # as Llama 3 405B at this length
        (131_072, 16, {"micro_batch": 4}, 16),
        (65_536, 24, {"micro_batch": 3}, 8),
        (131_072, 64, {"tp": 8}, 1),
        (131_072, 64, {"order": "tp-cp-pp-dp"}, 1),
        (131_072, 64, {"cp": 2}, 2),
    ],
)
def test_long_sequences_are_split_where_the_file_fixes_no_mesh(
    sequence, global_batch, parallel, degree
):
    made = design(model="llama-3.1-8b", sequence=sequence, global_batch=global_batch, **parallel)
    assert made.parallel.cp == degree


@pytest.mark.slow
def test_a_result_names_what_the_design_lacks():
    poor = {
        "virtual": 1, "overlap_dp": False, "shard": "none", "sequence_parallel": False,
        "recompute": "none", "attention": "plain",
    }  # fmt: skip
    *lines, far = step(design(tp=4, pp=4, **poor), tier=1).lacks
    assert "% MFU, where " in far
    begins = (
        "no overlap of data parallelism (overlap_dp): ",
        "no distributed optimizer (shard): ",
        "no interleaving (virtual = 5 is legal): a bubble of ",
        "no sequence parallelism (sequence_parallel): ",
        "attention is not recomputed (recompute): ",
    )
    assert len(lines) == len(begins)
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True))
    assert step(design(tp=4, pp=4, overlap_tp=True), tier=1).lacks == ()
    (beside,) = step(design(tp=4, pp=4), tier=1).lacks
    assert beside.startswith("no overlap of tensor parallelism (overlap_tp): ")
    again, far = step(design(tp=8, pp=4, recompute="full", overlap_tp=True), tier=1).lacks
    assert again.startswith("whole layers are recomputed though ")
    assert "% MFU, where " in far
    needed = step(design(nodes=2, tp=8, pp=2, recompute="full", overlap_tp=True), tier=1).lacks
    assert all("% MFU, where " in line for line in needed)


@pytest.mark.parametrize(
    "name", sorted(file.stem for file in (data_folder("measurements") / "steps").glob("*.toml"))
)
def test_published_rows_state_every_key(name):
    """New defaults must not change what was published."""
    folder = data_folder("measurements") / "steps"
    file = folder / f"{name}.toml"
    stated = set(parse_toml(file.read_bytes(), str(file))["parallel"])
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        columns = next(csv.reader(stream))
    stated |= {
        column.removeprefix("parallel.") for column in columns if column.startswith("parallel.")
    }
    assert set(Parallel.__struct_fields__) - EXCEPT <= stated


@pytest.mark.slow
def test_a_result_far_below_published_steps_says_so():
    # Llama 3.1 70B in 16 bits on H100: NeMo 24.12, 14.61 s on 64 to 14.86 s on 1,024 GPUs.
    slow = step(design(tp=8, pp=2, virtual=1, micro_batch=1, recompute="full"), tier=1)
    assert slow.mfu < 0.4
    assert slow.lacks[-1].endswith("where 6 of this model on h100 reached 50 to 51 %")
    assert step(design(tp=4, pp=4, cp=2, overlap_tp=True), tier=1).lacks == ()


@pytest.mark.slow
def test_the_table_of_published_utilisation_is_that_of_the_rows():
    from published_mfu import utilisation_lines

    file = data_folder("measurements") / "step_mfu.csv"
    assert file.read_text(encoding="utf-8") == "".join(utilisation_lines())
