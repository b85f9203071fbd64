r"""How far a step on TPUs would be off: MaxText's 32B model on 256 TPU v5e.

``python -m benchmarks.hlo_tpu TEXT`` prints the compiler's own cycles and the collectives on the
torus beside the step that MaxText published: 66.86 % of the peak
(src/maxtext/configs/tpu/v5e/README.md in MaxText 0.2.5). TEXT is the dump of XLA that ends in
after_codegen.txt, of MaxText's own training step, compiled without a TPU (Python 3.12 or later,
some 16 minutes of a core)::

    XLA_FLAGS='--xla_dump_to=dump --xla_dump_hlo_as_text' TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu \
    DECOUPLE_GCLOUD=TRUE python -m maxtext.trainers.pre_train.train_compile \
    maxtext/configs/base.yml compile_topology=v5e-256 compile_topology_num_slices=1 \
    global_parameter_scale=32 per_device_batch_size=4 remat_policy=full attention=flash \
    max_target_length=2048 \
    enable_checkpointing=false dataset_type=synthetic run_name=x base_output_directory=out
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from simcoll.jobs.hlo_program import HloStart, HloWork, steps_with_counts
from simcoll.jobs.hlo_workload import load_hlo
from simcoll.libraries.isolated import alone_fs
from simcoll.libraries.plans import library_plan
from simcoll.topology import load_topology

LAYERS, WIDTH, HEADS, HEAD, HIDDEN, VOCABULARY = 32, 8192, 64, 128, 28672, 32000
TOKENS, SEQUENCE = 4 * 2048, 2048  # of a chip
CLOCK = 1.5e9  # 197 TFLOPS of four matrix units of 128 x 128 multiply-adds
PEAK = 197e12
PUBLISHED = 0.6686


def hand_count() -> float:
    """FLOPs of the products on a chip: forward, again but for the last product of each layer, whose
    result no gradient needs, and twice backward.
    """
    attention, mlp = 4 * WIDTH * HEADS * HEAD, 3 * WIDTH * HIDDEN
    layer = 4 * (attention + mlp) - WIDTH * HIDDEN
    return 2 * TOKENS * (LAYERS * layer + 3 * WIDTH * VOCABULARY)


def main() -> None:
    """Print the parts of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    program, machine = load_hlo(parser.parse_args().text), load_topology("tpu-v5e")
    cycles: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for part, count in steps_with_counts(program.steps):
        if isinstance(part, HloWork):
            cycles["products" if part.cost.flops else "memory"] += part.cycles * count
        elif isinstance(part, HloStart):
            call, place = part.collective, machine.with_ranks(part.collective.groups[0])
            plan = library_plan(call.kind, call.size_bytes, place)
            name = f"{call.kind}, {'waited for' if call.synchronous else 'beside work'}"
            seconds[name] += count * alone_fs(plan, place) / 1e15
    for name, count in program.flops.items():
        print(f"{name:28}{count / PEAK:8.3f} s at the peak")
    print(f"products by hand            {hand_count() / PEAK:8.3f} s at the peak")
    for name, count in cycles.items():
        print(f"{name:28}{count / CLOCK:8.3f} s by the compiler's cycles")
    for name, time in sorted(seconds.items()):
        print(f"{name:28}{time:8.3f} s on the torus")
    parameters = LAYERS * WIDTH * (4 * HEADS * HEAD + 3 * HIDDEN) + WIDTH * VOCABULARY
    model = (6 * parameters + 12 * LAYERS * SEQUENCE * HEADS * HEAD) * TOKENS / PEAK
    kernels = sum(count for name, count in program.flops.items() if "attention" in name) / PEAK
    waited = sum(time for name, time in seconds.items() if "waited" in name)
    step = cycles.total() / CLOCK + kernels + waited
    bound = sum(program.flops.values()) / PEAK
    print(f"published:                   {model / PUBLISHED:8.3f} s, {PUBLISHED:.1%} of the peak")
    print(f"cycles, attention at the peak, what is waited for: {step:.3f} s, {model / step:.1%}")
    print(f"all products at the peak, nothing else: {bound:.3f} s, {model / bound:.1%}")


if __name__ == "__main__":
    main()
