"""NCCL's environment variables."""

import pytest

from simcoll.errors import ConfigError
from simcoll.libraries.environment import DEFAULT, parse_environment


def test_lists_name_or_exclude():
    env = parse_environment("NCCL_ALGO=Ring,Tree NCCL_PROTO=^ll128")
    assert env.allows("all_reduce", "tree", "LL")
    assert not env.allows("all_reduce", "nvls", "Simple")
    assert not env.allows("all_reduce", "ring", "LL128")


def test_lists_may_be_for_one_collective():
    env = parse_environment("NCCL_ALGO=ring;allreduce:tree,nvlstree")
    assert env.allows("all_reduce", "nvls_tree", "Simple")
    assert not env.allows("all_reduce", "ring", "Simple")
    assert env.allows("all_gather", "ring", "LL")


def test_nvls_and_channels():
    env = parse_environment(
        "NCCL_NVLS_ENABLE=0,NCCL_MAX_CTAS=8,NCCL_MAX_NCHANNELS=4,NCCL_MIN_CTAS=2"
    )
    assert not env.allows("all_reduce", "nvls", "Simple")
    assert (env.min_channels, env.max_channels) == (2, 4)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ("NCCL_MIN_CTAS=64,NCCL_MAX_CTAS=4", (4, 4)),
        ("NCCL_MIN_NCHANNELS=1000", (64, 0)),
        ("NCCL_MIN_CTAS=8,NCCL_MAX_CTAS=0", (8, 0)),
    ],
)
def test_a_least_number_of_channels_is_lowered_to_the_most(given, limits):
    env = parse_environment(given)
    assert (env.min_channels, env.max_channels) == limits


def test_nothing_given_leaves_everything():
    assert parse_environment("  ") == DEFAULT
    assert DEFAULT.allows("all_reduce", "nvls_tree", "Simple")


def test_other_variables_are_kept():
    env = parse_environment("NCCL_DEBUG=INFO,NCCL_IB_HCA=mlx5_0,mlx5_1 LAUNCHER=torch")
    assert env.ignored == ("NCCL_DEBUG=INFO",)
    assert env.transports.devices == "mlx5_0,mlx5_1"
    assert env.launcher == "torch"
    assert [parse_environment(f"OP={op}").op for op in ("sum", "mean", "product")] == [
        "",
        "avg",
        "prod",
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Ring", "expected settings"),
        ("x NCCL_ALGO=Ring", "expected settings"),
        ("NCCL_ALGO=Rnig", "did you mean 'ring'"),
        ("NCCL_PROTO=LL64", "unknown value 'LL64'"),
        ("NCCL_ALGO=alreduce:Ring", "did you mean 'allreduce'"),
        ("NCCL_MAX_CTAS=many", "whole number"),
        ("NCCL_MAX_CTAS=-3", "from 0 to 99999, got '-3'"),
        ("LAUNCHER=mpi", "unknown LAUNCHER"),
        ("OP=band", "NCCL has no reduction 'band'; valid: avg, max, min"),
        ("NCCL_ALGRO=Ring", "reads no variable NCCL_ALGRO; did you mean NCCL_ALGO"),
        ("NCLL_ALGO=Ring", "did you mean NCCL_ALGO"),
        ("nccl_algo=Ring", "did you mean NCCL_ALGO"),
        ("NCCL_XYZZY=1", "reads no variable NCCL_XYZZY$"),
        ("NCCL_IB_DISABLE=1;NCCL_PROTO=LL", "before NCCL_PROTO, write a comma or a blank"),
        ("NCCL_ALGO;NCCL_PROTO", "NCCL_ALGO has no value"),
        ("NCCL_ALGO=Ring NCCL_PROTO", "NCCL_PROTO has no value"),
        ("NCCL_ALGO=Ring NCCL_ALGO=Tree", "given twice, as 'Ring' and as 'Tree'"),
    ],
)
def test_what_nccl_does_not_know_is_refused(text, what):
    with pytest.raises(ConfigError, match=what):
        parse_environment(text)


def test_variables_of_plugins_other_programs_and_old_versions_are_kept():
    names = "NCCL_FASTRAK_CTRL_DEV UCX_TLS NCCL_IB_CUDA_SUPPORT RCCL_SOME_NEW_ONE TORCH_NCCL_ASYNC"
    assert len(parse_environment("=1,".join([*names.split(), "FI_PROVIDER=efa"])).ignored) == 6
