"""Facts of a run that its log states besides times: network, devices, transports, channels,
warnings.

NCCL and RCCL print them with ``NCCL_DEBUG=INFO``, each rank its own part, so that one fact stands
in many lines. It is kept once, with its first line and the number of its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from simcoll.terminal import printable

__all__ = ["FactKind", "FactReader", "RunFact", "RunFacts"]

MOST_FACTS = 200
"""Largest number of different facts of one kind."""
FactKind = Literal[
    "network",
    "no network device",
    "NICs",
    "socket interface",
    "plugin",
    "provider",
    "transport",
    "path",
    "GPUDirect",
    "NIC speed",
    "NIC count",
    "PCIe link",
    "NVLS",
    "peer access",
    "channels",
    "pattern",
    "variable",
    "warning",
    "times",
    "wrong",
    "failure",
]


@dataclass(frozen=True, slots=True)
class RunFact:
    """One fact.

    Attributes
    ----------
    kind, value
        What it is about, and what the log says: ``("network", "Socket")``.
    line, count
        First line that says so, from 1; and number of lines that do.
    """

    kind: FactKind
    value: str
    line: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of a run, in the order of the log.

    Examples
    --------
    >>> reader = FactReader()
    >>> reader.feed(1, "n0:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE")
    >>> reader.feed(2, "n0:7:9 [0] NCCL INFO Using network IB")
    >>> facts = reader.facts()
    >>> facts.values("network"), facts.values("NICs")
    (('IB',), ('mlx5_0:1/RoCE mlx5_1:1/RoCE',))
    """

    facts: tuple[RunFact, ...] = ()

    def __iter__(self) -> Iterator[RunFact]:
        return iter(self.facts)

    def __bool__(self) -> bool:
        return bool(self.facts)

    def of(self, kind: FactKind) -> tuple[RunFact, ...]:
        """The facts of a kind."""
        return tuple(fact for fact in self.facts if fact.kind == kind)

    def values(self, kind: FactKind) -> tuple[str, ...]:
        """What the log says of a kind."""
        return tuple(fact.value for fact in self.of(kind))


_PATTERNS: tuple[tuple[FactKind, str, re.Pattern[str]], ...] = (
    ("network", "network", re.compile(r"Using network (\S.{0,60})")),
    (
        "no network device",
        "NET/",
        re.compile(
            r"(NET/IB) ?: (?:No device found|Unable to open device)|"
            r"(NET/OFI) (?:No eligible providers|Only EFA provider)"
        ),
    ),
    ("no network device", "libibverbs", re.compile(r"Failed to open (libibverbs)")),
    ("NICs", "NET/IB", re.compile(r"NET/IB ?: Using (\[\d.*?)(?:;|$)")),
    (
        "NICs",
        "NET/IB",
        re.compile(r"NET/IB ?: Using interface \S+ for sideband.*?(\[\d.*?)(?:;|$)"),
    ),
    ("socket interface", "NET/Socket", re.compile(r"NET/Socket ?: Using (\[\d.*?)$")),
    (
        "plugin",
        "lugin",
        re.compile(
            r"((?:NET|P2P|COLLNET|TUNER)/?[Pp]lugin ?:? ?(?:No plugin found|Could not find|"
            r"Failed to|Plugin load|Loaded|Using|dlerror=|Failed).{0,120})",
        ),
    ),
    ("plugin", "P2P plugin", re.compile(r"(P2P plugin .{1,60})")),
    (
        "provider",
        "NET/OFI",
        re.compile(r"NET/OFI (?:Selected [Pp]rovider is|Using transport protocol) (.{1,60})"),
    ),
    ("path", "GDR", re.compile(r"Connected all rings.*\b(GDR [01])\b")),
    (
        "GPUDirect",
        "GPU Direct",
        re.compile(r"GPU Direct RDMA (Enabled|Disabled|\(nvidia-peermem\) enabled)", re.IGNORECASE),
    ),
    ("NIC speed", "speed=", re.compile(r"NET/IB: \[\d+\].*\bspeed=(\d{1,8})\b")),
    ("NIC count", " nics", re.compile(r"\(found (\d{1,4}) nics\)")),
    ("PCIe link", "PCI[", re.compile(r"\+ (PCI\[\d{1,4}\.\d\] - (?:NIC|GPU|NET))/")),
    ("NVLS", "NVLS", re.compile(r"NVLS multicast support is (not available|available)")),
    (
        "peer access",
        "P2P",
        re.compile(r"(P2P is disabled between|[Cc]ould not enable P2P between)"),
    ),
    (
        "channels",
        "coll channels",
        re.compile(r"(\d+ coll channels(?:, (?:\d+ collnet channels, )?\d+ nvls channels)?)"),
    ),
    (
        "pattern",
        "Pattern",
        re.compile(
            r"(Pattern \d, crossNic \d, nChannels \d+, (?:bw|speed) [\d.]+/[\d.]+, type \w+/\w+)"
        ),
    ),
    ("warning", "NCCL WARN", re.compile(r"NCCL WARN (.{1,300})")),
)
"""Kinds of facts: a text that a line must contain, and the pattern of the value."""
_VIA = re.compile(r"(\[receive\] )?via ((?:P2P|SHM|NET|COLLNET|CollNet|direct)[\w/()-]{0,60})")
_VARIABLE = re.compile(
    r"(?<![\w-])((?:CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_MAX_CONNECTIONS|FI_[A-Z0-9_]{2,60}|"
    r"OFI_NCCL_[A-Z0-9_]{2,60}|RCCL_[A-Z0-9_]{2,60}|HSA_[A-Z0-9_]{2,60}|"
    r"GLOO_SOCKET_IFNAME))=([^\s\"',;]{1,100})"
)
_NIC = re.compile(r"\[\d{1,3}\]([\w.:/-]{1,80})")
_NUMBERS = re.compile(r"/\d+(?=/|$|\()|\(\d+\)(?=/|$)")
_HEX = re.compile(r"0x[0-9a-f]+|\b\d{1,3}(?:\.\d{1,3}){3}\b")


