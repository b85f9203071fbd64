"""Replace functions of Python and PyTorch in the threads of ranks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from simcoll.torch.rank_threads import current_thread_or_none

__all__ = ["by_signature", "for_ranks", "in_ranks"]


def in_ranks(standard: Any, substitute: Any) -> Any:
    """A function or class that delegates to another one in the threads of ranks."""
    if isinstance(standard, type):

        def new(_cls: type, *args: Any, **kwargs: Any) -> Any:
            return (standard if current_thread_or_none() is None else substitute)(*args, **kwargs)

        return type(standard.__name__, (), {"__new__": new, "__doc__": standard.__doc__})

    @functools.wraps(standard)
    def function(*args: Any, **kwargs: Any) -> Any:
        return (standard if current_thread_or_none() is None else substitute)(*args, **kwargs)

    return function


def by_signature(standard: Any, substitute: Callable[..., Any]) -> Callable[..., Any]:
    """A substitute that takes the arguments of a standard function, by position or by name, and
    uses those that it names itself.
    """

    @functools.cache  # at the first call: most functions that a run replaces are never called
    def signatures() -> tuple[inspect.Signature | None, Mapping[str, inspect.Parameter], bool]:
        parameters = inspect.signature(substitute).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        try:
            signature = inspect.signature(standard)
        except ValueError:  # written in C++
            signature = None
        return signature, parameters, inspect.Parameter.VAR_POSITIONAL in kinds

    @functools.cache  # binding takes longer than most substitutes do
    def positions(count: int, names: tuple[str, ...]) -> tuple[tuple[str, int], ...] | None:
        """The parameters that the substitute names and their values' positions, in calls with so
        many arguments by position and these by name; None where it takes lists of others.
        """
        signature, parameters, takes_all = signatures()
        if signature is None or takes_all:
            return None
        numbers = {name: count + number for number, name in enumerate(names)}
        bound = signature.bind(*range(count), **numbers).arguments
        chosen = [(name, position) for name, position in bound.items() if name in parameters]
        return tuple(chosen) if all(type(position) is int for _, position in chosen) else None

    @functools.wraps(substitute)
    def function(*args: Any, **kwargs: Any) -> Any:
        parameters_of_form = positions(len(args), tuple(kwargs))
        if parameters_of_form is not None:
            values = (*args, *kwargs.values())
            return substitute(**{name: values[position] for name, position in parameters_of_form})
        signature, parameters, takes_all = signatures()
        if signature is None:
            return substitute(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs)
        if takes_all:
            return substitute(*arguments.args, **arguments.kwargs)
        chosen = {name: value for name, value in arguments.arguments.items() if name in parameters}
        return substitute(**chosen)

    return function


def for_ranks(substitute: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    """Decorate ``substitute(thread, standard, *args)`` to wrap a standard function, for which it is
    called in ranks' threads.
    """

    def replacement(standard: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(standard)
        def function(*args: Any, **kwargs: Any) -> Any:
            thread = current_thread_or_none()
            return (
                standard(*args, **kwargs)
                if thread is None
                else substitute(thread, standard, *args, **kwargs)
            )

        return function

    return replacement
