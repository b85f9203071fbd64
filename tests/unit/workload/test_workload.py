"""Meshes, and workload files: what is read is what was written."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.workload.mesh import Mesh, mesh_of
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Inside,
    SendOperation,
    Workload,
    read_workload,
    write_workload,
)


def test_groups_of_a_mesh():
    mesh = mesh_of("tp-cp-dp-pp", {"tp": 2, "cp": 2, "dp": 3, "pp": 2}, 24)
    for axes in (("tp",), ("cp",), ("dp",), ("pp",), ("dp", "cp"), ("tp", "cp", "dp")):
        groups = mesh.groups(*axes)
        assert sorted(groups.reshape(-1).tolist()) == list(range(24))
        for other in {"tp", "cp", "dp", "pp"} - set(axes):
            place = mesh.coordinate(other)[groups]
            assert (place == place[:, :1]).all()
    inside, across = mesh.blocks(("tp", "cp", "dp"), 4)
    assert inside.tolist()[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert across.tolist()[0] == [0, 4, 8]
    with pytest.raises(ConfigError, match="5 does not divide"):
        mesh.blocks(("dp",), 5)
    with pytest.raises(ConfigError, match="no axis 'ep'"):
        mesh.groups("ep")
    with pytest.raises(ConfigError, match="twice"):
        Mesh((("tp", 1), ("tp", 2)))


names = st.text("abcdefg", min_size=1, max_size=4)


@st.composite
def workloads(draw):
    """Two classes of equally many ranks, groups across and inside, any operations in a legal
    order.
    """
    half = draw(st.integers(1, 4))
    n = 2 * half
    inside = [list(range(half)), list(range(half, n))]
    made, known = [], []
    for number in range(draw(st.integers(0, 8))):
        after = (
            tuple(draw(st.lists(st.sampled_from(known), unique=True, max_size=2))) if known else ()
        )
        common = {"id": f"op{number}", "after": after, "stream": draw(names), "name": draw(names)}
        kind = draw(st.sampled_from(["compute", "call", "send"]))
        size = draw(st.integers(0, 2**40))
        if kind == "compute":
            calls = draw(
                st.lists(
                    st.builds(Inside, st.just("all_reduce"), st.just("tp"), st.integers(0, 99)),
                    max_size=2,
                )
            )
            made.append(
                ComputeOperation(
                    **common,
                    on="a",
                    time_fs=draw(st.integers(0, 10**15)),
                    inside=tuple(calls),
                    flops=draw(st.floats(0, 1e18)),
                )
            )
        elif kind == "call":
            made.append(
                CallOperation(
                    **common,
                    kind="all_to_all",
                    group=draw(st.sampled_from(["tp", "all"])),
                    size_bytes=size,
                    imbalance=1.5,
                )
            )
        else:
            made.append(SendOperation(**common, source="a", target="b", size_bytes=size))
        known.append(f"op{number}")
    classes = {"a": np.arange(half), "b": np.arange(half, n)}
    return Workload(
        n,
        classes,
        {"tp": np.array(inside), "all": np.arange(n)[None]},
        tuple(made),
        draw(names),
        7,
        1.5,
        2.5,
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(workloads())
def test_a_workload_is_read_as_written(workload):
    content = write_workload(workload)
    again = read_workload(content)
    assert write_workload(again) == content
    assert again.operations == workload.operations
    assert (again.title, again.tokens, again.model_flops, again.hardware_flops) == (
        workload.title,
        7,
        1.5,
        2.5,
    )
    assert {name: ranks.tolist() for name, ranks in again.groups.items()} == {
        name: ranks.tolist() for name, ranks in workload.groups.items()
    }


def file_of(**changes):
    whole = {
        "format": "simcoll workload 1",
        "nranks": 2,
        "classes": {"all": [0, 1]},
        "groups": {"dp": [[0, 1]]},
        "operations": [
            {"op": "call", "id": "x", "kind": "all_reduce", "group": "dp", "size_bytes": 8}
        ],
    }
    return json.dumps({**whole, **changes}).encode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "other"}, "$.format"),
        ({"classes": {"all": [0]}}, "rank 1 is in no class"),
        ({"classes": {"all": [0, 1, 1]}}, "rank 1 is in 'all'; each"),
        ({"groups": {"dp": [[0, 1], [0]]}}, "$.groups.dp"),
        ({"groups": {"dp": [[0, 2]]}}, "0 to 1"),
        ({"groups": {"tp": [[0, 1]]}}, "unknown group 'dp'"),
        (
            {
                "operations": [
                    {"op": "compute", "id": "a", "on": "all", "time_fs": 1, "after": ["b"]},
                    {"op": "compute", "id": "b", "on": "all", "time_fs": 1, "after": ["a"]},
                ]
            },
            "cycle",
        ),
        (
            {"operations": [{"op": "compute", "id": "a", "on": "al", "time_fs": 1}]},
            "did you mean 'all'",
        ),
        (
            {
                "operations": [
                    {"op": "call", "id": "x", "kind": "allreduce", "group": "dp", "size_bytes": 8}
                ]
            },
            "did you mean 'all_reduce'",
        ),
        ({"operations": [{"op": "compute", "id": "a", "on": "all", "time_fs": -1}]}, "at least 0"),
        ({"operations": [{"op": "copy", "id": "a"}]}, "copy"),
        ({"nranks": 10**12}, "ranks"),
    ],
)
def test_workload_files_that_make_no_sense(changes, said):
    with pytest.raises(ConfigError) as caught:
        read_workload(file_of(**changes), "w.json")
    assert said in str(caught.value)


def test_a_group_may_not_leave_the_classes_of_a_call():
    workload = read_workload(file_of(classes={"a": [0], "b": [1]}))
    with pytest.raises(ConfigError, match="only partly in a"):
        workload.groups_of(
            CallOperation(id="y", kind="all_reduce", group="dp", size_bytes=8, on=("a",))
        )
    half, call = (
        {"first": np.array([0, 1]), "second": np.array([2, 3])},
        {"kind": "all_reduce", "size_bytes": 8},
    )
    with pytest.raises(
        ConfigError, match="operation 'a': a group of 'tp' is only partly in second, or none is"
    ):
        Workload(
            4,
            half,
            {"tp": np.array([[0, 1]])},
            (CallOperation(id="a", group="tp", on=("second",), **call),),
        )
