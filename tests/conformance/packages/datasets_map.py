"""``datasets``: map and filter in two processes of each rank, then a sum over the ranks."""

from __future__ import annotations

import datasets
import torch
import torch.distributed as dist


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = dist.get_rank()
    if device == "cuda":
        torch.cuda.set_device(rank)
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"x": list(range(40))})
    rows = rows.map(lambda row: {"y": row["x"] ** 2 + rank}, num_proc=2)
    rows = rows.filter(lambda row: row["y"] % 3 == 0, num_proc=2)
    total = torch.tensor([float(sum(rows["y"])), float(len(rows))], device=device)
    own = total.tolist()
    dist.all_reduce(total)
    print(f"\n{rank}", *own, *total.tolist(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
