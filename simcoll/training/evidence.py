"""What the rates behind a step rest on: measured, implied by published steps, or assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from simcoll.training.operators import Roofline

if TYPE_CHECKING:
    from simcoll.training.design import Design
    from simcoll.training.gpu import KernelRate

__all__ = ["evidence_by_rate", "rate_lines", "rate_text", "rates_of", "uneven_evidence"]

WEAK = {"lowest", "assumed", "unstated"}
"""Evidence that is no measurement of the GPU or its family."""


def rates_of(design: Design) -> tuple[KernelRate, ...]:
    """The rates of the GPU that set the computation of a step, each with its evidence.

    Examples
    --------
    >>> from simcoll.training.design import design_from
    >>> made = design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 16,
    ...               "dtype": "fp8"},
    ...     "topology": {"name": "mi355x", "nodes": 2}, "parallel": {"tp": 8},
    ... })
    >>> [(rate.place, rate.evidence) for rate in rates_of(made)][:2]
    [('gemm.fp8', 'lowest'), ('gemm.bf16', 'measured')]
    """
    gpu = design.gpu
    wide = Roofline(gpu, design.calibration, design.dtype).wide
    places = {f"gemm.{dtype}": dtype for dtype in (design.dtype, wide)}
    kernel = design.parallel.attention
    if kernel != "plain":
        for backward in (False, True):
            places[gpu.attention_place(kernel, backward=backward)] = wide
    places["sustained.share"] = wide
    return tuple(gpu.rate(place, dtype) for place, dtype in places.items())


def evidence_by_rate(rates: Sequence[KernelRate]) -> dict[str, str]:
    """The evidence of each rate, by its place in the GPU's file."""
    return {rate.place: rate.evidence for rate in rates}


def rate_lines(gpu: str, rates: Sequence[KernelRate]) -> Iterator[str]:
    """What the rates rest on: first all by their evidence, then each that is not measured, with its
    value and range.
    """
    by_evidence: dict[str, list[str]] = {}
    for rate in rates:
        by_evidence.setdefault(_WORDS[rate.evidence], []).append(rate.place)
    parts = (f"{', '.join(places)} {words}" for words, places in by_evidence.items())
    yield f"{gpu}: {'; '.join(parts)}"
    for rate in rates:
        if rate.evidence in WEAK:
            span = f" (up to {rate_text(rate, rate.high)})" if rate.high > rate.value else ""
            value = rate_text(rate, rate.value)
            yield f"{rate.place} of {gpu}: {value}{span}, {rate.source}"


def uneven_evidence(evidence: Mapping[str, Mapping[str, str]]) -> str:
    """A sentence if the rates of alternatives do not rest on the same; empty otherwise.

    Parameters
    ----------
    evidence
        The evidence by rate of each alternative, by its name.

    Examples
    --------
    >>> uneven_evidence({"ours": {"gemm.fp8": "measured"}, "theirs": {"gemm.fp8": "lowest"}})
    'Uneven evidence: of ours all rates are measured; not gemm.fp8 of theirs.'
    >>> uneven_evidence({"ours": {"gemm.fp8": "measured"}, "theirs": {"gemm.bf16": "steps"}})
    ''
    """
    by_places: dict[tuple[str, ...], list[str]] = {}
    for name, rates in evidence.items():
        weak = tuple(place for place, word in rates.items() if word in WEAK)
        by_places.setdefault(weak, []).append(name)
    if len(by_places) < 2:
        return ""
    sound = by_places.pop((), [])
    lists = (
        f"{_in_words(places)} of {_in_words(names)}" for places, names in sorted(by_places.items())
    )
    subject = (
        f"of {_in_words(sound)} all rates are measured; not " if sound else "not measured are "
    )
    return f"Uneven evidence: {subject}{', '.join(lists)}."


def _in_words(names: Sequence[str]) -> str:
    """Names as in a sentence."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def rate_text(rate: KernelRate, value: float) -> str:
    """A value of a rate, such as its highest, with its unit."""
    if rate.place == "sustained.share":
        return f"{value:.2f}"
    return f"{value / 1e12:,.0f} TFLOPS"


_WORDS = {
    "measured": "measured",
    "steps": "from published steps",
    "data sheet": "from the data sheet",
    "sibling": "measured on a GPU of its family",
    "assumed": "assumed",
    "lowest": "not measured",
    "unstated": "without stated evidence",
}
