"""NCCL's graph files: rings and trees, whether they fit a machine, and rings as schedules."""

import pytest

import simcoll
from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.formats.logs.nccl_graph import parse_nccl_graphs
from simcoll.planning.tuners.nccl_graphs import channels_of_graph, channels_schedule, fit_lines
from simcoll.topology import crossbar, load_topology

HEAD = (
    'crossnic="0" nchannels="2" speedinter="12" latencyinter="0" typeinter="PIX" samechannels="0"'
)


def graphs(speed=20, kind="NVL", orders=((0, 1, 2, 3), (3, 2, 1, 0))):
    channels = "".join(
        f"<channel>{''.join(f'<gpu dev={chr(34)}{gpu:x}{chr(34)}/>' for gpu in order)}</channel>"
        for order in orders
    )
    rows = [
        f'<graph id="{number}" pattern="{pattern}" speedintra="{speed}" typeintra="{kind}" '
        f"{HEAD}>{channels}</graph>"
        for number, pattern in ((0, 4), (1, 1))
    ]
    return f'<graphs version="1">{"".join(rows)}<graph id="3" pattern="5" speedintra="0" {HEAD}/></graphs>'.encode()


def test_what_a_file_says():
    ring, tree = [graph for graph in parse_nccl_graphs(graphs()) if graph.channels]
    assert (ring.name, ring.pattern, tree.name, tree.pattern) == (
        "ring",
        "ring",
        "tree",
        "balanced tree",
    )
    assert ring.channels == ((0, 1, 2, 3), (3, 2, 1, 0))


def test_rings_that_fit_and_that_do_not():
    """Four GPUs on links of 50 GB/s: a ring sends once over each link up and down, two rings
    twice.
    """
    machine = crossbar(4, "50 GB/s")
    for speed, verdict in ((25, "fits"), (26, "does not fit")):
        ring = parse_nccl_graphs(graphs(speed))[0]
        head, load, kind = fit_lines(channels_of_graph(ring), machine)
        assert head == f"ring: 2 channels of {speed} GB/s, {2 * speed} GB/s in all, ring, over NVL"
        assert f"{verdict}: the busiest link" in load
        assert f"would carry {2 * speed} GB/s of 50" in load
        assert kind == "  NCCL says that its slowest path is NVL; on this machine it goes over link"


def test_idle_links_are_named():
    machine = load_topology("dgx-a100", nodes=1)
    lines = list(fit_lines(channels_of_graph(parse_nccl_graphs(graphs())[0]), machine))
    assert lines[-1].startswith("  8 NVLinks of dgx-a100 are left idle, such as ")


def test_rings_become_a_schedule():
    found = channels_schedule(channels_of_graph(parse_nccl_graphs(graphs())[0]))
    assert simcoll.verify(found)
    assert found.nchannels == 2
    sends = {
        (int(a), int(b), int(c))
        for step in found.steps()
        for a, b, c in zip(step.src_rank, step.dst_rank, step.channel, strict=True)
        if a != b
    }
    assert sends == {
        (0, 1, 0),
        (1, 2, 0),
        (2, 3, 0),
        (3, 0, 0),
        (3, 2, 1),
        (2, 1, 1),
        (1, 0, 1),
        (0, 3, 1),
    }


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"<graphs", b"<graph", "expected <graphs>|not"),
        (b'pattern="4"', b'pattern="7"', "graph 0: pattern 7 is not known"),
        (b'speedintra="20"', b'speedintra="fast"', "speedintra='fast': expected GB/s"),
        (b'dev="1"', b'dev="x"', "channel 0: dev='x': expected a number in hexadecimal"),
        (b'dev="1"', b'dev="0"', r"channel 0: GPUs \[0, 0, 2, 3\]: expected some, each once"),
    ],
)
def test_what_is_refused(old, new, says):
    with pytest.raises(ConfigError, match=says):
        parse_nccl_graphs(graphs().replace(old, new, 1))


def test_graphs_of_other_machines():
    ring, _ = parse_nccl_graphs(graphs())
    with pytest.raises(ConfigError, match="names GPU 3; 'crossbar' has 2"):
        list(fit_lines(channels_of_graph(ring), crossbar(2, "50 GB/s")))


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.xml").write_bytes(graphs())
    assert main(["graph", "graph.xml", "-t", "dgx-a100", "--json", "rings.json"]) == 0
    assert "fits: the busiest link" in capsys.readouterr().out
    assert main(["verify", "rings.json"]) == 0
