"""``simcoll step``: one training step, or any workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simcoll.command_line import VERBOSE, WHOLE
from simcoll.errors import ConfigError, blamed_on
from simcoll.terminal import say

__all__ = ["time_step"]

FILES = ("step.json", "step.svg", "trace.json.gz", "workload.json")
MOST_TOGETHER = 1 << 16
"""Most GPUs whose step is emulated together by default. A step of Llama 3.1 405B on 131,072 (tensor
parallelism of 8, 16 stages) needs more than 10 GB so, and 1.3 GB and 24 s with collectives timed
once each.
"""


def time_step(
    design: Annotated[Path, Parameter(name="FILE")],
    /,
    *,
    tier: Annotated[int | None, WHOLE] = None,
    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None,
    nodes: Annotated[int | None, WHOLE] = None,
    gpu: str | None = None,
    system: Path | None = None,
    comm_groups: Path | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    verbose: Annotated[bool, VERBOSE] = False,
) -> None:
    """Time a training step, the steps of a served model, or another workload; print its breakdown,
    write the result, a picture and a timeline.

    Parameters
    ----------
    design
        A design file (with [serving]: of a model that is served), a list of operations (TOML), a
        workload (JSON), the text of an HLO module, a text workload of ASTRA-sim 1.0, SimAI or AICB,
        or a Chakra trace: the file of one rank, trace.0.et, or trace.
    tier
        2: everything emulated together. 1: collectives timed once each, and the pipeline played
        with these times; faster, and equal where no two axes share links. Default: 2, or 1 for a
        workload of more than 20,000 messages, and for a design of more than 65,536 GPUs.
    topology
        Machine of a workload, if it names none or to override it.
    nodes
        Number of nodes of that machine.
    gpu
        GPU whose roofline times the work of an HLO module, and Chakra nodes with operation and byte
        counts.
    system
        ASTRA-sim's system.json, which selects collective algorithms and the roofline.
    comm_groups
        ASTRA-sim's file of the groups that a Chakra trace names: {"1": [0, 1], ...}.
    output
        Folder for step.json, step.svg, trace.json.gz (Perfetto) and workload.json; default
        out/<design>.
    verbose
        Print also the formula of the FLOPs, what played the step, and the hashes of design and
        trace.
    """
    from simcoll.cli.workload_files import WORKLOADS, read_any_workload, workload_kind
    from simcoll.files.output import open_folder, write_files
    from simcoll.formats.recognise import TITLES
    from simcoll.planning.designs.step_picture import step_svg
    from simcoll.planning.designs.step_report import step_json, step_lines, workload_lines
    from simcoll.planning.designs.step_trace import step_trace
    from simcoll.planning.sweeps.chart import NO_PICTURE, can_draw
    from simcoll.training.design import load_design
    from simcoll.training.serving import is_serving
    from simcoll.training.steps import TrainingStep
    from simcoll.workload.playing import alone_on, message_count, run_workload, tier_for
    from simcoll.workload.workload import write_workload

    folder = output or Path("out") / design.stem
    kind = workload_kind(design)
    if kind not in WORKLOADS:
        if kind not in {"design", "toml", "text"}:
            raise ConfigError(
                f"this is {TITLES[kind]}; expected a design, a list of operations, a workload, an "
                "HLO module, a text workload of ASTRA-sim or SimAI, or a Chakra trace",
                file=str(design),
            )
        if any(option is not None for option in (topology, nodes, gpu, system, comm_groups)):
            raise ConfigError(
                "--topology, --nodes, --gpu, --system and --comm-groups are for workloads; this "
                f"is {TITLES[kind]}",
                file=str(design),
            )
        if kind in {"design", "toml"} and is_serving(design):
            _time_serving(design, folder)
            return
        step = TrainingStep(load_design(design))
        open_folder(folder, FILES)
        if tier is None:
            tier = _default_tier(step.workload.nranks)
        result = step.result(tier=tier)
        lines, workload, title = step_lines(result, verbose=verbose), step.workload, result.title
        clock, content, plans = step.clock(tier=tier).clock, step_json(result), step.alone.plans
    else:
        workload, place, slow = read_any_workload(
            design, kind, topology, nodes, gpu, system, comm_groups
        )
        if place is None:
            raise ConfigError(
                f"{TITLES[kind]} of {workload.nranks} ranks: say where it runs, with --topology",
                file=str(design),
            )
        open_folder(folder, FILES)
        if tier is None:
            tier = tier_for(workload)
            if tier == 1:
                say(
                    f"# tier 1: collectives of about {message_count(workload):,} messages; "
                    "--tier 2 emulates them together, which takes longer"
                )
        with blamed_on(str(design)):
            run = run_workload(workload, place, tier=tier, slow=slow)
        plans = alone_on(place, uniform=False, rules=workload.rules).plans
        lines, content = workload_lines(run, verbose=verbose), step_json(run)
        title, clock = run.title or design.stem, run.clock
    for line in lines:
        say(line)
    contents = {"step.json": content, "workload.json": write_workload(workload)}
    if clock.spans or not workload.operations:
        if can_draw():
            contents["step.svg"] = step_svg(workload, clock, title)
        else:
            say(f"# {NO_PICTURE}")
        contents["trace.json.gz"] = step_trace(workload, clock, title, plans)
    else:
        say("# no picture and no timeline: the loops of the workload unroll to too many operations")
    names = [name for name in FILES if name in contents]
    write_files(folder, {name: contents[name] for name in names})
    say(f"# wrote {', '.join(str(folder / name) for name in names)}")


def _default_tier(gpus: int) -> int:
    """The tier of a design's step where none is requested, which is said where it is 1."""
    if gpus <= MOST_TOGETHER:
        return 2
    say(
        f"# tier 1: more than {MOST_TOGETHER:,} GPUs; --tier 2 emulates them together, which takes "
        "about 12 GB of memory at 131,072"
    )
    return 1


def _time_serving(design: Path, folder: Path) -> None:
    """Print a prefill and a decode step of each way to serve a model, and write them."""
    from simcoll.files.output import open_folder, write_files
    from simcoll.planning.designs.serving_report import serving_csv, serving_lines
    from simcoll.training.serving import load_serving, prefill_key, serving_step

    models = load_serving(design)
    open_folder(folder, ("serving.csv",))
    with blamed_on(str(design)):
        # A prompt takes as long whatever the batch of the decode step.
        steps = list(
            {prefill_key(model): serving_step(model, "prefill") for model in models}.values()
        )
        steps += [serving_step(model, "decode") for model in models]
    for line in serving_lines(models, steps):
        say(line)
    write_files(folder, {"serving.csv": serving_csv(steps)})
    say(f"# wrote {folder / 'serving.csv'}")
