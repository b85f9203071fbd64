"""Every message says what was given, what was expected, and the nearest valid choice."""

from __future__ import annotations

import numpy as np
import pytest

import simcoll
from simcoll.core.collective import Collective
from simcoll.errors import ConfigError, InternalError, ScheduleError, SimcollError, nearest
from simcoll.proving import check_lowering, lower, program_schedule, verify, verify_program
from simcoll.proving.symmetry import verify_by_symmetry
from simcoll.testing import assert_implements


def test_one_root_and_attributes():
    config = ConfigError("no", file="a.toml", path="$.x[1]")
    assert (str(config), config.message, config.file, config.path) == (
        "a.toml: $.x[1]: no",
        "no",
        "a.toml",
        "$.x[1]",
    )
    assert str(ConfigError("no", path="line 3")) == "line 3: no"
    assert str(ConfigError("no")) == "no"
    schedule = ScheduleError("bad", step=1, rank=2, channel=3, chunk=4)
    assert (schedule.step, schedule.rank, schedule.channel, schedule.chunk) == (1, 2, 3, 4)
    assert "please report" in str(InternalError("impossible"))
    assert all(
        issubclass(kind, SimcollError) for kind in (ConfigError, ScheduleError, InternalError)
    )
    assert not issubclass(SimcollError, ValueError)


def test_nearest():
    assert nearest("x", []) == "there are none"
    assert (
        nearest("all_redcue", ["all_reduce", "reduce"])
        == "did you mean 'all_reduce'? (valid: all_reduce, reduce)"
    )
    assert nearest("b", ["c", "a", "a"]) == "valid: a, c"


RING = {"collective": "all_reduce", "algorithm": "ring", "nranks": 4}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"collective": "all_redcue"},
            "unknown collective 'all_redcue'; did you mean 'all_reduce'?",
        ),
        ({"algorithm": "rnig"}, "unknown algorithm 'rnig' for all_reduce; did you mean 'ring'?"),
        ({"algorithm": "pairwise"}, "algorithm 'pairwise' serves all_to_all, "),
        ({"channel": 2}, "has no parameter 'channel'; did you mean 'channels'?"),
        ({"channels": 0}, "channels=0: expected a whole number, at least 1"),
        ({"channels": True}, "channels=True"),
        ({"pieces": "2"}, "pieces='2'"),
        ({"nranks": None}, "all_reduce needs nranks"),
        ({"nranks": 0}, "at least 1; got 0"),
        ({"nranks": 2.0}, "at least 1; got 2.0"),
        (
            {"collective": "send_recv", "algorithm": None, "pairs": [(0, 1)]},
            'pairs go with the collective: schedule(Collective("send_recv", 4, pairs=[(0, 1)]))',
        ),
        ({"root": 1}, "all_reduce has no root, but root=1 was given"),
        ({"box": 3}, "box=3 does not divide the 4 ranks"),
        ({"algorithm": "hierarchical"}, "hierarchical needs box="),
        ({"algorithm": "hierarchical", "box": 3}, "multiple of box=3 ranks, got 4"),
        (
            {"collective": "broadcast", "algorithm": "tree", "root": 4},
            "root 4 of broadcast is not a rank; expected 0..3",
        ),
    ],
)
def test_schedules_that_cannot_be_made(change, says):
    with pytest.raises(ConfigError) as error:
        simcoll.schedule(**{**RING, **change})
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"count": -1}, "count -1 is negative"),
        ({"count": 1.5}, "counts must be whole numbers, got 1.5"),
        ({"count": True}, "counts must be whole numbers, got True"),
        ({"count": [1, 2, 3, 4]}, "all_reduce of 4 ranks takes one whole number"),
        ({"count": [[1], [2, 3]]}, "counts must be a whole number, a list, or a square matrix"),
        ({"count": 2**62}, "too large"),
        ({"count": 8, "dtype": "flot32"}, "unknown dtype 'flot32'; did you mean 'float32'?"),
        ({"count": 8, "dtype": "U5"}, "not a number type"),
        ({"count": 8, "op": "summ"}, "unknown reduction 'summ'; did you mean 'sum'?"),
        ({"count": 8, "op": "bxor"}, "'bxor' needs an integer or bool dtype, got float32"),
        ({"count": 8, "dtype": "complex64", "op": "max"}, "not defined on complex64"),
        ({"count": 8, "ranks": [0, 1]}, "has 4 ranks; got 2 endpoints"),
        ({"count": 8, "ranks": [0, 1, 2, 2]}, "different endpoints"),
        ({"count": 8, "ranks": [0, 1, 2, -1]}, "different endpoints, 0 or more"),
        ({"count": 8, "protocol": "LL12"}, "unknown protocol 'LL12'; did you mean 'LL128'?"),
    ],
)
def test_plans_that_cannot_be_made(arguments, says):
    arguments = dict(arguments)
    with pytest.raises(ConfigError) as error:
        simcoll.bind(
            simcoll.schedule("all_reduce", "ring", nranks=4), arguments.pop("count"), **arguments
        )
    assert says in str(error.value)


