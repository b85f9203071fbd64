"""Play a program in many orders of turns, and compare what its ranks return."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from simcoll.distributed.runtime.turn_order import TurnOrder, parse_order
from simcoll.distributed.start.results import RunResult, collect_results, note_result
from simcoll.distributed.start.run_parameters import RunParameters
from simcoll.errors import ConfigError, RaceError, shown

__all__ = ["check_interleavings", "play_orders"]

SEARCHES = ("random", "exhaustive")
MOST_ORDERS = 1_000_000
MOST_SHORTENED = 60
"""Runs that may be spent on shortening a failing order."""
SHOWN_NOTES = 8
MOST_DEPTH = 20
"""Of returned values that are compared."""

Play = Callable[[TurnOrder], RunResult]


def check_interleavings(run: RunParameters, interleavings: int | str, *, emulated: bool) -> None:
    """Refuse what is for one order, or for the emulator, alone; a ConfigError."""
    if not emulated:
        raise ConfigError("interleavings= is for the emulator: real ranks take turns as they like")
    if (run.trace or run.record) and _search(interleavings) is not None:
        raise ConfigError(
            f"interleavings={shown(interleavings)} plays many orders, and trace= and record= show "
            "one: give the order, such as interleavings='seed 17', or none"
        )


def play_orders(interleavings: int | str, play: Play) -> RunResult:
    """The result of the usual order, after others have given the same one.

    Parameters
    ----------
    interleavings
        As for :func:`simcoll.distributed.spawn`; the text of one order plays that one.
    play
        Runs the program in an order.

    Raises
    ------
    RaceError
        Where an order fails, or makes a rank return something else.
    ConfigError
        For anything but a search or an order.
    """
    search = _search(interleavings)
    if search is None:
        return play(parse_order(str(interleavings)))
    kind, limit = search
    usual_order = TurnOrder()
    with collect_results(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the usual order come below
        reference = play(usual_order)
        orders = _random_orders() if kind == "random" else _deviating_orders(usual_order)
        played, exhausted = 1, not usual_order.options
        while played < limit and not exhausted:
            order = next(orders, None)
            if order is None:
                exhausted = True
                break
            played += 1
            if _fault(reference, play, order) is not None:
                raise _race(reference, play, _shortest(reference, play, order), played)
    for finding in reference.findings[:8]:
        warnings.warn(finding, UserWarning, stacklevel=3)
    result = dataclasses.replace(reference, orders=played, exhausted=exhausted)
    note_result(result)
    return result


def _search(interleavings: int | str) -> tuple[str, int] | None:
    """The kind of a search and its number of orders; None for the text of one order."""
    words = str(interleavings).split() if isinstance(interleavings, str) else []
    kind, number = "random", interleavings
    if len(words) == 1 and words[0].isascii() and words[0].isdigit():
        number = int(words[0]) if len(words[0]) < len(str(MOST_ORDERS)) + 1 else 0
    elif len(words) == 2 and words[0] in SEARCHES and words[1].isascii() and words[1].isdigit():
        kind, number = words[0], int(words[1][:10])
    elif isinstance(interleavings, str):
        return None
    if type(number) is not int or not 1 <= number <= MOST_ORDERS:
        raise ConfigError(
            f"interleavings={shown(interleavings)}: expected a number of orders, 1 to "
            f"{MOST_ORDERS}, 'exhaustive 200', or one order, such as 'seed 17'"
        )
    return kind, number


def _random_orders() -> Iterator[TurnOrder]:
    seed = 0
    while True:
        seed += 1
        yield TurnOrder(seed=seed)


def _deviating_orders(usual_order: TurnOrder) -> Iterator[TurnOrder]:
    """All orders, those with few deviations from the usual one first.

    Most races need one or two (Emmi, Qadeer and Rakamarić, "Delay-bounded scheduling", POPL 2011).
    """
    layer = [usual_order]
    while layer:
        deeper = []
        for order in layer:
            last = max(order.deviations, default=-1)
            for turn in range(last + 1, len(order.options)):
                for option in range(1, order.options[turn]):
                    deviating = TurnOrder({**order.deviations, turn: option})
                    yield deviating
                    deeper.append(deviating)
        layer = deeper


def _fault(reference: RunResult, play: Play, order: TurnOrder) -> BaseException | str | None:
    """What goes wrong in an order: an exception, or a difference in words."""
    try:
        result = play(order)
    except Exception as error:  # noqa: BLE001  # the program's own
        return error
    for rank, (expected, returned) in enumerate(
        zip(reference.returns, result.returns, strict=True)
    ):
        if not _alike(expected, returned):
            return f"rank {rank} returns {shown(returned)}, and {shown(expected)} in the usual one"
    return None


def _shortest(reference: RunResult, play: Play, order: TurnOrder) -> TurnOrder:
    """A failing order with as few deviations as a few runs find, explained."""
    deviations = dict(order.choices)
    if _fault(reference, play, TurnOrder(deviations)) is None:
        return order  # it differs from run to run
    tries, size = 0, len(deviations)
    while size > 1 and tries < MOST_SHORTENED:
        size = (size + 1) // 2
        turns = list(deviations)
        for begin in range(0, len(turns), size):
            left_out = turns[begin : begin + size]
            fewer = {turn: option for turn, option in deviations.items() if turn not in left_out}
            tries += 1
            if fewer and _fault(reference, play, TurnOrder(fewer)) is not None:
                deviations = fewer
    return TurnOrder(deviations)


def _alike(expected: Any, returned: Any, depth: int = 0) -> bool:
    """Whether two returned values are equal, NaN to NaN; objects without a comparison, by their
    attributes.
    """
    if expected is returned or depth > MOST_DEPTH:  # an object may hold itself
        return True
    if type(expected) is not type(returned):
        return False
    if isinstance(expected, Mapping):
        return list(expected) == list(returned) and all(
            _alike(value, returned[key], depth + 1) for key, value in expected.items()
        )
    if isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
        return len(expected) == len(returned) and all(
            _alike(*pair, depth + 1) for pair in zip(expected, returned, strict=True)
        )
    if hasattr(expected, "dtype") and hasattr(expected, "shape"):
        if (expected.dtype, expected.shape) != (returned.dtype, returned.shape):
            return False
        both_nan = (expected != expected) & (returned != returned)  # noqa: PLR0124
        return bool(((expected == returned) | both_nan).all())
    comparison: Any = type(expected).__eq__
    if comparison is object.__eq__:
        attributes = getattr(expected, "__dict__", None), getattr(returned, "__dict__", None)
        return _alike(*attributes, depth + 1)
    return bool(expected == returned or (expected != expected and returned != returned))  # noqa: PLR0124


def _race(reference: RunResult, play: Play, order: TurnOrder, played: int) -> RaceError:
    """The error of a failing order, with its deviations in words."""
    order = TurnOrder(order.deviations, order.seed, explained=True)
    fault = _fault(reference, play, order)
    if isinstance(fault, BaseException):
        fault_text = f"{type(fault).__name__}: {fault}"
    else:
        fault_text = fault or "the program does not do the same when it is run again"
    notes = order.notes[:SHOWN_NOTES]
    if len(order.notes) > len(notes):
        notes.append(f"... and {len(order.notes) - len(notes)} more")
    error = RaceError(
        "\n".join(
            [
                f"another order of turns, number {played} of those played: {fault_text}",
                *(f"  {note}" for note in notes),
                f"replay: spawn(..., interleavings={order.replay!r})",
            ]
        ),
        order=order.replay,
        orders=played,
    )
    error.__cause__ = fault if isinstance(fault, BaseException) else None
    return error
