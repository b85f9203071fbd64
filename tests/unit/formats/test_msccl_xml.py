"""The reader of MSCCL XML: what it takes, and one clear error with its place for what it does
not.
"""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import ConfigError, SimcollError
from simcoll.formats import load_msccl_xml, parse_msccl_xml
from simcoll.proving import verify_program

DATA = Path(__file__).parent / "data"
RING = (DATA / "ring_all_reduce.xml").read_text()
ONE_SHOT = (DATA / "one_shot_all_reduce.xml").read_text()
GATHER = (DATA / "all_gather.xml").read_text()


def load(text):
    return parse_msccl_xml(text.encode())


def test_facts_of_a_file():
    program = load_msccl_xml(DATA / "ring_all_reduce.xml")
    assert (program.name, program.nranks, program.steps) == ("ring", 3, 15)
    assert (program.protocol, program.fifo_depth) == ("Simple", 2)
    assert (program.min_bytes, program.max_bytes) == (0, 2**27)
    assert str(program.collective) == "all_reduce n=3 in place"
    # In place, input and output are one memory, named as output.
    assert program.lanes[0][0].instructions[0].src == 3
    executor = load(ONE_SHOT)
    assert (executor.protocol, executor.fifo_depth, executor.max_bytes) == ("LL", 8, 4096)


def test_both_placements():
    outside, inside = load(GATHER), parse_msccl_xml(GATHER.encode(), in_place=True)
    assert not outside.in_place
    assert inside.in_place
    # Its own input is then its slot of the output: the copy goes from a chunk to itself.
    copy = inside.lanes[1][0].instructions[1]
    assert copy.src == copy.dst == 2 + 2
    assert verify_program(outside).data
    assert verify_program(inside).data
    with pytest.raises(ConfigError, match="in place only"):
        parse_msccl_xml(RING.encode(), in_place=False)


@pytest.mark.parametrize(
    ("coll", "kind"), [("reduce_scatter", "reduce_scatter"), ("reducescatter", "reduce_scatter")]
)
def test_both_names_of_reduce_scatter(coll, kind):
    text = RING.replace('coll="allreduce"', f'coll="{coll}"')
    assert load(text).collective.kind == kind


def test_custom_programs_have_no_post_condition():
    proof = verify_program(load(RING.replace("allreduce", "custom")))
    assert not proof.data


def test_extras_are_ignored():
    text = RING.replace("<algo ", '<algo redop="sum" nthreadblocks="3" ').replace(
        '<tb id="0"', '<copy i_off="0" o_off="0"/><tb id="0"', 1
    )
    assert verify_program(load("<!-- generated -->" + text)).data


