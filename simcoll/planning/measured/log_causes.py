"""What a log says of the causes of its times: by variables, transports, devices and warnings.

A statement names a cause, rules one out, or is a fact alone. Those that name one enter the
prediction.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from simcoll.formats.logs.nccl_tuning import Chosen
from simcoll.formats.logs.run_facts import RunFact, RunFacts
from simcoll.libraries.prediction import formula_time
from simcoll.planning.measured.causes import CAUSES, CauseName
from simcoll.planning.measured.comparison import Compared, Setting
from simcoll.planning.measured.log_variables import (
    FALSE,
    NO_PATH,
    device_count,
    devices_of,
)
from simcoll.planning.measured.variants import (
    host_memory,
    in_environment,
    nics_of,
    no_gpudirect,
    slower_links,
    through_network,
    with_nics,
)
from simcoll.topology.host_tree import nics_of as nics_of_host
from simcoll.topology.machine import machine as machine_of
from simcoll.units import counted

__all__ = ["LogCause", "choice_evidence", "excluded_causes", "fact_lines", "log_causes"]

Change = Callable[[Setting], Setting]
SLOW_PORT = 0.75
"""Share of the rate of the topology's ports at or below which a port is slow."""


@dataclass(frozen=True, slots=True)
class LogCause:
    """A cause that the log names.

    Attributes
    ----------
    cause
        Its name in :data:`~simcoll.planning.measured.causes.CAUSES`.
    claim
        The cause in words, with its extent.
    source
        Where the log says so: a variable, or the words of a line.
    change
        Applies it to a setting; None where the model has no such parameter.
    """

    cause: CauseName
    claim: str
    source: str
    change: Change | None


def fact_lines(setting: Setting) -> Iterator[str]:
    """The facts of the log in a few lines: network and devices, transports, channels, warnings."""
    facts = setting.table.facts
    network = [f"network {name}" for name in facts.values("network")]
    network += [f"{name}: no device" for name in facts.values("no network device")]
    if devices := facts.values("NICs"):
        listed = " ".join(dict.fromkeys(" ".join(devices).split()))
        network.append(f"{counted(len(listed.split()), 'NIC')}: {listed}")
    network += [f"socket interface {name}" for name in facts.values("socket interface")]
    network += [f"GPUDirect RDMA {text}" for text in facts.values("GPUDirect")]
    if network:
        yield "; ".join(network)
    if ways := facts.of("transport"):
        lines = [f"{fact.value} in {counted(fact.count, 'line')}" for fact in ways]
        yield f"transports: {', '.join(lines)}"
    for kind in ("channels", "NVLS", "pattern", "plugin", "provider", "variable"):
        if texts := facts.values(kind):
            yield f"{kind}: {'; '.join(texts[:4])}"
    for fact in facts.of("warning")[:6]:
        times = f", {fact.count} times" if fact.count > 1 else ""
        yield f"warning in line {fact.line}{times}: {fact.value}"


def log_causes(setting: Setting) -> list[LogCause]:
    """The causes that variables and lines of the log name, without duplicates of one cause."""
    causes = [*_by_variables(setting), *_by_facts(setting)]
    by_claim: dict[str, LogCause] = {}
    for cause in causes:
        earlier = by_claim.get(cause.cause)
        if earlier is None:
            by_claim[cause.cause] = cause
        elif earlier.change is None and cause.change is not None:
            by_claim[cause.cause] = replace(cause, source=f"{earlier.source}; {cause.source}")
        elif cause.source not in earlier.source:
            by_claim[cause.cause] = replace(earlier, source=f"{earlier.source}; {cause.source}")
    causes = list(by_claim.values())
    if "sockets" in by_claim:
        # Without RDMA neither its NICs nor GPUDirect matter.
        causes = [cause for cause in causes if cause.cause not in {"few_nics", "no_gpudirect"}]
    return causes


