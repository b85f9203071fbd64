"""Per-process state that ranks in threads of one process would otherwise share.

* Environment variables, the working directory and the default dtype: swapped when another rank
  runs, if a rank has changed them.
* The path of imports, and how tensors are printed: swapped.
* Operators of DTensor that ``loss_parallel`` and ``context_parallel`` replace, warning filters, and
  what ``make_fx`` traces: swapped.
* Loggers and their handlers: swapped likewise; those that existed before the run stay shared.
* The generators of ``random`` and ``numpy.random``: in the threads of ranks, the functions of these
  modules use the rank's generators, which start from the state of the caller's.
* ``atexit``: functions that a rank registers are called when its program ends; ``os._exit`` ends
  the rank, and so does ``os.abort``.
"""

from __future__ import annotations

import atexit
import copy
import logging
import operator
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import _tensor_str
from torch.distributed.tensor import DTensor, _random
from torch.fx.experimental import proxy_tensor
from torch.nn import functional
from torch.nn.modules import module

from simcoll.torch.endings import is_of_run, text_of
from simcoll.torch.rank_threads import RankThread, rank_thread_of
from simcoll.torch.replacing import for_ranks

__all__ = ["OwnState", "call_exit_functions", "state_replacements"]

_DISPATCHER: Any = DTensor._op_dispatcher
_MODULE_HOOKS = tuple(name for name in vars(module) if name.startswith("_global_"))
"""The hooks on all modules of a process, such as those of CommDebugMode and FlopCounterMode."""
_SET_VARIABLE, _UNSET_VARIABLE, _CHANGE_FOLDER = os.putenv, os.unsetenv, os.chdir
_ROOT_FIELDS = ("handlers", "filters", "level", "disabled", "_cache")
_MODULE, _ROOT, _LOGGERS = vars(module), vars(logging.root), logging.root.manager
_hooks_of, _fields_of = operator.itemgetter(*_MODULE_HOOKS), operator.itemgetter(*_ROOT_FIELDS)
# A module notes what is assigned to it during a run, which takes a microsecond: every turn of a
# rank would take five.
_SYS, _WARNINGS, _PRINTING = vars(sys), vars(warnings), vars(_tensor_str)
_FUNCTIONAL, _TRACKING, _TRACING = vars(functional), vars(_random), vars(proxy_tensor)


class OwnState:
    """A snapshot of the process state."""

    # Close together, as every turn of a rank reads the state of another one anew into the caches.
    __slots__ = (
        "_attention",
        "_changes",
        "_common",
        "_dtype",
        "_filters",
        "_folder",
        "_handlers",
        "_loggers",
        "_module_hooks",
        "_own",
        "_path",
        "_printing",
        "_root",
        "_tracer",
        "_tracker",
        "changed_folder",
        "changed_variables",
    )
    _root: Sequence[Any]

    def __init__(self) -> None:
        self.changed_folder = self.changed_variables = True
        self._own: dict[Any, Any] = {}
        self._changes: dict[OwnState, tuple[Any, Any, list[tuple[Any, Any]]]] = {}
        self._common: dict[Any, Any] = dict(os.environ._data)  # type: ignore[attr-defined]
        self.leave()
        self._root = [*self._root[0]], *self._root[1:]
        self._loggers = dict(logging.root.manager.loggerDict)

    def of_rank(self, variables: Mapping[str, str]) -> OwnState:
        """The same state with a rank's environment variables."""
        state = copy.copy(self)
        encoded = {
            os.environ.encodekey(name): os.environ.encodevalue(value)
            for name, value in variables.items()
        }
        state._own = {
            name: text for name, text in encoded.items() if self._common.get(name) != text
        }
        state._changes = {}
        state._loggers = dict(self._loggers)
        root = self._root  # its cache of levels comes last
        state._root = [*root[0]], [*root[1]], *root[2:-1], {}
        state._handlers = dict(self._handlers)
        state._filters = self._filters[:]
        state._path, state._printing = self._path[:], copy.copy(self._printing)
        state._module_hooks = tuple([copy.copy(hooks) for hooks in self._module_hooks])
        state.changed_folder = state.changed_variables = False
        return state

    def leave(self) -> None:
        """Save the current state before another rank runs."""
        if self.changed_variables:
            self._note_variables()
        if self.changed_folder:
            self._folder = os.getcwd()  # noqa: PTH109  # of which there may be no Path
        self._dtype = torch.get_default_dtype()
        self._handlers: dict[Any, Any] = _DISPATCHER._custom_op_handlers
        self._attention = functional.scaled_dot_product_attention
        self._filters = warnings.filters
        self._path, self._printing = sys.path, _tensor_str.PRINT_OPTS
        self._tracer = proxy_tensor._CURRENT_MAKE_FX_TRACER
        self._tracker = _random._rng_tracker
        self._module_hooks: tuple[Any, ...] = _hooks_of(_MODULE)
        self._root = _fields_of(_ROOT)

    def enter(self, previous: OwnState) -> None:
        """Restore the state after that of another rank, which has left."""
        self._put_variables(previous)
        if previous._folder != self._folder:
            _CHANGE_FOLDER(self._folder)
        if previous._dtype is not self._dtype:
            torch.set_default_dtype(self._dtype)
        _DISPATCHER._custom_op_handlers = self._handlers
        _FUNCTIONAL["scaled_dot_product_attention"] = self._attention
        _WARNINGS["filters"] = self._filters
        _SYS["path"], _PRINTING["PRINT_OPTS"] = self._path, self._printing
        _TRACING["_CURRENT_MAKE_FX_TRACER"] = self._tracer
        _TRACKING["_rng_tracker"] = self._tracker
        _MODULE.update(zip(_MODULE_HOOKS, self._module_hooks, strict=True))
        _LOGGERS.loggerDict = self._loggers
        _ROOT.update(zip(_ROOT_FIELDS, self._root, strict=True))

    def _note_variables(self) -> None:
        """Note the environment variables, and those in which they differ from the run's."""
        present: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        common = self._common
        self._own = {name: text for name, text in present.items() if common.get(name) != text}
        self._own |= dict.fromkeys(common.keys() - present.keys())

    def _put_variables(self, previous: OwnState) -> None:
        """Change the environment variables in which two states differ."""
        # As os.environ does it, without decoding and encoding on every turn.
        present: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        theirs, mine, changes = self._changes.get(previous, (None, None, []))
        if theirs is not previous._own or mine is not self._own:  # they are made anew
            changes = self._changes_after(previous)
            self._changes[previous] = previous._own, self._own, changes
        for name, text in changes:
            if text is None:
                _UNSET_VARIABLE(name)
                present.pop(name, None)
            else:
                _SET_VARIABLE(name, text)
                present[name] = text

    def _changes_after(self, previous: OwnState) -> list[tuple[Any, Any]]:
        """The variables in which a state differs from a previous one, and their texts; None for
        those that are not set.
        """
        common = self._common
        values = [
            (name, self._own.get(name, common.get(name)), previous._own.get(name, common.get(name)))
            for name in previous._own.keys() | self._own.keys()
        ]
        return sorted((name, mine) for name, mine, theirs in values if mine != theirs)


