"""The picture of a step: a lane for each stream of each class, a colour for each name."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcoll.units import format_time

if TYPE_CHECKING:
    from simcoll.workload.class_clock import Clock, Span
    from simcoll.workload.workload import Operation, Workload

__all__ = ["step_svg"]

_COLOURS = {
    "forward": "#0072B2",
    "backward": "#D55E00",
    "weights": "#E69F00",
    "optimizer": "#000000",
    "activations": "#56B4E9",
    "gradients of activations": "#332288",
}
_PALETTE = (
    "#009E73",
    "#CC79A7",
    "#F0E442",
    "#882255",
    "#0072B2",
    "#D55E00",
    "#56B4E9",
    "#999933",
    "#332288",
)
_REST_COLOUR = "#BBBBBB"
MOST_COMPUTATION, MOST_COMMUNICATION = 5, 4
"""Names with a colour of their own, those that take longest: more cannot be told apart."""
MOST_LANES = 48
"""With more streams of all classes, a class has a lane of computation and one of communication."""
_SCALES = ((10**15, "s"), (10**12, "ms"), (10**9, "us"), (1, "fs"))

Lane = tuple[str, str]


def step_svg(workload: Workload, clock: Clock, title: str) -> bytes:
    """Draw a step, deterministic to the byte: a row per class and stream, with computation above
    communication; what takes little time altogether shares one colour.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    operations = workload.unroll()
    lanes = _lanes(workload, clock.spans)
    colours, count = _name_colours(operations, clock.spans)
    scale, unit = next(pair for pair in _SCALES if clock.time_fs >= pair[0] or pair[0] == 1)
    figure = Figure(figsize=(11, 1.8 + 0.3 * len(lanes)), layout="constrained")
    axes = figure.add_subplot()
    for (lane, name), extents in _bars(operations, clock.spans, lanes, colours).items():
        lengths = [(begin / scale, (end - begin) / scale) for begin, end in extents]
        axes.broken_barh(
            lengths,
            (lanes[lane] - 0.38, 0.76),
            facecolors=colours.get(name, _REST_COLOUR),
            linewidth=0,
        )
    axes.set_yticks(list(lanes.values()), [": ".join(lane) for lane in lanes], fontsize=9)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlabel(f"time in {unit}")
    axes.set_title(f"{title}: {format_time(clock.time_fs)} on {workload.nranks} ranks", fontsize=11)
    axes.set_xlim(0, clock.time_fs / scale or 1)
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    if count:
        label = f"{count} other{'s' * (count > 1)}, which take less time"
        handles.append(Patch(color=_REST_COLOUR, label=label))
    figure.legend(handles=handles, ncols=4, fontsize=8, loc="outside lower center")
    out = io.BytesIO()
    figure.canvas = FigureCanvasSVG(figure)
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "simcoll", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "simcoll"})
    return out.getvalue()


def _lanes(workload: Workload, spans: Sequence[Span]) -> dict[Lane, int]:
    """The row of each lane, class by class, computation first."""
    streams: dict[str, dict[str, None]] = {name: {} for name in workload.classes}
    for span in spans:
        streams[span.on][span.stream] = None
    if sum(map(len, streams.values())) > MOST_LANES:
        streams = {name: dict.fromkeys(("computation", "communication")) for name in streams}
    lanes = [
        (name, stream)
        for name, members in streams.items()
        for stream in sorted(members, key=lambda stream: not _computes(stream))
    ]
    return {lane: row for row, lane in enumerate(lanes)}


def _computes(stream: str) -> bool:
    return stream in ("host", "compute", "computation")


def _name(operation: Operation) -> str:
    return operation.name or "without a name"


def _name_colours(
    operations: Sequence[Operation], spans: Sequence[Span]
) -> tuple[dict[str, str], int]:
    """The colours of the names that take longest, in their order of appearance, and the number of
    further names.
    """
    computation: Counter[str] = Counter()
    communication: Counter[str] = Counter()
    for span in spans:
        durations = computation if _computes(span.stream) else communication
        durations[_name(operations[span.operation])] += span.end_fs - span.begin_fs
    ranking = computation.most_common(MOST_COMPUTATION)
    ranking += communication.most_common(MOST_COMMUNICATION)
    longest = {name for name, _ in ranking}
    everything = dict.fromkeys((*computation, *communication))
    names = [name for name in everything if name in longest]
    used = {_COLOURS[name] for name in names if name in _COLOURS}
    palette = iter(colour for colour in _PALETTE if colour not in used)
    colours = {name: _COLOURS.get(name) or next(palette, _REST_COLOUR) for name in names}
    return colours, len(everything) - len(names)


def _bars(
    operations: Sequence[Operation],
    spans: Sequence[Span],
    lanes: dict[Lane, int],
    colours: dict[str, str],
) -> dict[tuple[Lane, str], list[tuple[int, int]]]:
    """Begin and end of the bars of each lane and name; bars that touch are one."""
    bars: dict[tuple[Lane, str], list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        if span.end_fs == span.begin_fs:
            continue
        lane = span.on, span.stream
        if lane not in lanes:
            lane = span.on, "computation" if _computes(span.stream) else "communication"
        name = _name(operations[span.operation])
        extents = bars[lane, name if name in colours else ""]
        if extents and extents[-1][1] == span.begin_fs:
            extents[-1] = extents[-1][0], span.end_fs
        else:
            extents.append((span.begin_fs, span.end_fs))
    return bars
