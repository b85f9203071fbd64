"""Records do not change after a proof: no array of a public record can be written, none has
subclasses, copies carry no derived facts.
"""

import copy
import dataclasses
import pickle
from collections.abc import Mapping

import numpy as np
import pytest

import simcoll
import simcoll.types
from simcoll.algorithms import registered
from simcoll.collectives import halo_exchange
from simcoll.core.collective import Collective
from simcoll.core.immutable import immutable, is_immutable, without_subclasses
from simcoll.core.rank_program import Instruction, Lane, RankProgram
from simcoll.core.schedule import Layout, Schedule
from simcoll.core.step import Step, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.proving import lower
from simcoll.topology import crossbar, torus

MACHINE = crossbar(4, "50 GB/s", "1 us")
RANK = np.arange(4)
OF_CALLER = ("Result.done_fs", "Result.outputs")
"""What a run made for its caller: nothing reads it again."""


def through_scratch(nranks=3):
    layout, r = Layout(Collective("all_gather", nranks), 1, list(range(nranks))), np.arange(nranks)

    def steps():
        yield transfers(r, layout.input(), r, layout.output(r))
        yield transfers(r, layout.input(), (r + 1) % nranks, layout.scratch_at(r))
        yield transfers((r + 1) % nranks, layout.scratch_at(r), (r + 1) % nranks, layout.output(r))
        yield transfers(r, layout.input(), (r + 2) % nranks, layout.output(r))

    return Schedule("through scratch", layout, steps)


def instances():
    """A record of every public type, and what the functions of the package return."""
    scratched = through_scratch()
    pieces = Layout(Collective("all_gather", 3), 2, [[0, 1]] * 3, [[0, 1]] * 3)
    uneven = simcoll.bind(
        simcoll.schedule("all_gather", "ring", nranks=4), [5, 1, 9, 0], ranks=[3, 1, 2, 0]
    )
    lanes = simcoll.schedule("all_reduce", "hierarchical", nranks=4, box=2, pieces=2, channels=2)
    for schedule in (
        scratched,
        lanes,
        simcoll.schedule("all_reduce", "ring", nranks=4),
        uneven.schedule,
    ):
        plan = simcoll.bind(schedule, 48)
        yield from (
            schedule,
            schedule.layout,
            schedule.collective,
            plan,
            plan.proof,
            plan.reduction,
            plan.protocol,
        )
        yield from (
            *schedule.blocks(),
            *schedule.steps(),
            *plan.steps(),
            *(step for _, step in plan.transfers()),
        )
        yield from (plan.positions(), plan.wait_pairs, plan.waits)
        yield from (program := lower(plan), program.code, program.lanes)
    yield from (
        uneven,
        *uneven.steps(),
        pieces,
        Layout(Collective("broadcast", 3), 2, np.zeros(2, np.int8)),
        halo_exchange(4),
        halo_exchange(4).definition,
        simcoll.bind(simcoll.schedule(halo_exchange(4), "direct"), [5, 3, 1]),
    )
    for topology in (
        MACHINE,
        torus([4, 2], "25 GB/s"),
        torus([4], "25 GB/s").degrade("gpu0 <-> gpu1", 0),
        simcoll.load_topology("dgx-h100"),
        simcoll.load_topology("fat-tree"),
        simcoll.load_topology("dgx-h100").with_ranks([3, 1]),
        simcoll.load_topology("dgx-a100").take(4),
    ):
        yield from (topology, topology.route([0, 1], [1, 0]))
    yield from (
        simcoll.emulate(uneven, MACHINE, keep=True),
        simcoll.emulate(uneven, MACHINE, data="none"),
    )
    chosen = simcoll.transfers(0, 0, [1, 2], 0, via=["net", ""], wire="bfloat16")
    yield from (chosen, chosen.transits, *chosen.transits.table)
    yield simcoll.predict("all_reduce", 2**20, simcoll.load_topology("dgx-h100"))
    yield RankProgram(
        "two", 1, [[Lane(0, [Instruction("copy", 0, 1)])]], [1, 1, 0], Collective("all_reduce", 1)
    ).code


