"""Files of algorithms: MSCCL's XML and GOAL."""

from __future__ import annotations

import simcoll
from simcoll.errors import ScheduleError
from simcoll.formats.goal.binary import goal_binary, parse_goal_binary
from simcoll.formats.goal.goal_writer import dump_goal
from simcoll.formats.goal.language import CALC, RECV, SEND, parse_goal
from simcoll.formats.recognise import recognise
from simcoll.formats.schedules.msccl_writer import dump_msccl_xml
from simcoll.formats.schedules.msccl_xml import parse_msccl_xml
from simcoll.proving import verify_program
from tests.support.first_files import FirstFile, Reader, Refusal


def written(kind, name, nranks=4, parameters=None, **options):
    schedule = simcoll.schedule(kind, name, nranks=nranks, **(parameters or {}))
    return dump_msccl_xml(schedule, **options)


def msccl_summary(path):
    """Collective, ranks, and whether it is right."""
    program = parse_msccl_xml(path.read_bytes(), str(path))
    try:
        proof = verify_program(program)
    except ScheduleError as error:
        return Refusal(str(error))
    return program.collective.kind, program.nranks, proof.data


HAND = b"""<algo name="pair" proto="{}" nchannels="1" nchunksperloop="2" ngpus="2" coll="{}" inplace="0">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="1" chan="0">
      <step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="2" send="-1" recv="-1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="0" chan="0">
      <step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="2" send="-1" recv="-1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""
PAIR = HAND.replace(b"{}", b"Simple", 1).replace(b"{}", b"allgather", 1)
MSCCL = Reader(
    "MSCCL's XML",
    msccl_summary,
    (
        FirstFile("a ring for all_reduce", written("all_reduce", "ring"), ("all_reduce", 4, True)),
        FirstFile(
            "one step of all pairs for all_gather",
            written("all_gather", "direct"),
            ("all_gather", 4, True),
        ),
        FirstFile(
            "a ring for reduce_scatter",
            written("reduce_scatter", "ring"),
            ("reduce_scatter", 4, True),
        ),
        FirstFile(
            "all pairs for all_to_all", written("all_to_all", "pairwise"), ("all_to_all", 4, True)
        ),
        FirstFile(
            "recursive doubling",
            written("all_reduce", "recursive_doubling", nranks=8),
            ("all_reduce", 8, True),
        ),
        FirstFile(
            "with a protocol and sizes",
            written("all_reduce", "ring", protocol="LL", min_bytes=1024, max_bytes=65536),
            ("all_reduce", 4, True),
        ),
        FirstFile(
            "of two channels",
            written("all_reduce", "ring", parameters={"channels": 2}),
            ("all_reduce", 4, True),
        ),
        FirstFile("written by hand", PAIR, ("all_gather", 2, True)),
        FirstFile(
            "with a comment before it", b"<!-- two GPUs -->\n" + PAIR, ("all_gather", 2, True)
        ),
        FirstFile(
            "of LL128", PAIR.replace(b'proto="Simple"', b'proto="LL128"'), ("all_gather", 2, True)
        ),
        FirstFile(
            "a wrong offset",
            PAIR.replace(
                b'srcoff="0" dstbuf="o" dstoff="1" cnt="1"',
                b'srcoff="0" dstbuf="o" dstoff="0" cnt="1"',
                1,
            ),
            Refusal("rank 0"),
        ),
    ),
)


def goal_summary(path):
    """Ranks, messages and calculations."""
    goal = goal_of_bytes(path.read_bytes(), str(path))
    return goal.nranks, *(int((goal.kind == kind).sum()) for kind in (SEND, RECV, CALC))


def goal_of_bytes(content, file):
    """Text or binary."""
    return (parse_goal if recognise(content) == "goal" else parse_goal_binary)(content, file)


SMALL = """num_ranks 2
rank 0 {
c: calc 1000
s: send 1001b to 1 tag 7
s requires c
}
rank 1 {
recv 1001b from 0 tag 7
}
"""
GOAL = Reader(
    "GOAL",
    goal_summary,
    (
        FirstFile("two ranks and a message", SMALL.encode(), (2, 1, 1, 1)),
        FirstFile(
            "with comments of C",
            b"/* two\n ranks */\n" + SMALL.encode() + b"// end\n",
            (2, 1, 1, 1),
        ),
        FirstFile("the binary of txt2bin", goal_binary(parse_goal(SMALL.encode())), (2, 1, 1, 1)),
        FirstFile(
            "braces on lines of their own", SMALL.replace(" {", "\n{").encode(), (2, 1, 1, 1)
        ),
        FirstFile("with carriage returns", SMALL.replace("\n", "\r\n").encode(), (2, 1, 1, 1)),
        FirstFile(
            "dependencies on a start",
            SMALL.replace("s requires", "s irequires").encode(),
            (2, 1, 1, 1),
        ),
        FirstFile(
            "processors and NICs",
            SMALL.replace("calc 1000", "calc 1000 cpu 1")
            .replace("tag 7\ns", "tag 7 cpu 0 nic 0\ns")
            .encode(),
            (2, 1, 1, 1),
        ),
        FirstFile("without tags", SMALL.replace(" tag 7", "").encode(), (2, 1, 1, 1)),
        FirstFile(
            "written from a ring",
            dump_goal(simcoll.schedule("all_reduce", "ring", nranks=4), size=65536),
            (4, 24, 24, 4),
        ),
        FirstFile(
            "a rank without a block", b"num_ranks 2\nrank 0 {\ncalc 5\n}\n", Refusal("'rank 1 {'")
        ),
        FirstFile(
            "a label that is not there",
            SMALL.replace("requires c", "requires d").encode(),
            Refusal("'d'"),
        ),
    ),
)
