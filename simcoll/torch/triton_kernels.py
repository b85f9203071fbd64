"""Triton's kernels, which Triton's interpreter runs on the CPU.

Programs choose them by ``is_cuda``, and there is no GPU to compile them for. Triton decides when it
is imported whether it interprets, so that the command for scripts asks for it before that.
"""

from __future__ import annotations

import sys
from typing import Any

from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["triton_replacements"]


@for_ranks
def _launch(thread: RankThread, standard: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """A kernel on its grid, of which the time model knows nothing."""
    if thread.process.device is not None:
        name = getattr(self.fn, "__name__", "of a program")
        thread.tell(f"Triton kernel {name}", "it takes no simulated time")
    return standard(self, *args, **kwargs)


def triton_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what runs a kernel, if Triton interprets."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        return []
    executor = interpreter.GridExecutor
    return [(executor, "__call__", _launch(executor.__call__))]
