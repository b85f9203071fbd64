"""Causes of slow collectives: what each is, how to check it, and what the check would show."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CAUSES", "SlowCause"]


@dataclass(frozen=True, slots=True)
class SlowCause:
    """A physical cause.

    Attributes
    ----------
    title
        The cause in a few words.
    check
        The next command or measurement.
    shows
        What it shows if this is the cause.
    """

    title: str
    check: str
    shows: str


CAUSES = {
    "sockets": SlowCause(
        "TCP sockets instead of RDMA",
        "NCCL_DEBUG=INFO, then grep 'Using network' and 'NET/IB'",
        "'Using network Socket', and why no RDMA device was taken",
    ),
    "few_nics": SlowCause(
        "some of the NICs unused",
        "NCCL_DEBUG=INFO, then grep 'NET/IB : Using'; unset NCCL_IB_HCA",
        "fewer devices than the node has",
    ),
    "no_gpudirect": SlowCause(
        "no GPUDirect RDMA: data passes through host memory",
        "NCCL_DEBUG=INFO, then grep 'via NET'; lsmod | grep nvidia_peermem",
        "'via NET/IB/0' without '/GDRDMA'",
    ),
    "acs": SlowCause(
        "ACS or an IOMMU, which send peer traffic through the CPU",
        "sudo lspci -vvv | grep ACSCtl",
        "'SrcValid+' on a switch between GPU and NIC",
    ),
    "pcie": SlowCause(
        "PCIe at half of its width or generation, or across the CPU",
        "sudo lspci -vv | grep -E 'LnkSta:'; nvidia-smi topo -m",
        "'downgraded', or NIC and GPU at distance NODE or SYS",
    ),
    "slow_link": SlowCause(
        "one slow link, NIC or node, at whose pace all channels go",
        "ib_write_bw for each NIC between each pair of nodes; the same test on other nodes",
        "one NIC or node below the others",
    ),
    "spine": SlowCause(
        "an oversubscribed or unevenly loaded spine",
        "the same test on as many nodes below one leaf",
        "the predicted time there",
    ),
    "shared": SlowCause(
        "another job on the same links",
        "repeat the test at another time; squeue; nvidia-smi",
        "times that vary from run to run",
    ),
    "congestion": SlowCause(
        "congestion or packet loss in the network (flow control: PFC, ECN, buffers)",
        "counters of NICs and switches during the test: ethtool -S, discards, CNP, pause frames",
        "counters that rise from the size on where the time jumps",
    ),
    "network_latency": SlowCause(
        "a longer way or a slower plugin for every message over the network",
        "ib_write_lat between two nodes; NCCL_DEBUG=INFO, then grep 'NET/'",
        "a latency above a few microseconds, or another plugin",
    ),
    "no_p2p": SlowCause(
        "no peer access between GPUs: data passes through host memory",
        "NCCL_DEBUG=INFO, then grep 'via'; p2pBandwidthLatencyTest",
        "'via SHM' where 'via P2P' is expected",
    ),
    "through_network": SlowCause(
        "GPUs of one node exchange data over the network",
        "NCCL_DEBUG=INFO, then grep 'via'; unset NCCL_SHM_DISABLE and NCCL_P2P_DISABLE",
        "'via NET' between ranks of one node",
    ),
    "few_nvlinks": SlowCause(
        "some NVLinks inactive or at a lower rate",
        "nvidia-smi nvlink --status; nvidia-smi topo -m; dmesg | grep -i nvlink",
        "inactive links, or fewer NV# than the machine has",
    ),
    "nvls_off": SlowCause(
        "no reduction in NVSwitch (NVLS)",
        "NCCL_DEBUG=INFO, then grep NVLS; systemctl status nvidia-fabricmanager",
        "'NVLS multicast support is not available', or 0 nvls channels",
    ),
    "few_channels": SlowCause(
        "few channels",
        "NCCL_DEBUG=INFO, then grep 'coll channels'; unset NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS",
        "fewer channels than NCCL takes on its own",
    ),
    "few_threads": SlowCause(
        "small blocks of threads",
        "unset NCCL_NTHREADS",
        "more bandwidth",
    ),
    "small_buffers": SlowCause(
        "small buffers of connections, so that messages are cut into small pieces",
        "unset NCCL_BUFFSIZE",
        "more bandwidth at large sizes",
    ),
    "protocol": SlowCause(
        "another protocol than NCCL takes on this machine",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING; unset NCCL_PROTO; NCCL_TUNER_PLUGIN=none",
        "another protocol in the lines 'Algo ... proto ...'",
    ),
    "algorithm": SlowCause(
        "another algorithm than NCCL takes on this machine",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING; unset NCCL_ALGO; NCCL_TUNER_PLUGIN=none",
        "another algorithm in the lines 'Algo ... proto ...'",
    ),
    "launch": SlowCause(
        "overhead of the host before every operation (CPU affinity, virtual machine, debugging)",
        "the same test with one process for each GPU, bound to cores near it (numactl), "
        "and with nccl-tests in place of PyTorch",
        "less time at small sizes",
    ),
    "one_process": SlowCause(
        "one process or thread that starts the operation on all GPUs of a node in turn",
        "mpirun -np NUMBER_OF_GPUS ... -g 1 (nccl-tests built with MPI=1)",
        "less time at small sizes",
    ),
    "plugin": SlowCause(
        "a network plugin that is missing or failed to load",
        "NCCL_DEBUG=INFO, then grep -i plugin",
        "'No plugin found' or an error of the loader",
    ),
    "port_error": SlowCause(
        "a port or cable with errors",
        "ibstat; dmesg | grep mlx5; perfquery -x, or ethtool -S",
        "a port that is down or counts errors",
    ),
    "host_settings": SlowCause(
        "settings of the host: automatic NUMA balancing, IOMMU, ACS",
        "cat /proc/sys/kernel/numa_balancing; cat /proc/cmdline",
        "1, or no iommu=pt",
    ),
    "cold": SlowCause(
        "times without warm-up",
        "nccl-tests with -w 5",
        "less time in the first rows",
    ),
}
"""All causes by name."""
