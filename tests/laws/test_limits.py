"""What small input may cost: one clear error at once, where a reader could take gigabytes, hours,
or fall over.
"""

import dataclasses
import json
import random
import re
from collections import deque
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import realcoll
import simcoll
import simcoll.distributed as dist
from simcoll.core import memory_limits as memory
from simcoll.core.protocol import Protocol
from simcoll.errors import MOST_LETTERS, ConfigError, ScheduleError
from simcoll.files.text import MOST_PARTS, parse_toml, refuse_repeated_keys
from simcoll.files.xml import MAX_TOKEN_BYTES, PIECE_BYTES, XmlLimits, parse_xml
from simcoll.formats.logs import in_situ
from simcoll.formats.reports import astra_workload, deepspeed_comms
from simcoll.formats.schedules.msccl_xml import parse_msccl_xml
from simcoll.formats.schedules.schedule_json import dump_schedule, parse_schedule
from simcoll.jobs import rank_trace
from simcoll.jobs.example_traces import write_example_traces
from simcoll.planning.sweeps.scenario import load_scenario, sweep_of
from simcoll.topology import boxes, crossbar, fat_tree, load_topology, torus
from simcoll.topology.direct_networks import hyperx
from simcoll.topology.ecmp import clos
from simcoll.topology.readers import nccl_xml
from simcoll.topology.readers.nccl_xml import parse_nccl_xml
from simcoll.topology.values import factor
from simcoll.units import parse_rate, parse_size, parse_time

RING = json.loads(dump_schedule(simcoll.schedule("all_reduce", "ring", nranks=4)))
MOVE = {"src_rank": [0], "src_chunk": 0, "dst_rank": [1], "dst_chunk": 0}


def short(value):
    """The name of a case whose value may be of any size."""
    return (
        type(value).__name__
        if isinstance(value, (int, float, list, dict))
        else None
        if callable(value)
        else value[:16]
    )


def ring_with(**changes):
    return json.dumps(RING | changes)


# Numbers

BIG = 10**5000


@pytest.mark.parametrize(
    "text",
    [
        "1e9999999999",
        "1e-9999999",
        "1e31",
        "1_0",
        "１:２",
        "٣",
        "1/0",
        "inf",
        "nan",
        "--1",
        "1:2:3",
    ],
)
def test_ratios_are_read_as_every_other_number(text):
    with pytest.raises(ConfigError, match="expected a positive number or ratio"):
        factor(text, "oversubscription")


def test_a_share_of_a_link_is_read_so_too():
    with pytest.raises(ConfigError, match="capacity of 'gpu0 -> switch': expected 0, or a "):
        crossbar(2, "1 GB/s").degrade("gpu0 -> switch", "1e-9999999")


@pytest.mark.parametrize("text", ["５０ GB/s", "٣ GB/s", "1_6 GB/s", "5\u00a0GB/s"])
def test_digits_are_those_that_everybody_can_read(text):
    with pytest.raises(ConfigError, match="cannot read"):
        parse_rate(text)


@pytest.mark.parametrize("parse", [parse_size, parse_rate, parse_time])
@pytest.mark.parametrize(
    "value",
    [BIG, -BIG, "9" * 10**6, "x" * 10**6, [[[[[[BIG]]]]]], {"a": {"b": {"c": {}}}}],
    ids=short,
)
def test_no_message_is_as_long_as_its_input(parse, value):
    with pytest.raises(ConfigError) as error:
        parse(value)
    assert len(str(error.value)) < 1000


def test_messages_are_cut_in_the_middle():
    for error in (ConfigError("a" * 10**6, path="b" * 10**6), ScheduleError("a" * 10**6)):
        assert len(str(error)) < 1.2 * MOST_LETTERS
        assert " ... " in error.message


@pytest.mark.parametrize(
    "seconds",
    [1e300, 10**400, -1, float("nan"), float("inf"), 9300],
    ids=["1e300", "10^400", "-1", "nan", "inf", "9300"],
)
def test_computing_takes_a_time_that_the_clock_can_hold(seconds):
    with pytest.raises(ConfigError, match=r"compute: seconds=.*; expected 0 to 9223"):
        dist.spawn(lambda *_: dist.compute(seconds), 2)


def test_a_rate_beyond_every_float_is_refused():
    with pytest.raises(ConfigError, match=r"more than the model's 9\.22 TB/s"):
        fat_tree(4, 4, 10**18, oversubscription=Fraction(1, 10**400))
    with pytest.raises(ConfigError, match="oversubscription: expected"):
        fat_tree(4, 4, "50 GB/s", oversubscription=1e-300)


