"""Times against SimGrid SMPI, which runs MPI's own collectives on a simulated cluster.

Every number is a prediction of SimGrid SMPI 3.32 (https://simgrid.org), in nanoseconds, with its calibration factors neutralised: network
model CM02, latency and bandwidth factors 1, no cross traffic, no TCP window, no overheads. Every message there carries 16 more bytes
(``payload_size_ = size_ + 16`` in ``smpi_request.cpp``).
"""

from __future__ import annotations

import pytest

import simcoll
from simcoll.emulator.run import emulate
from simcoll.protocol import Protocol
from simcoll.topology.families import crossbar, fat_tree

SMPI = Protocol("smpi", header_bytes=16)

# One-way latency 2 us, 12.5 GB/s, full duplex, switch without contention. Per algorithm and rank count: 1 KiB, 1 MiB, 64 MiB; of an
# all-gather or all-to-all that is a rank's whole buffer.
CROSSBAR = {
    ("all_reduce", "ring"): {  # allreduce lr
        16: (60192.0, 217324.8, 10126368.0), 64: (252322.56, 417312.0, 10821807.36), 256: (1020816.0, 1187769.6, 11716128.0),
        1024: (4094782.56, 4262227.2, 14821551.36),
    },
    ("all_reduce", "recursive_doubling"): {  # allreduce rdb
        16: (8332.8, 343549.44, 21482841.6), 64: (12499.2, 515324.16, 32224262.4), 256: (16665.6, 687098.88, 42965683.2),
        1024: (20832.0, 858873.6, 53707104.0),
    },
    ("all_reduce", "rabenseifner"): {  # allreduce rab_rdb
        16: (16163.84, 173296.64, 10082339.84), 64: (24176.64, 189166.08, 10593661.44), 256: (32183.68, 199137.28, 10727495.68),
        1024: (40189.28, 207633.92, 10766958.08),
    },
    ("all_gather", "ring"): {  # allgather ring
        16: (30096.0, 108662.4, 5063184.0), 64: (126161.28, 208656.0, 5410903.68), 256: (510408.0, 593884.8, 5858064.0),
        1024: (2047391.28, 2131113.6, 7410775.68),
    },
    ("all_gather", "recursive_doubling"): {  # allgather rdb
        16: (8081.92, 86648.32, 5041169.92), 64: (12088.32, 94583.04, 5296830.72), 256: (16091.84, 99568.64, 5363747.84),
        1024: (20094.64, 103816.96, 5383479.04),
    },
    ("all_to_all", "pairwise"): {  # alltoall pair
        16: (30096.0, 108662.4, 5063184.0), 64: (126161.28, 208656.0, 5410903.68), 256: (510408.0, 593884.8, 5858064.0),
        1024: (2047391.28, 2131113.6, 7410775.68),
    },
}  # fmt: skip
SIZES = (1 << 10, 1 << 20, 1 << 26)


def time_ns(collective, algorithm, n, size, topology):
    schedule = simcoll.schedule(collective, algorithm, nranks=n)
    plan = schedule.bind(size // (1 if collective == "all_reduce" else n), "uint8", protocol=SMPI, unproved=True)
    return emulate(plan, topology, data="none", bound=False).time_fs / 1e6


@pytest.mark.parametrize("n", [16, 64, 256])
@pytest.mark.parametrize(("collective", "algorithm"), CROSSBAR)
def test_crossbar(collective, algorithm, n):
    topology = crossbar(n, "12.5 GB/s", "2 us")
    found = [time_ns(collective, algorithm, n, size, topology) for size in SIZES]
    assert found == pytest.approx(CROSSBAR[collective, algorithm][n], rel=1e-9)
