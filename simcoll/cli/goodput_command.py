"""``simcoll goodput``: useful training time under failures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.cli.grids import GridOptions
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.planning.reliability.goodput import Goodput

__all__ = ["simulate_goodput"]

NOISE = 2
"""Standard errors of a difference below which the seeds do not tell two cases apart."""
NAMED = 3
"""Ties that are named; more are counted."""


def simulate_goodput(
    job: str,
    /,
    *,
    options: Annotated[GridOptions, Parameter(name="*")] = GridOptions(),  # noqa: B008
) -> None:
    """Simulate failures, checkpoints, restarts, spares and slow nodes: the share of useful training
    time.

    Parameters
    ----------
    job
        The name of a shipped file, or a goodput file in TOML; a list in it is swept.
    """
    from simcoll.cli.grids import play_grid
    from simcoll.files.output import write_file
    from simcoll.planning.reliability.goodput import goodput_csv, goodput_grid, goodput_of
    from simcoll.planning.sweeps.scenario import file_of

    file = file_of("goodput", job)
    played = play_grid(options, file, lambda: goodput_grid(file)[1], ("results.csv",))
    if played is None or options.shard:
        return
    (run,), folder = played
    cases = goodput_of(run.rows)
    for line in _table(cases):
        say(line)
    for line in _verdict(cases):
        say(f"# {line}")
    if len(run.rows) == len(cases):
        say("# one seed: +/- and 5 to 95 % are unknown, not zero; raise seeds in the file")
    write_file(folder / "results.csv", goodput_csv(cases))
    say(f"# wrote {folder / 'rows.jsonl'}, {folder / 'results.csv'}")


def _verdict(cases: Sequence[Goodput]) -> Iterator[str]:
    """The best case by goodput, the cheapest, which others the seeds do not tell from them, and
    what the error of the predicted step adds.
    """
    best = max(cases, key=lambda case: case.mean)
    leader = best
    if len(cases) > 1:
        noise = f" +/- {best.error:.4f}" if best.error else ""
        yield f"Best by goodput: {_values(best)}, {best.mean:.4f}{noise}."
        yield from _ties(
            best, [case for case in cases if case.mean >= best.mean - _noise(case, best)]
        )
    if best.usd_per_mtoken:
        leader = cheapest = min(cases, key=lambda case: case.usd_per_mtoken)
        if len(cases) > 1:
            yield f"Cheapest: {_values(cheapest)}, {cheapest.usd_per_mtoken:.4f} $/Mtoken."
            yield from _ties(cheapest, [case for case in cases if _as_cheap(case, cheapest)])
    yield from _step_error(leader)


def _noise(case: Goodput, rival: Goodput) -> float:
    """The difference of two goodputs that the seeds do not tell from none."""
    return NOISE * math.hypot(case.error, rival.error)


def _as_cheap(case: Goodput, cheapest: Goodput) -> bool:
    """Whether the seeds, or the errors of predicted steps, do not tell the cheapest from a case."""
    from simcoll.planning.designs.decision import is_tie

    noise = _noise(case, cheapest) / max(cheapest.mean, case.mean)
    if case.usd_per_mtoken <= cheapest.usd_per_mtoken * (1 + noise):
        return True
    if case.ideal_tokens_per_second == cheapest.ideal_tokens_per_second:
        return False
    if not (case.step_error and cheapest.step_error):
        return False
    figure = "usd_per_mtoken"
    best, rival = (
        {figure: option.usd_per_mtoken, "interval": option.step_error}
        for option in (cheapest, case)
    )
    return is_tie(best, rival, figure)


def _ties(leader: Goodput, candidates: Sequence[Goodput]) -> Iterator[str]:
    """The other cases that may be as good as the leader, by name where they are few."""
    from simcoll.units import counted

    ties = [case for case in candidates if case is not leader]
    if not ties:
        return
    verb = "is a tie" if len(ties) == 1 else "are ties"
    names = f": {'; '.join(map(_values, ties))}" if len(ties) <= NAMED else ""
    yield f"{counted(len(ties), 'other case')} {verb} with it, within the noise{names}."


def _step_error(case: Goodput) -> Iterator[str]:
    """How far the predicted step of a job's design may be off, and what that does to a case."""
    if not case.step_error:
        return
    low, high = case.step_error["90"]
    source = re.sub(r" \(.*\)", "", case.step_error["of"])
    effects = [f"{case.days[0] * low:,.1f} to {case.days[0] * high:,.1f} days"] if case.days else []
    if case.usd:
        unit = _money_unit([case])
        low_text, high_text = (_money(case.usd[0] * end, unit) for end in (low, high))
        effects.append(f"{low_text} to {high_text} {unit}")
    elif case.usd_per_mtoken:
        ends = (case.usd_per_mtoken * factor for factor in (low, high))
        effects.append("{:.4f} to {:.4f} $/Mtoken".format(*ends))
    yield (
        f"The design's step is predicted: nine of ten measured steps took {low:.2f} to {high:.2f} "
        f"times as long, by {source}."
    )
    if effects:
        name = f"{_values(case)}: " if case.case else ""
        yield f"With that error: {name}{', '.join(effects)}; 5 to 95 % above is of failures alone."


def _money_unit(cases: Sequence[Goodput]) -> str:
    """Millions of dollars, unless all cases cost less than one."""
    return "$m" if max((case.usd[0] for case in cases if case.usd), default=0) >= 1e6 else "$"


def _money(usd: float, unit: str) -> str:
    return f"{usd / 1e6:,.2f}" if unit == "$m" else f"{usd:,.0f}"


def _values(case: Goodput) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.case.items())


def _table(cases: Sequence[Goodput]) -> Iterator[str]:
    from simcoll.units import format_span

    axes = list(cases[0].case)
    widths = [max(len(name), *(len(str(case.case[name])) for case in cases)) for name in axes]
    swept = "".join(f"{name:>{width}}  " for name, width in zip(axes, widths, strict=True))
    dear = any(case.tokens_per_second for case in cases)
    heads = "interval  goodput  +/-     5 to 95 %      formula  stops  ckpt   lost   down   slow"
    tail = "  tokens/s  $/Mtoken" if dear else ""
    tail += "   days  5 to 95 %" if any(case.days for case in cases) else ""
    unit = _money_unit(cases)
    tail += f"  {unit:>9}  5 to 95 %" if any(case.usd for case in cases) else ""
    yield f"# {swept}{heads}{tail}"
    for case in cases:
        values = "".join(
            f"{case.case[name]!s:>{width}}  " for name, width in zip(axes, widths, strict=True)
        )
        shares = case.shares
        down = shares["detect"] + shares["restart"] + shares["waiting"]
        formula = "      -" if case.formula is None else f"{case.formula:7.4f}"
        line = (
            f"  {values}{format_span(case.interval_us):>8}  {case.mean:7.4f}  {case.error:.4f}  "
            f"{case.low:.4f}-{case.high:.4f}  {formula}"
            f"  {case.interruptions:5.0f}  {shares['checkpoint']:.3f}  {shares['lost']:.3f}  "
            f"{down:.3f}  {shares['slow']:.3f}"
        )
        if dear:
            line += f"  {case.tokens_per_second:8,.0f}  {case.usd_per_mtoken:8.4f}"
        if case.days:
            line += "  {:5.1f}  {:.1f} to {:.1f}".format(*case.days)
        if case.usd:
            line += "  {:>9}  {} to {}".format(*(_money(usd, unit) for usd in case.usd))
        yield line
