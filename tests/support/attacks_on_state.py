"""Directed attacks on what a proof remembers: sources with state, subclasses, arrays of plans,
threads, stale proofs.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pickle
import sys
import threading

import numpy as np

import simcoll
from simcoll import Collective, transfers
from simcoll.types import Repeat, Step
from tests.support.attack_cases import (
    Attack,
    Case,
    Trial,
    UnaffectedError,
    WrongAtRunError,
    count_for,
    schedule,
    still_right,
    used_case,
    with_blocks,
)
from tests.support.attacks_on_columns import (
    pieces_chain,
    rewritten_block,
    right_schedule,
    wrong_somewhere,
)
from tests.support.exact_player import Verdict, verdict_on


class Source:
    """A source that yields wrong steps on some passes."""

    def __init__(self, right, wrong, when) -> None:
        self.right, self.wrong, self.when, self.passes = right, wrong, when, 0

    def __call__(self):
        self.passes += 1
        return iter(self.wrong if self.when(self) else self.right)


def caller_in(*modules):
    """Whether a function of one of these modules waits for the source."""

    def when(source):
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith(modules):
                return True
            frame = frame.f_back
        return False

    return when


def sources(rng, quick):
    """Generators with state: other steps on a later pass, from a certain caller, in a thread, or
    equal steps in other types.
    """
    main = threading.main_thread()
    subjects = (
        right_schedule(rng, 5, 3),
        simcoll.schedule("all_reduce", "ring", nranks=64),
        pieces_chain(3, 128),
    )
    for plain in rng.sample(subjects, 2) if quick else subjects:
        right = list(plain.blocks())
        variants = {
            "other steps": wrong_somewhere(rng, right),
            "fewer steps": right[:-1],
            "more steps": [*right, right[0]],
        }
        whens = {f"on pass {k}": (lambda s, k=k: s.passes == k) for k in (2, 3, 4, 5)}
        whens |= {
            "from pass 2 on": lambda s: s.passes >= 2,
            "on even passes": lambda s: s.passes % 2 == 0,
            "called from a plan": caller_in("simcoll.core.plan", "simcoll.binding"),
            "called from the emulator": caller_in("simcoll.emulator"),
            "called from the proof of lowering": caller_in("simcoll.proving.lowering"),
            "in another thread": lambda _: threading.current_thread() is not main,
            "once proved": has_proof,
        }
        for when in rng.sample(
            sorted(whens), (1 if plain.nranks > 9 else 3) if quick else len(whens)
        ):
            what = rng.choice(sorted(variants))
            wrong = variants[what]

            def prove(when=whens[when], wrong=wrong, plain=plain, right=right):
                source = Source(right, wrong, when)
                subject = simcoll.Schedule(
                    "attack", plain.layout, source, plain.nchannels, (), plain.divisible
                )
                source.schedule = subject
                proof = simcoll.verify(subject)
                errors = []

                def use():
                    try:
                        still_right(subject)
                    except Exception as error:  # noqa: BLE001
                        errors.append(error)

                thread = threading.Thread(target=use)
                for run in (use, use, lambda: (thread.start(), thread.join()), use):
                    run()
                    if errors:
                        raise errors[0]
                del proof
                raise UnaffectedError

            truth = Verdict(False, "", f"{what} {when}")
            label = f"{plain.title} n={plain.nranks}: {what} {when}"
            yield Case(label, False, (Trial("verify, then use", prove),), lambda truth=truth: truth)
        afresh = {
            "fresh arrays": lambda b: rewritten_block(b, "plain", "<i8"),
            "byte order": lambda b: rewritten_block(b, "plain", ">i8"),
            "narrow": lambda b: rewritten_block(b, "every second", "u1"),
            "unsigned": lambda b: rewritten_block(b, "a column of a table", "u8"),
        }
        for name, remake in afresh.items():

            def make(remake=remake, plain=plain, right=right):
                source = Source(right, right, lambda _: False)
                subject = simcoll.Schedule(
                    "attack", plain.layout, source, plain.nchannels, (), plain.divisible
                )
                source.right = [remake(block) for block in right]
                return subject

            yield used_case(
                f"{plain.title}: {name} from pass 1 on",
                True,
                make,
                lambda s, right=right: setattr(s.source, "right", right),
            )
    yield from _iterators(rng)
    yield from _same_bytes()


def has_proof(source) -> bool:
    return source.schedule.known.proof is not None


def _iterators(rng):
    plain = right_schedule(rng, 4, 3)
    blocks = list(plain.blocks())
    once = iter(blocks)

    def prove():
        subject = simcoll.Schedule(
            "attack", plain.layout, lambda: once, plain.nchannels, (), plain.divisible
        )
        simcoll.verify(subject)
        still_right(subject)
        raise UnaffectedError

    yield Case(
        "one iterator for all passes",
        False,
        (Trial("verify, then use", prove),),
        lambda: Verdict(False, "", "its second pass is empty"),
    )
    make = lambda: simcoll.Schedule(  # noqa: E731
        "attack", plain.layout, lambda: iter(blocks), plain.nchannels, (), plain.divisible
    )
    yield used_case("a new iterator for every pass", True, make, lambda _: None)


def _same_bytes():
    """Other steps whose bytes are the same: another byte order, or another division into
    columns.
    """
    empty = schedule(Collective("all_gather", 2), [], chunks=1)
    column = lambda *values: np.array(values, np.int64)  # noqa: E731
    right = [transfers([0, 1], 0, [0, 1], [1, 2]), transfers([0, 1], 0, [1, 0], [1, 2])]
    swapped = [Step(*(c.view(c.dtype.newbyteorder(">")) for c in step.columns)) for step in right]
    short = [
        Step(
            column(0, 1),
            column(0, 0),
            column(1, 1),
            column(1, 1),
            column(1, 1),
            np.zeros(2, np.int8),
            column(0, 0),
        ),
        right[1],
    ]
    for name, wrong in (("byte order", swapped), ("other columns", short)):

        def make(wrong=wrong):
            return simcoll.Schedule(
                "attack",
                empty.layout,
                Source(right, wrong, lambda s: s.schedule.known.proof is not None),
            )

        def prove(make=make):
            subject = make()
            subject.source.schedule = subject
            simcoll.verify(subject)
            still_right(subject)
            raise UnaffectedError

        yield Case(
            f"the same bytes once proved: {name}",
            False,
            (Trial("verify, then use", prove),),
            lambda: Verdict(False, "", "other values"),
        )
    yield used_case("the same steps", True, lambda: with_blocks(empty, right), lambda _: None)


def subclasses(rng, quick):
    """Subclasses that say one thing to one reader and another to the next; what runs must be what
    was proved.
    """
    plain = simcoll.schedule("all_reduce", "ring", nranks=rng.choice((3, 5, 64)))
    blocks = list(plain.blocks())
    state = {"lies": False}

    def lying_columns(step):
        columns = Step.columns.fget(step)
        return (*columns[:2], columns[0], *columns[3:]) if state["lies"] else columns

    def lying_steps(block):
        return iter(block.steps) if state["lies"] else Repeat.unrolled(block)

    def lying_target(layout, rank, chunk):
        source, piece = simcoll.Layout.wanted(layout, rank, chunk)
        return (source * 0, piece) if state["lies"] else (source, piece)

    class LyingArray(np.ndarray):
        def astype(self, *a, **k):
            return (
                np.zeros(self.shape, np.int64)
                if state["lies"]
                else np.asarray(self).astype(*a, **k)
            )

        def __getitem__(self, key):
            return np.asarray(self)[key] * 0 if state["lies"] else np.asarray(self)[key]

        def copy(self, order="C"):
            return np.asarray(self).copy(order) * (not state["lies"])

    class LyingNumber(int):
        def __int__(self):
            return 0 if state["lies"] else int.__add__(self, 0)

        __index__ = __int__

        def __mul__(self, other):
            return 0 if state["lies"] else int.__mul__(self, other)

    def arrays_of(block):
        if isinstance(block, Repeat):
            return dataclasses.replace(block, steps=tuple(arrays_of(step) for step in block.steps))
        return Step(*(np.array(column).view(LyingArray) for column in block.columns))

    def numbers_of(block):
        if not isinstance(block, Repeat):
            return block
        return dataclasses.replace(
            block, count=LyingNumber(block.count), stride=LyingNumber(block.stride)
        )

    def of_class(parent, **methods):
        """Like the given record, of a class that overrides some methods; None where its class
        cannot be overridden.
        """
        try:
            child = type("Lying", (parent,), methods)
        except TypeError:
            return None
        return lambda one: child(
            *(getattr(one, field.name) for field in dataclasses.fields(one) if field.init)
        )

    def many(record, among):
        return lambda: (
            None if record is None else with_blocks(plain, [record(one) for one in among])
        )

    step_of = of_class(Step, columns=property(lying_columns))
    repeat_of = of_class(Repeat, unrolled=lying_steps)
    layout_of = of_class(simcoll.Layout, wanted=lying_target)
    makers = {
        "steps": many(step_of, list(plain.steps())),
        "repeats": many(repeat_of, [block for block in blocks if isinstance(block, Repeat)]),
        "layouts": lambda: (
            None
            if layout_of is None
            else dataclasses.replace(plain, layout=layout_of(plain.layout))
        ),
        "arrays": lambda: with_blocks(plain, [arrays_of(block) for block in blocks]),
        "numbers": lambda: with_blocks(plain, [numbers_of(block) for block in blocks]),
    }
    for name, make in makers.items():

        def truthful(make=make):
            state["lies"] = False
            return make()

        yield lying_case(
            f"n={plain.nranks}, {name} that lie once proved",
            False,
            truthful,
            lambda: state.update(lies=True),
        )
        if name in ("arrays", "numbers"):
            yield lying_case(f"n={plain.nranks}, {name} that do not", True, truthful, lambda: None)


def lying_case(label, right, make, lie) -> Case:
    """Prove, begin to lie, then use; subclasses may also be refused in words when they are
    given.
    """

    def prove():
        subject = make()
        if subject is None:
            raise UnaffectedError
        proof = simcoll.verify(subject)
        lie()
        still_right(subject)
        if right is False:
            raise UnaffectedError
        return proof

    return Case(
        label,
        right,
        (Trial("verify, then use", prove, orders=False),),
        lambda: Verdict(bool(right), "", "it lies"),
    )


def plans(rng, quick):
    """Arrays of plans, changed after the proof: what a plan says it does is what it does, or the
    change is refused.
    """
    from simcoll.topology import crossbar

    kind = rng.choice(("all_gather", "reduce_scatter"))
    n = rng.randint(3, 5)
    places = {
        "sizes": lambda p: [p.sizes],
        "ranks": lambda p: [p.ranks],
        "steps": lambda p: [getattr(s, f.name) for s in p.steps() for f in dataclasses.fields(s)],
        "buffers": lambda p: [p.buffer_elements()],
        "blocks of scratch": lambda p: [p.schedule.layout.scratch],
        "the schedule's columns": lambda p: [c for s in p.schedule.steps() for c in s.columns],
    }

    def plan_of():
        return simcoll.bind(
            simcoll.schedule(kind, "ring", nranks=n), [rng.randint(1, 9) for _ in range(n)]
        )

    def spoil(arrays):
        for array in arrays:
            if isinstance(array, np.ndarray) and array.size:
                with contextlib.suppress(ValueError, TypeError):
                    array.flags.writeable = True
                    array[...] = array.reshape(-1)[0]

    for name, arrays in places.items():
        for early in (True, False):

            def prove(arrays=arrays, early=early):
                plan = plan_of()
                machine = crossbar(n, "50 GB/s", "1 us")
                fresh = simcoll.bind(plan.schedule, np.array(plan.sizes).tolist())
                whole = simcoll.emulate(fresh, machine)
                if not early:
                    simcoll.emulate(plan, machine)
                spoil(arrays(plan))
                result = simcoll.emulate(plan, machine)
                if result.wrong or result.time_fs != whole.time_fs:
                    raise WrongAtRunError(
                        f"{result.wrong} wrong elements, {result.time_fs} fs instead of "
                        f"{whole.time_fs}"
                    )
                raise UnaffectedError

            yield Case(
                f"{kind} n={n}: {name}{', after a run' * (not early)}",
                False,
                (Trial("bind, then use", prove),),
                lambda: Verdict(False, "", "changed"),
            )
    yield Case(
        f"{kind} n={n}, left alone",
        True,
        (Trial("bind, then use", lambda: still_right(plan_of().schedule), orders=False),),
        lambda: Verdict(True, "", ""),
    )


def threads(rng, quick):
    """One schedule that many threads prove and use at once."""
    plain = rng.choice(
        (
            right_schedule(rng, 6, 3),
            simcoll.schedule("all_reduce", "ring", nranks=64),
            pieces_chain(3, 128),
        )
    )
    blocks = list(plain.blocks())
    wrong = wrong_somewhere(rng, blocks)
    for right, steps in ((True, blocks), (False, wrong)):
        if verdict_on(with_blocks(plain, steps)).right != right:
            continue

        def prove(steps=steps):
            subject, proofs, errors = with_blocks(plain, steps), [], []

            def use():
                try:
                    proofs.append(simcoll.verify(subject))
                    simcoll.bind(subject, count_for(subject))
                except Exception as error:  # noqa: BLE001
                    errors.append(error)

            crowd, interval = (
                [threading.Thread(target=use) for _ in range(8)],
                sys.getswitchinterval(),
            )
            sys.setswitchinterval(1e-6)  # many more turns of the threads than usual
            try:
                for thread in crowd:
                    thread.start()
                for thread in crowd:
                    thread.join()
            finally:
                sys.setswitchinterval(interval)
            if errors and proofs:
                raise WrongAtRunError(
                    f"{len(proofs)} threads proved it, {len(errors)} did not: {errors[0]}"
                )
            if errors:
                raise errors[0]
            return proofs[0]

        yield Case(
            f"{plain.title} n={plain.nranks}, eight threads",
            right,
            (Trial("verify", prove, orders=False),),
            lambda r=right: Verdict(r, "", "one destination"),
        )


class Direct:
    """An all_gather as a picklable source, which can be told to do wrong."""

    def __init__(self, n) -> None:
        self.layout, self.n, self.wrong = simcoll.Layout(Collective("all_gather", n)), n, False

    def __call__(self):
        r = np.arange(self.n)
        for k in range(self.n - self.wrong):
            yield transfers(r, self.layout.input(), (r + k) % self.n, self.layout.output(r))


def stale(rng, quick):
    """Proved schedules that are pickled, copied or replaced, and proofs of another schedule."""
    n = rng.randint(2, 6)

    def proved_schedule():
        source = Direct(n)
        subject = simcoll.Schedule("direct", source.layout, source)
        simcoll.verify(subject)
        return subject

    doubles = {
        "pickled": lambda s: pickle.loads(pickle.dumps(s)),
        "copied": copy.copy,
        "copied deeply": copy.deepcopy,
        "replaced": dataclasses.replace,
        "pickled twice": lambda s: pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(s)))),
    }

    def spoilt(subject):
        subject.source.wrong = True
        return subject

    wrong = {
        f"{name}, its source changed": lambda s, d=double: spoilt(d(s))
        for name, double in doubles.items()
    }
    wrong |= {
        f"its source changed, then {name}": lambda s, d=double: d(spoilt(s))
        for name, double in doubles.items()
    }
    wrong |= {
        "another source": lambda s: dataclasses.replace(
            s, source=lambda: iter(list(s.steps())[1:])
        ),
        "another layout": lambda s: dataclasses.replace(
            s, layout=simcoll.Layout(Collective("all_gather", n), 2)
        ),
        "another collective": lambda s: (
            dataclasses.replace(
                s, layout=simcoll.Layout(Collective("gather", n, 0, in_place=True), 1)
            )
            if n > 1
            else None
        ),
        "the proof of another": lambda s: with_proof_of(s, n),
    }
    for right, variants in ((True, doubles), (False, wrong)):
        for label, change in variants.items():

            def prove(change=change, right=right):
                subject = change(proved_schedule())
                proof = simcoll.verify(subject)
                still_right(subject)
                if not right:
                    seen = verdict_on(subject)
                    if seen.right:
                        raise UnaffectedError
                return proof

            yield Case(
                f"{label} n={n}",
                right,
                (Trial("verify, then use", prove, orders=False),),
                lambda r=right: Verdict(r, "", "changed after the proof"),
            )


def with_proof_of(subject, n):
    """A wrong schedule that is given the proof of a right one."""
    source = Direct(n)
    source.wrong = True
    other = simcoll.Schedule("direct", source.layout, source)
    other.known.proof = subject.known.proof
    try:
        plan = simcoll.types.Plan(
            other,
            np.int64(3),
            3,
            np.dtype("f4"),
            simcoll.bind(subject, 3).reduction,
            np.arange(n),
            simcoll.bind(subject, 3).protocol,
            subject.known.proof,
        )
    except simcoll.SimcollError:
        return other
    raise AssertionError(f"{plan} has the proof of another schedule")


ATTACKS = (
    Attack("sources", "generators with state", sources),
    Attack("subclasses", "subclasses that lie once proved", subclasses),
    Attack("plans", "arrays of plans, changed after the proof", plans),
    Attack("threads", "many threads that prove one schedule at once", threads),
    Attack("stale proofs", "proved schedules that are pickled, copied or replaced", stale),
)
