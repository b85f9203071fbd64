"""Schedules that choose paths and convert on the way: their data, times, bounds and refusals."""

import numpy as np
import pytest

import simcoll
from simcoll.collectives import quantised_two_step
from simcoll.core.collective import Collective
from simcoll.core.reference import random_inputs
from simcoll.core.schedule import REDUCE, Layout, Schedule, transfers
from simcoll.core.wire_format import wire_format
from simcoll.emulator import Trace
from simcoll.emulator.data.stepwise import move_inputs
from simcoll.emulator.programs.program_trace import ProgramTrace
from simcoll.errors import ConfigError, ScheduleError
from simcoll.planning import Program
from simcoll.topology import boxes, crossbar, torus
from tests.support.agreement_cases import case

MACHINE = crossbar(4, "50 GB/s", "1 us")


def _pair(count=1, **how):
    layout = Layout(Collective("broadcast", 2), chunks=count)

    def steps():
        yield transfers(0, 0, 0, count, count=count), transfers(0, 0, 1, count, count=count, **how)

    return Schedule("pair", layout, steps)


@pytest.mark.parametrize("engine", ["simpy", "fast"])
@pytest.mark.parametrize("wire", ["bfloat16", "int8/256", "int4/100", "float64"])
@pytest.mark.parametrize("count", [1, 999, 65_536])
def test_time_is_that_of_the_bytes_that_move(engine, wire, count):
    plan = simcoll.bind(_pair(wire=wire), count)
    result = simcoll.emulate(plan, MACHINE, engine=engine)
    nbytes = wire_format(wire).size_bytes(count)
    # 50 GB/s is 20,000 fs a byte; rounded down as in the model.
    assert result.time_fs == 10**9 + nbytes * 20_000
    assert result.bytes_moved == nbytes + 4 * count  # and the copy of the root
    assert result.bound.time_fs <= result.time_fs


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["bfloat16", "int8/16", "int4/33", "float8_e4m3fn"])
@pytest.mark.parametrize("count", [1, 3, 64, 1001])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_quantised_two_step_is_its_definition(wire, count, dtype):
    n = 4
    plan = simcoll.bind(quantised_two_step(Collective("all_reduce", n), wire=wire), count, dtype)
    inputs, rounded = random_inputs(plan), wire_format(wire).round_trip
    expected = np.zeros(count, plan.dtype)
    for owner in range(n):
        part = slice(owner * count // n, (owner + 1) * count // n)
        total = inputs[owner][part].copy()
        for rank in range(n):  # in ascending order of the ranks
            if rank != owner:
                total += rounded(inputs[rank][part])
        expected[part] = rounded(total)
    for engine in ("simpy", "fast"):
        result = simcoll.emulate(plan, MACHINE, engine=engine, data=inputs)
        for output in result.outputs:
            assert output.tobytes() == expected.tobytes()
    for output in move_inputs(plan, inputs):
        assert output.tobytes() == expected.tobytes()


@pytest.mark.parametrize("overlapping", [False, True])
def test_a_fold_converts_every_operand_once(overlapping):
    n, wire = 4, "int8/4"
    layout = Layout(Collective("reduce", n), chunks=4)
    out = layout.output()

    def steps():
        yield transfers(0, 0, 0, out, count=4)
        first, second = ([1, 3], [2, 2]) if overlapping else ([2, 2], [2, 2])
        for chunks in (first, second):  # ranges of different lengths, one after the other
            begin = [0, chunks[0]]
            yield tuple(
                transfers(rank, b, 0, out + b, count=c, op=REDUCE, wire=wire)
                for rank in (1, 2, 3)
                for b, c in zip(begin, (chunks[0], 4 - chunks[0]), strict=True)
                if (rank == 3) == (chunks is second)
            )

    schedule = Schedule("fold", layout, steps)
    count = 40
    plan = simcoll.bind(schedule, count)
    inputs, rounded = random_inputs(plan), wire_format(wire).round_trip
    expected = inputs[0].copy()
    for rank, cut in ((1, 10 if overlapping else 20), (2, 10 if overlapping else 20), (3, 20)):
        for part in (slice(0, cut), slice(cut, count)):
            expected[part] += rounded(inputs[rank][part])
    for engine in ("simpy", "fast"):
        result = simcoll.emulate(plan, MACHINE, engine=engine, data=inputs)
        assert result.outputs[0].tobytes() == expected.tobytes()
    assert move_inputs(plan, inputs)[0].tobytes() == expected.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_all_ways_move_the_same_data(seed):
    plan, topology = case("path", seed)
    if not isinstance(plan.sizes, int):  # blocks of other sizes would be mixed
        plan = simcoll.bind(plan.schedule, 1001, "float32", protocol=plan.protocol, unproved=True)
    inputs = random_inputs(plan, seed)
    outputs = [move_inputs(plan, inputs)]
    for engine in ("simpy", "fast"):
        try:
            result = simcoll.emulate(
                plan, topology, engine=engine, quotient=False, data=inputs, bound=False
            )
        except ConfigError as error:
            assert "no path" in str(error)  # noqa: PT017
            return
        outputs.append(result.outputs)
    for arrays in zip(*outputs, strict=True):
        assert all(np.array_equal(array, arrays[0], equal_nan=True) for array in arrays)


def test_results_say_how_far_off_they_are():
    plan = simcoll.bind(quantised_two_step(Collective("all_reduce", 4)), 4096)
    result = simcoll.emulate(plan, MACHINE)
    assert (result.data, result.wrong) == ("converted", None)
    # Five roundings of at most half a step of 1 / 127, of numbers up to 1 and a sum up to 4.
    assert 0 < result.conversion_error < (3 * 0.5 / 127 + 4 * 0.5 / 127) / 2
    assert "converted to int8/256; outputs differ by at most 0." in str(result)
    assert result.to_dict()["conversion_error"] == result.conversion_error
    exact = simcoll.emulate(
        simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 9), MACHINE
    )
    assert exact.conversion_error is None


