"""Certificates: what the file holds, and what has none. That they are right is checked in
``tests/laws/test_certificates.py``.
"""

import gzip
import json

import numpy as np
import pytest

import simcoll
from simcoll.cli import main
from simcoll.core.collective import Collective
from simcoll.core.rank_program import Instruction, Lane, RankProgram
from simcoll.core.schedule import Layout, Repeat, Schedule, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats import certificate_bytes, load_algorithm, parse_goal, write_certificate
from simcoll.formats.schedules import certificate
from simcoll.proving import check_lowering, lower, verify, verify_program

XML = "docs/howto/all-gather.xml"


def of(schedule):
    return json.loads(certificate_bytes(schedule, verify(schedule)))


def test_the_file_of_a_small_ring():
    ring = simcoll.schedule("all_gather", "ring", nranks=3)
    assert of(ring) == {
        "format": "simcoll-certificate",
        "version": 1,
        "subject": "schedule",
        "name": "ring(channels=1, pieces=1)",
        "collective": {"kind": "all_gather", "nranks": 3},
        "chunks": 1,
        "channels": 1,
        "divisible": False,
        "claims": {"order": "", "steps": 3, "transfers": 9, "shared_chunks": False, "folds": False},
        "proof": {"kind": "full"},
        "blocks": [
            {
                "steps": [
                    {
                        "src_rank": [0, 1, 2],
                        "src_chunk": 0,
                        "dst_rank": [0, 1, 2],
                        "dst_chunk": [1, 2, 3],
                        "count": 1,
                        "op": "copy",
                        "channel": 0,
                    }
                ]
            },
            {
                "steps": [
                    {
                        "src_rank": [0, 1, 2],
                        "src_chunk": [1, 2, 3],
                        "dst_rank": [1, 2, 0],
                        "dst_chunk": [1, 2, 3],
                        "count": 1,
                        "op": "copy",
                        "channel": 0,
                    }
                ],
                "repeat": 2,
                "stride": 2,
                "base": 1,
                "modulus": 3,
                "order": None,
            },
        ],
    }


def test_what_a_collective_has_is_in_its_record():
    scatter = of(simcoll.schedule(Collective("scatter", 3, root=2, in_place=True), "tree"))
    assert scatter["collective"] == {"kind": "scatter", "nranks": 3, "root": 2, "in_place": True}
    swap = of(simcoll.schedule(Collective("send_recv", 3, pairs=((0, 2), (2, 0))), "direct"))
    assert swap["collective"] == {"kind": "send_recv", "nranks": 3, "pairs": [[0, 2], [2, 0]]}
    assert of(simcoll.schedule("reduce_scatter", "ring", nranks=4))["scratch"] == [0, 1, 2, 3]


def test_the_proof_of_a_large_ring_names_its_renumbering_and_keeps_its_repeats():
    ring = simcoll.schedule("all_reduce", "ring", nranks=96)
    record = of(ring)
    assert record["claims"]["transfers"] == 96 * 191
    assert len(record["blocks"]) == 3
    assert [block.get("repeat") for block in record["blocks"]] == [None, 95, 95]
    rank, place = np.array(record["proof"]["rank"]), np.array(record["proof"]["place"])
    assert record["proof"]["kind"] == "by symmetry"
    # The neighbour on the ring has the neighbouring segment.
    assert rank.tolist() == [[*range(1, 96), 0]]
    assert place.tolist() == [*range(1, 96), 0]


def test_windows_that_start_below_zero_are_written_from_zero_on():
    layout, rank = Layout(Collective("all_gather", 3)), np.arange(3)
    first = transfers(rank, layout.input(), rank, layout.output(rank))
    turn = transfers(rank, layout.output(rank), (rank + 1) % 3, layout.output(rank))
    schedule = Schedule("low", layout, lambda: iter((first, Repeat((turn,), 2, -4, -2, 3))))
    block = of(schedule)["blocks"][1]
    assert (block["base"], block["stride"], block["modulus"]) == (1, 2, 3)


