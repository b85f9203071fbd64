"""Backends that a program writes itself; PyTorch's own process, without a run, is the judge."""

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def program(rank, name, registers):
    """What a process of a program with a backend of its own sees."""

    class Done(dist._Work):
        def wait(self, _timeout=None):
            return True

    class Adding(dist.ProcessGroup):
        """Adds the rank to all tensors."""

        def getBackendName(self):  # noqa: N802  # PyTorch's name
            return name

        def allreduce(self, tensors, _options=None):
            for tensor in tensors:
                tensor.add_(100 + self.rank())
            return Done()

    before = dist.is_backend_available(name)
    if registers:
        dist.Backend.register_backend(
            name, lambda _store, rank, size, _timeout: Adding(rank, size), devices=["cpu"]
        )
    listed = name in dist.Backend.backend_list, hasattr(dist.Backend, name.upper())
    if not registers:
        return before, listed, None
    dist.init_process_group(name, store=dist.HashStore(), rank=rank, world_size=rank + 1)
    x = torch.zeros(1)
    dist.all_reduce(x)
    dist.destroy_process_group()
    return before, listed, x.item()


@pytest.mark.filterwarnings("ignore")
def test_each_rank_has_the_backends_that_it_registers():
    returns = backend.spawn(lambda rank, _: program(rank, "own", rank != 1), 3).returns
    assert returns == (
        (False, (True, True), 100),
        (False, (False, False), None),
        (False, (True, True), 102),
    )
    assert "own" not in dist.Backend.backend_list
    assert not hasattr(dist.Backend, "OWN")


@pytest.mark.filterwarnings("ignore")
def test_a_backend_alone_works_as_in_a_process_of_its_own():
    inside = backend.spawn(lambda *_: program(0, "alone", True), 1).returns[0]
    try:
        assert inside == program(0, "alone", True)
    finally:
        for table in ("backend_capability", "backend_type_map"):
            getattr(dist.Backend, table).pop("alone", None)
        dist.Backend._plugins.pop("ALONE", None)
        dist.Backend.backend_list.remove("alone")
        del dist.Backend.ALONE