# TOML and JSON


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a" + ".a" * 60_000 + "=1", "line 1: 'a.a.a.*: a key may have 32 parts"),
        ("x=1\n['a'" + ' . "b"' * 40 + "]", "line 2: .*: a key may have 32 parts"),
        ("x = {y" + ".z" * 40 + " = 1}", "a key may have 32 parts"),
        ("x=" + "9" * 5000, "not a TOML file: Exceeds the limit"),
        ("x=" + "[" * 50_000, "not a TOML file"),
        ("x=" + "{a=" * 50_000, "not a TOML file"),
    ],
    ids=short,
)
def test_toml_that_would_cost_much(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_toml(text.encode())


def test_keys_and_texts_of_usual_length_are_read():
    key, words = ".".join(["k"] * MOST_PARTS), "a sentence. " * 100 + "1.2.3.4" * 10
    assert parse_toml(f'{key} = 1\nx = "{words}"'.encode())["x"] == words


@pytest.mark.parametrize("number", ["9" * 4000, "0x" + "f" * 5000, "-" + "9" * 4000], ids=short)
@pytest.mark.parametrize(
    "line",
    [
        "nranks={}",
        "bandwidth={}",
        "nranks=2\nbandwidth='1 GB/s'\nlatency={}",
        "name={}",
        "traits.x={}",
    ],
)
def test_numbers_of_a_thousand_digits_in_a_topology(number, line, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("family='crossbar'\n" + line.format(number))
    with pytest.raises(ConfigError) as error:
        load_topology(path)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("text", ["title={}", "check_up_to={}", "sizes.factor={}"])
def test_numbers_of_a_thousand_digits_in_a_scenario(text, tmp_path):
    path = tmp_path / "mine.toml"
    for number in ("9" * 5000, "0x" + "f" * 5000):
        path.write_text(text.format(number))
        with pytest.raises(ConfigError):
            load_scenario(path)


def test_scenarios_have_few_algorithms(tmp_path):
    scenario, path = load_scenario("first-look")
    many = dataclasses.replace(scenario, algorithms=["ring"] * 3000)
    with pytest.raises(ConfigError, match=r"\$\.algorithms: 3000 entries; at most 256"):
        sweep_of(many, str(path))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b'{"a": 1, "b": {"a": 2}, "a": 3}', "'a'"),
        (b'[{"x": "{\\"a", "x": 1}]', "'x'"),
        (b'{"a": 1, "\\u0061": 2}', "'a'"),
        (b'{"\\"": {}, "\\"" : {}}', "'\"'"),
    ],
)
def test_a_key_occurs_once(text, key):
    assert json.loads(text)  # the usual reader says nothing
    with pytest.raises(ConfigError, match=f"the key {key} occurs twice"):
        refuse_repeated_keys(text)


def test_keys_of_different_objects_may_be_equal():
    refuse_repeated_keys(b'{"a": [{"a": "a"}, {"a": ":"}], "b": "a\\\\", "c": "{"}')
    with pytest.raises(ConfigError, match="the key 'chunks' occurs twice"):
        parse_schedule(ring_with()[:-1] + ', "chunks": 7}')


@pytest.mark.parametrize("scratch", [[0.9], ["0"], [True], [[0, 0.5]], [None], [[[0]]], [2**70]])
def test_scratch_is_whole_numbers(scratch):
    with pytest.raises(ConfigError, match="scratch"):
        parse_schedule(ring_with(scratch=scratch))


# XML

LIMITS = XmlLimits(depth=4, elements=10, attributes=3, letters=20)