class FactReader:
    """Collects the facts in the lines of a log."""

    __slots__ = ("_counts", "_kinds", "_lines")

    def __init__(self) -> None:
        self._lines: dict[tuple[FactKind, str], int] = {}
        self._counts: dict[tuple[FactKind, str], int] = {}
        self._kinds: dict[FactKind, int] = {}

    def feed(self, number: int, text: str) -> None:
        """Process a line."""
        if "=" in text and ("FI_" in text or "_" in text):
            for name, value in _VARIABLE.findall(text):
                self.add("variable", f"{name}={value}", number)
        if "NCCL" not in text and "NET/" not in text:
            return
        if "via " in text and (transport := _VIA.search(text)) is not None:
            self.add(
                "transport",
                _NUMBERS.sub("", transport[2]) + (" [receive]" if transport[1] else ""),
                number,
            )
            return
        for kind, mark, pattern in _PATTERNS:
            if mark in text and (match := pattern.search(text)) is not None:
                self.add(kind, _value(kind, match[match.lastindex or 1]), number)

    def facts(self) -> RunFacts:
        """All facts, in order of their first lines."""
        return RunFacts(
            tuple(
                RunFact(kind, value, line, self._counts[kind, value])
                for (kind, value), line in self._lines.items()
            )
        )

    def add(self, kind: FactKind, value: str, number: int) -> None:
        """Note a fact of a line, once."""
        key = (kind, printable(value)[:300])
        if key not in self._lines:
            if self._kinds.get(kind, 0) >= MOST_FACTS:
                return
            self._kinds[kind] = self._kinds.get(kind, 0) + 1
            self._lines[key] = number
        self._counts[key] = self._counts.get(key, 0) + 1


def _value(kind: FactKind, text: str) -> str:
    """What is kept of a line: names without numbers and addresses that differ between ranks."""
    if kind in {"NICs", "socket interface"}:
        names = _NIC.findall(text)
        return " ".join(name.partition(":")[0] if kind != "NICs" else name for name in names)
    if kind == "warning":
        return _HEX.sub("...", text).strip()
    return text.strip().rstrip(".").lower() if kind == "GPUDirect" else text.strip()