def test_a_barrier_has_no_chunks():
    steps = [
        step
        for block in of(simcoll.schedule("barrier", "dissemination", nranks=4))["blocks"]
        for step in block["steps"]
    ]
    assert all(
        (step["op"], step["src_chunk"], step["dst_chunk"], step["count"]) == ("sync", 0, 0, 1)
        for step in steps
    )


def test_the_certificate_of_a_program():
    program = load_algorithm(XML)
    record = json.loads(certificate_bytes(program, verify_program(program)))
    assert (record["subject"], record["collective"]) == (
        "program",
        {"kind": "all_gather", "nranks": 2},
    )
    assert record["claims"] == {
        "data": True,
        "order": "",
        "least_depth": 0,
        "steps": None,
        "messages": 2,
    }
    assert record["program"]["fifo_depth"] == 2
    assert record["program"]["ranks"][0][0]["instructions"][0] == {
        "op": "send",
        "count": 1,
        "src": 0,
        "send_to": 1,
    }


def test_the_least_depth_does_not_depend_on_the_depths_that_were_tried():
    program = load_algorithm(XML)
    record = json.loads(certificate_bytes(program, verify_program(program, depths=(8,))))
    assert record["claims"]["least_depth"] == 0


def test_a_plan_with_empty_chunks_has_no_collective():
    plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3, pieces=2), 1)
    proof = check_lowering(plan)
    assert not proof.data
    record = json.loads(certificate_bytes(lower(plan), proof))
    assert (record["collective"], record["claims"]["data"]) == (None, False)


def test_equal_proofs_give_equal_files_compressed_or_not(tmp_path):
    for path in (tmp_path / "one.json.gz", tmp_path / "two.json.gz", tmp_path / "plain.json"):
        ring = simcoll.schedule("all_reduce", "ring", nranks=4)
        assert simcoll.verify(ring, certificate=path).order == "run-consistent"
    packed = [path.read_bytes() for path in sorted(tmp_path.glob("*.gz"))]
    assert packed[0] == packed[1]
    assert gzip.decompress(packed[0]) == (tmp_path / "plain.json").read_bytes()


def test_an_old_file_is_kept_when_the_proof_fails(tmp_path):
    path = tmp_path / "ring.json"
    path.write_text("old")
    layout = Layout(Collective("broadcast", 2))
    with pytest.raises(ScheduleError):
        simcoll.verify(Schedule("nothing", layout, lambda: iter(())), certificate=path)
    assert path.read_text() == "old"


def test_what_has_no_certificate(monkeypatch):
    ring, other = (simcoll.schedule("all_reduce", "ring", nranks=n) for n in (3, 4))
    with pytest.raises(ConfigError, match="needs its own proof, got that of another schedule"):
        certificate_bytes(ring, verify(other))
    with pytest.raises(ConfigError, match=r"needs its own proof, got ProgramProof\("):
        certificate_bytes(ring, verify_program(load_algorithm(XML)))
    with pytest.raises(ConfigError, match="GOAL says how much is sent, not which data"):
        certificate_bytes(parse_goal(b"num_ranks 1\nrank 0 {\nl1: calc 1\n}\n"), None)
    with pytest.raises(ConfigError, match="made of schedules and programs, got 'ring'"):
        certificate_bytes("ring", verify(ring))
    monkeypatch.setattr(certificate, "MAX_BYTES", 100)
    with pytest.raises(
        ConfigError, match="its certificate has 0 MiB; simcoll-check reads up to 0 MiB"
    ):
        certificate_bytes(ring, verify(ring))


