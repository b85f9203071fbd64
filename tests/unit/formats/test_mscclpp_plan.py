"""MSCCL++ execution plans: what is proved, each kind of fault, and what the executor would do
otherwise.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.cli import main
from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats import parse_mscclpp_plan
from simcoll.proving import device_schedule, verify, verify_device_program
from simcoll.topology import load_topology

MEMORY = {"channel_type": "memory"}
NOP = {"name": "nop"}


def chunk(kind, index, size=1):
    """Local, remote (a number: the buffer) or of a switch."""
    key = "type" if isinstance(kind, str) else "buffer_id"
    return {key: kind, "index": index, "size": size}


def signal(name="signal", channels=(0,), kind="memory"):
    return {"name": name, "channel_ids": list(channels), "channel_type": kind}


def op(name, sources, targets, **more):
    return {"name": name, "src_buff": sources, "dst_buff": targets, **more}


def gpu(rank, blocks, *, chunks=(2, 2, 0), peers=(), remote="i", port=False, **more):
    """A gpu whose thread blocks each have one channel to every peer, and the peers' buffers."""
    kind = "port" if port else "memory"
    count = len(blocks)
    return {
        "id": rank,
        "input_chunks": chunks[0],
        "output_chunks": chunks[1],
        "scratch_chunks": chunks[2],
        "channels": [
            {"channel_type": kind, "connected_to": [p for _ in range(count) for p in peers]}
        ],
        "remote_buffers": [
            {"rank": p, "type": remote, "access_channel_types": [kind]} for p in peers
        ],
        "semaphores": [{"init_value": 0}],
        "threadblocks": [
            {
                "id": b,
                "ops": ops,
                "channels": [
                    {
                        "channel_type": kind,
                        "channel_ids": list(range(b * len(peers), (b + 1) * len(peers))),
                    }
                ],
                "remote_buffer_refs": [
                    {"access_channel_type": kind, "remote_buffer_ids": list(range(len(peers)))}
                ],
            }
            for b, ops in enumerate(blocks)
        ],
        **more,
    }


def plan(gpus, collective="allreduce", protocol="Simple", **more):
    return {
        "name": "mine",
        "collective": collective,
        "protocol": protocol,
        "inplace": True,
        "gpus": gpus,
        **more,
    }


def read(content):
    return parse_mscclpp_plan(json.dumps(content).encode())


def pulled(rank):
    """Rank r reads the other's chunk r, and writes the sum to both."""
    return op(
        "rres",
        [chunk("i", rank), chunk(0, rank)],
        [chunk("i", rank), chunk(0, rank)],
        **MEMORY,
        reduce_op="sum",
    )


def both_ways(*, start=("rlxsignal", "rlxwait"), end=("signal", "wait"), before_end=(NOP,)):
    """An all-reduce of two ranks: meet, reduce, meet."""
    blocks = [
        [[*map(signal, start), NOP, pulled(rank), *before_end, *map(signal, end)]]
        for rank in range(2)
    ]
    return plan([gpu(rank, blocks[rank], peers=(1 - rank,)) for rank in range(2)])


def test_an_all_reduce_of_two():
    program = read(both_ways())
    assert str(program) == "mine all_reduce n=2 in place"
    proof = verify_device_program(program)
    assert (proof.data, proof.order, proof.signals) == (True, "position-independent", 4)
    schedule = device_schedule(program)
    assert verify(schedule, exact=True).order == "position-independent"
    result = simcoll.emulate(simcoll.bind(schedule, 2 * 64), load_topology("dgx-h100").take(2))
    assert result.wrong == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            both_ways(start=()),
            r"race on rank 1 output\[0\]: nothing orders them\n.*the caller, which",
        ),
        (both_ways(end=()), r"race on rank . output\[.\]: nothing orders them"),
        (both_ways(before_end=()), r"nothing orders them"),
        (both_ways(end=("rlxsignal", "rlxwait")), "only relaxed signals lie between them"),
        (
            both_ways(start=("rlxwait", "rlxsignal")),
            "deadlock: 2 thread blocks cannot go on\n.*waits for signal 0 of rank 1",
        ),
        (both_ways(end=("signal",)), r"rank . never waits for 1 signal\(s\) of rank ."),
    ],
    ids=["no start", "no end", "no fence", "relaxed end", "deadlock", "left over"],
)
def test_faults_of_order(content, says):
    with pytest.raises(ScheduleError, match=says):
        verify_device_program(read(content))


def test_relaxed_signals_may_be_trusted():
    proof = verify_device_program(read(both_ways(end=("rlxsignal", "rlxwait"))), trust_relaxed=True)
    assert "unproved where relaxed signals must carry data" in str(proof)
    assert "unproved" not in str(verify_device_program(read(both_ways())))


