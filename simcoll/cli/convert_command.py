"""``simcoll convert``: convert an algorithm, a topology or a workload between file formats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from simcoll.cli.job_files import JobConversion, convert_job, is_job
from simcoll.command_line import WHOLE
from simcoll.errors import ConfigError
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.formats.schedules.schedule_files import Algorithm

__all__ = ["convert_file"]


@Parameter(name="*")
@dataclass(frozen=True)
class NamedOptions:
    """The algorithm of a name.

    Parameters
    ----------
    collective
        Collective of a named algorithm; a custom one as module:function, of the number of ranks.
    nranks
        Number of ranks of a named algorithm. Default: the topology's, or 4.
    topology
        For topology-dependent algorithms, and for workloads that name no machine: a shipped
        topology, or a file.
    root
        Root rank of a named algorithm.
    in_place
        Let the output of a named algorithm share memory with the input.
    """

    collective: Annotated[str, Parameter(name=["--collective", "-c"])] = "all_reduce"
    nranks: Annotated[int | None, Parameter(name=["--nranks", "-n"]), WHOLE] = None
    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None
    root: Annotated[int | None, WHOLE] = None
    in_place: bool = False

    def load(self, text: str) -> Algorithm:
        """Load the algorithm in a file, or the named one."""
        from simcoll.algorithms.imported import is_file_name
        from simcoll.cli.show_command import named_schedule
        from simcoll.formats.schedules.schedule_files import load_algorithm
        from simcoll.topology import load_topology

        if is_file_name(text):
            return load_algorithm(text)
        machine = load_topology(self.topology) if self.topology else None
        try:
            return named_schedule(
                text, self.collective, self.nranks, machine, self.root, in_place=self.in_place
            )
        except ConfigError as error:
            if not error.message.startswith("unknown algorithm"):
                raise
            raise ConfigError(
                f"{text!r} is no file or folder here, and as an algorithm: {error.message}"
            ) from None


@Parameter(name="*")
@dataclass(frozen=True)
class ContentOptions:
    """The content of the written file.

    Parameters
    ----------
    dialect
        Runtime of an MSCCL XML file: msccl, azure or rccl.
    protocol
        NCCL's protocol in the written file: Simple, LL or LL128.
    min_bytes
        Smallest size for the written file, such as 64K.
    max_bytes
        Largest size for the written file.
    size
        Size in bytes, as in nccl-tests, for formats with sizes: GOAL, Chakra. Default: 1M.
    dtype
        Element type, for formats with sizes. Default: float32.
    """

    dialect: str | None = None
    protocol: Annotated[str | None, Parameter(name=["--protocol", "-p"])] = None
    min_bytes: str | None = None
    max_bytes: str | None = None
    size: Annotated[str | None, Parameter(name=["--size", "-s"])] = None
    dtype: Annotated[str | None, Parameter(name=["--dtype", "-d"])] = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The options that are not left out, with sizes in bytes."""
        from simcoll.units import parse_size

        return {
            name: parse_size(value) if name in {"min_bytes", "max_bytes", "size"} else value
            for name, value in vars(self).items()
            if value is not None
        }


def convert_file(
    source: Annotated[str, Parameter(name="IN")],
    target: Annotated[Path, Parameter(name="OUT")],
    /,
    *,
    to: str | None = None,
    algorithm: NamedOptions = NamedOptions(),
    content: ContentOptions = ContentOptions(),
    job: JobConversion = JobConversion(),  # noqa: B008 - it cannot change
) -> None:
    """Write a file in another format; content that the target cannot express is an error, never
    dropped.

    Parameters
    ----------
    source
        A file that holds an algorithm, in any format; or an algorithm with parameters:
        ring:channels=2. Or a topology, or a workload, as for simcoll step. Or a job, as for simcoll
        job: traces of PyTorch's profiler (a folder, or the file of one rank), or a compiled program
        (HLO).
    target
        The file to write. Its suffix gives the format, unless --to does. For Chakra, with one file
        per rank, the prefix of the names.
    to
        Format: schedule, msccl, mscclpp, goal or goal-binary; for a topology graphml, simgrid or
        nccl-topology; for a workload workload, chakra, or chakra-messages (collectives as sends and
        receives, also for an algorithm).
    """
    from simcoll.cli.workload_files import convert_workload, workload_alone
    from simcoll.files.output import write_file
    from simcoll.formats.schedules.schedule_files import algorithm_content, target_format

    if is_job(source):
        convert_job(Path(source), target, to, job)
        return
    if job != JobConversion():
        raise ConfigError(
            "--measured, --gpu and --accept-cpu are for jobs: traces of PyTorch's profiler, or a "
            "compiled program (HLO)",
            file=source,
        )
    if (to or _TOPOLOGY_ENDINGS.get(target.suffix)) in _TOPOLOGIES:
        _convert_topology(source, target, to or _TOPOLOGY_ENDINGS[target.suffix])
        return
    format_name = to or _WORKLOAD_ENDINGS.get(target.suffix) or workload_alone(source)
    if format_name in _WORKLOADS:
        convert_workload(
            source,
            target,
            format_name,
            algorithm.topology,
            lambda: algorithm.load(source),
            content.size,
            content.dtype,
        )
        return
    chosen, options = target_format(target, to), content.arguments
    loaded = algorithm.load(source)
    data = algorithm_content(loaded, chosen, **options)
    write_file(target, data)
    say(f"wrote {target}: {loaded}, {len(data):,} bytes of format {chosen.name}")


_WORKLOADS = ("workload", "chakra", "chakra-messages")
_WORKLOAD_ENDINGS = {".et": "chakra"}
_TOPOLOGIES = ("graphml", "simgrid", "nccl-topology")
_TOPOLOGY_ENDINGS = {".graphml": "graphml"}


def _convert_topology(source: str, target: Path, name: str) -> None:
    from simcoll.files.output import write_file
    from simcoll.topology import load_topology
    from simcoll.topology.files import one_node
    from simcoll.topology.readers.graph_files import graphml_text, simgrid_text
    from simcoll.topology.readers.nccl_xml_writer import nccl_topology_xml

    writers = {"graphml": graphml_text, "simgrid": simgrid_text, "nccl-topology": nccl_topology_xml}
    machine = one_node(source) if name == "nccl-topology" else load_topology(source)
    content = writers[name](machine)
    write_file(target, content)
    say(
        f"wrote {target}: {machine.name}, {machine.nranks} ranks, {len(content):,} bytes of format "
        f"{name}"
    )
