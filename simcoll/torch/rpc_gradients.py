"""``torch.distributed.autograd`` between the ranks of a run.

Inside a context, a message of RPC notes its tensors that need gradients. Their copies are leaves of
the receiver's graph. A backward pass runs on its own worker first; gradients of such copies then
travel back to the senders, which go on from there. A pass is linear in the gradients that it
begins with, so passes for several messages may run one after the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc

from simcoll.torch.rank_threads import current_thread

__all__ = [
    "GradientTrail",
    "gradient_replacements",
    "in_context_of",
    "note_arrival",
    "note_departure",
]

_of_thread = threading.local()


class GradientTrail(NamedTuple):
    """What a message tells of the context in which it was sent.

    Attributes
    ----------
    context
        The number of the context.
    message
        The number of the message on its sender; -1 without tensors that need gradients.
    sender
        The number of the sending worker.
    places
        Which of its tensors need gradients.
    """

    context: int
    message: int
    sender: int
    places: tuple[int, ...]


class _Source(NamedTuple):
    """Where the copy of a tensor came from."""

    sender: int
    message: int
    place: int


@dataclass(slots=True, eq=False)
class _Context:
    """A worker's part of a context.

    Attributes
    ----------
    sent
        By number of message, the tensors that need gradients, by place.
    sources
        For each copy that has arrived, where it came from.
    gradients
        The gradients of the worker's own leaves.
    """

    sent: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)
    sources: dict[torch.Tensor, _Source] = field(default_factory=dict)
    gradients: dict[torch.Tensor, torch.Tensor] = field(default_factory=dict)


def _contexts() -> dict[int, _Context]:
    contexts: dict[int, _Context] = current_thread().process.rpc.contexts
    return contexts


def _context(number: int) -> _Context:
    context = _contexts().get(number)
    if context is None:
        raise RuntimeError(f"Could not find autograd context with id: {number}")
    return context


def current_trail() -> int | None:
    """The context of the running thread."""
    number: int | None = getattr(_of_thread, "context", None)
    return number


@contextlib.contextmanager
def in_context_of(trail: GradientTrail | None) -> Iterator[None]:
    """Run in the context of a message."""
    within, _of_thread.context = current_trail(), None if trail is None else trail.context
    try:
        yield
    finally:
        _of_thread.context = within


def note_departure(tensors: Sequence[torch.Tensor]) -> GradientTrail | None:
    """Note the tensors of a message that is about to leave; None outside contexts."""
    number = current_trail()
    if number is None or number not in _contexts():
        return None
    worker = current_thread().process.rpc
    needing = {place: tensor for place, tensor in enumerate(tensors) if tensor.requires_grad}
    if not needing or not torch.is_grad_enabled():
        return GradientTrail(number, -1, worker.info.id, ())
    sent = _contexts()[number].sent
    sent[len(sent)] = needing
    return GradientTrail(number, len(sent) - 1, worker.info.id, tuple(needing))


def note_arrival(trail: GradientTrail | None, tensors: list[torch.Tensor]) -> None:
    """Enter the context of a message in the thread that handles it, and note its tensors."""
    _of_thread.context = None if trail is None else trail.context
    if trail is None:
        return
    context = _contexts().setdefault(trail.context, _Context())
    for place in trail.places:
        leaf = tensors[place].detach().requires_grad_()
        context.sources[leaf] = _Source(trail.sender, trail.message, place)
        tensors[place] = leaf.view_as(leaf)  # programs may change it in place


class _Handle(NamedTuple):
    number: int

    def _context_id(self) -> int:
        return self.number


def _new_context() -> _Handle:
    if current_trail() is not None:
        raise RuntimeError(
            f"Already have an autograd context id for this thread: {current_trail()}"
        )
    worker = current_thread().process.rpc
    if worker is None:
        raise RuntimeError(
            "Need to initialize distributed autograd using torch.distributed.autograd.init()"
        )
    worker.context_count += 1
    number = (worker.info.id << 48) + worker.context_count
    worker.contexts[number] = _Context()
    _of_thread.context = number
    return _Handle(number)


def _release_context(number: int) -> None:
    """Forget a context on all workers, which takes no time here."""
    _of_thread.context = None
    for worker in current_thread().process.rpc.network.workers.values():
        worker.contexts.pop(number, None)


def _get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    return dict(_context(context_id).gradients)


def _is_valid_context(context_id: int) -> None:
    _context(context_id)


def _backward(context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool = False) -> None:
    """``backward``, on all workers that took part in the roots."""
    del retain_graph  # graphs stay until the context ends
    context = _context(context_id)
    if not roots:
        raise RuntimeError("No tensors provided for gradient computation.")
    for root in roots:
        if not root.requires_grad:
            raise RuntimeError("requires_grad not set on root")
        if root.numel() != 1:
            raise RuntimeError(
                f"{list(root.shape)}: a root of distributed autograd has one element"
            )
    _go_back(context_id, context, list(roots), [torch.ones_like(root) for root in roots])


def _go_back(
    number: int,
    context: _Context,
    outputs: list[torch.Tensor],
    gradients: list[torch.Tensor],
) -> None:
    """One worker's backward pass, and those of the workers before it."""
    leaves = _leaves(outputs)
    earlier_gradients = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    # A backward pass, not torch.autograd.grad, so that hooks of DistributedDataParallel run.
    torch.autograd.backward(outputs, gradients, retain_graph=True)
    returning: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
    for leaf, earlier in zip(leaves, earlier_gradients, strict=True):
        gradient, leaf.grad = leaf.grad, earlier
        if gradient is None:
            continue
        source = context.sources.get(leaf)
        if source is not None:
            returning.setdefault(source[:2], {})[source.place] = gradient
        elif leaf in context.gradients:
            context.gradients[leaf] = context.gradients[leaf] + gradient
        else:
            context.gradients[leaf] = gradient.clone()
    with in_context_of(None):  # these calls have no gradients
        futures = [
            rpc.rpc_async(sender, _continue, args=(number, message, places))
            for (sender, message), places in returning.items()
        ]
        for future in futures:
            future.wait()


def _continue(number: int, message: int, gradients: dict[int, torch.Tensor]) -> None:
    """Go on with the gradients of a message, on the worker that sent it."""
    context = _context(number)
    sent = context.sent[message]
    outputs = [sent[place] for place in gradients]
    _go_back(number, context, outputs, list(gradients.values()))


def _leaves(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves of a graph, in the order of a walk from its outputs."""
    leaves = {tensor: None for tensor in outputs if tensor.grad_fn is None}
    nodes = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    visited = set(nodes)
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None and variable.is_leaf:
            leaves[variable] = None
        for following, _ in node.next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                nodes.append(following)
    return list(leaves)


def gradient_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions of distributed autograd."""
    return [
        (dist_autograd, "backward", _backward),
        (dist_autograd, "get_gradients", _get_gradients),
        (dist_autograd, "_is_valid_context", _is_valid_context),
        (dist_autograd, "_new_context", _new_context),
        (dist_autograd, "_release_context", _release_context),
    ]