def test_what_is_too_large_for_a_full_check_is_refused_with_the_limit(monkeypatch):
    monkeypatch.setattr(certificate, "MAX_MOVES", 50)
    direct = simcoll.schedule("all_to_all", "direct", nranks=8)
    with pytest.raises(
        ConfigError,
        match="its 64 transfers of a chunk are too many for a certificate: simcoll-check follows "
        "up to 50",
    ):
        certificate_bytes(direct, verify(direct))
    with pytest.raises(
        ConfigError, match=r"its \d+ instructions on \d+ chunks are too many for a certificate"
    ):
        certificate_bytes(lower(simcoll.bind(direct, 1)), check_lowering(simcoll.bind(direct, 1)))
    # A ring that was proved in full is certified by its symmetry instead.
    ring = simcoll.schedule("all_reduce", "ring", nranks=6)
    assert of(ring)["proof"]["kind"] == "by symmetry"


def test_the_command_says_where_it_is_and_how_to_check_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["verify", "ring", "--certificate", "my ring.json"]) == 0
    told = (
        "certificate written to my ring.json\n"
        "check it without simcoll: simcoll-check 'my ring.json'\n"
    )
    assert capsys.readouterr().out.endswith(told)
    assert json.loads((tmp_path / "my ring.json").read_text())["claims"]["steps"] == 7
    (tmp_path / "one.goal").write_text("num_ranks 1\nrank 0 {\nl1: calc 1\n}\n")
    assert main(["verify", "one.goal", "--certificate", "none.json"]) == 2
    assert "no certificate: GOAL says how much is sent" in capsys.readouterr().err
    assert not (tmp_path / "none.json").exists()


@pytest.mark.slow
def test_files_of_the_other_formats_have_certificates(tmp_path, monkeypatch, capsys):
    ring = simcoll.schedule("all_gather", "ring", nranks=2)
    monkeypatch.chdir(tmp_path)
    for name in ("ring.json", "ring.xml"):
        assert main(["convert", "ring", name, "-c", "all_gather", "-n", "2"]) == 0
    assert (
        main(["convert", "ring", "plan.json", "-c", "all_gather", "-n", "2", "--to", "mscclpp"])
        == 0
    )
    for name, subject in (
        ("ring.json", "schedule"),
        ("ring.xml", "program"),
        ("plan.json", "schedule"),
    ):
        assert main(["verify", name, "--certificate", "made.json"]) == 0
        record = json.loads((tmp_path / "made.json").read_text())
        assert (record["subject"], record["collective"]["kind"]) == (subject, ring.collective.kind)
    assert (
        "a schedule that gives every cell the same values: its signals are not in it"
        in capsys.readouterr().out
    )
    assert record["name"].endswith("as a schedule that gives every cell the same values")
    assert record["divisible"]


LANES = ((Lane(0, (Instruction("copy", 0, 1),)),),)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (
            {"buffers": (2, 1, 0)},
            r"input and output chunks: \(2, 1\), but all_reduce n=1 with 1 chunks has \(1, 1\)",
        ),
        ({"buffers": (1, 2, 0)}, r"input and output chunks: \(1, 2\)"),
        ({"buffers": (1, 1, -1)}, r"buffers of \(1, 1, -1\) chunks: a buffer has at least 0"),
        (
            {"chunks": 2},
            r"input and output chunks: \(1, 1\), but all_reduce n=1 with 2 chunks has \(2, 2\)",
        ),
        (
            {"collective": Collective("all_reduce", 2)},
            "ranks: 1, but all_reduce n=2 with 1 chunks has 2",
        ),
        ({"in_place": True}, "in place: True, but all_reduce n=1 with 1 chunks has False"),
    ],
)
def test_a_program_has_the_buffers_of_its_collective(facts, says):
    whole = {"buffers": (1, 1, 0), "collective": Collective("all_reduce", 1), "chunks": 1}
    assert verify_program(RankProgram("right", 1, LANES, **whole)).data
    with pytest.raises(ScheduleError, match=says):
        RankProgram("wrong", 1, LANES, **(whole | facts))


def test_writing_reports_an_unwritable_place(tmp_path):
    ring = simcoll.schedule("all_reduce", "ring", nranks=3)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_certificate(ring, verify(ring), tmp_path / "no" / "ring.json")