def test_wrong_results_are_found():
    wrong = both_ways()
    wrong["gpus"][1]["threadblocks"][0]["ops"][3] = op("copy", [chunk("i", 1)], [chunk("i", 0)])
    with pytest.raises(ScheduleError, match=r"race|is wrong at the end"):
        verify_device_program(read(wrong))
    alone = plan(
        [gpu(0, [[op("copy", [chunk("s", 0)], [chunk("o", 0)])]], chunks=(1, 1, 1))], inplace=False
    )
    with pytest.raises(
        ScheduleError,
        match=r"operation 0 \(copy\) reads rank 0 scratch\[0\], which holds nothing yet",
    ):
        verify_device_program(read(alone))


def packets(*, twice=False):
    """An all-gather of two: each puts its own block as packets, and unpacks the other's."""
    gpus = []
    for rank in range(2):
        put = op("ppkt", [chunk("o", rank)], [chunk(0, rank)], **MEMORY)
        ops = [
            put,
            *([put] if twice else []),
            op("upkt", [chunk("s", 1 - rank)], [chunk("o", 1 - rank)]),
        ]
        gpus.append(gpu(rank, [ops], chunks=(1, 2, 2), peers=(1 - rank,), remote="s"))
    return plan(gpus, "allgather", "LL", use_double_scratch_buffer=True)


def test_packets_bring_their_own_order():
    assert verify_device_program(read(packets())).data
    assert verify(device_schedule(read(packets())), exact=True)
    with pytest.raises(ScheduleError, match="cannot tell the packets of two writes"):
        verify_device_program(read(packets(twice=True)))
    with pytest.raises(ConfigError, match="packets need protocol 'LL'"):
        read(packets() | {"protocol": "Simple"})


