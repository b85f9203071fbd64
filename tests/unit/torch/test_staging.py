"""Checkpoints of tensors on simulated GPUs, and their copies to the host."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist, nn = Deferred("torch"), Deferred("torch.distributed"), Deferred("torch.nn")
checkpoint = Deferred("torch.distributed.checkpoint")
staging = Deferred("torch.distributed.checkpoint.staging")
c10d = Deferred("torch.distributed.distributed_c10d")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch

BYTES, PCIE = 4 << 20, 63e9
"""Of a tensor of 1024 x 1024 floats; bytes per second of 16 lanes of PCIe 5.0."""


def run(body, ranks=1):
    def program(rank, _size):
        torch.cuda.set_device(rank)
        return body()

    timed = {"compute": "roofline", "gpu": "h100"}
    return backend.spawn(program, ranks, cuda_is_cpu=True, **timed).returns


@pytest.mark.parametrize("blocking", [False, True])
def test_a_stager_copies_from_the_gpu_over_pcie(blocking):
    def body():
        values = {"x": torch.arange(1 << 20, device="cuda").float().reshape(1024, 1024)}
        options = {"use_non_blocking_copy": not blocking, "use_async_staging": False}
        stager = staging.DefaultStager(staging.StagingOptions(**options))
        times = []
        for _ in range(2):  # the second fills the memory of the first
            torch.cuda.synchronize()
            begin = backend.emulated_time()
            staged = stager.stage(values)
            times.append(backend.emulated_time() - begin)
            values["x"] += 1
        copy = staged["x"]
        assert copy.device.type == "cpu"
        assert copy.is_pinned()
        assert torch.equal(copy, torch.arange(1 << 20).float().reshape(1024, 1024) + 1)
        stager.close()
        return times

    (times,) = run(body)
    assert times == pytest.approx([BYTES / PCIE] * 2, rel=1e-6)


def test_a_stager_in_the_background_leaves_the_program_free():
    """PyTorch's own default, which asserts that there is an accelerator."""

    def body():
        stager = staging.DefaultStager(staging.StagingOptions())
        values = {"x": torch.ones(1024, 1024, device="cuda")}
        begin = backend.emulated_time()
        future = stager.stage(values)
        enqueued = backend.emulated_time() - begin
        assert torch.equal(future.result()["x"], torch.ones(1024, 1024))
        done = backend.emulated_time() - begin
        stager.close()
        return enqueued, done

    ((enqueued, done),) = run(body)
    assert enqueued < 0.1 * BYTES / PCIE
    assert done >= BYTES / PCIE


@pytest.mark.slow
def test_a_saved_checkpoint_is_copied_from_the_gpu(tmp_path):
    def body():
        dist.init_process_group("cpu:gloo,cuda:nccl")
        values = {"x": torch.arange(1 << 20, device="cuda").float(), "y": torch.ones(3)}
        begin = backend.emulated_time()
        checkpoint.save(values, checkpoint_id=tmp_path)
        took = backend.emulated_time() - begin
        copy = {"x": torch.zeros(1 << 20, device="cuda"), "y": torch.zeros(3)}
        checkpoint.load(copy, checkpoint_id=tmp_path)
        assert copy["x"].device == torch.device("cuda", 0)
        assert all(torch.equal(copy[name], values[name]) for name in values)
        return took

    (took,) = run(body)
    assert took >= BYTES / PCIE


@pytest.mark.parametrize(
    ("name", "default", "kinds"),
    [("nccl", "cuda", ["cuda"]), ("gloo", "cpu", ["cpu", "cuda"])],
)
@pytest.mark.filterwarnings("ignore:.*_get_pg_default_device")
@pytest.mark.filterwarnings("ignore:Multiple backends")
def test_a_group_tells_programs_its_devices(name, default, kinds):
    """As on a computer with GPUs, where gloo serves both kinds."""

    def body():
        dist.init_process_group(name)
        group = dist.group.WORLD
        return c10d._get_pg_default_device(group).type, c10d._device_capability(group)

    assert list(run(body)) == [(default, kinds)]


def test_pickled_objects_go_through_the_memory_of_gpus():
    """Under the name nccl, each rank's object goes to its GPU, and those of both come back; gloo
    carries them on the host.
    """

    def body(name):
        dist.init_process_group(name)
        gathered = [None, None]
        begin = backend.emulated_time()
        dist.all_gather_object(gathered, bytes(BYTES))
        took = backend.emulated_time() - begin
        assert gathered == [bytes(BYTES)] * 2
        return took

    nccl, gloo = (run(partial(body, name), ranks=2)[0] for name in ("nccl", "gloo"))
    assert 3 * BYTES / PCIE <= nccl - gloo < 4 * BYTES / PCIE


def test_storages_of_memory_are_on_the_host(tmp_path):
    """Tensors are made of them without an operator."""
    (tmp_path / "numbers").write_bytes(bytes(8))

    def body():
        memory = torch.UntypedStorage.from_buffer(b"abc", dtype=torch.uint8)
        of_bytes = torch.ByteTensor(memory)
        of_file = torch.UntypedStorage.from_file(str(tmp_path / "numbers"), False, 8)
        return of_bytes.device.type, torch.ByteTensor(of_file).device.type, of_bytes.tolist()

    assert run(body) == (("cpu", "cpu", [97, 98, 99]),)
    assert torch.UntypedStorage.from_buffer(b"abc", dtype=torch.uint8).tolist() == [97, 98, 99]