def arrays_in(value, path, seen):
    """Every array that a value leads to, with the path to it; not through functions, or the facts
    that a record derives.
    """
    if id(value) in seen or callable(value):
        return
    seen[id(value)] = value
    if isinstance(value, np.ndarray):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from arrays_in(each, f"{path}[{key!r}]", seen)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from arrays_in(each, path, seen)
    elif type(value).__module__.startswith("simcoll"):
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in [*names, *vars(type(value)), *getattr(value, "__dict__", ())]:
            known = name.startswith("__") or name in {"known", "of"}
            plain = isinstance(getattr(type(value), name, None), property) or name in names
            if not known and plain and hasattr(value, name):
                yield from arrays_in(getattr(value, name), f"{type(value).__name__}.{name}", seen)


@pytest.mark.slow
def test_no_array_of_a_public_record_can_be_written():
    seen, paths, kinds = {}, set(), set()
    for record in instances():
        kinds.add(type(record).__name__)
        for path, array in arrays_in(record, type(record).__name__, seen):
            if path in OF_CALLER:
                continue
            paths.add(path)
            assert is_immutable(array), path
            for owner in (array, array.base):
                if isinstance(owner, np.ndarray):
                    with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
                        owner.flags.writeable = True
    assert {
        "Plan.sizes",
        "Plan.ranks",
        "Plan.wait_pairs",
        "Layout.scratch",
        "Layout.scratch_pieces",
        "Step.src_rank",
        "PlanStep.staged",
        "Topology.groups['box']",
        "Topology.link_src",
        "Level.up",
        "TorusRouter.link",
        "DetourRouter.number",
        "Routes.links",
        "Code.op",
    } <= paths
    records = {
        name
        for name, found in vars(simcoll.types).items()
        if isinstance(found, type) and dataclasses.is_dataclass(found)
    }
    assert records - kinds <= {
        "Background",
        "Cut",
        "LinkShare",
        "Policy",
        "Repeat",
        "Slow",
        "Stop",
        "Bound",
    }


def test_events_hold_no_arrays():
    from simcoll.types import Background, Cut, LinkShare, Policy, Slow, Stop

    for kind in (Background, Cut, LinkShare, Policy, Slow, Stop, simcoll.types.Bound):
        assert not any(
            "NDArray" in str(each.type) or "Ints" in str(each.type)
            for each in dataclasses.fields(kind)
        )


def test_mappings_of_a_topology_cannot_change():
    topology, given = simcoll.load_topology("dgx-h100"), {"gpu": "H100"}
    for mapping in (topology.groups, topology.traits, topology.efficiency, topology.sources):
        with pytest.raises(TypeError):
            mapping["box"] = 1
    made = dataclasses.replace(topology, traits=given)
    given["gpu"] = "V100"
    assert made.traits["gpu"] == "H100"


def test_a_plan_that_ran_cannot_be_changed():
    plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), [5, 1, 9])
    time = simcoll.emulate(plan, crossbar(3, "50 GB/s", "1 us")).time_fs
    for array in (plan.sizes, plan.ranks):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = [50000, 1, 9]
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    larger = dataclasses.replace(plan, sizes=np.array([50000, 1, 9]))
    fresh = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), [50000, 1, 9])
    times = [
        simcoll.emulate(each, crossbar(3, "50 GB/s", "1 us")).time_fs
        for each in (plan, larger, fresh)
    ]
    assert times == [time, times[2], times[2]]
    assert times[2] > time


