"""Training steps as programs: CPU time and memory for 1,024 and 16,384 GPUs.

``python benchmarks/steps.py`` runs every shape in a process of its own. A step has a pipeline of 16
stages (one forward, one backward; interleaved with more than one chunk), tensor parallelism of 8
inside a node, activations sent from stage to stage, and at its end the gradients reduced and the
parameters gathered over data parallelism. CPU seconds (user and system) of making the program, and
from the program to the time of the step, after a small run that loads the compiled loops.
"""

import argparse
import json
import resource
import subprocess
import sys
from time import process_time

import numpy as np

import simcoll
from simcoll.core.protocol import nccl
from simcoll.planning import Call, Compute, Program, Send
from simcoll.topology import load_topology

STAGES, TENSOR = 16, 8
SHAPES = {
    "1,024 GPUs": (128, 1),
    "1,024 GPUs, 8 chunks": (128, 8),
    "16,384 GPUs": (2048, 1),
    "16,384 GPUs, 8 chunks": (2048, 8),
}
MICRO_BATCHES = 32
MS = 10**12


def order(stage, stages, chunks, micro_batches):
    """(forward?, micro-batch, chunk) of a stage in Megatron's order: one forward, one backward;
    interleaved with more chunks.
    """
    total = micro_batches * chunks
    warm = stages - 1 - stage if chunks == 1 else 2 * (stages - 1 - stage) + (chunks - 1) * stages
    warm = min(warm, total)

    def item(number, forward):
        turn, within = divmod(number, stages * chunks)
        chunk, place = divmod(within, stages)
        return forward, turn * stages + place, chunk if forward else chunks - 1 - chunk

    found = [item(number, True) for number in range(warm)]
    for number in range(total - warm):
        found += [item(warm + number, True), item(number, False)]
    return found + [item(number, False) for number in range(total - warm, total)]


def fixed(array):
    array = np.ascontiguousarray(array, np.int64)
    array.setflags(write=False)
    return array


def program(nodes, chunks, micro_batches=MICRO_BATCHES):
    """A step: tensor parallel ranks are neighbours, then data parallel ones, then stages."""
    mesh = np.arange(nodes * 8).reshape(STAGES, -1, TENSOR)
    data = mesh.shape[1]
    ranks = [fixed(mesh[stage].reshape(-1)) for stage in range(STAGES)]
    groups = [fixed(mesh[stage].T) for stage in range(STAGES)]
    pairs = {
        (one, two): fixed(np.stack([ranks[one], ranks[two]], axis=1))
        for one in range(STAGES)
        for two in ((one + 1) % STAGES, (one - 1) % STAGES)
    }
    costs = nccl("Simple")
    reduce, gather = (
        simcoll.bind(
            simcoll.schedule(kind, "ring", nranks=data), size // data, "uint8", protocol=costs
        )
        for kind, size in (("reduce_scatter", 1 << 30), ("all_gather", 1 << 29))
    )
    operations, came, todo = (
        [],
        {},
        [order(stage, STAGES, chunks, micro_batches) for stage in range(STAGES)],
    )

    def put(operation):
        operations.append(operation)
        return len(operations) - 1

    def advance(stage):
        """The next work of a stage, if what it needs is on its way; and the message to the stage
        after it.
        """
        forward, batch, chunk = todo[stage][0]
        ends = (0, 0) if forward else (STAGES - 1, chunks - 1)
        key = (forward, batch, chunk, stage)
        first = (stage, chunk) == ends
        if not first and key not in came:
            return False
        todo[stage].pop(0)
        after = () if first else (came.pop(key),)
        done = put(Compute(ranks[stage], (1 if forward else 2) * MS // chunks, "compute", after))
        if (stage, chunk) != ((STAGES - 1, chunks - 1) if forward else (0, 0)):
            step = 1 if forward else -1
            beyond = stage + step
            other, part = beyond % STAGES, chunk + beyond // STAGES
            stream = (
                f"{'forward' if forward else 'backward'} "
                f"{min(stage, other) % 2 if abs(stage - other) == 1 else 1}"
            )
            came[forward, batch, part, other] = put(
                Send(pairs[stage, other], 16 << 20, stream, done, costs)
            )
        return True

    while any(todo):
        moved = [advance(stage) for stage in range(STAGES) if todo[stage]]
        if not any(moved):
            raise RuntimeError("the pipeline does not move")
    for stage in range(STAGES):
        done = max(
            n
            for n, o in enumerate(operations)
            if isinstance(o, Compute) and o.ranks is ranks[stage]
        )
        reduced = put(Call(reduce, groups[stage], "data", done))
        put(Call(gather, groups[stage], "data", reduced))
    return Program(nodes * 8, operations)


def measured(name):
    nodes, chunks = SHAPES[name]
    topology = load_topology("superpod-h100", nodes=nodes)
    simcoll.emulate(program(16, 1, 2), topology, data="none", quotient=True)
    before = process_time()
    made = program(nodes, chunks)
    built = process_time()
    result = simcoll.emulate(made, topology, data="none")
    return {
        "what": name,
        "rows": result.path,
        "step_ms": result.time_fs / 1e12,
        "operations": len(made.operations),
        "build_s": round(built - before, 2),
        "play_s": round(process_time() - built, 2),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


if __name__ == "__main__":
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--shape", choices=SHAPES)
    shape = given.parse_args().shape
    if shape:
        print(json.dumps(measured(shape)))
    else:
        for each in SHAPES:
            subprocess.run([sys.executable, __file__, "--shape", each], check=True)
