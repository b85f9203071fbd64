"""A small library of collectives for the threads of a process, as somebody might write it, and two
faulty versions of it.

Ranks exchange messages through mailboxes, one for each ordered pair of ranks and each operation.
"""

from __future__ import annotations

import queue
from itertools import pairwise

import numpy as np

from simcoll.core.reduction import REDUCTIONS, Reduction
from simcoll.errors import ConfigError
from simcoll.testing.collective_cases import parse_reduction_text


class Mail:
    """The messages of one operation as one rank sees them."""

    def __init__(self, call):
        self.boxes = call.world.shared
        self.call = call

    def _box(self, source, target):
        key = (self.call.index, source, target)
        return self.boxes.setdefault(key, queue.SimpleQueue())

    def send(self, target, data):
        self._box(self.call.rank, target).put(np.array(data))

    def receive(self, source):
        return self._box(source, self.call.rank).get()


class ThreadLibrary:
    """All ten collectives, among any group of threads."""

    def run(self, call):
        if call.asynchronous:
            raise NotImplementedError("operations are synchronous")
        self.check(call)
        mail = Mail(call)
        if call.kind in ("reduce", "all_reduce", "reduce_scatter"):
            try:
                reduction = parse_reduction_text(call.op, call.operation.dtype)
            except ConfigError as error:
                raise ValueError(str(error)) from None
            with np.errstate(all="ignore"):
                getattr(self, call.kind)(call, mail, reduction)
        else:
            getattr(self, call.kind)(call, mail)

    def check(self, call):
        """Refuse arguments that no rank can work with."""
        peers = [call.root, call.destination or 0, call.source or 0]
        if max(peers) >= call.nranks:
            raise ValueError(f"rank {max(peers)} is not in a group of {call.nranks}")
        for values, counts in ((call.input, call.input_counts), (call.output, call.output_counts)):
            if values is not None and values.size < sum(counts):
                raise ValueError(f"a buffer of {values.size} elements, expected {sum(counts)}")
        dtypes = {values.dtype for values in (call.input, call.output) if values is not None}
        if len(dtypes) > 1:
            raise TypeError(f"buffers of different dtypes: {dtypes}")

    def blocks(self, values, counts):
        """Views of the blocks of a buffer."""
        ends = np.cumsum([0, *counts])
        return [values[a:b] for a, b in pairwise(ends)]

    def broadcast(self, call, mail):
        root = self.root_of_broadcast(call)
        if call.rank == root:
            for peer in range(call.nranks):
                mail.send(peer, call.input)
        if call.output is not None:
            call.output[...] = mail.receive(root)

    def root_of_broadcast(self, call):
        return call.root

    def scatter(self, call, mail):
        if call.rank == call.root:
            for peer, block in enumerate(self.blocks(call.input, call.input_counts)):
                mail.send(peer, block)
        call.output[...] = mail.receive(call.root)

    def gather(self, call, mail):
        mail.send(call.root, call.input)
        if call.rank == call.root:
            for peer, block in enumerate(self.blocks(call.output, call.output_counts)):
                block[...] = mail.receive(peer)

    def all_gather(self, call, mail):
        for peer in range(call.nranks):
            mail.send(peer, call.input)
        for peer, block in enumerate(self.blocks(call.output, call.output_counts)):
            block[...] = mail.receive(peer)

    def all_to_all(self, call, mail):
        for peer, block in enumerate(self.blocks(call.input, call.input_counts)):
            mail.send(peer, block)
        for peer, block in enumerate(self.blocks(call.output, call.output_counts)):
            block[...] = mail.receive(peer)

    def send_recv(self, call, mail):
        if call.destination is not None:
            mail.send(call.destination, call.input)
        if call.source is not None:
            call.output[...] = mail.receive(call.source)

    def barrier(self, call, mail):
        for peer in range(call.nranks):
            mail.send(peer, [])
        for peer in range(call.nranks):
            mail.receive(peer)

    def total(self, call, mail, reduction: Reduction, values):
        """The reduction of the vectors that all ranks have sent to this one."""
        combine = REDUCTIONS[reduction.pairwise]
        result = reduction.prepared(mail.receive(0))
        for peer in range(1, call.nranks):
            result = combine(result, reduction.prepared(mail.receive(peer)))
        reduction.finish(result, call.nranks)
        values[...] = result

    def reduce(self, call, mail, reduction):
        mail.send(call.root, call.input)
        if call.rank == call.root:
            self.total(call, mail, reduction, call.output)

    def reduce_scatter(self, call, mail, reduction):
        for peer, block in enumerate(self.blocks(call.input, call.input_counts)):
            mail.send(peer, block)
        self.total(call, mail, reduction, call.output)

    def all_reduce(self, call, mail, reduction):
        """Every rank reduces a share of the vector, and sends its result to all."""
        shares = self.shares(len(call.input), call.nranks)
        for peer, block in enumerate(self.blocks(call.input, shares)):
            mail.send(peer, block)
        share = np.empty(shares[call.rank], call.input.dtype)
        self.total(call, mail, reduction, share)
        for peer in range(call.nranks):
            mail.send(peer, share)
        for peer, block in enumerate(self.blocks(call.output, shares)):
            block[...] = mail.receive(peer)

    def shares(self, count, nranks):
        """Elements that each rank reduces: equal shares, and what remains to the first ranks."""
        return [count // nranks + (rank < count % nranks) for rank in range(nranks)]


class Trusting(ThreadLibrary):
    """Takes whatever it is called with."""

    def check(self, _):
        pass


class ForgetsRemainder(ThreadLibrary):
    """A count that the ranks do not divide loses its last elements in an all_reduce."""

    def shares(self, count, nranks):
        return [count // nranks] * nranks


class ForgetsRoot(ThreadLibrary):
    """Broadcasts from rank 0, whatever the root."""

    def root_of_broadcast(self, _):
        return 0

    def broadcast(self, call, mail):
        if call.rank == 0 and call.input is None:
            call = type(call)(
                call.world, call.operation, call.index, 0, np.array(call.output), call.output
            )
        super().broadcast(call, mail)


class Waits(ThreadLibrary):
    """The last rank of a gather waits for one that never sends."""

    def gather(self, call, mail):
        super().gather(call, mail)
        if call.rank == call.nranks - 1 > 0:
            mail.receive(call.rank - 1)
