"""Files that tell libraries what to run: read, written, and refused where the library would read
something else.
"""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.formats.tuners.tuner_files import TUNER_FORMATS, Rule, tuner_format

NCCL = b"""# comment
allreduce,0,65536,tree,simple,2,1,-1,-1,1

allgather,65537,4294967295,ring,ll128,-1,-1,-1
"""
OPENMPI = json.dumps(
    {
        "rule_file_version": 3,
        "module": "tuned",
        "collectives": {
            "allreduce": [
                {
                    "comm_size_min": 64,
                    "comm_size_max": 128,
                    "rules": [
                        {"msg_size_min": 512, "msg_size_max": "inf", "alg": "recursive_doubling"}
                    ],
                },
                {"rules": [{"msg_size_max": 100, "alg": "ring"}]},
            ]
        },
    }
).encode()
HAN = b"""1 # collectives
bcast
1
2
2
1 2  0 tuned  4096 han
8 1  0 han
"""
MPICH = json.dumps(
    {
        "collective=bcast": {
            "comm_type=intra": {
                "comm_size<8": {"avg_msg_size=any": {"algorithm=MPIR_Bcast_intra_binomial": {}}},
                "comm_size=any": {
                    "avg_msg_size<=100": {"algorithm=MPIR_Bcast_intra_tree": {"k=2": {}}},
                    "avg_msg_size<200": {"algorithm=A": {}},
                    "avg_msg_size=any": {"algorithm=B": {}},
                },
            }
        },
        "collective=iscan": {"algorithm=MPIR_Iscan_sched": {}},
    }
).encode()
ONECCL = b'export CCL_ALLREDUCE="recursive_doubling:0-8192;rabenseifner:8193-1048576;ring:1048577-max"\nCCL_BCAST=naive\n'


OPENMPI_TEXT = b"""2 # collectives
2 # all_reduce
2 # communicator sizes
64
2
0 3 0 0 # recursive doubling
8192 4 0 65536
65
2
0 0 0 0 # the library's own
1024 6 0 0
7 # broadcast
1
0
1
0 6 0 0
"""
SEGMENTS = ("segment_bytes=65536",)
NCCLX = b"""# collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks
allgather,[8,16],ring,ll128,-1,*,*
allreduce,(1,5),tree,simple,4,2,8,-1,-1,4096
reduce,[5,),ring,ll,-1,2,8
"""


@pytest.mark.parametrize(
    ("name", "content", "rules"),
    [
        (
            "nccl-csv",
            NCCL,
            [
                Rule("all_reduce", 0, 65536, "tree", "simple", 2, 1, -1, ("regBuff=1",)),
                Rule("all_gather", 65537, 4294967295, "ring", "ll128"),  # a limit like any other
            ],
        ),
        (
            "openmpi",
            OPENMPI,
            [
                Rule(
                    "all_reduce", 512, -1, "recursive_doubling", conditions=("comm_size 64..128",)
                ),
                Rule("all_reduce", 0, 100, "ring"),
            ],
        ),
        (
            "openmpi",
            OPENMPI_TEXT,
            [
                Rule("all_reduce", 0, 8191, "recursive_doubling", ranks=64),
                Rule("all_reduce", 8192, -1, "ring", ranks=64, conditions=SEGMENTS),
                Rule("all_reduce", 1024, -1, "rabenseifner", conditions=("comm_size 65..inf",)),
                Rule("broadcast", 0, -1, "binomial"),
            ],
        ),
        (
            "ncclx",
            NCCLX,
            [
                Rule("all_gather", 0, -1, "ring", "ll128", conditions=("bytesPerRank=[8,16]",)),
                Rule("all_reduce", 32, 79, "tree", "simple", 4, 2, 16, ("chunkSize=4096",)),
                Rule("reduce", 80, -1, "ring", "ll", -1, 2, 16),
            ],
        ),
        (
            "openmpi-han",
            HAN,
            [
                Rule("broadcast", 0, 4095, "tuned"),
                Rule("broadcast", 4096, -1, "han"),
                Rule("broadcast", 0, -1, "han", conditions=("configuration=8",)),
            ],
        ),
        (
            "mpich",
            MPICH,
            [
                Rule("broadcast", 0, -1, "MPIR_Bcast_intra_binomial", conditions=("comm_size<8",)),
                Rule("broadcast", 0, 100, "MPIR_Bcast_intra_tree", conditions=("k=2",)),
                Rule("broadcast", 101, 199, "A"),
                Rule("broadcast", 200, -1, "B"),
            ],
        ),
        (
            "oneccl",
            ONECCL,
            [
                Rule("all_reduce", 0, 8192, "recursive_doubling"),
                Rule("all_reduce", 8193, 1048576, "rabenseifner"),
                Rule("all_reduce", 1048577, -1, "ring"),
                Rule("broadcast", 0, -1, "naive"),
            ],
        ),
    ],
)
def test_what_files_say(name, content, rules):
    assert tuner_format(name).parse(content) == rules


