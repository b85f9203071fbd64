"""Reports as NCCL's RAS and inspector write them."""

from __future__ import annotations

import json

__all__ = ["call", "inspector", "ras"]

HEALTHY = {
    "init_state": 0,
    "async_error": 0,
    "finalize_called": False,
    "destroy_flag": False,
    "abort_flag": False,
}


def ras(counts, *, missing=(), size=None, status=()):
    ranks = [
        {
            "rank": rank,
            "host": "10.0.0.1",
            "pid": 7 + rank,
            "cuda_dev": 0,
            "nvml_dev": rank,
            "status": HEALTHY | dict(status).get(rank, {}),
            "collective_counts": {"AllReduce": count, "Broadcast": 1},
        }
        for rank, count in counts.items()
    ]
    gone = [
        {"rank": rank, "host": "10.0.0.2", "pid": 9, "cuda_dev": 1, "nvml_dev": 1, "status": state}
        for rank, state in missing
    ]
    document = {
        "nccl_version": "2.28.3",
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 12090,
        "timestamp": "2026-01-01 00:00:00",
        "communicators_count": 1,
        "communicators": [
            {
                "hash": "0xfeed",
                "secondary_hash": "0x1:0x2",
                "size": size or len(ranks) + len(gone),
                "ranks_count": len(ranks),
                "missing_ranks_count": len(gone),
                "ranks": ranks,
                "missing_ranks": gone,
            }
        ],
        "ras": {"collection_time_sec": 0.01, "timeouts_count": 0},
    }
    return json.dumps(document, indent=2).encode()


def call(rank, number, *, kind="AllReduce", size=1024, time=100, n=4, name="0x7f"):
    return {
        "header": {"id": name, "rank": rank, "n_ranks": n, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "hostname": f"node-{rank}",
            "pid": 5,
        },
        "coll_perf": {
            "coll": kind,
            "coll_sn": number,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": time,
            "coll_algobw_gbs": 1.5,
            "coll_busbw_gbs": 2.5,
        },
    }


def inspector(rows, indent=None):
    return "\n".join(json.dumps(row, indent=indent) for row in rows).encode()
