"""Programs: times by hand, and every wrong program refused with a reason."""

from fractions import Fraction

import numpy as np
import pytest

import simcoll
from simcoll.core.protocol import Protocol, nccl
from simcoll.emulator import emulate
from simcoll.emulator.fast import driver
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.model import jitter_fs
from simcoll.emulator.programs import compiled_programs
from simcoll.emulator.programs.program_request import ProgramRequest
from simcoll.emulator.programs.program_trace import ProgramTrace
from simcoll.emulator.programs.run import emulate_program, play_request
from simcoll.errors import ConfigError
from simcoll.planning import Call, Compute, Program, Send
from simcoll.topology import crossbar, fat_tree, load_topology

US = 10**9
NET = crossbar(4, "50 GB/s", "1 us")
WAYS = [{"engine": "simpy"}, {"quotient": True, "data": "none"}]
if COMPILED:
    WAYS.append({"engine": "fast", "quotient": False})


def all_reduce(n=2, count=1 << 20, **bound_to):
    return simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=n, in_place=True), count=count, **bound_to
    )


def spans(result, operation):
    return (result.begin_fs(operation) // US).tolist(), (result.end_fs(operation) // US).tolist()


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_streams_overlap_and_dependencies_hold(how):
    # 50 GB/s: 500,000 bytes take 10 us, and 1 us of latency.
    program = Program(
        3,
        [
            Compute([0, 1], 5 * US, name="forward"),
            Send([(0, 1)], 500_000, after="forward", name="first"),
            Compute([0, 1], [2 * US, 40 * US], name="more"),
            Send([(0, 1)], 500_000, stream="other", after=["forward", 2]),
            Compute([2, 1], 1 * US, after="first"),
        ],
        starts_fs=[0, 3 * US, 100 * US],
    )
    result = emulate(program, NET, keep=True, **how)
    assert spans(result, 0) == ([0, 3], [5, 8])
    assert spans(result, 1) == ([5, 8], [19, 19])  # rank 1 comes at 8
    assert spans(result, 2) == ([5, 8], [7, 48])
    assert spans(result, 3) == ([7, 48], [59, 59])
    assert spans(result, 4) == ([100, 48], [101, 49])  # rank 2 waits for nobody but its start
    assert result.time_fs == 101 * US


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_groups_at_once_share_links(how):
    # Two groups across a 2:1 uplink: each gets half of what one alone gets.
    topology = fat_tree(2, 2, "50 GB/s", "0 us", oversubscription=2)
    plan = simcoll.bind(
        simcoll.schedule("all_gather", "ring", nranks=2), count=500_000, dtype="uint8"
    )
    alone = emulate(Program(4, [Call(plan, [[0, 2]])]), topology, **how)
    both = emulate(Program(4, [Call(plan, [[0, 2], [1, 3]])]), topology, **how)
    assert (alone.time_fs, both.time_fs) == (10 * US, 20 * US)


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_protocols_of_one_depth_have_fifos_of_their_own(how):
    # Each message takes 10 us and arrives after 1 us more. The second of a protocol waits for that,
    # the first of another does not.
    one, two = (Protocol(name, fifo_depth=1) for name in ("one", "two"))
    sends = [Send([(0, 1)], 500_000, protocol=each) for each in (one, one, two)]
    result = emulate(Program(2, sends), NET, keep=True, **how)
    assert [spans(result, number)[1] for number in range(3)] == [[10, 11], [21, 22], [31, 32]]


@pytest.mark.parametrize("jitter", [0, US])
def test_a_plan_is_a_program_of_one_call(jitter):
    costs = {"launch_fs": 3, "send_overhead_fs": 20, "receive_overhead_fs": 300, "fifo_depth": 2}
    protocol = Protocol("p", **costs, jitter_fs=jitter, seed=5)
    schedule = simcoll.schedule("all_reduce", "ring", nranks=4, channels=2)
    plan = simcoll.bind(schedule, count=4096, protocol=protocol)
    alone = emulate(plan, NET, keep=True)
    for how in WAYS:
        result = emulate([plan], NET, keep=True, **how)
        assert (result.time_fs, result.trace_hash) == (alone.time_fs, alone.trace_hash)
        assert result.done_fs.tolist() == alone.done_fs.tolist()


@pytest.mark.parametrize("engine", ["simpy", "fast"])
def test_jitter_of_a_message_is_that_of_its_number_in_the_program(engine):
    protocol = Protocol("j", jitter_fs=US, seed=3)
    program = Program(
        4,
        [
            Compute([0, 1], 0, "one"),
            *[Send([(0, 1), (2, 3)], 500_000, "one", protocol=protocol)] * 2,
        ],
    )
    result = emulate(program, NET, keep=True, engine=engine)
    calm = [*[11 * US] * 2, *[22 * US] * 2]  # 10 us at 50 GB/s and a latency of 1 us, twice
    drawn = jitter_fs(2, 4, protocol)
    drawn[2:] += drawn[:2]
    assert (result.done_fs[2:] - calm).tolist() == drawn.tolist()
    assert len(set(drawn.tolist())) == 4
    assert (
        emulate(program, NET, quotient=True).path
        == "no quotient: jitter makes every message different"
    )


@pytest.mark.slow
@pytest.mark.skipif(not COMPILED, reason="needs numba")
def test_classes_are_loaded_in_parts_of_any_size(monkeypatch):
    topology = fat_tree(2, 8, "50 GB/s", "1 us", oversubscription=2)
    pairs = [[rank, rank + 8] for rank in range(8)]
    gather = simcoll.bind(
        simcoll.schedule("all_gather", "ring", nranks=2, channels=2),
        count=500_000,
        dtype="uint8",
        protocol=Protocol("p", fifo_depth=2, send_overhead_fs=US),
    )
    program = Program(
        16,
        [
            Compute(range(16), 5 * US, name="forward"),
            *[Send([(rank, rank ^ 1) for rank in range(16)], 500_000, after="forward")] * 3,
            Call(gather, pairs, stream="other", after="forward"),
            Call(gather, pairs),
        ],
    )
    results = []
    for rows, windows in ((compiled_programs.ROWS_OF_PART, 16), (100, 16), (7, 3), (7, 16), (1, 2)):
        monkeypatch.setattr(compiled_programs, "ROWS_OF_PART", rows)
        monkeypatch.setattr(driver, "MOST_WINDOWS", windows)
        results.append(emulate(program, topology, keep=True, quotient=True, data="none"))
    every = emulate(program, topology, keep=True, engine="simpy")
    for result in results:
        assert 0 < result.classes < result.messages / 2
        assert (result.time_fs, result.trace_hash) == (every.time_fs, every.trace_hash)
        assert result.done_fs.tolist() == every.done_fs.tolist()
    for keep in (False, "operations"):
        request = ProgramRequest(program, topology, quotient=True, hashed=False, keep=keep)
        unhashed = play_request(request)
        assert (unhashed.time_fs, unhashed.trace_hash) == (every.time_fs, "")
    for number in range(len(program.operations)):
        assert unhashed.end_fs(number).tolist() == every.end_fs(number).tolist()


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_times_of_operations_need_no_times_of_messages(how):
    program = Program(4, [Call(all_reduce(), [[0, 1], [2, 3]]), Compute([0, 1], 5 * US, after=[0])])
    how = {"data": "none"} | how
    every = emulate_program(program, NET, keep=True, **how)
    operations = emulate_program(program, NET, keep="operations", **how)
    assert operations.done_fs is None
    assert operations.trace_hash == every.trace_hash
    for number in range(2):
        assert operations.begin_fs(number).tolist() == every.begin_fs(number).tolist()
        assert operations.end_fs(number).tolist() == every.end_fs(number).tolist()


@pytest.mark.slow
def test_plans_at_once():
    both = emulate([all_reduce(ranks=[0, 1]), all_reduce(ranks=[1, 2])], NET)
    assert both.time_fs > emulate(all_reduce(), NET).time_fs
    assert both.wrong == 0
    assert both.bytes_moved == 2 * emulate(all_reduce(), NET).bytes_moved


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("algorithm", ["ring", "nvls", "switch"])
def test_a_call_of_another_protocol_leaves_shares_as_they_are(algorithm, how):
    machine, ranks = load_topology("dgx-h100"), [list(range(8))]
    half = Protocol("half", link_shares=(("nvlink", Fraction(1, 2)),))
    plan = simcoll.bind(
        simcoll.schedule("all_reduce", algorithm, nranks=8), 1 << 20, "uint8", protocol=half
    )
    other = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=8), 8, "uint8")
    alone = emulate(Program(8, [Call(plan, ranks)]), machine, **{"data": "none", **how}).time_fs
    after = emulate(
        Program(8, [Call(other, ranks), Call(plan, ranks)]),
        machine,
        keep=True,
        **{"data": "none", **how},
    )
    assert after.end_fs(1).max() - after.end_fs(0).max() == alone


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_protocols_keep_their_shares_of_links(how):
    # Alone each protocol gets what it gets as a plan; together they get the larger share.
    half, most = (Protocol(str(share), link_shares=(("link", share),)) for share in (0.5, 0.75))
    one = [emulate(all_reduce(protocol=p), NET).time_fs for p in (half, most)]
    calls = [
        Call(all_reduce(protocol=p), [[0, 1]], after=list(range(at)))
        for at, p in enumerate((half, most))
    ]
    assert emulate(Program(2, calls), NET, **how).time_fs == sum(one)
    at_once = [Call(call.plan, call.groups, stream=str(at)) for at, call in enumerate(calls)]
    assert emulate(Program(2, at_once), NET, **how).time_fs > max(one)


