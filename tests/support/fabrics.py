"""Listings of small InfiniBand fabrics, as ibnetdiscover and iblinkinfo print them."""

from __future__ import annotations

__all__ = ["discovered", "fat_tree", "linked"]

SIGNALLED = {"EDR": "25.78125", "HDR": "53.125", "NDR": "106.25"}


def fat_tree(hosts=4, adapters=2, leaves=2, spines=2, speed="HDR"):
    """``(names, kinds, cables)``: cables are ((vertex, port), (vertex, port)); hosts in turn on the
    leaves.
    """
    names = [f"node-{host} mlx5_{each}" for host in range(hosts) for each in range(adapters)]
    kinds = ["nic"] * len(names) + ["switch"] * (leaves + spines)
    names += [f"leaf{leaf}" for leaf in range(leaves)] + [
        f"spine{spine}" for spine in range(spines)
    ]
    first, top = hosts * adapters, hosts * adapters + leaves
    cables = [
        (
            (a, 1),
            (first + a // adapters % leaves, 1 + a // adapters // leaves * adapters + a % adapters),
        )
        for a in range(first)
    ]
    cables += [
        ((first + leaf, 100 + s), (top + s, 1 + leaf))
        for leaf in range(leaves)
        for s in range(spines)
    ]
    return names, kinds, [(a, b, speed) for a, b in cables]


def _ends(cables):
    found = {}
    for a, b, speed in cables:
        found.setdefault(a[0], []).append((a[1], b, speed))
        found.setdefault(b[0], []).append((b[1], a, speed))
    return found


def discovered(names, kinds, cables):
    """What ibnetdiscover prints."""
    lines = [
        "#",
        "# Topology file: generated on Mon Jan  5 10:00:00 2026",
        "#",
        "# Initiated from node 0000000000000001 port 1",
        "",
    ]
    code = [
        ("H" if kind == "nic" else "S") + f"-{number:016x}" for number, kind in enumerate(kinds)
    ]
    ends = _ends(cables)
    for number, kind in enumerate(kinds):
        word = "Ca" if kind == "nic" else "Switch"
        lines += [
            "",
            "vendid=0x2c9",
            "devid=0x101b",
            f"sysimgguid=0x{number:x}",
            f"{word.lower()}guid=0x{number:x}",
        ]
        lines.append(
            f'{word}\t64 "{code[number]}"\t\t# "{names[number]}"'
            + " enhanced port 0 lid 3 lmc 0" * (kind != "nic")
        )
        for port, (other, other_port), speed in sorted(ends[number]):
            own = f"[{port}]" + f"({number:x}) " * (kind == "nic")
            far = f'"{code[other]}"[{other_port}]' + f"({other:x}) " * (kinds[other] == "nic")
            lines.append(f'{own}\t{far}\t\t# "{names[other]}" lid {other + 1} 4x{speed}')
    return "\n".join(lines).encode()


def linked(names, kinds, cables):
    """What iblinkinfo prints."""
    lines, ends = [], _ends(cables)
    for number, kind in enumerate(kinds):
        lines.append(
            f"CA: {names[number]}:"
            if kind == "nic"
            else f"Switch: 0x{number:016x} {names[number]}:"
        )
        for port, (other, other_port), speed in sorted(ends[number]):
            link = f"(  4X {SIGNALLED[speed]:>18} Gbps Active/  LinkUp)"
            own = f"0x{number:016x} " * (kind == "nic")
            lines.append(
                f"      {own}{number + 1:6} {port:4}[  ] =={link}==>  {other + 1:6} "
                f'{other_port:4}[  ] "{names[other]}" ( )'
            )
        if kind != "nic":
            lines.append(
                f"      {number + 1:6}   63[  ] ==(              Down/ Polling)==>             [  "
                '] "" ( )'
            )
    return "\n".join(lines).encode()


def lined(names, kinds, cables):
    """What iblinkinfo --line prints."""
    lines, ends = [], _ends(cables)
    for number, kind in enumerate(kinds):
        vertex = f'0x{number:016x} "{names[number]:>30}" '
        for port, (other, other_port), speed in sorted(ends[number]):
            link = f"(  4X {SIGNALLED[speed]:>18} Gbps Active/  LinkUp)"
            there = f'0x{other:016x} {other + 1:6} {other_port:4}[  ] "{names[other]}" ( )'
            lines.append(f"{vertex}{number + 1:6} {port:4}[  ] =={link}==>  {there}")
        if kind != "nic":
            lines.append(
                f"{vertex}{number + 1:6}   63[  ] ==(              Down/ Polling)==>             [ "
                ' ] "" ( )'
            )
    return "\n".join(lines).encode()
