"""Random calls as a communication library plays them: a shipped machine or a part of it, a version,
variables, a size and an element type choose schedule, protocol, channels and pieces.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from simcoll.core.collective import KINDS
from simcoll.emulator.request import Request
from simcoll.errors import ConfigError
from simcoll.files.paths import shipped_files
from simcoll.libraries.corrected import costs
from simcoll.libraries.environment import Environment, parse_environment
from simcoll.libraries.isolated import bind_size
from simcoll.libraries.library import library_for
from simcoll.libraries.plans import library_call
from simcoll.libraries.prediction import COLLECTIVES
from simcoll.libraries.proved_choice import play
from simcoll.libraries.question import question_on
from simcoll.topology import load_topology

MOST_RANKS = 32
MOST_MESSAGES = 3000
"""The reference engine plays these in a twentieth of a second."""
VERSIONS = ("nccl-2.27", "nccl-2.28", "nccl-2.29", "nccl-2.30")
FORCED = ("Ring", "Tree", "NVLS", "NVLSTree", "^NVLS,NVLSTree", "Ring,Tree")
WAYS = (
    *("NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=NVL", "NCCL_SHM_DISABLE=1", "NCCL_NET=Socket"),
    *("NCCL_IB_HCA=mlx5_0", "NCCL_IB_HCA=mlx5_0,mlx5_1", "NCCL_NET_GDR_LEVEL=LOC"),
    *("NCCL_NET_GDR_LEVEL=SYS", "NCCL_CROSS_NIC=0", "NCCL_CROSS_NIC=1", "NCCL_PXN_DISABLE=1"),
    *("NCCL_BUFFSIZE=65536", "NCCL_BUFFSIZE=8388608", "RCCL_MSCCL_ENABLE=0"),
)
"""Variables that decide by which links data flows."""
KINDS_DRAWN = (*COLLECTIVES, "all_reduce", "all_reduce", "all_gather", "reduce_scatter")
DTYPES = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of an element."""


@lru_cache(maxsize=512)
def machine(name, nodes):
    """Some nodes of a shipped machine; None if it has not as many."""
    try:
        return load_topology(name, nodes=nodes)
    except ConfigError:
        return None


def part_of(rng, topology):
    """A machine with ranks on some of its GPUs: all, the first of each node, or any."""
    ranks = np.arange(topology.nranks)
    way = rng.random()
    if way < 0.25:
        box = topology.groups.get("box", np.zeros(topology.nranks, np.int64))
        first = np.searchsorted(box, box)
        ranks = ranks[ranks - first < int(rng.choice([1, 2, 4]))]
    elif way < 0.3:
        ranks = np.sort(rng.choice(ranks, int(rng.integers(2, len(ranks) + 1)), replace=False))
    if len(ranks) > MOST_RANKS:
        ranks = ranks[: int(rng.integers(2, MOST_RANKS + 1))]
    if 1 < len(ranks) < topology.nranks:
        topology = topology.with_ranks(ranks)
    if rng.random() < 0.1:
        topology = topology.degrade(int(rng.integers(topology.nlinks)), float(rng.uniform(0.2, 1)))
    return topology


def random_environment(rng) -> Environment:
    """Variables: an algorithm, a protocol, channels, ways of data, and what launches."""
    settings = [f"NCCL_ALGO={rng.choice(FORCED)}"] if rng.random() < 0.3 else []
    if rng.random() < 0.3:
        settings.append(f"NCCL_PROTO={rng.choice(['LL', 'LL128', 'Simple', '^LL128'])}")
    if rng.random() < 0.2:
        settings.append(str(rng.choice(WAYS)))
    if rng.random() < 0.2:
        limit = rng.choice(["MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS"])
        settings.append(f"NCCL_{limit}={rng.choice([1, 2, 4, 8, 16, 32])}")
    if rng.random() < 0.15:
        settings.append("NCCL_NVLS_ENABLE=0")
    launcher = str(rng.choice(["process", "process", "thread", "one-process", "torch", "graph"]))
    dtype = str(rng.choice(["", "float16", "int8"]))
    return replace(parse_environment(" ".join(settings)), launcher=launcher, dtype=dtype)


def library_case(rng):
    """Plan and topology of a call that a library can run, with few messages."""
    names = sorted(shipped_files("topologies"))
    while True:
        topology = machine(str(rng.choice(names)), int(rng.choice([1, 1, 1, 2, 2, 3, 4, 8])))
        if topology is None or topology.nranks < 2:
            continue
        topology = part_of(rng, topology)
        environment = random_environment(rng)
        kind, size_bytes = str(rng.choice(KINDS_DRAWN)), int(2 ** rng.uniform(0, 33))
        version = str(rng.choice(VERSIONS))
        library = library_for(None, topology)
        library = library_for(version, topology) if library.name == "nccl" else library
        try:
            if rng.random() < 0.7:
                played = chosen_plan(rng, kind, size_bytes, topology, library, environment)
            else:
                played = candidate_plan(rng, kind, size_bytes, topology, library, environment)
        except ConfigError:  # no library runs this here
            continue
        if played is not None and 0 < Request(*played).summary.messages <= MOST_MESSAGES:
            return played


def chosen_plan(rng, kind, size_bytes, topology, library, environment):
    """The library's choice with its time, in bytes or as a program binds it."""
    call = library_call(kind, size_bytes, topology, library=library, environment=environment)
    if rng.random() < 0.6:
        return call.plan(float(rng.choice([1.0, 1.0, 1.7]))), topology
    dtype = str(rng.choice(list(DTYPES)))
    slots = max(KINDS[kind].input_slots(topology.nranks), 1)
    count = max(1, size_bytes // slots // DTYPES[dtype])
    return call.bind(call.schedule, count, dtype, "sum"), topology


def candidate_plan(rng, kind, size_bytes, topology, library, environment):
    """Any algorithm and protocol that the library may choose, on its own routes; None if it is not
    played message by message.
    """
    question = question_on(kind, topology, library, environment)
    candidates = costs(question, np.array([float(size_bytes)]))
    cost = candidates[int(rng.integers(len(candidates)))]
    playable = play(cost, question.collective, size_bytes, topology, question.machine)
    if isinstance(playable, str):
        return None
    plan = bind_size(
        playable.schedule, playable.protocol, size_bytes, slight_bytes=playable.slight_bytes
    )
    return plan, playable.topology or topology
