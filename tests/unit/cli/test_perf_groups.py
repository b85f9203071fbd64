"""perf --group: a collective of one group of a mesh, and of all groups at once."""

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.planning.groups import group_rows, parse_mesh
from simcoll.topology import fat_tree


def test_all_groups_of_an_axis_share_the_uplinks():
    # Pairs across two leaves with uplinks 2:1: alone 50 GB/s each way, all at once 25. 500,000 bytes take 10 us at 50 GB/s.
    machine = fat_tree(2, 16, "50 GB/s", "1 us", oversubscription=2, spine_latency="1 us")
    mesh = parse_mesh("near=16,far=2", 32)
    near, far = group_rows("all_to_all", [1_000_000], machine, mesh, [], ["ideal"], dtype="uint8", concurrent=True)
    latency = machine.route([0], [16]).latency_fs[0]
    assert (far.one_fs - latency, far.all_fs - latency) == (10 * 10**9, 20 * 10**9)
    assert near.one_fs == near.all_fs
    assert (far.ranks, far.groups, far.size_bytes) == (2, 16, 1_000_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", "'tp' is no axis"),
        ("tp=x", "'tp=x' is no axis"),
        ("tp=2,,dp=4", "'' is no axis"),
        ("tp=2,dp=2", "has 4 ranks; the machine has 8"),
        ("tp=2,tp=4", "named twice"),
        ("tp=0,dp=8", "at least 1"),
    ],
)
def test_wrong_meshes(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_mesh(text, 8)
    assert message in str(caught.value)


def test_the_command(capsys):
    argv = "perf all_gather -t dgx-h100 --nodes 2 -b 1M -e 1M -p ideal,LL -a ring --group tp=8,dp=2"
    assert main(argv.split()) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [line[:5] for line in lines] == [["tp", "8", "2", "1", "MiB"], ["dp", "2", "8", "1", "MiB"]]
    assert [line[6] for line in lines] == ["-", "-"]
    assert main([*argv.split(), "--concurrent"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert all(float(line[7]) >= 1 for line in lines)
    assert main(["perf", "all_gather", "--concurrent"]) == 2
    assert "give --group" in capsys.readouterr().err
