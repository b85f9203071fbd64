"""A part of PyTorch's own distributed tests on the backend ``simcoll``; the whole is a command
(:mod:`tests.conformance.torch_suites`).
"""

from __future__ import annotations

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
