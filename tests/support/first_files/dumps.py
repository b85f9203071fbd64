"""Topology dumps of NCCL."""

from __future__ import annotations

from simcoll.topology import load_topology
from simcoll.topology.machine import machine
from tests.support.first_files import FirstFile, Reader

GBPS = 10**15
BRIDGE, GPU, NIC = "0x060400", "0x030200", "0x020700"
GEN4, GEN5 = "16.0 GT/s PCIe", "32.0 GT/s PCIe"


def pci(busid, inside, kind=BRIDGE, speed=GEN5, width=16, extra=""):
    return (
        f'<pci busid="{busid}" class="{kind}" {extra}link_speed="{speed}" link_width="{width}">'
        f"{inside}</pci>"
    )


def gpu(rank, links="", sm=90, busid=None, speed=GEN5, width=16, extra=""):
    place = busid or f"0000:{0x10 + rank:02x}:00.0"
    card = f'<gpu dev="{rank}" sm="{sm}" rank="{rank}" gdr="1" {extra}>{links}</gpu>'
    return pci(place, card, GPU, speed, width)


def nic(number, speed=400_000, busid=None, name="mlx5_{}", link=GEN5, width=16, extra=""):
    place = busid or f"0000:{0x60 + number:02x}:00.0"
    port = (
        f'<net name="{name.format(number)}" dev="{number}" speed="{speed}" port="1" '
        f'guid="0x{number + 1}" maxconn="131072" gdr="1" {extra}/>'
    )
    return pci(place, f"<nic>{port}</nic>", NIC, link, width)


def cpu(number, inside, vendor="GenuineIntel", family=6, model=143, arch="x86_64", extra=""):
    return (
        f'<cpu {extra}numaid="{number}" affinity="0000,00000000,ffffffff" arch="{arch}" '
        f'vendor="{vendor}" familyid="{family}" modelid="{model}">{inside}</cpu>'
    )


def system(*cpus, head="", version=1):
    return f'{head}<system version="{version}">{"".join(cpus)}</system>\n'.encode()


def nvlink(target, count, kind=GPU):
    return f'<nvlink target="{target}" count="{count}" tclass="{kind.lower()}"/>'


def switches(*counts):
    return "".join(
        nvlink(f"0000:{7 + place:02x}:00.0", count, "0x068000")
        for place, count in enumerate(counts)
    )