def test_proofs_hold_up_to_conversion():
    schedule = quantised_two_step(Collective("all_reduce", 4), wire="bf16")
    proof = simcoll.verify(schedule)
    assert proof.conversions == ("bfloat16",)
    assert proof.order == "any"
    assert str(proof).endswith(", up to conversion to bfloat16")
    for other in (
        simcoll.verify(schedule, exact=True),
        simcoll.verify(schedule, exact=False),
        simcoll.verify(schedule, salt=bytes(32)),
    ):
        assert (other.conversions, other.order) == (proof.conversions, "any")


def test_a_required_order_forbids_conversions():
    total = Collective.custom("total", [[0], [1]], [[[0, 1]], [[0, 1]]], order="rank-consistent")
    layout = Layout(total)

    def steps(wire):
        yield transfers(0, 0, [0, 1], 1, wire=wire)
        yield transfers(1, 0, [0, 1], 1, op=REDUCE)

    simcoll.verify(Schedule("plain", layout, lambda: steps("")))
    with pytest.raises(ScheduleError, match="the definition requires at least 'rank-consistent'"):
        simcoll.verify(Schedule("converting", layout, lambda: steps("bfloat16")))


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_other_numbers_are_not_converted(dtype):
    with pytest.raises(ConfigError, match="needs a floating-point dtype"):
        simcoll.bind(_pair(wire="int8/256"), 8, dtype, "max" if dtype == "int32" else "sum")


def test_programs_with_conversions_are_timed():
    plan = simcoll.bind(_pair(wire="int8/256"), 4096)
    alone = simcoll.emulate(plan, crossbar(2, "50 GB/s", "1 us"))
    result = simcoll.emulate([plan], crossbar(2, "50 GB/s", "1 us"))
    assert result.time_fs == alone.time_fs
    assert result.wrong is None
    with pytest.raises(ConfigError, match="no result is exact"):
        simcoll.emulate(Program.of([plan]), crossbar(2, "50 GB/s", "1 us"), data="exact")


def _two_ways(share):
    """A broadcast between two GPUs of a node, some chunks of ten over NVLink, the rest over NICs."""
    layout = Layout(Collective("broadcast", 2), chunks=10)

    def steps():
        own = transfers(0, 0, 0, 10, count=10)
        near = transfers(0, 0, 1, 10, count=share)
        far = transfers(0, share, 1, 10 + share, count=10 - share, via="net", channel=1)
        yield own, near, far

    return Schedule("two ways", layout, steps, nchannels=2)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simpy", "fast"])