def test_numbers_given_to_a_plan_are_copied():
    sizes, ranks = np.array([5, 1, 9]), np.array([2, 1, 0])
    plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), sizes, ranks=ranks)
    sizes[:], ranks[:] = 0, 0
    assert (plan.sizes.tolist(), plan.ranks.tolist()) == ([5, 1, 9], [2, 1, 0])
    narrow = dataclasses.replace(
        plan, sizes=np.array([200, 100, 7], np.uint8), ranks=np.array([2, 0, 1], ">i2")
    )
    assert (narrow.sizes.dtype, narrow.sizes.tolist(), narrow.ranks.tolist()) == (
        np.int64,
        [200, 100, 7],
        [2, 0, 1],
    )
    assert type(dataclasses.replace(plan, sizes=np.int8(5)).sizes) is int
    with pytest.raises(ConfigError, match="sizes must be whole numbers"):
        dataclasses.replace(plan, sizes=np.array([1.5, 1, 1]))


def test_scratch_cannot_change_after_the_proof():
    scratch = np.arange(3)
    layout = Layout(Collective("all_gather", 3), 1, scratch)
    scratch[:] = [2, 0, 1]
    assert layout.scratch.tolist() == [0, 1, 2]
    schedule = through_scratch()
    simcoll.verify(schedule)
    with pytest.raises(ValueError, match="read-only"):
        schedule.layout.scratch[:] = [2, 0, 1]
    equal = Layout(Collective("all_gather", 3), 1, np.zeros((3, 5), np.int64)).scratch
    assert equal.strides == (8, 0)
    with pytest.raises(ValueError, match="WRITEABLE"):
        equal.base.flags.writeable = True


def test_a_result_belongs_to_its_caller():
    plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=4), 7)
    first = simcoll.emulate(plan, MACHINE, keep=True)
    expected = first.done_fs.tolist(), [output.tolist() for output in first.outputs]
    first.done_fs[:] = 0
    for output in first.outputs:
        output.flags.writeable = True
        output[:] = 0
    again = simcoll.emulate(plan, MACHINE, keep=True)
    assert (again.done_fs.tolist(), [output.tolist() for output in again.outputs]) == expected
    assert again.wrong == 0


SEALED = [
    Step,
    simcoll.types.Repeat,
    Layout,
    Collective,
    Schedule,
    simcoll.types.Plan,
    RankProgram,
    Lane,
    Instruction,
]


@pytest.mark.parametrize("record", SEALED, ids=lambda record: record.__name__)
def test_a_record_has_no_subclasses(record):
    with pytest.raises(TypeError, match=f"{record.__name__} cannot be subclassed"):
        type("Sly", (record,), {})
    with pytest.raises(TypeError, match="cannot be subclassed"):

        class Slots(record):
            __slots__ = ("more",)


def test_a_subclass_that_was_saved_from_its_refusal_is_not_taken():
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Saved", (Step,), {"src_rank": property(lambda self: self.dst_rank)})
    # Python makes the class before anybody can refuse it.
    saved = next(found for found in Step.__subclasses__() if found.__name__ == "Saved")
    step = object.__new__(saved)
    layout = Layout(Collective("all_gather", 3))
    with pytest.raises(ConfigError, match="expected steps, made by transfers"):
        simcoll.verify(Schedule("saved", layout, lambda: [step]))


def test_sealing_keeps_the_class():
    @without_subclasses
    class Plain:
        """Text."""

    assert Plain.__doc__ == "Text."
    assert Plain() is not None


def test_what_pretends_to_be_a_record_is_refused():
    class Sly:
        def __init__(self, real):
            self.real = real

        @property
        def __class__(self):
            return type(self.real)

        def __getattr__(self, name):
            return getattr(self.real, name)

    schedule = simcoll.schedule("all_gather", "ring", nranks=3)
    with pytest.raises(ConfigError, match="expected a Layout"):
        Schedule("sly", Sly(schedule.layout), schedule.source)
    with pytest.raises(ConfigError, match="needs a Collective"):
        Layout(Sly(schedule.collective))
    plan = simcoll.bind(schedule, 4)
    with pytest.raises(ConfigError, match="needs a Schedule"):
        dataclasses.replace(plan, schedule=Sly(schedule))


