"""Functions of PyTorch that connect processes or GPUs themselves, past every process group: refused
in ranks.

They would wait for processes that do not exist, or end in errors that name internals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch._C import _distributed_c10d as c10d
from torch.distributed import _symmetric_memory

from simcoll.errors import ConfigError
from simcoll.torch.replacing import in_ranks

__all__ = ["refusals"]

_GLOO = (
    "connects processes by sockets, where the ranks of a run, threads of one process, would wait "
    "for each other in vain: use new_group"
)
_SYMMETRIC = "maps the memory of other GPUs, and tensors of a run are on the CPU: use collectives"


class _Refused(NamedTuple):
    owner: Any
    module: str
    function: str
    reason: str


_REFUSED = (
    _Refused(c10d.ProcessGroupGloo, "torch.distributed.ProcessGroupGloo", "__init__", _GLOO),
    *(
        _Refused(_symmetric_memory, "torch.distributed._symmetric_memory", name, _SYMMETRIC)
        for name in ("set_backend", "empty", "rendezvous", "get_symm_mem_workspace", "get_mem_pool")
    ),
)


def _refusing(words: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ConfigError(words)

    return refuse


def refusals() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions that have no meaning between ranks of a run."""
    return [
        (
            refused.owner,
            refused.function,
            in_ranks(
                getattr(refused.owner, refused.function),
                _refusing(f"{refused.module}.{refused.function} {refused.reason}"),
            ),
        )
        for refused in _REFUSED
    ]
