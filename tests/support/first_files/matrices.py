"""Matrices of nvidia-smi topo -m, rocm-smi and amd-smi."""

from __future__ import annotations

import json

from simcoll.errors import ConfigError
from simcoll.topology.readers.smi_matrix import parse_smi_matrix
from tests.support.first_files import FirstFile, Reader, Refusal

RATES = {
    "nvlink_bandwidth": "25 GB/s",
    "pcie_bandwidth": "32 GB/s",
    "nic_bandwidth": "50 GB/s",
    "cpu_bandwidth": "20 GB/s",
}
MARK, PLAIN = "\x1b[4m", "\x1b[0m"
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def always(answer):
    """The same answer for all devices."""
    return lambda *_: answer


def matrix(gpus, names, word, *, numa=None, tail="", mark=True, blank="\t"):
    """The matrix of GPUs and NICs, of the word between each two devices; ``numa``: that of a GPU
    (None: no columns of it).
    """
    labels = [f"GPU{gpu}" for gpu in range(gpus)] + list(names)
    columns = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"] if numa else []
    head = blank.join(["", *labels, *columns])
    lines = [f"{MARK}{head}{PLAIN}" if mark else head]
    for a, label in enumerate(labels):
        cells = [" X " if a == b else word(min(a, b), max(a, b)) for b in range(len(labels))]
        places = [f"{32 * numa(a)}-{32 * numa(a) + 31}", str(numa(a)), "", "N/A"] if numa else []
        lines.append(blank.join([label, *cells, *(places if a < gpus else [])]))
    return ("\n".join(lines) + "\n" + LEGEND + tail).encode()


def nic_legend(names):
    """The legend of NICs with the names of their devices."""
    return "\nNIC Legend:\n\n" + "".join(
        f"  NIC{place}: {name}\n" for place, name in enumerate(names)
    )


def summary(path):
    """Number of GPUs, NVLinks of GPU 0 to GPU 1, and the NIC of each GPU to another node."""
    content = path.read_bytes()
    n, links = parse_smi_matrix(content, **RATES).nranks, 0
    try:
        topology = parse_smi_matrix(content, nodes=2, **RATES)
    except ConfigError:  # a node has no NICs
        topology = parse_smi_matrix(content, **RATES)
    first = topology.path(0, 1)[0] if n > 1 else ""
    if first.endswith(("gpu1", "nvswitch")):
        links = int(topology.link_capacity_uBps[topology.link(first)]) // (25 * 10**15)
    nics = [
        next(link for link in topology.path(gpu, n + gpu) if " -> box0.nic" in link)
        for gpu in range(n if "box0.nic0" in topology.node_names else 0)
    ]
    return n, links, " ".join(link.rpartition("nic")[2] for link in nics)


