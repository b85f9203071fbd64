"""Write ``measurements/step_mfu.csv``: the utilisation that published steps of a model reached.

Run from the repository: ``python benchmarks/pages/published_mfu.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simcoll.planning.measured.step_rows import published_steps
from simcoll.training.chunks import ChunkCosts

TABLES = (
    "nemo-2024",
    "megatron-bridge-2025",
    "megatron-bridge-2026",
    "megatron-bridge-cards",
    "megatron-lm-2026",
    "dgxc-2502",
    "dgxc-2025",
    "llama3-paper",
    "mlperf-405b-h100",
    "automodel-2025",
    "deepseek-v3-paper",
)
"""Tables of jobs that their authors tuned; others sweep settings, run eager models, or (torchtitan) on
H100 of 500 W. Steps that recompute whole layers do not count: they could be faster with more memory.
"""
HEAD = "gpu,dtype,layers,hidden,experts,sequence,steps,lowest,highest\n"


def utilisation_lines() -> Iterator[str]:
    """The lines of the file: one for each GPU, data type, model and length of a sequence."""
    shares: dict[tuple[str, str, int, int, int, int], list[float]] = {}
    for name in TABLES:
        for row in published_steps(name).rows:
            design, model = row.design, row.design.model
            if design.parallel.recompute == "full":
                continue
            peak = design.gpu.peak(design.dtype) * design.mesh.nranks
            key = (
                design.gpu.name,
                design.dtype,
                model.layers,
                model.hidden,
                model.experts,
                design.sequence,
            )
            share = ChunkCosts(design).flops()[0] / row.seconds / peak
            shares.setdefault(key, []).append(share)
    yield HEAD
    for key, values in sorted(shares.items()):
        cells = [*map(str, key), str(len(values)), f"{min(values):.4f}", f"{max(values):.4f}"]
        yield ",".join(cells) + "\n"


if __name__ == "__main__":
    file = Path(__file__).parents[2] / "measurements" / "step_mfu.csv"
    file.write_text("".join(utilisation_lines()), encoding="utf-8")
