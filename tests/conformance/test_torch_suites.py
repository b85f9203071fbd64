"""A part of PyTorch's own distributed tests on the backend ``simcoll``; the whole is a command
(:mod:`tests.conformance.torch_suites`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deferred import needs_torch

pytestmark = [needs_torch, pytest.mark.slow]

PART = (
    "test_DistributedDataParallelCPU",
    "test_accumulate_gradients_no_sync",
    "test_all_gather_coalesced_with_empty",
    "test_all_reduce_sum_complex",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_gather_object_subgroup",
    "test_get_rank",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
    "test_new_subgroups_with_group_param",
    "test_scatter_object_list",
    "test_send_recv_any_source_torch_profiler",
    "test_send_recv_autograd_profiler",
    "test_sparse_all_reduce_sum",
)


def test_a_part_of_pytorchs_tests_passes_on_four_ranks():
    pytest.importorskip("expecttest")
    from tests.conformance.torch_suites import run

    outcomes = run("simcoll", "gloo", 4, PART)
    assert outcomes == dict.fromkeys(PART, "pass")


def test_tests_of_gpus_find_some():
    pytest.importorskip("expecttest")
    from tests.conformance.torch_suites import run

    names = (
        "test_average_parameters",
        "test_ddp_grad_div_uneven_inputs",
        "test_ddp_static_graph_nested_types",
    )
    assert run("simcoll with GPUs", "simcoll", 4, names) == dict.fromkeys(names, "pass")


def test_marks_by_name_are_taken_off():
    pytest.importorskip("expecttest")
    from tests.conformance.torch_suites import FOR_NAMES, unmarked

    names = (
        "test_all_reduce_coalesced_full_group_sum",
        "test_monitored_barrier_gloo",
        "test_ddp_device",
        FOR_NAMES,
    )
    under_gloo = dict.fromkeys(names, "pass") | {"test_ddp_device": "skip"}
    outcomes = unmarked(under_gloo, dict.fromkeys(names, "skip"), 4)
    assert outcomes == dict.fromkeys(names[:2], "pass") | dict.fromkeys(names[2:], "skip")


_SCATTERED = """
import torch
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorTestBase,
    create_local_tensor_test_class,
    with_comms,
)


class Scattered(DTensorTestBase):
    @with_comms
    def test_values(self):
        mesh = self.build_device_mesh()
        whole = torch.arange(12.0, device=self.device_type)
        self.assertEqual(distribute_tensor(whole, mesh, [Shard(0)]).full_tensor(), whole)


ScatteredWithLocalTensor = create_local_tensor_test_class(Scattered)
"""


def test_a_file_that_holds_the_tensors_of_all_ranks_in_one_process_is_played_in_one(tmp_path):
    """PyTorch scatters such tensors itself, and refuses those of a rank among several."""
    pytest.importorskip("expecttest")
    file = tmp_path / "test_scattered.py"
    file.write_text(_SCATTERED)
    players = ["gloo", "simcoll with GPUs"]
    words = ["tests.conformance.torch_test_files", str(file), "--players", *players]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    for player in players:
        assert f"{player}: {file.name}: Scattered.test_values (4): pass" in done.stderr
        assert (
            f"{player}: {file.name}: ScatteredWithLocalTensor.test_values (0): pass" in done.stderr
        )
