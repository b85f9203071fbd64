"""Causes of slow collectives: what each is, how to check it, and what the check would show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

__all__ = ["CAUSES", "CauseName", "SlowCause", "cause_on"]


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
    repair
        What to do where the log itself names the cause; empty: the check.
    """

    title: str
    check: str
    shows: str
    repair: str = ""

    @property
    def after_log(self) -> str:
        """What to do next where the log names the cause, so that its check would repeat it."""
        return self.repair or self.check


CauseName: TypeAlias = Literal[
    "sockets",
    "few_nics",
    "no_gpudirect",
    "host_memory",
    "acs",
    "pcie",
    "slow_link",
    "spine",
    "shared",
    "congestion",
    "network_latency",
    "no_p2p",
    "through_network",
    "few_nvlinks",
    "nvls_off",
    "few_channels",
    "few_threads",
    "small_buffers",
    "protocol",
    "algorithm",
    "launch",
    "one_process",
    "plugin",
    "port_error",
    "host_settings",
    "cold",
]
"""Causes of slow collectives, the keys of :data:`CAUSES`."""

CAUSES: dict[CauseName, SlowCause] = {
    "sockets": SlowCause(
        "TCP sockets instead of RDMA",
        "NCCL_DEBUG=INFO, then grep 'Using network' and 'NET/IB'",
        "'Using network Socket', and why no RDMA device was taken",
        "ibv_devinfo on every node, inside the container; if it lists no active port, the"
        " driver, the devices in the container or the cable is missing; if it lists one, "
        "unset NCCL_IB_DISABLE and NCCL_NET, and install the network plugin of the cloud",
    ),
    "few_nics": SlowCause(
        "some of the NICs unused",
        "NCCL_DEBUG=INFO, then grep 'NET/IB : Using'; unset NCCL_IB_HCA",
        "fewer devices than the node has",
        "ibdev2netdev, or ibv_devinfo, on every node: all ports up and active? Then unset"
        " NCCL_IB_HCA, or name all of them in it",
    ),
    "no_gpudirect": SlowCause(
        "no GPUDirect RDMA: data passes through host memory",
        "NCCL_DEBUG=INFO, then grep 'via NET'; lsmod | grep nvidia_peermem",
        "'via NET/IB/0' without '/GDRDMA'",
        "modprobe nvidia_peermem on every node, or a driver and kernel with DMA-BUF; NIC "
        "and GPU below one switch (nvidia-smi topo -m), else NCCL_NET_GDR_LEVEL=SYS",
    ),
    "host_memory": SlowCause(
        "host memory that is slow to devices: one NUMA node per socket (NPS1) on AMD CPUs, or an "
        "IOMMU without iommu=pt",
        "lscpu | grep NUMA; cat /proc/cmdline",
        "one NUMA node per socket, or no iommu=pt",
        "four NUMA nodes per socket (NPS4) in the firmware of AMD hosts; iommu=pt in the kernel's "
        "command line",
    ),
    "acs": SlowCause(
        "ACS or an IOMMU, which send peer traffic through the CPU",
        "sudo lspci -vvv | grep ACSCtl",
        "'SrcValid+' on a switch between GPU and NIC",
        "switch ACS off in the firmware, or with setpci on every PCIe switch; on a "
        "virtual machine, ATS",
    ),
    "pcie": SlowCause(
        "PCIe at half of its width or generation, or across the CPU",
        "sudo lspci -vv | grep -E 'LnkSta:'; nvidia-smi topo -m",
        "'downgraded', or NIC and GPU at distance NODE or SYS",
        "sudo lspci -vv | grep -E 'LnkCap:|LnkSta:' for the devices of that line: reseat "
        "or replace what is below its capability",
    ),
    "slow_link": SlowCause(
        "one slow link, NIC or node, at whose pace all channels go",
        "ib_write_bw for each NIC between each pair of nodes; the same test on other nodes",
        "one NIC or node below the others",
        "ibstat, or ethtool, on that port: cable, transceiver, and the rate of the switch port",
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
        "nvidia-smi topo -p2p r; unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; in a container, "
        "--ipc=host and all GPUs visible; ACS and IOMMU off",
    ),
    "through_network": SlowCause(
        "GPUs of one node exchange data over the network",
        "NCCL_DEBUG=INFO, then grep 'via'; unset NCCL_SHM_DISABLE and NCCL_P2P_DISABLE",
        "'via NET' between ranks of one node",
        "unset NCCL_SHM_DISABLE and NCCL_P2P_DISABLE; in a container, --shm-size=1g "
        "--ulimit memlock=-1",
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
        "systemctl status nvidia-fabricmanager; unset NCCL_NVLS_ENABLE; no NVLS in a MIG "
        "or a partial virtual machine",
    ),
    "few_channels": SlowCause(
        "few channels",
        "NCCL_DEBUG=INFO, then grep 'coll channels'; unset NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS",
        "fewer channels than NCCL takes on its own",
        "unset NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS, also in /etc/nccl.conf and ~/.nccl.conf",
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
        "unset NCCL_PROTO, also in /etc/nccl.conf and ~/.nccl.conf; NCCL_TUNER_PLUGIN=none",
    ),
    "algorithm": SlowCause(
        "another algorithm than NCCL takes on this machine",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING; unset NCCL_ALGO; NCCL_TUNER_PLUGIN=none",
        "another algorithm in the lines 'Algo ... proto ...'",
        "unset NCCL_ALGO, also in /etc/nccl.conf and ~/.nccl.conf; NCCL_TUNER_PLUGIN=none",
    ),
    "launch": SlowCause(
        "overhead of the host before every operation (CPU affinity, virtual machine, debugging)",
        "the same test with one process for each GPU, bound to cores near it (numactl), "
        "and with nccl-tests in place of PyTorch",
        "less time at small sizes",
        "unset CUDA_LAUNCH_BLOCKING, and run again",
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
        "install the plugin that fits this NCCL, or put its folder in LD_LIBRARY_PATH; "
        "without one, NCCL_NET_PLUGIN=none says that it is meant",
    ),
    "port_error": SlowCause(
        "a port or cable with errors",
        "ibstat; dmesg | grep mlx5; perfquery -x, or ethtool -S",
        "a port that is down or counts errors",
        "replace the cable or the transceiver of that port, and reset its counters",
    ),
    "host_settings": SlowCause(
        "settings of the host: automatic NUMA balancing, IOMMU, ACS",
        "cat /proc/sys/kernel/numa_balancing; cat /proc/cmdline",
        "1, or no iommu=pt",
        "sysctl kernel.numa_balancing=0; iommu=pt in the kernel's command line",
    ),
    "cold": SlowCause(
        "times without warm-up",
        "nccl-tests with -w 5",
        "less time in the first rows",
    ),
}
"""All causes by name."""