def channel_causes(setting: Setting, causes: Sequence[LogCause]) -> list[LogCause]:
    """NICs that are missing by the number of channels, where the log does not list NICs.

    Over nodes NCCL takes equally many channels for each NIC.
    """
    facts, total = setting.table.facts, nics_of(setting)
    counts = [_number(text, "coll channels") for text in facts.values("channels")]
    if not counts or not total or facts.values("NICs") or causes:
        return []
    largest = max(setting.table.rows, key=lambda row: row.size_bytes)
    best = formula_time(
        setting.table.collective,
        largest.size_bytes,
        setting.topology,
        library=setting.library,
        environment=setting.environment,
    )
    if best.algorithm not in {"ring", "tree"} or not 0 < counts[0] < best.channels:
        return []
    nics, remainder = divmod(total * counts[0], best.channels)
    if remainder or not nics:
        return []
    source = f"{_source(facts.of('channels')[0])}, where all NICs take {best.channels}"
    return [_few_nics(nics, total, source)]


def choice_evidence(
    rows: Sequence[Compared], choices: Sequence[Chosen]
) -> tuple[dict[CauseName, str], dict[CauseName, str]]:
    """What NCCL's own choices in a log say for another algorithm or protocol, and against it."""
    names = {
        (choice.collective, choice.size_bytes): (choice.algorithm, choice.protocol)
        for choice in choices
    }
    compared = {
        row.row.size_bytes: (names[key], (row.prediction.algorithm, row.prediction.protocol))
        for row in rows
        if (key := (row.prediction.collective, row.row.size_bytes)) in names
    }
    support: dict[CauseName, str] = {}
    against: dict[CauseName, str] = {}
    places: tuple[CauseName, ...] = ("algorithm", "protocol")
    for place, cause in enumerate(places):
        differing = Counter(
            choice[place]
            for choice, predicted in compared.values()
            if choice[place] != predicted[place]
        )
        if differing:
            name, count = differing.most_common(1)[0]
            support[cause] = f"the log has NCCL's choice of {name} for {counted(count, 'size')}"
        elif compared:
            against[cause] = "NCCL's choices in the log are those predicted"
    return support, against


def excluded_causes(setting: Setting) -> dict[CauseName, str]:
    """Causes that the log rules out, with what it says."""
    facts = setting.table.facts
    out: dict[CauseName, str] = {}
    ways = facts.values("transport")
    networks = facts.values("network")
    if any(name.startswith(("IB", "AWS", "Libfabric", "FasTrak", "RDMA")) for name in networks):
        out["sockets"] = f"the log has 'Using network {networks[0]}'"
    if any("GDRDMA" in transport for transport in ways) and not any(
        transport.startswith("NET") and "GDRDMA" not in transport for transport in ways
    ):
        out["no_gpudirect"] = "all connections over the network are 'GDRDMA'"
    local = [transport for transport in ways if transport.startswith(("P2P", "SHM", "direct"))]
    if local and not any(transport.startswith("SHM") for transport in local):
        out["no_p2p"] = "all connections in a node are 'via P2P'"
    devices = devices_of(facts)
    if devices and len(devices) >= nics_of(setting) > 0:
        out["few_nics"] = f"the log lists {counted(len(devices), 'NIC')}"
    if any(_number(text, "nvls channels") for text in facts.values("channels")):
        out["nvls_off"] = "the log has nvls channels"
    if facts.values("channels") and all(
        _number(text, "coll channels") > 8 for text in facts.values("channels")
    ):
        out["few_channels"] = f"the log has {facts.values('channels')[0]}"
    environment = dict(setting.table.environment)
    if "LAUNCHER" not in environment and setting.table.devices:
        out["one_process"] = "each process drives one GPU"
    return out


def _number(text: str, words: str) -> int:
    match = re.search(rf"(\d+) {words}", text)
    return int(match[1]) if match else 0


def _by_variables(setting: Setting) -> Iterator[LogCause]:
    """The causes that variables name."""
    values = {
        **dict(setting.table.environment),
        **dict(
            text.split("=", 1) for text in setting.table.facts.values("variable") if "=" in text
        ),
    }
    several = machine_of(setting.topology).domains > 1
    local = any(count > 1 for count in machine_of(setting.topology).domain_ranks)
    for name, value in values.items():
        source = f"{name}={value}"
        if several:
            yield from _network_variable(setting, name, value, source)
        if local:
            yield from _node_variable(setting, name, value, source)
        yield from _choice_variable(setting, name, value, source)