def test_the_fields_of_a_collective_are_plain():
    class Number(int):
        def __int__(self):
            return 2

    class Text(str):
        __slots__ = ()

        def __eq__(self, other):
            return True

        __hash__ = str.__hash__

    collective = Collective(
        Text("send_recv"), np.int8(3), pairs=[[np.uint8(0), np.int16(1)], (1, Number(7))]
    )
    assert collective == Collective("send_recv", 3, pairs=((0, 1), (1, 2)))
    assert [type(value) for value in (collective.kind, collective.nranks, collective.pairs[0])] == [
        str,
        int,
        tuple,
    ]
    assert {type(rank) for pair in collective.pairs for rank in pair} == {int}
    rooted = Collective("broadcast", 200, root=np.uint8(150), in_place=np.True_)
    assert (type(rooted.root), type(rooted.in_place)) == (int, bool)


def test_instructions_are_plain_numbers():
    made = Instruction("copy", np.int8(100), np.int8(27), np.uint8(200), waits=[[np.int64(0), 1]])
    assert [type(getattr(made, name)) for name in ("src", "dst", "count", "recv_from")] == [int] * 4
    assert made.waits == ((0, 1),)
    assert hash(made) == hash(Instruction("copy", 100, 27, 200, waits=((0, 1),)))
    lanes = [[Lane(0, [Instruction("copy", 0, 1)])]]
    program = RankProgram("one", 1, lanes, (1, 1, 0), Collective("all_reduce", 1))
    lanes[0].append("more")
    assert program.lanes == ((Lane(0, (Instruction("copy", 0, 1),)),),)
    for wrong in (1.0, "1", None):
        with pytest.raises(ConfigError, match="dst of an instruction must be a whole number"):
            Instruction("copy", 0, wrong)
    for lane in ("lane", (0, ()), Lane(0, ("copy",))):
        with pytest.raises(ScheduleError, match="expected a"):
            RankProgram("odd", 1, [[lane]], (1, 1, 0), Collective("all_reduce", 1))


COPIES = (
    copy.copy,
    copy.deepcopy,
    dataclasses.replace,
    lambda record: pickle.loads(pickle.dumps(record)),
)


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_a_schedule_has_no_derived_facts(way):
    # A process that has unpickled this very algorithm before proves it once, and has its facts.
    registered._build.cache_clear()
    for schedule in (simcoll.schedule("all_reduce", "ring", nranks=4), through_scratch()):
        proof, hashed = simcoll.verify(schedule), schedule.content_hash()
        other = way(schedule)
        assert other.known is not schedule.known
        assert (other.known.proof, other.known.content_hash, other.known.digests) == (None, "", [])
        assert other.content_hash() == hashed
        plan = simcoll.bind(schedule, 12)
        with pytest.raises(ConfigError, match="this proof is not of"):
            dataclasses.replace(plan, schedule=other)
        assert simcoll.verify(other) == proof


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_a_plan_is_proved_and_has_no_derived_facts(way):
    plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=4), [3, 0, 2, 1])
    steps = [step.size_bytes.tolist() for step in plan.steps()]
    other = way(plan)
    assert other.known is not plan.known
    assert other.known.steps is None
    assert other.proof == plan.proof
    assert other.proof.of is other.schedule.known
    assert [step.size_bytes.tolist() for step in other.steps()] == steps
    unproved = way(simcoll.bind(through_scratch(), 4, unproved=True))
    assert unproved.proof is None
    assert "unproved" in str(unproved)


@pytest.mark.parametrize("way", COPIES)
def test_a_copied_proof_proves_nothing_else(way):
    schedule = simcoll.schedule("all_reduce", "ring", nranks=4)
    other = dataclasses.replace(schedule)
    proof = way(simcoll.verify(schedule))
    plan = simcoll.bind(other, 8)
    with pytest.raises(ConfigError, match="this proof is not of"):
        dataclasses.replace(plan, proof=proof)


def test_objects_cannot_be_frozen():
    with pytest.raises(ConfigError, match="array of Python objects"):
        immutable(np.array([object()]))
