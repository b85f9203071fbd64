"""Run a PyTorch script on every rank of a simulated cluster, as torchrun runs it on a real one.

``python -m simcoll.torch -n 16 --topology dgx-h100 --trace t.json.gz train.py --its arguments``
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from simcoll.command_line import separate_program, status_of
from simcoll.distributed.start.run_options import (
    CollectiveOptions,
    EventOptions,
    option_values,
)
from simcoll.errors import ConfigError
from simcoll.help_text import PARAGRAPHS
from simcoll.stopping import run_program
from simcoll.topology import load_topology

__all__ = ["main"]

app = App(
    help_formatter=PARAGRAPHS,
    name="python -m simcoll.torch",
    help="Run a PyTorch script on every rank of a simulated cluster, as torchrun runs it on a real "
    "one.",
    help_flags=["--help", "-h"],
    version_flags=[],
    suppress_keyboard_interrupt=False,  # status_of says so
)


@dataclass(frozen=True, slots=True)
class _ScriptOptions:
    """How to run the script.

    Attributes
    ----------
    nproc
        Ranks; by default those of the topology.
    topology
        A shipped topology or a topology file.
    nodes
        Nodes of the topology.
    alike
        all: one rank's program runs, and all ranks make its calls.
    compute
        Time model of operators: none, roofline, or a file of times.
    gpu
        The GPU of the time model: a shipped one, such as h100, or a file.
    device
        cuda: scripts see the GPUs of their node, whose tensors are on the CPU; cpu: there are no
        GPUs.
    trace
        Write the timeline of the run there: t.json or t.json.gz, for Perfetto.
    shared
        A package that all ranks share instead of importing their own copies; may be repeated.
    copies
        A package that each rank imports for itself although it has several C extensions, which
        stay shared; may be repeated.
    module
        The script is a module, as in python -m.
    """

    nproc: Annotated[int | None, Parameter(name=["--nproc", "-n"])] = None
    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None
    nodes: Annotated[int | None, Parameter(name=["--nodes", "--nnodes"])] = None
    collectives: CollectiveOptions = field(default_factory=CollectiveOptions)
    alike: Literal["all"] | None = None
    compute: str = "none"
    gpu: str | None = None
    device: Literal["cuda", "cpu"] = "cuda"
    trace: str | None = None
    events: EventOptions = field(default_factory=EventOptions)
    shared: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    copies: Annotated[tuple[str, ...], Parameter(name="--own", negative=())] = ()
    module: Annotated[bool, Parameter(name=["--module", "-m"], negative=())] = False


@app.default
def _command(
    script: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    options: Annotated[_ScriptOptions, Parameter(name="*")] = _ScriptOptions(),  # it cannot change
) -> int:
    """Run a PyTorch script on every rank of a simulated cluster, as torchrun runs it on a real one.

    Parameters
    ----------
    script
        A Python file; with --module, a module.
    arguments
        Its arguments.
    """
    # Imports Triton, which reads then what is set below.
    from simcoll.torch.scripts import RankScript, run_script

    if options.topology is None and options.nodes is not None:
        raise ConfigError("--nodes is for a --topology")
    place = (
        None if options.topology is None else load_topology(options.topology, nodes=options.nodes)
    )
    if place is None and options.nproc is None:
        raise ConfigError("how many ranks? Give -n, or a --topology to fill")
    ranks = options.nproc if options.nproc is not None else place.nranks if place is not None else 0
    grows = place is not None and options.nodes is None and ranks > place.nranks
    if not options.module and not Path(script).is_file():
        raise ConfigError("there is no such file", file=script)
    record = options.events.record
    return run_script(
        RankScript(script, arguments, options.module),
        ranks,
        shared=options.shared,
        copies=options.copies,
        topology=options.topology if grows else place,
        **option_values(options.collectives),
        alike=options.alike,
        compute=options.compute,
        gpu=options.gpu,
        cuda_is_cpu=options.device == "cuda",
        trace=options.trace if options.trace is not None else False,
        record=record if record is not None else False,
        events=options.events.fault,
        policy=options.events.policy,
    )


def main(words: Sequence[str] | None = None) -> int:
    """The command line; the exit status is torchrun's: 0, or 1 if a rank fails. It is 2 for invalid
    arguments.
    """
    names = ("--nproc", "-n", "--topology", "-t", "--nodes", "--nnodes", "--protocol", "-p")
    valued = (
        *names,
        "--algorithm",
        "-a",
        "--trace",
        "--record",
        "--fault",
        "--policy",
        "--shared",
        "--own",
        "--compute",
        "--gpu",
        "--device",
        "--library",
        "--alike",
    )
    return status_of(app, separate_program(sys.argv[1:] if words is None else words, valued))


if __name__ == "__main__":
    faulthandler.enable()  # what ends the process at once says at least where
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels of Triton run on the CPU
    run_program(main)