def _network_variable(setting: Setting, name: str, value: str, source: str) -> Iterator[LogCause]:
    sockets_of = {
        "NCCL_IB_DISABLE": value not in {*FALSE, ""},
        "NCCL_NET": value.lower() == "socket",
        "FI_PROVIDER": value.lower() in {"tcp", "sockets", "udp", "tcp;ofi_rxm"},
    }
    if sockets_of.get(name, False):
        yield LogCause("sockets", CAUSES["sockets"].title, source, None)
    if name == "NCCL_IB_HCA" and (count := device_count(value)):
        total = nics_of(setting)
        if 0 < count < total:
            yield _few_nics(count, total, source)
    gdr_off = {
        "NCCL_NET_GDR_LEVEL": value in NO_PATH,
        "NCCL_IB_GDR_LEVEL": value in NO_PATH,
        "NCCL_IB_CUDA_SUPPORT": value in FALSE,
        "NCCL_NET_GDR_READ": value in FALSE,
        "FI_EFA_USE_DEVICE_RDMA": value in FALSE,
    }
    if gdr_off.get(name, False):
        yield LogCause("no_gpudirect", CAUSES["no_gpudirect"].title, source, no_gpudirect)


def _few_nics(count: int, total: int, source: str) -> LogCause:
    return LogCause(
        "few_nics",
        f"{count} of {total} NICs in use",
        source,
        lambda setting: with_nics(setting, count),
    )


def _node_variable(setting: Setting, name: str, value: str, source: str) -> Iterator[LogCause]:
    facts = machine_of(setting.topology)
    p2p_off = {
        "NCCL_P2P_DISABLE": value not in {*FALSE, ""},
        "NCCL_P2P_LEVEL": value in NO_PATH or (value == "NVL" and facts.inside == "pcie"),
    }
    if p2p_off.get(name, False) and facts.inside != "host":
        yield LogCause("no_p2p", CAUSES["no_p2p"].title, source, host_memory)
    if name == "NCCL_NVLS_ENABLE" and value in FALSE and facts.switch_reduce:
        yield LogCause("nvls_off", CAUSES["nvls_off"].title, source, _without_nvls)


def _without_nvls(setting: Setting) -> Setting:
    return in_environment(setting, nvls=False)


def _choice_variable(setting: Setting, name: str, value: str, source: str) -> Iterator[LogCause]:
    """Limits of channels, protocols and algorithms, which the environment of the setting has."""
    environment = setting.environment
    if name in {"NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS"} and value.isdecimal():
        count = max(1, int(value))
        yield LogCause(
            "few_channels",
            f"at most {counted(count, 'channel')}",
            source,
            _at_most(count, of_ctas=name == "NCCL_MAX_CTAS"),
        )
    if name == "NCCL_PROTO" and environment.protocols:
        protocols = environment.protocols
        yield LogCause(
            "protocol",
            f"the protocol is set: {value}",
            source,
            lambda changed: in_environment(changed, protocols=protocols),
        )
    if name == "NCCL_ALGO" and environment.algorithms:
        algorithms = environment.algorithms
        yield LogCause(
            "algorithm",
            f"the algorithm is set: {value}",
            source,
            lambda changed: in_environment(changed, algorithms=algorithms),
        )
    if name == "NCCL_TREE_THRESHOLD" and value == "0":  # of NCCL 2.4, before NCCL_ALGO
        yield LogCause(
            "algorithm",
            "no trees",
            source,
            lambda changed: in_environment(changed, algorithms=(("", ("ring",)),)),
        )
    if name == "NCCL_NTHREADS" and value.isdecimal() and int(value) < 256:
        yield LogCause(
            "few_threads",
            f"blocks of {value} threads",
            source,
            lambda changed: in_environment(changed, threads=int(value)),
        )
    if name == "NCCL_BUFFSIZE" and value.isdecimal() and int(value) < 2**22:
        yield LogCause("small_buffers", f"buffers of {int(value):,} bytes", source, None)
    if name == "LAUNCHER" and value == "one-process":
        yield LogCause(
            "one_process",
            CAUSES["one_process"].title,
            "the list of devices, where one process has all GPUs of a node",
            lambda changed: in_environment(changed, launcher="one-process"),
        )
    if name == "CUDA_LAUNCH_BLOCKING" and value not in FALSE:
        yield LogCause("launch", "each launch waits for its end", source, None)