CUBE = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2}
CUBE |= {(2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2}


def volta(rank):
    links = "".join(
        nvlink(f"0000:{0x10 + (b if a == rank else a):02x}:00.0", count)
        for (a, b), count in CUBE.items()
        if rank in {a, b}
    )
    return gpu(rank, links, sm=70, speed="8.0 GT/s PCIe")


def dgx_1():
    def switch(number):
        inside = volta(2 * number) + volta(2 * number + 1)
        inside += nic(number, 100_000, link="8.0 GT/s PCIe")
        return pci(f"0000:0{number + 1}:00.0", inside, speed="8.0 GT/s PCIe")

    return system(cpu(0, switch(0) + switch(1), model=79), cpu(1, switch(2) + switch(3), model=79))


def switched(links, sm, speed, nic_speed, per_switch=2, gpus=8, **cpus):
    """GPUs on NVSwitch with a NIC each, some of them below a PCIe switch."""

    def switch(number):
        members = range(number * per_switch, (number + 1) * per_switch)
        inside = "".join(
            gpu(rank, links, sm, speed=speed) + nic(rank, nic_speed, link=speed) for rank in members
        )
        return pci(f"0000:a{number}:00.0", inside, speed=speed)

    count = gpus // per_switch
    half = count // 2
    return system(
        cpu(0, "".join(map(switch, range(half))), **cpus),
        cpu(1, "".join(map(switch, range(half, count))), **cpus),
    )


AMD = {"vendor": "AuthenticAMD", "family": 143, "model": 49}
ARM = {"vendor": "ARM", "family": 8, "model": 0, "arch": "arm64"}
C2C = '<c2c bw="44712" count="10"/>'


def grace(links, sm, per_chip, nic_speed, count, extra=""):
    """Chips of Grace with GPUs by NVLink-C2C."""
    return system(
        *(
            cpu(
                number,
                "".join(
                    gpu(rank, C2C + links, sm, extra=extra)
                    for rank in range(number * per_chip, (number + 1) * per_chip)
                )
                + nic(number, nic_speed),
                **ARM,
            )
            for number in range(count)
        )
    )


def summary(path):
    """GPUs; how they are joined, GB/s of a GPU, and whether switches reduce; NICs that they use,
    and the rate of these together between two nodes.
    """
    alone = load_topology(path, nodes=1)
    facts = machine(alone)
    inside = (facts.inside, facts.gpu_uBps // GBPS, facts.switch_reduce)
    if not any(kind == "nic" for kind in load_topology(path, nodes=1).node_kinds) and not any(
        b"<net" in line for line in path.read_bytes().split(b"\n")
    ):
        return (alone.nranks, *inside)
    facts = machine(load_topology(path, nodes=2))
    return (alone.nranks, *inside, facts.nics, facts.nic_uBps // GBPS)


DUMPS = Reader(
    "topology dumps of NCCL",
    summary,
    (
        FirstFile("DGX-1: NVLinks between GPUs", dgx_1(), (8, "nvlink", 150, False, 4, 50)),
        FirstFile(
            "DGX A100: two GPUs and two NICs below a switch",
            switched(switches(*[2] * 6), 80, GEN4, 200_000, **AMD),
            (8, "nvlink", 300, False, 8, 200),
        ),
        FirstFile(
            "HGX H100: four NVSwitches",
            switched(switches(5, 5, 4, 4), 90, GEN5, 400_000, per_switch=1),
            (8, "nvlink", 450, True, 8, 400),
        ),
        FirstFile(
            "B200: two NVSwitches",
            switched(switches(9, 9), 100, GEN5, 400_000, per_switch=1),
            (8, "nvlink", 900, True, 8, 400),
        ),
        FirstFile(
            "GH200: a chip with a GPU and a NIC",
            grace("", 90, 1, 200_000, 1),
            (1, "", 0, False, 1, 25),
        ),
        FirstFile(
            "a tray of GB200",
            grace(switches(18), 100, 2, 400_000, 2),
            (4, "nvlink", 900, True, 2, 100),
        ),
        FirstFile(
            "DGX Spark: PCIe at 2.5 GT/s beside C2C",
            system(
                cpu(
                    0,
                    gpu(0, '<c2c bw="43125" count="8"/>', 121, speed="2.5 GT/s PCIe", width=1)
                    + nic(0, 200_000, name="rocep1s0f{}"),
                    **ARM,
                )
            ),
            (1, "", 0, False, 1, 25),
        ),
        FirstFile(
            "two GPUs of a workstation",
            system(cpu(0, gpu(0, sm=89, speed=GEN4) + gpu(1, sm=89, speed=GEN4, width=8))),
            (2, "pcie", 12, False),
        ),
        FirstFile(
            "a virtual machine: one CPU, rates unknown, a bundle to nowhere",
            system(
                cpu(
                    -1,
                    "".join(
                        gpu(
                            rank,
                            nvlink("fffffff:ff:ff.0", 12, "0x068000"),
                            80,
                            speed="Unknown",
                            width=255,
                        )
                        for rank in range(8)
                    )
                    + "".join(nic(k, 200_000, link="", width=0) for k in range(8)),
                    **AMD,
                )
            ),
            (8, "nvlink", 300, False, 8, 200),
        ),
        FirstFile(
            "bonded ports of RoCE",
            system(
                cpu(
                    0,
                    "".join(
                        pci(
                            f"0000:b{k}:00.0",
                            gpu(k, switches(5, 5, 4, 4)) + nic(k, 400_000, name="mlx5_bond_{}"),
                        )
                        for k in range(4)
                    ),
                )
            ),
            (4, "nvlink", 450, True, 4, 200),
        ),
        FirstFile(
            "EFA devices of a cloud, with attributes of its plugin",
            system(
                cpu(
                    0,
                    "".join(
                        pci(
                            f"0000:b{k}:00.0",
                            gpu(k, switches(5, 5, 4, 4))
                            + "".join(
                                nic(
                                    4 * k + port,
                                    100_000,
                                    name="rdmap{}s0",
                                    extra='latency="75.0" coll="1" keep="1"',
                                )
                                for port in range(4)
                            ),
                        )
                        for k in range(4)
                    ),
                )
            ),
            (4, "nvlink", 450, True, 4, 200),
        ),
        FirstFile(
            "with a declaration and a comment",
            system(
                cpu(0, gpu(0) + gpu(1)),
                head='<?xml version="1.0" encoding="UTF-8"?>\n<!-- node 7 -->\n',
            ),
            (2, "pcie", 48, False),
        ),
    ),
)