COMMON = {
    kind: ["ring"] if kind in {"all_gather", "all_reduce", "reduce_scatter"} else ["binomial"]
    for kind in TUNER_FORMATS["openmpi"].names
} | {"all_to_all": ["pairwise"], "barrier": ["bruck", "tree"], "reduce": ["chain", "binomial"]}


@st.composite
def rule_lists(draw):
    """Rules that every format can say: ranges that follow each other, for every number of ranks."""
    name = draw(st.sampled_from(sorted(TUNER_FORMATS)))
    kinds = draw(
        st.lists(
            st.sampled_from(sorted(TUNER_FORMATS[name].names)), min_size=1, max_size=3, unique=True
        )
    )
    words = {
        "nccl-csv": ["tree", "ring", "pat"],
        "ncclx": ["tree", "ring", "pat"],
        "openmpi-han": ["tuned", "han"],
    }.get(name, ["ring", "MPIR_X_intra_ring"])
    rules = []
    for kind in kinds:
        ends = [*sorted(draw(st.sets(st.integers(1, 2**31), max_size=3))), -1]
        first = 0
        for end in ends:
            rule = Rule(kind, first, end, draw(st.sampled_from(words)))
            if name == "ncclx":
                low, high = 16 * first, -1 if end < 0 else 16 * end + 15
                channels = draw(st.integers(-1, 64))
                rule = Rule(kind, low, high, rule.algorithm, "ll", channels, 2, 16)
            if name == "openmpi-text":
                rule = replace(rule, algorithm=draw(st.sampled_from(COMMON[kind])))
            if name == "nccl-csv":
                numbers = [draw(st.integers(-1, 64)) for _ in range(3)]
                rule = Rule(
                    kind,
                    first,
                    end,
                    rule.algorithm,
                    draw(st.sampled_from(["ll", "ll128", "simple"])),
                    *numbers,
                )
            rules.append(rule)
            first = end + 1
    return name, rules


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(rule_lists())
def test_there_and_back(made):
    name, rules = made
    assert tuner_format(name).parse(tuner_format(name).dump(rules)) == rules