def test_data_of_every_collective_is_checked():
    program = Program(
        4,
        [Call(all_reduce(count=33), [[0, 1], [2, 3]]), Call(all_reduce(4, 40)), Send([(0, 3)], 7)],
    )
    for how in ({"engine": "simpy"}, *WAYS[2:]):
        result = emulate(program, NET, data="exact", **how)
        assert (result.data, result.wrong) == ("exact", 0)
    wrong = simcoll.Schedule(
        "lazy",
        simcoll.Layout(simcoll.Collective("all_reduce", 2)),
        lambda: [simcoll.transfers(0, 0, 0, 1)],
    )
    plan = simcoll.bind(wrong, 5, unproved=True)
    assert emulate(Program(4, [Call(plan, [[0, 1], [2, 3]])]), NET, data="exact").wrong > 0


@pytest.mark.slow
def test_an_observer_hears_of_every_message():
    told = []
    program = Program(4, [Compute([2], 7), Call(all_reduce(), [[0, 1], [3, 2]], after=0)])
    result = emulate(program, NET, observer=lambda *row: told.append(row))
    assert {row[:5] for row in told} >= {(0, 0, 0, 2, 2), (1, 0, 1, 0, 1), (1, 1, 4, 2, 3)}
    assert sorted(row[2] for row in told) == list(range(result.messages))


