"""Facts of a run: lines as NCCL prints them, of several versions."""

from __future__ import annotations

import pytest

from simcoll.formats.logs.nccl_tests import load_log
from simcoll.formats.logs.run_facts import FactReader
from tests.support.nccl_logs import nccl_tests

LINES = [
    ("NET/IB : No device found.", "no network device", "NET/IB"),
    ("Using network Socket", "network", "Socket"),
    ("Using network AWS Libfabric", "network", "AWS Libfabric"),
    (
        "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_3:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        "NICs",
        "mlx5_0:1/RoCE mlx5_3:1/RoCE",
    ),
    ("NET/Socket : Using [0]eth0:10.0.0.1<0>", "socket interface", "eth0"),
    ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA", "transport", "NET/IB/GDRDMA"),
    ("Channel 03/1 : 0[0] -> 8[0] [send] via NET/IB/2(1)/GDRDMA", "transport", "NET/IB/GDRDMA"),
    (
        "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0",
        "transport",
        "NET/IB [receive]",
    ),
    ("Channel 00 : 0[b000] -> 1[d000] via SHM/direct/direct", "transport", "SHM/direct/direct"),
    ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "transport", "P2P/CUMEM/read"),
    ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "GPUDirect", "disabled"),
    ("NVLS multicast support is not available on dev 0", "NVLS", "not available"),
    (
        "24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels, 2 per peer",
        "channels",
        "24 coll channels, 0 collnet channels, 16 nvls channels",
    ),
    (
        "Pattern 4, crossNic 0, nChannels 8, bw 24.000000/24.000000, type NVL/PXB, sameChannels 1",
        "pattern",
        "Pattern 4, crossNic 0, nChannels 8, bw 24.000000/24.000000, type NVL/PXB",
    ),
    ("NET/OFI Selected Provider is efa", "provider", "efa"),
    ("NET/OFI Selected provider is efa, fabric is efa (found 4 nics)", "NIC count", "4"),
    (
        "NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=100000 context=0x55 ar=1",
        "NIC speed",
        "100000",
    ),
    ("+ PCI[6.0] - NIC/47000", "PCIe link", "PCI[6.0] - NIC"),
    ("Failed to open libibverbs.so[.1]", "no network device", "libibverbs"),
    ("NET/IB : Unable to open device mlx5_0", "no network device", "NET/IB"),
]


@pytest.mark.parametrize(("line", "kind", "value"), LINES)
def test_a_line_of_nccl(line, kind, value):
    reader = FactReader()
    for number in (3, 4):
        reader.feed(number, f"node-1:20:30 [0] NCCL INFO {line}")
    facts = reader.facts().of(kind)
    assert [(fact.value, fact.line, fact.count) for fact in facts] == [(value, 3, 2)]


def test_a_warning_is_one_fact_for_all_addresses():
    reader = FactReader()
    for address in ("10.0.0.1", "10.0.0.2"):
        reader.feed(1, f"node-1:2:3 [0] net.cc:9 NCCL WARN Call to connect to {address} failed")
    assert reader.facts().values("warning") == ("Call to connect to ... failed",)


def test_variables_of_other_libraries():
    reader = FactReader()
    reader.feed(1, "mpirun -x FI_PROVIDER=tcp -x CUDA_LAUNCH_BLOCKING=1 all_reduce_perf")
    assert reader.facts().values("variable") == ("FI_PROVIDER=tcp", "CUDA_LAUNCH_BLOCKING=1")


def test_each_run_of_a_file_has_its_own_facts(tmp_path):
    path = tmp_path / "log.txt"
    sizes = (2**20, 2**25, 2**30)
    runs = []
    for network in ("Socket", "IB"):
        runs += [f"node-1:20:30 [0] NCCL INFO Using network {network}"]
        runs += list(nccl_tests(sizes, 15 / 8, hosts=("a", "b"), version=3, rate=180.0))
    path.write_text("\n".join(runs))
    tables = load_log(path).tables
    assert [table.facts.values("network") for table in tables] == [("Socket",), ("IB",)]
