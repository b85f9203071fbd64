"""Graphs of the search cached on disk: a search takes up to several seconds, where a prediction
takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from simcoll.libraries.nccl.graphs import NcclGraphs
from simcoll.libraries.prediction_cache import CachePart, key_of, recall, remember

__all__ = ["cached_graphs"]

_FORM = {"graphs": str}


def _decode(text: str) -> NcclGraphs:
    return msgspec.json.decode(text, type=NcclGraphs)


def _has_graphs(fields: Mapping[str, object]) -> bool:
    try:
        _decode(str(fields["graphs"]))
    except msgspec.MsgspecError:
        return False
    return True


GRAPHS = CachePart("nccl-graphs", 2**18, _has_graphs, max_files=2**12)
"""64 channels of 72 GPUs take 20 KiB."""


def cached_graphs(request: tuple[object, ...], find: Callable[[], NcclGraphs]) -> NcclGraphs:
    """The graphs of a request: those on disk, or else found now and stored.

    Parameters
    ----------
    request
        Everything on which the graphs depend; its ``repr`` tells requests apart.
    find
        The search.
    """
    key = key_of("nccl graphs", *request)
    stored = recall(key, _FORM, GRAPHS)
    if stored is not None:
        return _decode(str(stored["graphs"]))
    graphs = find()
    remember(key, {"graphs": msgspec.json.encode(graphs).decode()}, GRAPHS)
    return graphs