def test_links_carry_what_crosses_them():
    result = emulate(Program(4, [Send([(0, 1)], 500_000), Compute([3], 20 * US)]), NET)
    used = {NET.link_name(link): share for link, share in enumerate(result.utilization()) if share}
    assert list(used.values()) == pytest.approx([0.5, 0.5])
    assert result.link_bytes().sum() == 1_000_000


@pytest.mark.slow
def test_a_straggler_delays_those_that_wait_for_it():
    program = Program(
        4,
        [
            Compute(np.arange(4), [US, US, US, 2 * US]),
            Call(all_reduce(), [[0, 1], [2, 3]], after=0),
        ],
    )
    result = emulate(program, NET, keep=True)
    begin, end = spans(result, 1)
    assert begin == [1, 1, 1, 2]
    assert end[2] == end[3] == end[0] + 1


TWO = [Compute([0, 1], 5, name="a"), Compute([0, 1], 5, name="a")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Program(2, [Compute([0], 1, after=0)]),
            "comes after operation 0; the first operation comes after none",
        ),
        (
            lambda: Program(2, [*TWO, Compute([0], 1, after=5)]),
            "comes after operation 5; expected an earlier one, 0 to 1",
        ),
        (
            lambda: Program(2, [*TWO, Compute([0], 1, after="a")]),
            "'a', a name that 2 operations have",
        ),
        (
            lambda: Program(2, [*TWO, Compute([0], 1, after="b")]),
            "'b', a name that 0 operations have",
        ),
        (lambda: Program(2, [Compute([0], 1, after=-1)]), "comes after operation -1"),
        (lambda: Compute([0], 1, after=[1.5]), "after must be numbers or names"),
        (lambda: Compute([0], 1, after=None), "after must be numbers or names"),
        (lambda: Program(2, [Compute([2], 1)]), "has rank 2; the program has ranks 0 to 1"),
        (lambda: Program(2, [Compute([-1], 1)]), "has rank -1"),
        (lambda: Program(2, [Compute([1, 1], 1)]), "has rank 1 twice"),
        (lambda: Program(4, [Call(all_reduce(), [[0, 1], [2, 1]])]), "has rank 1 twice"),
        (lambda: Call(all_reduce(), [[0, 1, 2]]), "lists of 2 ranks; got a matrix of shape (1, 3)"),
        (lambda: Call(all_reduce(), [0, 1]), "groups of a Call must be a matrix"),
        (lambda: Call(all_reduce(), [[0, 1], [2]]), "groups of a Call must be whole numbers"),
        (lambda: Call("ring"), "a Call takes a plan"),
        (lambda: Send([(0, 1, 2)], 1), "pairs of a Send are (source, destination)"),
        (lambda: Send([(0, 1), (0, 2)], 1), "rank 0 is the source of two pairs"),
        (lambda: Send([(0, 0)], 1), "rank 0 sends to itself"),
        (lambda: Send([(0, 1)], -1), "nbytes of a Send must be a whole number"),
        (lambda: Send([(0, 1)], 1, protocol="LL12"), "LL128"),
        (lambda: Compute([0], -1), "duration_fs must be a whole number from 0"),
        (lambda: Compute([0, 1], [1]), "one time, or one for each of 2 ranks; got 1"),
        (lambda: Compute([0, 1], [1, -1]), "at least 0, got -1"),
        (lambda: Compute([0], 1.5), "duration_fs must be whole numbers"),
        (lambda: Compute([0], 1, stream=3), "the stream of an operation must be text"),
        (lambda: Program(2, [3]), "operation 0 must be a Compute, Call or Send"),
        (lambda: Program(2, 3), "operations of a Program must be a list"),
        (lambda: Program(0, []), "nranks of a Program must be a whole number"),
        (lambda: Program(2, [], starts_fs=[1]), "one for each of 2 ranks"),
        (
            lambda: emulate(Program(5, []), NET),
            "the program has 5 ranks; topology 'crossbar' has 4",
        ),
        (lambda: emulate([3], NET), "emulate takes a plan"),
        (lambda: emulate(Program(2, TWO), NET, data=[1]), "not known for programs"),
        (lambda: emulate(Program(2, TWO), NET).begin_fs(0), "keep=True"),
        (lambda: emulate(Program(2, TWO), NET, keep=True).end_fs(2), "there is no operation 2"),
    ],
)
def test_what_is_wrong_is_said(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_nothing_to_do(how):
    assert emulate(Program(2, []), NET, **how).time_fs == 0
    quiet = Program(
        2, [Compute([], 5), Call(all_reduce(1, protocol=nccl("LL")), [[0], [1]])], starts_fs=7
    )
    assert emulate(quiet, NET, **how).time_fs == 7 + nccl("LL").launch_fs


@pytest.mark.parametrize("unproved", [True, False])
def test_a_program_says_that_a_collective_of_it_has_no_proof(unproved):
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 1000, unproved=unproved)
    program, net = Program(4, [Compute([0], 10**9), Call(plan)]), crossbar(4, "50 GB/s", "1 us")
    trace = ProgramTrace(program, net)
    result = simcoll.emulate(program, net, observer=trace)
    assert (result.unproved, "unproved" in repr(result)) == (unproved, unproved)
    assert trace.document(result)["otherData"].get("proof") == ("unproved" if unproved else None)