def _at_most(channels: int, *, of_ctas: bool) -> Change:
    """A limit of the channels: that of CTAs holds for reduction in switches too."""
    if of_ctas:
        return lambda setting: in_environment(setting, max_ctas=channels)
    return lambda setting: in_environment(setting, max_nchannels=channels)


def _by_facts(setting: Setting) -> Iterator[LogCause]:
    """The causes that lines of NCCL name."""
    facts = setting.table.facts
    machine = machine_of(setting.topology)
    if machine.domains > 1:
        yield from _network_facts(setting, facts)
    if any(count > 1 for count in machine.domain_ranks):
        yield from _node_facts(setting, facts)
    for fact in facts.of("channels"):
        count = _number(fact.value, "coll channels")
        if 0 < count <= 4:
            yield LogCause(
                "few_channels",
                f"at most {counted(count, 'channel')}",
                _source(fact),
                _at_most(count, of_ctas=False),
            )
    for fact in facts.of("warning"):
        yield from _warning(fact)


def _source(fact: RunFact) -> str:
    return f"line {fact.line}: {fact.value}"


def _network_facts(setting: Setting, facts: RunFacts) -> Iterator[LogCause]:
    for fact in facts.of("network"):
        if fact.value.lower().startswith("socket"):
            source = f"line {fact.line}: Using network {fact.value}"
            yield LogCause("sockets", CAUSES["sockets"].title, source, None)
    ways = facts.of("transport")
    over_network = [fact for fact in ways if fact.value.startswith("NET")]
    for fact in over_network:
        if fact.value.startswith("NET/Socket"):
            yield LogCause(
                "sockets", CAUSES["sockets"].title, f"line {fact.line}: via {fact.value}", None
            )
            break
    for fact in facts.of("no network device"):
        if not any("IB" in name for name in facts.values("network")):
            source = f"line {fact.line}: {fact.value}: no device found"
            yield LogCause("sockets", CAUSES["sockets"].title, source, None)
    for fact in facts.of("provider"):
        if re.search(r"\b(tcp|sockets)\b", fact.value):
            yield LogCause("sockets", CAUSES["sockets"].title, _source(fact), None)
    rdma = [fact for fact in over_network if not fact.value.startswith("NET/Socket")]
    bare = [fact for fact in rdma if "GDRDMA" not in fact.value]
    # Older versions send without GDRDMA on purpose; none receives so.
    if len(bare) == len(rdma):
        received = bare
    else:
        received = [fact for fact in bare if fact.value.endswith("[receive]")]
    if received:
        source = f"line {received[0].line}: via {received[0].value}, without GDRDMA"
        yield LogCause("no_gpudirect", CAUSES["no_gpudirect"].title, source, no_gpudirect)
    disabled = [fact for fact in facts.of("GPUDirect") if "disabled" in fact.value]
    enabled = [fact for fact in facts.of("GPUDirect") if "enabled" in fact.value]
    if disabled and not enabled and not any("GDRDMA" in fact.value for fact in rdma):
        source = f"line {disabled[0].line}: GPU Direct RDMA Disabled"
        yield LogCause("no_gpudirect", CAUSES["no_gpudirect"].title, source, no_gpudirect)
    total = nics_of(setting)
    for fact in facts.of("NIC count")[:1]:
        if 0 < int(fact.value) < total:
            yield _few_nics(int(fact.value), total, f"line {fact.line}: found {fact.value} nics")
    yield from _slow_ports(setting, facts)
    for fact in facts.of("NICs")[:1]:
        count = len(fact.value.split())
        if count < total:
            yield _few_nics(count, total, f"line {fact.line}: NET/IB : Using {fact.value}")
    for fact in facts.of("pattern"):
        distance = fact.value.rpartition("/")[2]
        if distance in {"SYS", "NODE"} and total:  # PHB is normal where no switch joins them
            text = f"{CAUSES['pcie'].title}: NICs at distance {distance}"
            yield LogCause("pcie", text, _source(fact), None)
            break