def test_two_ways_between_two_gpus(engine):
    machine = boxes(2, 4, "400 GB/s", "1 us", nics=4, nic_bandwidth="100 GB/s", nic_latency="3 us")
    plan = simcoll.bind(_two_ways(8), 10**8, "uint8")
    result = simcoll.emulate(plan, machine, engine=engine, keep=True, data="none")
    near, far = result.done_fs[1:].tolist()
    hops = simcoll.emulate(
        simcoll.bind(_pair(via="net"), 2 * 10**7, "uint8"), machine, engine=engine
    )
    assert near == 10**9 + 8 * 10**7 * 10**15 // (400 * 10**9)
    assert far == hops.time_fs
    assert far > 2 * 10**7 * 10**15 // (100 * 10**9)
    assert result.bound.time_fs <= result.time_fs
    small = simcoll.bind(_two_ways(8), 1234, "uint8")
    assert simcoll.emulate(small, machine, engine=engine).wrong == 0


def test_a_path_may_be_faster_than_the_route():
    # Around the torus, the route of the topology takes three hops; a bound on routes would be wrong.
    ring = torus([4], "25 GB/s", "1 us").degrade("gpu0 <-> gpu1", "1/100")
    usual = simcoll.emulate(simcoll.bind(_pair(), 10**6, "uint8"), ring)
    around = simcoll.emulate(simcoll.bind(_pair(via="gpu3"), 10**6, "uint8"), ring)
    assert around.time_fs < usual.time_fs / 10
    assert around.bound.time_fs <= around.time_fs


def test_paths_that_do_not_exist_name_the_step():
    plan = simcoll.bind(_pair(via="net"), 8)
    with pytest.raises(ConfigError, match=r"via 'net': topology 'crossbar' has no vertex or class"):
        simcoll.emulate(plan, MACHINE)
    plan = simcoll.bind(_pair(via="gpu3"), 8)
    with pytest.raises(
        ConfigError, match=r"pair, step 0: via 'gpu3': .* no path from gpu0 to gpu1"
    ):
        simcoll.emulate(plan, MACHINE)


def _exchange(**how):
    """An all_gather of two ranks."""
    layout = Layout(Collective("all_gather", 2))

    def steps():
        yield transfers([0, 1], 0, [0, 1], layout.output(np.arange(2)))
        yield transfers([0, 1], 0, [1, 0], layout.output(np.arange(2)), **how)

    return Schedule("exchange", layout, steps)


def test_readers_of_programs_refuse_what_they_would_lose():
    from realcoll import execute
    from simcoll.formats.goal.goal_writer import dump_goal
    from simcoll.formats.mscclpp.plan_writer import dump_mscclpp_plan
    from simcoll.formats.schedules.msccl_writer import dump_msccl_xml

    for how, words in (({"via": "net"}, "via net"), ({"wire": "bf16"}, "as bfloat16")):
        schedule = _exchange(**how)
        for write in (dump_msccl_xml, dump_mscclpp_plan, dump_goal):
            with pytest.raises(
                ConfigError, match=f"cannot hold .*: some of its transfers go {words}"
            ):
                write(schedule)
    plan = simcoll.bind(_pair(via="net"), 8)
    inputs = random_inputs(plan)
    assert execute(plan, inputs)[1].tobytes() == inputs[0].tobytes()


def test_traces_show_the_links_of_chosen_paths():
    machine = boxes(2, 4, "400 GB/s", "1 us", nics=4, nic_bandwidth="100 GB/s", nic_latency="3 us")
    plan = simcoll.bind(_two_ways(8), 10**6, "uint8")
    trace = Trace(plan, machine)
    alone = trace.document(simcoll.emulate(plan, machine, observer=trace))
    program = Program.of([plan])
    program_trace = ProgramTrace(program, machine)
    result = simcoll.emulate(program, machine, observer=program_trace, data="none")
    for document in (alone, program_trace.document(result)):
        links = {event["name"] for event in document["traceEvents"] if event["ph"] == "C"}
        assert {
            "box0.gpu0 -> box0.nvswitch",
            "box0.gpu0 -> box0.nic0",
            "box0.nic1 -> box0.gpu1",
        } <= links
        chosen = [
            event["args"]["via"]
            for event in document["traceEvents"]
            if event["ph"] == "X" and "via" in event["args"]
        ]
        assert chosen == ["net", "net"]  # sent and received