def call_exit_functions(
    functions: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]],
) -> None:
    """Call the functions that a rank has registered with ``atexit``, latest first.

    An error of one is reported and changes nothing else, as in Python, unless the run raised it: a
    hang is no accident of the end.
    """
    while functions:
        function, args, kwargs = functions.pop()
        try:
            function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            if is_of_run(error):
                raise
            thread = rank_thread_of()
            prefix = "" if thread is None else f"[rank{thread.number}] "
            sys.stderr.write(text_of(error, f"{prefix}atexit"))


@for_ranks
def _register(thread: RankThread, _: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    thread.process.at_exit.append((function, args, kwargs))
    return function


@for_ranks
def _unregister(thread: RankThread, _: Any, function: Any) -> None:
    thread.process.at_exit[:] = [entry for entry in thread.process.at_exit if entry[0] != function]


@for_ranks
def _exit(thread: RankThread, _: Any, status: int) -> Any:
    thread.leave(int(status))


@for_ranks
def _abort(thread: RankThread, _: Any) -> Any:
    thread.leave(128 + signal.SIGABRT)  # as a shell says it


def _own_generator(
    make: Callable[[], Any], key: str, standard: Callable[..., Any]
) -> Callable[..., Any]:
    """Replace a function of a module's hidden generator by that of the rank's generator."""
    name = standard.__name__

    def function(*args: Any, **kwargs: Any) -> Any:
        thread = rank_thread_of()  # also in processes that it has forked
        if thread is None:
            return standard(*args, **kwargs)
        generators = thread.process.generators
        if key not in generators:
            generators[key] = make()
        return getattr(generators[key], name)(*args, **kwargs)

    function.__name__, function.__doc__ = name, standard.__doc__
    return function


@for_ranks
def _change_folder(thread: RankThread, standard: Callable[..., None], path: Any) -> None:
    standard(path)
    thread.process.state.changed_folder = True


@for_ranks
def _change_variables(thread: RankThread, standard: Callable[..., None], *args: Any) -> None:
    """Put or remove a variable in C's table, as ``os.environ`` does whenever it changes."""
    thread.process.state.changed_variables = True
    standard(*args)


def state_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions on process state."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002

    def python_generator() -> random.Random:
        generator = random.Random()  # noqa: S311  # it stands for Python's own
        generator.setstate(python_state)
        return generator

    def numpy_generator() -> np.random.RandomState:
        generator = np.random.RandomState(0)
        generator.set_state(numpy_state)
        return generator

    python_names = [
        name
        for name in random.__all__
        if getattr(getattr(random, name), "__self__", None) is random._inst
    ]
    numpy_names = [
        name
        for name in dir(np.random)
        if name == "seed"
        or getattr(getattr(np.random, name), "__self__", None) is np.random.mtrand._rand
    ]
    return [
        (atexit, "register", _register(atexit.register)),
        (atexit, "unregister", _unregister(atexit.unregister)),
        (os, "_exit", _exit(os._exit)),
        (os, "abort", _abort(os.abort)),
        (os, "chdir", _change_folder(os.chdir)),
        (os, "putenv", _change_variables(os.putenv)),
        (os, "unsetenv", _change_variables(os.unsetenv)),
        *(
            (random, name, _own_generator(python_generator, "random", getattr(random, name)))
            for name in python_names
        ),
        *(
            (np.random, name, _own_generator(numpy_generator, "numpy", getattr(np.random, name)))
            for name in numpy_names
        ),
    ]