def _slow_ports(setting: Setting, facts: RunFacts) -> Iterator[LogCause]:
    """Ports below the rate of the topology, and PCIe links slower than others of their kind."""
    host = setting.topology.host
    rates = [port.speed_mbps for nic in nics_of_host(host) for port in nic.ports] if host else []
    slowest = min(facts.of("NIC speed"), key=lambda fact: int(fact.value), default=None)
    if slowest is not None and rates and 0 < int(slowest.value) <= SLOW_PORT * max(rates):
        share = Fraction(int(slowest.value), max(rates))
        yield LogCause(
            "slow_link",
            f"a port at {int(slowest.value) / 1000:g} of {max(rates) / 1000:g} Gb/s",
            f"line {slowest.line}: speed={slowest.value}",
            lambda changed: slower_links(changed, "net", share),
        )
    for kind in ("NIC", "GPU"):
        links = {
            float(fact.value[4:].partition("]")[0]): fact
            for fact in facts.of("PCIe link")
            if fact.value.endswith(kind)
        }
        if len(links) > 1 and min(links) <= max(links) / 2:
            title = f"{CAUSES['pcie'].title}: a {kind} at {min(links):g} of {max(links):g} GB/s"
            yield LogCause("pcie", title, _source(links[min(links)]), None)


def _node_facts(setting: Setting, facts: RunFacts) -> Iterator[LogCause]:
    machine = machine_of(setting.topology)
    local = [fact for fact in facts.of("transport") if fact.value.startswith(("P2P", "SHM"))]
    shared = [fact for fact in local if fact.value.startswith("SHM")]
    if shared and len(shared) == len(local) and machine.inside != "host":
        source = f"line {shared[0].line}: via {shared[0].value}"
        yield LogCause("no_p2p", CAUSES["no_p2p"].title, source, host_memory)
    for fact in facts.of("peer access"):
        if machine.inside != "host":
            yield LogCause("no_p2p", CAUSES["no_p2p"].title, _source(fact), host_memory)
    over_network = [fact for fact in facts.of("transport") if fact.value.startswith("NET")]
    if over_network and machine.domains == 1:
        source = f"line {over_network[0].line}: via {over_network[0].value} within a node"
        title = CAUSES["through_network"].title
        yield LogCause("through_network", title, source, through_network)
    for fact in facts.of("NVLS"):
        if fact.value.startswith("not") and machine.switch_reduce:
            source = f"line {fact.line}: NVLS multicast support is not available"
            yield LogCause("nvls_off", CAUSES["nvls_off"].title, source, _without_nvls)
    for fact in facts.of("channels"):
        if " 0 nvls channels" in f" {fact.value}" and machine.switch_reduce:
            yield LogCause("nvls_off", CAUSES["nvls_off"].title, _source(fact), _without_nvls)


_WARNINGS: Mapping[str, CauseName] = {
    r"NUMA auto balancing|numa_balancing": "host_settings",
    r"iommu=pt|IOMMU": "host_settings",
    r"\bACS\b": "acs",
    r"async(hronous)? (fatal )?event|port error|link down|Port.*DOWN": "port_error",
    r"P2P is disabled between|not enable P2P": "no_p2p",
    r"[Ff]ailed to (load|open|find).*(plugin|libnccl-net)|dlopen.*libnccl-net": "plugin",
    r"retry count exceeded|status=12|error 12": "port_error",
    r"[Mm]issing.*fine.?grain": "host_settings",
}
"""Warnings that name a cause."""


def _warning(fact: RunFact) -> Iterator[LogCause]:
    for pattern, cause in _WARNINGS.items():
        if re.search(pattern, fact.value):
            yield LogCause(cause, CAUSES[cause].title, f"warning in {_source(fact)}", None)
            return