@pytest.mark.parametrize(
    ("name", "rule", "says"),
    [
        (
            "nccl-csv",
            Rule("all_to_all", 0, -1, "ring", "simple"),
            "format 'nccl-csv' has no all_to_all; it has broadcast",
        ),
        (
            "nccl-csv",
            Rule("all_reduce", 0, -1, "bruck", "simple"),
            "unknown 'bruck'; valid: collnet",
        ),
        (
            "openmpi",
            Rule("all_reduce", 0, -1, "ring", protocol="ll"),
            "format 'openmpi' cannot say Rule",
        ),
        ("oneccl", Rule("all_reduce", 0, -1, "ring", ranks=8), "format 'oneccl' cannot say Rule"),
        ("mpich", Rule("all_reduce", 5, -1, "ring"), "format 'mpich' cannot say Rule"),
        (
            "openmpi-text",
            Rule("all_reduce", 0, -1, "raberseifner"),
            "4 and 5 have no 'raberseifner' for all_reduce; did you mean 'rabenseifner'",
        ),
        ("ncclx", Rule("all_reduce", 3, 9, "ring", "ll", -1, 2, 16), "'ncclx' cannot say Rule"),
    ],
)
def test_what_formats_cannot_say(name, rule, says):
    with pytest.raises(ConfigError, match=says):
        tuner_format(name).dump([rule])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("nccl-csv", NCCL.replace(b"tree", b"tee"), "line 2: unknown 'tee'; did you mean 'tree'"),
        ("nccl-csv", NCCL.replace(b"allreduce", b"alltoall"), "unknown 'alltoall'"),
        ("nccl-csv", b"allreduce,0,1", "3 fields; expected 8 to 10"),
        ("nccl-csv", b"allreduce,-1,1,ring,ll,1,1,1", "size '-1': expected a whole number from 0"),
        (
            "nccl-csv",
            b"allreduce,0,1,ring,ll,1,1,1" + b" " * 240,
            "of which the plugin reads no more",
        ),
        ("ncclx", NCCLX.replace(b"[5,)", b"[5,4]"), "'\\[5,4\\]' is empty"),
        ("ncclx", NCCLX.replace(b"[5,)", b"5-8"), "expected a number, '\\*', or a range"),
        ("ncclx", b"allreduce,*,ring,ll,1,1", "6 fields; expected 7 to 10"),
        ("openmpi", OPENMPI_TEXT[:-9], "the file ends before a"),
        ("openmpi", OPENMPI_TEXT + b"1", "'1' after the last rule"),
        ("openmpi", OPENMPI_TEXT.replace(b"0 6 0 0\n", b"0 60 0 0\n"), "unknown algorithm 60"),
        ("openmpi", OPENMPI_TEXT.replace(b"7 # b", b"77 # b"), "unknown collective 77"),
        ("openmpi", b"rule-file-version-9 1", "unknown version"),
        ("openmpi", b"some words", "number of collectives 'some': expected a whole number"),
        ("openmpi", OPENMPI.replace(b"3", b"2", 1), "expected rule_file_version 3"),
        ("openmpi", OPENMPI.replace(b'"alg"', b'"al"'), "a rule needs alg"),
        (
            "openmpi-han",
            HAN.replace(b"1 2  0", b"2 2  0"),
            "the first configuration size is 2; expected 1",
        ),
        ("openmpi-han", HAN[:30], "the file ends inside a rule"),
        ("openmpi-han", HAN + b"7", "line 8: '7' after the last rule"),
        ("mpich", b'{"a": {}}', "unknown key 'a'"),
        ("mpich", b"[1]", "expected an object"),
        ("oneccl", b"CCL_ALLREDUC=ring", "did you mean 'CCL_ALLREDUCE'"),
        ("oneccl", b'CCL_ALLREDUCE="ring:8"', "expected 'ring:0-8192'"),
        ("oneccl", b"\xff", "no text: byte 0"),
    ],
)
def test_what_is_refused(name, content, says):
    with pytest.raises(ConfigError, match=says):
        tuner_format(name).parse(content)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(TUNER_FORMATS)), st.data())
def test_broken_files_give_one_error(name, data):
    contents = {
        "nccl-csv": NCCL,
        "ncclx": NCCLX,
        "openmpi": OPENMPI,
        "openmpi-text": OPENMPI_TEXT,
        "openmpi-han": HAN,
        "mpich": MPICH,
        "oneccl": ONECCL,
    }
    content = bytearray(contents[name])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6))
    try:
        tuner_format(name).parse(bytes(content))
    except ConfigError:
        return