CUBE = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2}
CUBE |= {(2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2}


def in_pairs(gpus, inside, near="PIX", node="NODE", far="SYS", switched=2):
    """Words of GPUs joined alike, each ``switched`` of them below a switch with a NIC."""

    def word(a, b):
        if b < gpus:
            return inside
        nic = b - gpus
        other = a if a < gpus else (a - gpus) * switched
        if a >= gpus:
            return (
                node
                if (a - gpus) * 2 // (gpus // switched) == nic * 2 // (gpus // switched)
                else far
            )
        if other // switched == nic:
            return near
        return node if other * 2 // gpus == nic * switched * 2 // gpus else far

    return word


def by_switches(gpus_of, word_inside, word_outside, far):
    """PCIe words: inside a switch, inside a socket, between sockets."""

    def word(a, b):
        if a // gpus_of == b // gpus_of:
            return word_inside
        return word_outside if a // (2 * gpus_of) == b // (2 * gpus_of) else far

    return word


def cube(a, b):
    if b < 8:
        return f"NV{CUBE[a, b]}" if (a, b) in CUBE else "SYS"
    if a >= 8:
        return "NODE" if a // 2 == b // 2 else "SYS"
    nic = b - 8
    if a // 2 == nic:
        return "PIX"
    return "NODE" if a // 4 == nic // 2 else "SYS"


IBS = [f"mlx5_{nic}" for nic in range(8)]
NICS = [f"NIC{nic}" for nic in range(8)]


def spark(a, b):
    return "PIX" if a in {1, 3} and b == a + 1 else "NODE"


def tray(a, b):
    return "NV18" if b < 4 else "NODE" if a < 4 and a // 2 == (b - 4) // 2 else "SYS"


NVIDIA = Reader(
    "nvidia-smi topo -m",
    summary,
    (
        FirstFile(
            "DGX-1 with V100: a cube of NVLinks, four adapters",
            matrix(8, IBS[:4], cube, numa=lambda gpu: gpu // 4),
            (8, 1, "0 0 1 1 2 2 3 3"),
        ),
        FirstFile(
            "DGX H100: 18 NVLinks to switches, a NIC beside each GPU, columns of NUMA",
            matrix(
                8,
                NICS,
                in_pairs(8, "NV18", switched=1),
                numa=lambda gpu: gpu // 4,
                tail=nic_legend(IBS),
            ),
            (8, 18, "0 1 2 3 4 5 6 7"),
        ),
        FirstFile(
            "A100 with four NICs, each of two GPUs, at PXB",
            matrix(8, IBS[:4], in_pairs(8, "NV12", near="PXB"), numa=lambda gpu: gpu // 4),
            (8, 12, "0 0 1 1 2 2 3 3"),
        ),
        FirstFile(
            "RTX cards below switches, no NIC",
            matrix(8, [], by_switches(2, "PIX", "NODE", "SYS"), numa=lambda gpu: gpu // 4),
            (8, 0, ""),
        ),
        FirstFile("a workstation with two GPUs at PHB", matrix(2, [], always("PHB")), (2, 0, "")),
        FirstFile(
            "two GPUs with a bridge",
            matrix(2, [], always("NV4"), numa=always(0)),
            (2, 4, ""),
        ),
        FirstFile(
            "a PCIe server with four A40, bridged in pairs, one NIC",
            matrix(
                4,
                ["mlx5_0"],
                lambda a, b: (
                    "NV4" if (a, b) in {(0, 1), (2, 3)} else "NODE" if b == 4 and a < 2 else "SYS"
                ),
                numa=lambda gpu: gpu // 2,
            ),
            (4, 4, "0 0 0 0"),
        ),
        FirstFile(
            "a tray of GB200",
            matrix(4, NICS[:4], tray, numa=lambda gpu: gpu // 2),
            (4, 18, "0 1 2 3"),
        ),
        FirstFile(
            "DGX Spark: one GPU and four devices of two ports",
            matrix(1, NICS[:4], spark, numa=always(0)),
            (1, 0, "0"),
        ),
        FirstFile(
            "a virtual machine whose NICs are all at PHB",
            matrix(8, IBS, lambda _, b: "NV12" if b < 8 else "PHB"),
            (8, 12, "0 1 2 3 4 5 6 7"),
        ),
        FirstFile(
            "with srun's label before each line",
            b"\n".join(b"0: " + line for line in matrix(2, [], always("NV4")).split(b"\n")),
            (2, 4, ""),
        ),
        FirstFile(
            "of two nodes by a parallel shell",
            b"".join(
                b"".join(b"%s: %s\n" % (node, line) for line in text.split(b"\n"))
                for node in (b"node-1", b"node-2")
                for text in (matrix(2, ["mlx5_0"], lambda _, b: "NV4" if b < 2 else "PIX"),)
            ),
            (2, 4, "0 0"),
        ),
        FirstFile(
            "with time stamps of kubectl logs",
            b"\n".join(
                b"2025-03-04T10:11:12.123456789Z " + line
                for line in matrix(2, [], always("NV4"), mark=False).split(b"\n")
            ),
            (2, 4, ""),
        ),
        FirstFile(
            "in a Markdown block of code",
            b"The machine:\n\n```\n$ nvidia-smi topo -m\n"
            + matrix(
                2, ["mlx5_0"], lambda _, b: "NV4" if b < 2 else "PIX", mark=False, blank="    "
            )
            + b"```\n",
            (2, 4, "0 0"),
        ),
    ),
)


def amd(titles, labels, type_of, hops_of, *, head="", tail=""):
    """Tables as AMD's tools print them."""
    text = head
    for title, cell in titles:
        rows = [title, "       " + "         ".join(labels)]
        for a, label in enumerate(labels):
            cells = [cell(a, b, type_of, hops_of) for b in range(len(labels))]
            rows.append(label + "   " + "            ".join(cells))
        text += "\n".join(rows) + "\n\n"
    return (text + tail).encode()


def weight(a, b, type_of, hops_of):
    return "0" if a == b else "15" if type_of(a, b) == "XGMI" else "40"


def hops(a, b, type_of, hops_of):
    return "0" if a == b else str(hops_of(a, b))


def kinds(own):
    return lambda a, b, type_of, _: own if a == b else type_of(a, b)


def yes(a, b, type_of, hops_of):
    return "ENABLED" if a != b else "N/A"


def rocm(n, type_of, hops_of, numa):
    """All of rocm-smi --showtopo."""
    line = "=" * 20
    titles = [
        (f"{line} Weight between two GPUs {line}", weight),
        (f"{line} Hops between two GPUs {line}", hops),
        (f"{line} Link Type between two GPUs {line}", kinds("0")),
    ]
    places = "".join(
        f"GPU[{gpu}]\t\t: (Topology) Numa Node: {numa(gpu)}\n"
        f"GPU[{gpu}]\t\t: (Topology) Numa Affinity: {numa(gpu)}\n"
        for gpu in range(n)
    )
    return amd(
        titles,
        [f"GPU{gpu}" for gpu in range(n)],
        type_of,
        hops_of,
        head=f"\n\n{line} ROCm System Management Interface {line}\n",
        tail=f"{line} Numa Nodes {line}\n{places}{line} End of ROCm SMI Log {line}\n",
    )


def smi(n, type_of, hops_of, bandwidth=True):
    """All of amd-smi topology."""
    labels = [f"0000:{0x0C + 16 * gpu:02x}:00.0" for gpu in range(n)]
    titles = [
        ("ACCESS TABLE:", yes),
        ("WEIGHT TABLE:", weight),
        ("HOPS TABLE:", hops),
        ("LINK TYPE TABLE:", kinds("SELF")),
    ]
    if bandwidth:
        titles.append(("NUMA BW TABLE:", lambda a, b, *_: "N/A" if a == b else "64000-64000"))
    return amd(titles, labels, type_of, hops_of)


def smi_json(n, type_of, hops_of):
    """amd-smi topology --json."""
    places = [f"0000:{0x0C + 16 * gpu:02x}:00.0" for gpu in range(n)]
    gpus = [
        {
            "gpu": a,
            "bdf": places[a],
            "links": [
                {
                    "gpu": b,
                    "bdf": places[b],
                    "weight": 0 if a == b else 15,
                    "link_status": "ENABLED",
                    "link_type": "SELF" if a == b else type_of(a, b),
                    "num_hops": 0 if a == b else hops_of(a, b),
                    "bandwidth": "N/A",
                }
                for b in range(n)
            ],
        }
        for a in range(n)
    ]
    return json.dumps(gpus, indent=4).encode()


def rocm_json(n, type_of, hops_of, numa):
    """rocm-smi --showtopo --json, which has each pair once."""
    system = {}
    for b in range(n):
        for a in range(b):
            pair = f"between DRM devices {a} and {b}"
            system[f"(Topology) Weight {pair}"] = "15"
            system[f"(Topology) Hops {pair}"] = str(hops_of(a, b))
            system[f"(Topology) Link type {pair}"] = type_of(a, b)
    cards = {
        f"card{gpu}": {
            "(Topology) Numa Node": str(numa(gpu)),
            "(Topology) Numa Affinity": str(numa(gpu)),
        }
        for gpu in range(n)
    }
    return json.dumps({"system": system, **cards}).encode()


def xgmi(a, b):
    return "XGMI"


def one(a, b):
    return 1


def mesh_250(a, b):
    """Two halves of a GPU, and a ring of four GPUs."""
    return 1 if a // 2 == b // 2 or abs(a // 2 - b // 2) in {1, 3} else 2


def in_fours(a, b):
    return "XGMI" if a // 4 == b // 4 else "PCIE"


def hops_in_fours(a, b):
    return 1 if a // 4 == b // 4 else 3


AMD = Reader(
    "rocm-smi --showtopo, amd-smi topology",
    summary,
    (
        FirstFile("MI300X by rocm-smi", rocm(8, xgmi, one, lambda gpu: gpu // 4), (8, 1, "")),
        FirstFile("MI300X by amd-smi", smi(8, xgmi, one), (8, 1, "")),
        FirstFile(
            "MI250: eight dies, some two hops apart",
            rocm(8, xgmi, mesh_250, lambda gpu: gpu // 2),
            (8, 1, ""),
        ),
        FirstFile("MI250 by amd-smi", smi(8, xgmi, mesh_250), (8, 1, "")),
        FirstFile(
            "two hives of four", rocm(8, in_fours, hops_in_fours, lambda gpu: gpu // 4), (8, 1, "")
        ),
        FirstFile(
            "two MI210 over PCIe",
            rocm(2, always("PCIE"), always(2), always(0)),
            (2, 0, ""),
        ),
        FirstFile(
            "two MI210 in two sockets",
            rocm(2, always("PCIE"), always(3), lambda gpu: gpu),
            (2, 0, ""),
        ),
        FirstFile("four Radeon by amd-smi", smi(4, always("PCIE"), always(2)), (4, 0, "")),
        FirstFile(
            "an older amd-smi, without bandwidths", smi(8, xgmi, one, bandwidth=False), (8, 1, "")
        ),
        FirstFile("one GPU", rocm(1, xgmi, one, always(0)), (1, 0, "")),
        FirstFile("amd-smi's JSON", smi_json(8, xgmi, one), (8, 1, "")),
        FirstFile("amd-smi's JSON of PCIe", smi_json(2, always("PCIE"), always(2)), (2, 0, "")),
        FirstFile("rocm-smi's JSON", rocm_json(8, xgmi, one, lambda gpu: gpu // 4), (8, 1, "")),
        FirstFile(
            "amd-smi's JSON without a GPU",
            json.dumps(json.loads(smi_json(4, xgmi, one))[:3]).encode(),
            Refusal("no link of GPU 3 to GPU 0"),
        ),
        FirstFile(
            "with carriage returns",
            rocm(2, xgmi, one, always(0)).replace(b"\n", b"\r\n"),
            (2, 1, ""),
        ),
        FirstFile(
            "quoted in an answer",
            b"\n".join(b"> " + line for line in smi(2, xgmi, one).split(b"\n")),
            (2, 1, ""),
        ),
    ),
)
