"""The picture of a step: lanes, colours, the unit, and a legend that covers nothing."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from simcoll.planning.designs.step_picture import MOST_LANES, step_svg
from simcoll.workload.class_clock import Clock, Span
from simcoll.workload.workload import CallOperation, ComputeOperation, Workload

US = 10**9


def text_places(svg):
    """The texts of a picture, and how far below its upper edge each is."""
    places = {}
    for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        style = element.get("style", "") + element.get("transform", "")
        numbers = re.findall(r"translate\([-\d.]+ ([-\d.]+)\)", style)
        places["".join(element.itertext())] = float(numbers[0] if numbers else element.get("y"))
    return places


def kernels_and_sums(nclasses=1, names=20):
    """Classes that compute under many names, and then reduce."""
    classes = {f"stage{place}": np.array([2 * place, 2 * place + 1]) for place in range(nclasses)}
    operations, spans = [], []
    for on in classes:
        for place in range(names):
            name = f"kernel{place}"
            operations.append(ComputeOperation(id=f"{on}{name}", on=on, time_fs=US, name=name))
            begin = place * (place + 1) // 2 * US
            spans.append(Span(len(operations) - 1, on, "compute", begin, begin + (place + 1) * US))
        sums = CallOperation(
            id=f"{on}sum", kind="all_reduce", group="dp", on=(on,), size_bytes=8, name="all_reduce"
        )
        operations.append(sums)
        spans.append(Span(len(operations) - 1, on, "dp", 5 * US, 6 * US))
    groups = {"dp": np.array(list(classes.values()))}
    workload = Workload(2 * nclasses, classes, groups, tuple(operations))
    return workload, Clock(max(span.end_fs for span in spans), tuple(spans))


@pytest.mark.slow
def test_a_picture_names_lanes_unit_and_what_takes_longest():
    svg = step_svg(*kernels_and_sums(), "a step").decode()
    places = text_places(svg)
    assert "a step: 210 us on 2 ranks" in places
    assert {"stage0: compute", "stage0: dp", "time in us"} <= set(places)
    legend = [name for name in places if name.startswith(("kernel", "all_reduce"))]
    assert sorted(legend) == ["all_reduce", *(f"kernel{place}" for place in range(15, 20))]
    assert "15 others, which take less time" in places
    height = float(re.search(r'height="([\d.]+)pt"', svg).group(1))
    for name in legend:
        assert places["time in us"] < places[name] < height
    assert svg == step_svg(*kernels_and_sums(), "a step").decode()


@pytest.mark.slow
def test_every_name_in_the_legend_has_a_colour_of_its_own():
    svg = step_svg(*kernels_and_sums(), "a step").decode()
    legend = svg[svg.index('id="legend_1"') :]
    colours = re.findall(r"fill: (#[0-9a-f]{6})", legend)
    entries = [colour for colour in colours if colour not in {"#ffffff", "#000000"}]
    assert len(entries) == len(set(entries)) == 7


@pytest.mark.slow
def test_many_classes_have_two_lanes_each():
    places = text_places(step_svg(*kernels_and_sums(MOST_LANES // 2 + 1, 2), "a step").decode())
    lanes = [name for name in places if name.startswith("stage")]
    assert len(lanes) == MOST_LANES + 2
    assert {"stage0: computation", "stage24: communication"} <= set(lanes)


@pytest.mark.slow
def test_all_names_of_a_design_have_colours_of_their_own():
    names = ("forward", "backward", "weights", "optimizer")
    passed = ("activations", "gradients of activations")
    operations = [
        ComputeOperation(id=name, on="all", time_fs=US, name=name) for name in (*names, *passed)
    ]
    spans = [
        Span(
            place, "all", "send" if place >= len(names) else "compute", place * US, place * US + US
        )
        for place in range(len(operations))
    ]
    workload = Workload(1, {"all": np.array([0])}, {}, tuple(operations))
    svg = step_svg(workload, Clock(spans[-1].end_fs, tuple(spans)), "a step").decode()
    legend = svg[svg.index('id="legend_1"') :]
    styles = re.findall(r'<path [^>]*?style="([^"]*)"', legend, re.DOTALL)
    patches = [style for style in styles if "opacity" not in style]  # the frame has it
    assert len(patches) == len(set(patches)) == len(operations)