@pytest.mark.parametrize("ordered", [[], ["semaphore"], ["barrier"]])
def test_blocks_of_a_rank_share_memory(ordered):
    """One block fills scratch, the other takes from it."""
    how = {
        "semaphore": (
            [NOP, {"name": "sem_release", "semaphore_ids": [0]}],
            [{"name": "sem_acquire", "semaphore_ids": [0]}, NOP],
        ),
        "barrier": ([{"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}],) * 2,
    }
    after, before = how[ordered[0]] if ordered else ([], [])
    blocks = [
        [op("copy", [chunk("i", 0)], [chunk("s", 0)]), *after],
        [*before, op("copy", [chunk("s", 0)], [chunk("o", 0)])],
    ]
    program = read(plan([gpu(0, blocks, chunks=(1, 1, 1))], inplace=False))
    if ordered:
        assert verify_device_program(program).data
    else:
        with pytest.raises(
            ScheduleError, match=r"race on rank 0 scratch\[0\]: nothing orders them"
        ):
            verify_device_program(program)


def test_a_group_of_blocks_must_split_alike():
    """Halves of a copy of two chunks are whole chunks; halves of a reduction of one chunk are
    not.
    """
    halves = [{"tb_id": part, "tbg_size": 2} for part in range(2)]

    def blocks(rank, sizes):
        return [
            [
                op("copy", [chunk("i", 0, sizes)], [chunk("s", 0, sizes)], tbg_info=half),
                NOP,
                signal(),
                signal("wait"),
                NOP,
                *(
                    op("re", [chunk("i", k), chunk("s", k)], [chunk("i", k)], tbg_info=half)
                    for k in range(2)
                ),
            ]
            for half in halves
        ]

    program = read(
        plan([gpu(r, blocks(r, 2), chunks=(2, 2, 2), peers=(1 - r,)) for r in range(2)], "custom")
    )
    with pytest.raises(
        ScheduleError, match=r"race on rank 0 (output|scratch)\[\d\]: nothing orders them"
    ):
        verify_device_program(program)


def ported(put="put", last=()):
    """An all-gather of two by ports: meet, put, signal, wait."""
    gpus = []
    for rank in range(2):
        meet = [signal(kind="port"), signal("wait", kind="port")]
        move = op(put, [chunk("o", rank)], [chunk(0, rank)], channel_ids=[0], channel_type="port")
        raised = [] if put.startswith("pws") else [signal(kind="port")]
        ops = [*meet, NOP, move, NOP, *raised, signal("wait", kind="port"), *last]
        gpus.append(gpu(rank, [ops], chunks=(1, 2, 0), peers=(1 - rank,), remote="o", port=True))
    return plan(gpus, "allgather")


def test_proxies_work_later():
    """A put by port is done for its reader when the signal after it has come; its writer knows when
    the proxy says so.
    """
    for put in ("put", "pws"):
        with pytest.raises(
            ScheduleError,
            match=r"race on rank . output\[.\]: nothing orders them\n.*the caller(.|\n)*reads it",
        ):
            verify_device_program(read(ported(put)))
        answered = [NOP, signal(), signal("wait")]
        content = ported(put, answered)
        for rank in range(2):
            content["gpus"][rank]["channels"].append(
                {"channel_type": "memory", "connected_to": [1 - rank]}
            )
            content["gpus"][rank]["threadblocks"][0]["channels"].append(
                {"channel_type": "memory", "channel_ids": [0]}
            )
        assert verify_device_program(read(content)).data
    assert verify_device_program(read(ported("pwsf"))).data


def switched(end="signal"):
    wait = {"signal": "wait", "rlxsignal": "rlxwait"}[end]
    gpus = []
    for rank in range(2):
        one = [{"switch_channel_id": 0, "index": rank, "size": 1}]
        ops = [
            signal("rlxsignal"),
            signal("rlxwait"),
            NOP,
            op("glres", one, one, channel_type="switch"),
            NOP,
            signal(end),
            signal(wait),
        ]
        made = gpu(rank, [ops], peers=(1 - rank,))
        made["channels"].append(
            {
                "channel_type": "switch",
                "buffer_type": "i",
                "rank_groups": [{"size": 2, "ranks": [0, 1]}],
            }
        )
        made["threadblocks"][0]["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        gpus.append(made)
    return plan(gpus)


def test_switches():
    program = read(switched())
    assert verify_device_program(program).order == "rank-consistent"
    schedule = device_schedule(program)
    assert verify(schedule, exact=True).order == "rank-consistent"
    with pytest.raises(ScheduleError, match="only relaxed signals"):
        verify_device_program(read(switched("rlxsignal")))


def test_pipelines_are_unrolled():
    whole = both_ways()
    for rank in range(2):
        ops = whole["gpus"][rank]["threadblocks"][0]["ops"]
        ops[3] = {
            "name": "pipeline",
            "iter_context": {"unit_size": 1 << 20, "num_chunks": 1},
            "ops": [ops[3]],
        }
    program = read(whole)
    assert program.pieces == 2
    assert verify_device_program(program).data
    with pytest.raises(ConfigError, match="reuse_resources with pipelines"):
        read(whole | {"reuse_resources": True})


def changed(path, value):
    """A plan that is right but for one place."""
    content = both_ways()
    at = content
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return content


OPS = ("gpus", 0, "threadblocks", 0, "ops")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (changed(["protocol"], "ll"), r"\$.protocol: unknown protocol 'll'; did you mean 'LL'"),
        (changed(["collective"], "allreduse"), "did you mean 'allreduce'"),
        (changed(["gpus", 1, "id"], 0), r"\$.gpus\[1\].id: id is 0; gpus are indexed by rank"),
        (
            changed(["gpus", 0, "output_chunks"], 0),
            "output_chunks is 0, by which the executor divides",
        ),
        (changed(["gpus", 1, "input_chunks"], 4), "4 input and 2 output chunks; gpu 0 has 2 and 2"),
        (changed([*OPS, 3, "reduce_op"], "max"), "reduce_op 'max': the executor does not read it"),
        (changed([*OPS, 3, "name"], "glre"), "the executor cannot load it"),
        (changed([*OPS, 3, "name"], "rress"), "unknown operation 'rress'; did you mean 'rres'"),
        (
            changed([*OPS, 3, "src_buff"], [chunk("i", 2), chunk(0, 2)]),
            "chunks 2..2 of buffer 'i' of rank 0, which has 2",
        ),
        (
            changed([*OPS, 3, "src_buff"], [chunk("i", 0), chunk(1, 0)]),
            "buffer_id is 1; expected 0 to 0",
        ),
        (
            changed([*OPS, 3, "src_buff"], []),
            r"ops\[3\].src_buff: 0 operands; rres takes 2 or more",
        ),
        (
            changed([*OPS, 0, "channel_ids"], [1]),
            "channel of the thread block is 1; expected 0 to 0",
        ),
        (changed([*OPS], [NOP] * 65), "number of operations is 65; expected 0 to 64"),
        (
            changed(["gpus", 0, "channels"], [{"channel_type": "switch", "rank_groups": []}]),
            "missing key 'buffer_type'",
        ),
        (changed(["gpus", 0, "channels", 0, "connected_to"], [0]), "a channel of rank 0 to itself"),
        (
            changed([*OPS, 3], op("get", [chunk(0, 0)], [chunk("i", 1)], **MEMORY)),
            "the executor swaps the two offsets",
        ),
        (changed(["gpus", 0, "inputChunks"], 2), "the format before August 2025"),
        (changed(["gpus", 0, "input_chunks"], "2"), r"expected a whole number, got text"),
    ],
)
def test_what_is_refused(content, says):
    with pytest.raises(ConfigError, match=says):
        read(content)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_broken_plans_give_one_error(data):
    content = json.dumps(data.draw(st.sampled_from([both_ways(), packets(), switched()]))).encode()
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 6))] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"9", b"0", b"-1", b'""'])
        )
    try:
        verify_device_program(parse_mscclpp_plan(bytes(content)))
    except (ConfigError, ScheduleError):
        return


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nvls.json").write_text(json.dumps(switched("rlxsignal")))
    assert main(["verify", "nvls.json"]) == 1
    assert "wrong schedule: mine all_reduce n=2 in place: race on" in capsys.readouterr().err
    assert main(["verify", "nvls.json", "--trust-relaxed"]) == 0
    assert "unproved where relaxed" in capsys.readouterr().out
    (tmp_path / "plan.json").write_text(json.dumps(both_ways()))
    assert main(["convert", "plan.json", "plan.xml"]) == 0
    assert main(["verify", "plan.xml"]) == 0
