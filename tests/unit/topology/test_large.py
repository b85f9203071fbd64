"""Shipped machines of nodes, as large as 16,384 GPUs."""

import pytest

import simcoll
from simcoll.emulator import emulate
from simcoll.errors import ConfigError
from simcoll.topology import load_topology
from simcoll.topology.file_layers import layers_of, shipped_topologies

GPUS = 16_384
WITHOUT_NETWORK = {
    "azure-nc-a100-v4",
    "rtx-2080ti-pair",
    "rtx-pro-6000-switch",
    "rtx-pro-6000-direct",
}
"""Nodes that have no NICs."""


@pytest.mark.slow
def test_every_machine_of_nodes_loads_and_every_board_runs_with_16384_gpus():
    plan = simcoll.bind(
        simcoll.schedule("broadcast", "tree", nranks=GPUS, in_place=True), count=1 << 20
    )
    loaded = ran = 0
    for name in shipped_topologies():
        layers = layers_of(name)
        if layers[0].document["family"] != "boxes":
            continue
        nodes = -(-GPUS // load_topology(name, nodes=1).nranks)
        if name in WITHOUT_NETWORK:
            with pytest.raises(ConfigError, match="a node has no NICs"):
                load_topology(name, nodes=nodes)
            continue
        topology = load_topology(name, nodes=nodes)
        assert topology.nranks >= GPUS
        loaded += 1
        if len(layers) > 1:  # a board with other NICs runs as its base does
            continue
        result = emulate(plan, topology, data="none", bound=False, quotient=False)
        assert result.messages == GPUS - 1
        assert result.time_fs > int(topology.route([0], [GPUS - 1]).latency_fs[0])
        ran += 1
    assert loaded > 50
    assert ran > 10