_ON_AMD: dict[CauseName, SlowCause] = {
    "no_gpudirect": replace(
        CAUSES["no_gpudirect"],
        check="NCCL_DEBUG=INFO, then grep 'via NET'; grep PCI_P2PDMA /boot/config-$(uname -r)",
        repair="a kernel with CONFIG_PCI_P2PDMA and CONFIG_DMABUF_MOVE_NOTIFY, or the "
        "kernel module of ROCm; NCCL_DMABUF_ENABLE=1 with DMA-BUF; NIC and GPU "
        "below one switch (rocm-smi --showtopo)",
    ),
    "pcie": replace(
        CAUSES["pcie"], check="sudo lspci -vv | grep -E 'LnkSta:'; rocm-smi --showtopo"
    ),
    "shared": replace(
        CAUSES["shared"],
        check="repeat the test at another time; squeue; rocm-smi --showpids",
    ),
    "no_p2p": replace(
        CAUSES["no_p2p"],
        check="NCCL_DEBUG=INFO, then grep 'via'; rocm-smi --showtopoaccess; rocm-bandwidth-test",
        repair="unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; iommu=pt in the kernel's command line; "
        "in a container, all of /dev/kfd and /dev/dri, and --ipc=host",
    ),
    "few_nvlinks": SlowCause(
        "some xGMI links inactive or at a lower rate",
        "amd-smi xgmi; rocm-smi --showtopo; dmesg | grep -i xgmi",
        "links that are down, or fewer of them than the machine has",
    ),
    "port_error": replace(
        CAUSES["port_error"], check="ibstat, or rdma link; dmesg; ethtool -S of the NICs"
    ),
}
"""Causes whose words or commands are others on AMD's GPUs."""


def cause_on(name: CauseName, library: str) -> SlowCause:
    """A cause in the words of the GPUs that a library is for.

    >>> cause_on("few_nvlinks", "rccl").title
    'some xGMI links inactive or at a lower rate'
    """
    return _ON_AMD.get(name, CAUSES[name]) if library == "rccl" else CAUSES[name]
