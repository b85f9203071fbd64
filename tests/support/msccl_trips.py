"""Shipped algorithms to MSCCL XML and back: the same proof, and the same data bit for bit, or a
refusal that names why.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import Collective
from simcoll.emulator import emulate
from simcoll.errors import ConfigError
from simcoll.formats import parse_msccl_xml
from simcoll.formats.schedules.msccl_writer import dump_msccl_xml
from simcoll.proving import program_schedule, verify_program
from simcoll.testing.examples import needed_params
from simcoll.topology import crossbar

SPOKEN = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"}


@dataclass(slots=True)
class Trips:
    """Algorithms that went there and back, and those that were refused, with the reason."""

    made: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def made(found, nranks, *, in_place=False):
    """The schedule of an algorithm; None where it does not serve so many ranks."""
    pairs = (
        tuple((rank, (rank + 1) % nranks) for rank in range(nranks))
        if found.collective == "send_recv"
        else ()
    )
    collective = Collective(found.collective, nranks, pairs=pairs, in_place=in_place)
    box = {"box": 2} if found.name == "hierarchical" else {}
    try:
        return simcoll.schedule(
            collective, found.name, **needed_params(found.collective, found.name, nranks), **box
        )
    except ConfigError:
        return None


def outputs(schedule, elements):
    """What every rank holds after a run on numbers whose sums show their order."""
    plan = simcoll.bind(schedule, elements, "float32")
    rng = np.random.default_rng(5)
    inputs = [
        rng.standard_normal(plan.visible_elements()[rank, 0]).astype(np.float32)
        if plan.has(rank, 0)
        else None
        for rank in range(plan.nranks)
    ]
    return emulate(
        plan, crossbar(plan.nranks, "50 GB/s", "1 us"), data=inputs, bound=False, engine="simpy"
    ).outputs


def check_trip(schedule):
    """Write a schedule, read it back, and compare proof and data."""
    program = parse_msccl_xml(dump_msccl_xml(schedule))
    proof = verify_program(program)
    assert (proof.data, proof.order, proof.least_depth) == (True, simcoll.verify(schedule).order, 0)
    again = program_schedule(program)
    assert (again.collective, again.layout.chunks) == (schedule.collective, schedule.layout.chunks)
    elements = 3 * schedule.layout.chunks
    for ours, theirs in zip(outputs(schedule, elements), outputs(again, elements), strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or ours.tobytes() == theirs.tobytes()


def expected_refusal(schedule):
    """What a refusal must say; empty for a schedule that the format has words for, within its
    limits.
    """
    collective = schedule.collective
    if collective.kind not in SPOKEN:
        return f"the runtimes have no {collective.kind}"
    if any((step.op > 1).any() for step in schedule.steps()):
        return "operation '"
    return (
        "no all_to_all in place" if collective.kind == "all_to_all" and collective.in_place else ""
    )


def trips(nranks, *, in_place):
    """Every shipped algorithm that serves so many ranks, there and back; a refusal that is not
    expected is raised.
    """
    found = Trips()
    for algorithm in ALGORITHMS:
        schedule = made(algorithm, nranks, in_place=in_place)
        if schedule is None:
            continue
        name, said = f"{algorithm.collective} {algorithm.name}", expected_refusal(schedule)
        if not said:
            check_trip(schedule)
            found.made.append(name)
            continue
        try:
            dump_msccl_xml(schedule)
        except ConfigError as error:
            if said not in str(error):
                raise
            found.refused[name] = str(error)
        else:
            raise AssertionError(
                f"{name} of {nranks} ranks was written; expected a refusal: {said}"
            )
    return found