FIRST = (
    '<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" '
    'deps="-1" hasdep="0"/>'
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('proto="Simple"', 'proto="simple"', r"algo: proto='simple'; did you mean 'Simple'"),
        ('proto="Simple" ', "", "algo: attribute 'proto' is missing"),
        ('coll="allreduce"', 'coll="allreduse"', "did you mean 'allreduce'"),
        ('coll="allreduce"', 'coll="alltoall"', "alltoall in place"),
        ('name="ring"', f'name="{"n" * 64}"', "at most 63"),
        ('nchannels="1"', 'nchannels="33"', "expected 1 to 32"),
        ('nchunksperloop="3"', 'nchunksperloop="4"', "gpu 0: i_chunks=3: expected 4"),
        ('nchunksperloop="3"', 'nchunksperloop="three"', "expected a whole number"),
        ('nchunksperloop="3"', f'nchunksperloop="{"9" * 30}"', "expected a whole number"),
        ('ngpus="3"', 'ngpus="4"', "there are 3 <gpu>"),
        ('inplace="1"', 'inplace="1" minBytes="9" maxBytes="8"', "below minBytes"),
        ('inplace="1"', 'inplace="0" outofplace="0"', "never run"),
        ('<gpu id="1"', '<gpu id="0"', "two <gpu> elements have id 0"),
        ('<gpu id="1"', '<gpu id="7"', "but 1 is missing"),
        ('<tb id="0" send="1"', '<tb id="1" send="1"', "gpu 0: <tb> ids"),
        ('<tb id="0" send="1"', '<tb id="0" send="0"', "gpu 0 tb 0: send=0 is this GPU itself"),
        ('<tb id="0" send="1"', '<tb id="0" send="3"', "expected -1 to 2"),
        ('<tb id="0" send="1"', '<tb id="0" send="-1"', "gpu 0 tb 0 step 0: type 's' needs a peer"),
        ('recv="2" chan="0"', 'recv="2" chan="1"', "chan=1, but nchannels=1"),
        (FIRST, FIRST.replace('s="0"', 's="1"', 1), "gpu 0 tb 0 step 0: s=1 is not its position 0"),
        (FIRST, FIRST.replace('"s"', '"ra"'), "type 'ra' is parsed by the runtime but never run"),
        (FIRST, FIRST.replace('type="s"', 'type="snd"'), "type='snd'"),
        (
            FIRST,
            FIRST.replace('srcoff="0"', 'srcoff="3"'),
            r"gpu 0 tb 0 step 0: chunks i\[3..3\] lie outside buffer 'i' of 3",
        ),
        (
            FIRST,
            FIRST.replace('srcoff="0"', 'srcoff="2"').replace('cnt="1"', 'cnt="2"'),
            r"i\[2..3\] lie outside",
        ),
        (FIRST, FIRST.replace('srcoff="0"', 'srcoff="-1"'), "lie outside"),
        (FIRST, FIRST.replace('srcbuf="i"', 'srcbuf="s"'), "buffer 's' of 0 chunks"),
        (FIRST, FIRST.replace('srcbuf="i"', 'srcbuf="x"'), "srcbuf='x'"),
        (FIRST, FIRST.replace('cnt="1"', 'cnt="72"'), "cnt=72: expected 0 to 71"),
        (FIRST, FIRST.replace('cnt="1"', 'cnt="1.5"'), "cnt='1.5': expected a whole number"),
        (
            FIRST,
            FIRST.replace(' hasdep="0"', ""),
            "gpu 0 tb 0 step 0: attribute 'hasdep' is missing",
        ),
        (
            FIRST,
            FIRST.replace('depid="-1" deps="-1"', 'depid="1" deps="0"'),
            "tb 1 step 0, which does not exist",
        ),
        (
            FIRST,
            FIRST.replace('depid="-1" deps="-1"', 'depid="0" deps="9"'),
            "tb 0 step 9, which does not exist",
        ),
        (
            FIRST,
            FIRST.replace('depid="-1" deps="-1"', 'depid="200" deps="9"'),
            "expected -1 to 127",
        ),
        (
            FIRST,
            FIRST.replace('depid="-1" deps="-1"', 'depid="-1" deps="0"'),
            "without a thread block",
        ),
        (
            FIRST,
            FIRST.replace("<step ", '<step a1="" a2="" a3="" a4="" a5="" a6="" a7="" '),
            "16 attributes",
        ),
        ('id="0"', f'id="0" x="{"y" * 256}"', "255 characters"),
        (
            "</gpu>",
            '<tb id="1" send="1" recv="-1" chan="0"/></gpu>',
            "send=1 chan=0 belongs to tb 0 already",
        ),
        ("<tb ", "<a>" * 20 + "</a>" * 20 + "<tb ", "16 levels"),
        ("<algo ", "<algorithm ", "not well-formed XML: mismatched tag"),
        ("</algo>", "", "not well-formed XML: no element found"),
        ("<algo ", '<!DOCTYPE algo [<!ENTITY a "b">]><algo ', "document type definitions"),
        ('ngpus="3"', 'ngpus="0"', "expected 1 to"),
    ],
)
def test_refusals(old, new, message):
    assert old in RING
    with pytest.raises(ConfigError, match=message):
        load(RING.replace(old, new, 1))


def test_dependencies_follow_the_runtime():
    unpublished = ONE_SHOT.replace('hasdep="1"', 'hasdep="0"')
    with pytest.raises(
        ConfigError, match=r'gpu 0 tb 2 step 0: depends on tb 0 step 1, which lacks hasdep="1"'
    ):
        load(unpublished)
    bare = ONE_SHOT.replace('depid="1" deps="1"', 'depid="-1" deps="-1"')
    with pytest.raises(ConfigError, match="nops precede it"):
        load(bare)
    nop = ONE_SHOT.replace('depid="0" deps="1"', 'depid="-1" deps="-1"')
    with pytest.raises(ConfigError, match="a nop must carry a dependency"):
        load(nop)


def test_limits():
    block = '<tb id="{}" send="-1" recv="-1" chan="0"/>'
    many = RING.replace(
        "</gpu>", "".join(block.format(number) for number in range(1, 217)) + "</gpu>", 1
    )
    with pytest.raises(ConfigError, match="gpu 0: 217 thread blocks; at most 216"):
        load(many)
    steps = "".join(FIRST.replace('s="0"', f's="{number}"', 1) for number in range(5, 257))
    with pytest.raises(ConfigError, match="gpu 0 tb 0: 257 steps; at most 256"):
        load(RING.replace("</tb>", steps + "</tb>", 1))
    huge = RING.replace('nchunksperloop="3"', 'nchunksperloop="999999999"').replace(
        'i_chunks="3"', 'i_chunks="999999999"'
    )
    with pytest.raises(ConfigError, match="can be followed"):
        load(huge)
    bomb = '<!DOCTYPE b [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><algo name="&b;"/>'
    with pytest.raises(ConfigError, match="entities are not allowed"):
        load(bomb)


def test_files_that_are_no_files(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.xml"):
        load_msccl_xml(tmp_path / "missing.xml")
    for content in (
        b"",
        b"\x00\xff",
        b"<system/>",
        b'<?xml version="1.0" encoding="nonsense"?><algo/>',
    ):
        with pytest.raises(ConfigError):
            parse_msccl_xml(content)
    path = tmp_path / "broken.xml"
    path.write_text(RING.replace('cnt="1"', 'cnt="x"', 1))
    with pytest.raises(ConfigError, match=r"broken\.xml: gpu 0 tb 0 step 0"):
        load_msccl_xml(path)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_damage_raises_only_our_errors(data):
    text = bytearray(data.draw(st.sampled_from([RING, ONE_SHOT, GATHER])).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(SimcollError):
        verify_program(parse_msccl_xml(bytes(text)))