@pytest.mark.parametrize("most", [2**63, 2**63 - 1, 2**64 - 1, 2**62 + 1])
def test_counts_that_no_signed_number_holds(most):
    with pytest.raises(ConfigError, match=f"count {most} is too large"):
        simcoll.bind(
            simcoll.schedule("all_gather", "ring", nranks=3), np.array([1, 2, most], np.uint64)
        )


@pytest.mark.parametrize(
    ("count", "shape"), [([1, 2], "(3,)"), ([[1] * 3] * 3, "(3,)"), ([1, 2, -1], "negative")]
)
def test_counts_of_an_all_gather(count, shape):
    with pytest.raises(ConfigError) as error:
        simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count)
    assert shape in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"kind": "allreduce", "nranks": 2}, "did you mean 'all_reduce'?"),
        (
            {"kind": "send_recv", "nranks": 2, "pairs": ((0, 2),)},
            "pair destination 2 is not a rank; expected 0..1",
        ),
        (
            {"kind": "send_recv", "nranks": 3, "pairs": ((0, 1), (0, 2))},
            "rank 0 is the source of two pairs",
        ),
        (
            {"kind": "send_recv", "nranks": 3, "pairs": ((0, 1), (2, 1))},
            "rank 1 is the destination of two pairs",
        ),
        (
            {"kind": "broadcast", "nranks": 3, "pairs": ((0, 1),)},
            "broadcast takes no pairs; only send_recv does",
        ),
        ({"kind": "broadcast", "nranks": True}, "got True"),
        ({"kind": "scatter", "nranks": 2, "root": -1}, "root -1 of scatter"),
    ],
)
def test_collectives_that_do_not_exist(arguments, says):
    with pytest.raises(ConfigError) as error:
        Collective(**arguments)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "broadcast", "nranks": 4, "root": 1.5},
        {"kind": "broadcast", "nranks": 4, "root": True},
        {"kind": "broadcast", "nranks": 4, "root": "a"},
        {"kind": "send_recv", "nranks": 2, "pairs": ((0, 1, 1),)},
        {"kind": "send_recv", "nranks": 2, "pairs": (("a", 1),)},
    ],
)
def test_roots_and_pairs_that_are_no_ranks(arguments):
    with pytest.raises(ConfigError):
        Collective(**arguments)


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (verify, "a schedule, made by schedule"),
        (verify_by_symmetry, "a schedule, made by schedule"),
        (assert_implements, "a schedule, made by schedule"),
        (verify_program, "a program, made by load_msccl_xml"),
        (program_schedule, "a program, made by load_msccl_xml"),
        (lower, "a plan, made by bind"),
        (check_lowering, "a plan, made by bind"),
    ],
)
def test_what_is_of_another_kind(function, takes):
    with pytest.raises(ConfigError, match=rf"takes {takes}.*; got 'ring'"):
        function("ring")