@pytest.mark.slow
@pytest.mark.parametrize("parse", [parse_nccl_xml, parse_msccl_xml])
@pytest.mark.parametrize(
    "text",
    [
        lambda: b'<a b="' + b"x" * (8 << 20),
        lambda: b"<a><!--" + b"x" * (8 << 20),
        lambda: b"<a " + b"".join(b'a%d="1" ' % i for i in range(300_000)),
        lambda: b'<a b="' + b"x>" * (4 << 20),
        lambda: b"<" + b"a" * (8 << 20),
        lambda: b"<a><?x " + b"y" * (8 << 20),
        lambda: b"<a><![CDATA[" + b"]" * (8 << 20),
    ],
    ids=["attribute", "comment", "attributes", "brackets", "tag", "instruction", "section"],
)
def test_a_token_of_megabytes_is_not_read_to_its_end(parse, text):
    with pytest.raises(
        ConfigError, match=r"a tag or comment of more than 65536 bytes|more than|not well-formed"
    ):
        parse(text())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"<a><b><c><d><e/></d></c></b></a>", "a/b/c/d/e: nested deeper than 4 levels"),
        (b"<a>" + b"<b/>" * 10 + b"</a>", "a/b: more than 10 elements"),
        (b'<a b="1" c="1" d="1" e="1"/>', "a: an element may have 3 attributes"),
        (b'<a b="%s"/>' % (b"1" * 21), "a: an element may have 3 attributes of 20 characters"),
        (b"<a/><a/>", "line 1: not well-formed XML: junk after document element"),
        (
            b'<!DOCTYPE a [<!ENTITY b "c">]><a/>',
            "document type definitions and entities are not allowed",
        ),
        (b'<?xml version="1.0" encoding="no-such"?><a/>', "not"),
        (b"", "not well-formed XML: no element found"),
    ],
)
def test_xml_has_limits(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_xml(text, LIMITS)


def test_text_and_tokens_across_pieces_are_read():
    long = XmlLimits(depth=2, elements=3, letters=MAX_TOKEN_BYTES)
    value = "v" * (2 * PIECE_BYTES)
    root = parse_xml(f'<a b="{value}"><c/></a>'.encode(), long)
    assert (root.get("b"), [child.tag for child in root]) == (value, ["c"])
    assert len(parse_xml(b"<a>" + b"text " * 100_000 + b"</a>", LIMITS).text) == 500_000
    assert parse_xml('<a b="é"/>'.encode("utf-16"), LIMITS).get("b") == "é"


DUMP = (
    '<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" '
    'modelid="85">{}</cpu></system>'
)
GPU = (
    '<pci busid="g{0}" link_width="{2}" link_speed="16.0 GT/s PCIe"><gpu dev="{0}" sm="90" '
    'rank="{1}">{3}</gpu></pci>'
)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (GPU.format(0, -5, 16, ""), "rank='-5' is not a rank"),
        (GPU.format(0, "٣", 16, ""), "rank='٣' is not a whole number"),
        (GPU.format(0, 0, "1_6", ""), "link_width='1_6' is not a whole number"),
        (GPU.format(0, "9" * 30, 16, ""), "is not a whole number"),
        (
            "".join(GPU.format(i, i, 16, "") for i in range(1100)),
            "more than 1024 GPUs; is this the dump of one node",
        ),
        (
            GPU.format(0, 0, 16, "")
            + "".join(
                f'<pci busid="n{i}"><nic><net name="n{i}" dev="{i}" speed="100000"/></nic></pci>'
                for i in range(1100)
            ),
            "more than 1024 network cards",
        ),
        (f"{GPU.format(0, 0, 16, '')}</cpu>{'<cpu/>' * 100}<cpu>", "more than 64 CPUs"),
        (
            GPU.format(0, 0, 16, "")[:-6] + f'<nic/><x y="{"z" * 5000}"/></pci>',
            "an element may have",
        ),
    ],
    ids=short,
)
def test_dumps_that_no_machine_writes(body, says):
    with pytest.raises(ConfigError, match=says):
        parse_nccl_xml(DUMP.format(body).encode())


@pytest.mark.parametrize("seed", range(8))
def test_the_nearest_cards_are_those_of_a_search(seed):
    """Against a breadth-first search over PCIe trees whose roots are joined pairwise."""
    chance = random.Random(seed)
    dump = nccl_xml._Dump()
    roots = [dump.vertex(f"cpu{i}", "cpu") for i in range(chance.randint(1, 3))]
    for i in range(12):
        parent = chance.randrange(len(dump.names))
        dump.up[dump.vertex(f"v{i}", "pcie")] = parent
    dump.cards.extend(
        nccl_xml._Card(chance.randrange(len(dump.names)), None, 1)
        for _ in range(chance.randint(1, 6))
    )
    near = {vertex: {dump.up[vertex]} for vertex in dump.up} | {
        root: {*roots} - {root} for root in roots
    }
    for vertex, above in dump.up.items():
        near[above].add(vertex)
    reach = nccl_xml._reach(dump)
    for start in range(len(dump.names)):
        away, queue = {start: 0}, deque([start])
        while queue:
            here = queue.popleft()
            for other in near[here] - away.keys():
                away[other] = away[here] + 1
                queue.append(other)
        least = min(away[card.parent] for card in dump.cards)
        assert nccl_xml._nearest_cards(dump, reach, start) == tuple(
            number for number, card in enumerate(dump.cards) if away[card.parent] == least
        )


# Memory and work


