"""Why a statement has neither a case nor a check: one reason for each."""

from __future__ import annotations

__all__ = ["REASONS"]

_OF_NCCL = "is on nccl and needs GPUs"
_LAUNCH = "is on how processes start: the suite's are started by its runner"
_UNDEFINED = "leaves the result undefined, so nothing could be compared"
_TEXT = "is on texts that are for people"
_WAITS = "would wait for the default timeout of 30 minutes"
_ENDS = "ends or hangs processes, which the further statements need"
_DEBUG = "needs TORCH_DISTRIBUTED_DEBUG in the environment before torch starts"

REASONS = {
    "BK-01": "is the sum of the statements on gloo's operations",
    "BK-02": "needs GPUs",
    "BK-03": _OF_NCCL,
    "BK-04": "needs a torch that was built with MPI",
    "BK-08": "would leave a backend registered in the suite's processes",
    "BK-09": "would leave a backend registered in the suite's processes",
    "IN-03": "is on time: whether all have called cannot be seen from one call that returns",
    "IN-07": _LAUNCH,
    "IN-08": _LAUNCH,
    "IN-13": "is a promise of the caller",
    "IN-18": "depends on the devices of the machine",
    "IN-19": "needs GPUs",
    "IN-22": "depends on how torch was built",
    "IN-28": _ENDS,
    "IN-29": "cannot be seen from a program",
    "IN-30": "depends on the network interfaces of the machine",
    "GR-15": "needs a torch that was built with MPI",
    "GR-22": "torch does something else than one expects: it gives the ranks of another group",
    "GR-23": "is a promise of the caller, which hangs when it is broken",
    "NM-07": "torch does something else than its documentation says: it raises",
    "DM-25": "differs between releases of torch",
    "DM-26": "hangs in torch",
    "PP-11": "gloo's timeout closes connections, which the further statements need",
    "PP-14": _OF_NCCL,
    "PP-17": _UNDEFINED,
    "PP-22": "ends the connections of gloo, which the further statements need",
    "PP-23": _UNDEFINED,
    "PP-35": _OF_NCCL,
    "WK-13": _ENDS,
    "WK-14": "needs GPUs",
    "AR-10": _UNDEFINED,
    "AG-06": "is refused by gloo, and undefined elsewhere",
    "AT-03": "is a promise of the caller",
    "GA-05": "is a promise of the caller",
    "SC-05": "is a promise of the caller",
    "A1-07": "is refused by gloo on some ranks alone, which then leave the others",
    "OB-12": "is on the number of messages, which no interface shows",
    "RO-06": "leaves open whether an average divides before or after: the kit accepts both",
    "RO-12": "depends on the order of the ranks' contributions",
    "MB-04": "gloo's timeout closes connections, which the further statements need",
    "MB-07": "gloo's timeout closes connections, which the further statements need",
    "MB-08": _TEXT,
    "MB-09": _WAITS,
    "DB-02": _DEBUG,
    "DB-03": _DEBUG,
    "DB-04": _DEBUG,
    "DB-05": _DEBUG,
    "DB-06": _DEBUG,
    "DB-07": "is a fault of torch in debug mode",
    "DB-08": _TEXT,
    "DB-09": _UNDEFINED,
    "DB-10": "needs a person at a debugger",
    "ST-05": "ends the server of torch's TCPStore",
    "ST-14": "is refused by some of torch's stores, and not by others",
    "ST-29": "is on a server that a launcher opens",
    "LA-01": _LAUNCH,
    "LA-02": _LAUNCH,
    "LA-05": "is on the profiler",
    "LA-06": "is on functions that torch has removed",
}
"""The reason of each statement that cannot be played, whatever the backend."""