def pcie_tree(sockets):
    return boxes(
        1,
        2,
        interconnect="pcie",
        pcie_bandwidth="15 GB/s",
        gpus_per_pcie_switch=1,
        cpus=sockets,
        cpu_bandwidth="1 GB/s",
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torus([2] * 20, "1 GB/s"), "this torus has 20971520 links; at most 8388608"),
        (lambda: pcie_tree(8388607), "cpus: 8388607 is out of range; expected 1 to 64"),
        (lambda: hyperx([4000], 2, "1 GB/s"), "this HyperX has 16012000 links"),
        (lambda: clos(4000, 100, 2000, "1 GB/s"), "this Clos network has 16800000 links"),
        (
            lambda: simcoll.schedule("all_reduce", "ring", nranks=8, pieces=10**6),
            "at least 1 and at most 65536",
        ),
        (
            lambda: simcoll.schedule("all_reduce", "ring", nranks=8, channels=10**6),
            "at least 1 and at most 65536",
        ),
        (
            lambda: parse_schedule(ring_with(blocks=[{"steps": [MOVE], "repeat": 2**24}])),
            "more than 2,097,152 steps",
        ),
    ],
)
def test_work_that_would_take_minutes_is_refused_before_it_begins(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.fixture
def small_machine(monkeypatch):
    """A machine that has 1 MiB left."""
    monkeypatch.setattr(memory, "UNQUESTIONED", 0)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)


def proof_of(chunks):
    return lambda: simcoll.verify(parse_schedule(ring_with(chunks=chunks)))


def spawned():
    dist.spawn(lambda *_: dist.all_reduce(np.zeros(1 << 18, "float32")), 2)


def executed():
    schedule = simcoll.schedule("all_reduce", "recursive_doubling", nranks=2)
    realcoll.execute(
        simcoll.bind(schedule, 1 << 20, unproved=True), [np.zeros(1 << 20, "float32")] * 2
    )


def emulated():
    schedule = simcoll.schedule("all_reduce", "recursive_doubling", nranks=2)
    plan = simcoll.bind(schedule, 1 << 20, protocol=Protocol("plain"), unproved=True)
    simcoll.emulate(plan, crossbar(2, "1 GB/s"), data="exact")


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (
            proof_of(2**31 - 4),
            r"proving a schedule with \d+ chunks on each of 4 ranks takes 544 GiB",
        ),
        (proof_of(2**17), "proving a schedule"),
        (
            lambda: simcoll.verify(simcoll.schedule("all_to_all", nranks=1 << 14)),
            "proving a schedule",
        ),
        (
            lambda: simcoll.verify(simcoll.schedule("all_gather", nranks=64), exact=True),
            "proving a schedule",
        ),
        (lambda: torus([64, 64], "1 GB/s"), "making the 16384 links of this torus takes"),
        (emulated, "moving exact data takes"),
        (executed, "the buffers of 2 ranks takes"),
        (spawned, "moving exact data takes"),
    ],
)
def test_memory_is_asked_for_before_it_is_taken(small_machine, work, says):
    with pytest.raises(ConfigError, match=f"{says}.*but only 1 MiB is available; "):
        work()


def test_traces_of_a_profiler_have_limits(tmp_path, monkeypatch):
    # The limits of its text are tested in tests/unit/jobs/test_trace_stream.py.
    write_example_traces(tmp_path)
    monkeypatch.setattr(rank_trace, "MOST_EVENTS", 20)
    with pytest.raises(ConfigError, match=r"rank0\.json\.gz: more than 20 calls and kernels"):
        rank_trace.load_rank_trace(tmp_path / "rank0.json.gz")


def test_services_in_situ_have_few_rows(monkeypatch):
    monkeypatch.setattr(in_situ, "MAX_ROWS", 3)
    with pytest.raises(ConfigError, match="more than 3 rows"):
        in_situ.in_situ_tables(["all_reduce,8,2,900,0,no,g,H100"] * 4, "rows.csv")


@pytest.mark.parametrize(
    ("module", "limit", "parse", "text"),
    [
        (deepspeed_comms, "MAX_BYTES", deepspeed_comms.parse_deepspeed_comms, "x" * 20),
        (astra_workload, "MAX_BYTES", astra_workload.parse_astra_workload, "x" * 20),
    ],
)
def test_lists_of_collectives_have_limits(module, limit, parse, text, monkeypatch):
    monkeypatch.setattr(module, limit, 10)
    with pytest.raises(ConfigError, match="larger than"):
        parse(text)


@pytest.mark.slow
def test_readers_of_toml_and_xml_are_the_limited_ones():
    root = Path(simcoll.__file__).parent
    using = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(
            r"^ *import tomllib|tomllib\.load|defusedxml|xml\.etree\.ElementTree import "
            r"(?!Element(?:, SubElement)?$)",
            path.read_text(),
            re.MULTILINE,
        )
    }
    assert using == {"files/text.py", "files/xml.py"}
