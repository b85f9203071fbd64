"""The memory of simulated GPUs: what does not fit, and what ``torch.cuda`` tells.

The judges are PyTorch's documentation of ``torch.cuda.memory_stats``, whose keys it lists, the text
of errors of CUDA's allocator that users have posted, and arithmetic.
"""

import re

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, nn, dist = Deferred("torch"), Deferred("torch.nn"), Deferred("torch.distributed")
fake = Deferred("torch._subclasses.fake_tensor")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch

GIB, MIB = 1 << 30, 1 << 20
POSTED = re.compile(
    r"CUDA out of memory\. Tried to allocate (?P<new>[\d.]+ [MG]iB)\. GPU (?P<gpu>\d) has a total "
    r"capacity of (?P<total>[\d.]+ GiB) of which (?P<free>[\d.]+ [MG]iB) is free\. Including "
    r"non-PyTorch memory, this process has (?P<mine>\S+ \w+) memory in use\. (\S+ MiB allowed; )?Of "
    r"the allocated memory \S+ \w+ is allocated by PyTorch, and \S+ \w+ is reserved by PyTorch but "
    r"unallocated\."
)


def on_gpus(body, nprocs=1, **options):
    return backend.spawn(lambda rank, _: body(rank), nprocs, cuda_is_cpu=True, **options).returns


def refusal(call):
    """The parts of the text of the error."""
    with pytest.raises(torch.cuda.OutOfMemoryError) as error:
        call()
    assert error.type is torch.OutOfMemoryError
    parts = POSTED.fullmatch(str(error.value))
    assert parts is not None, error.value
    return parts.groupdict()


@pytest.mark.slow
def test_a_tensor_larger_than_the_gpu():
    def body(_rank):
        parts = refusal(lambda: torch.empty(200 * GIB, dtype=torch.uint8, device="cuda"))
        other = refusal(lambda: torch.zeros(25, GIB, device="cuda:1"))
        on_meta = torch.empty(200 * GIB, device="meta").is_meta
        with fake.FakeTensorMode():
            simulated = torch.empty(200 * GIB, dtype=torch.uint8, device="cuda").numel()
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator") as error:
            torch.empty(2**50, dtype=torch.uint8, device="cpu")
        return parts, other, on_meta, simulated, error.type is RuntimeError

    parts, other, *rest = on_gpus(body, 2)[0]
    # 81,101 MiB are 79.20 GiB; a V100 has 32 GB.
    assert parts == {"new": "200.00 GiB", "gpu": "0", "total": "79.20 GiB", "free": "79.20 GiB"} | {
        "mine": "0 bytes"
    }
    assert (other["new"], other["gpu"], rest) == ("100.00 GiB", "1", [True, 200 * GIB, True])


@pytest.mark.slow
def test_operators_moves_and_backward_passes_that_do_not_fit():
    """With a thousandth of the GPU, 81 MiB."""

    def body(_rank):
        torch.cuda.set_per_process_memory_fraction(0.001)
        weight = torch.ones(10 * MIB, device="cuda", requires_grad=True)  # 40 MiB
        host = torch.ones(8 * MIB)
        for call in (
            lambda: torch.ones(12 * MIB, device="cuda"),
            lambda: torch.cat([weight, weight]),
            lambda: torch.empty(0, device="cuda").resize_(12 * MIB),
            lambda: torch.empty(0, device="cuda").untyped_storage().resize_(48 * MIB),
            lambda: nn.Linear(1100, 10000, device="cuda"),
            lambda: (torch.ones(15 * MIB)).cuda(),
        ):
            refusal(call)
        peak = torch.cuda.max_memory_allocated()
        host = host + host  # 96 MiB on the host and the GPU together
        host.cuda()
        loss = (weight * 2).sum()
        held = torch.cuda.memory_allocated()
        refusal(lambda: torch.autograd.grad(loss, weight)[0] + host.cuda())
        return torch.cuda.memory_stats()["num_ooms"], peak // MIB, held

    refusals, peak_mib, held = on_gpus(body)[0]
    assert (refusals, peak_mib) == (7, 40)  # what the host has made does not count
    assert held >= 40 * MIB


def test_a_script_halves_its_batch():
    def body(_rank):
        torch.cuda.set_per_process_memory_fraction(0.001)  # 81 MiB
        batch, tried = 64, []
        while batch:
            tried.append(batch)
            try:
                torch.ones(batch, MIB, device="cuda")
                break
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                batch //= 2
        return tried

    assert on_gpus(body) == ([64, 32, 16],)


def test_memory_of_a_device_is_that_of_all_processes():
    def body(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        mine = torch.ones(MIB * (rank + 1), device="cuda")
        theirs = torch.ones(MIB, device=f"cuda:{1 - rank}")
        dist.barrier()
        free, total = zip(*(torch.cuda.mem_get_info(gpu) for gpu in range(2)), strict=True)
        allocated = [torch.cuda.memory_allocated(gpu) // MIB for gpu in range(2)]
        dist.barrier()
        del mine, theirs
        return [(total[gpu] - free[gpu]) // MIB for gpu in range(2)], allocated, set(total)

    first, second = on_gpus(body, 2)
    assert first == ([8, 12], [4, 4], {81101 * MIB})
    assert second == ([8, 12], [4, 8], {81101 * MIB})


def test_statistics_have_the_keys_that_pytorch_documents():
    def body(_rank):
        small = torch.ones(MIB // 8, device="cuda")  # 512 KiB
        large = torch.ones(MIB, device="cuda")
        del large
        statistics = torch.cuda.memory_stats()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        return statistics, torch.cuda.memory_stats(), torch.cuda.memory_stats.__doc__, len(small)

    before, after, documentation, _ = on_gpus(body)[0]
    documented = set()
    for text in re.findall(r'``"([\w.{},]+)"``', documentation):
        keys = [""]
        for part in re.findall(r"\{[^}]*\}|[^{}]+", text):
            choices = part[1:-1].split(",") if part[0] == "{" else [part]
            keys = [key + choice for key in keys for choice in choices]
        documented |= set(keys)
    documented = {
        key.replace("allocated.", "allocation.", 1) for key in documented if key[0] >= "a"
    }
    missing = {key for key in documented - before.keys() if "pools" not in key}
    assert len(documented) > 100
    assert missing == set()
    sizes = {"small": MIB // 2, "large": 4 * MIB}
    for pool, current in (("small", sizes["small"]), ("large", 0)):
        name = f"allocated_bytes.{pool}_pool"
        assert before[f"{name}.current"] == current
        assert before[f"{name}.peak"] == before[f"{name}.allocated"] == sizes[pool]
        assert before[f"{name}.freed"] == sizes[pool] - current
        assert after[f"{name}.peak"] == after[f"{name}.allocated"] == current
    assert before["allocation.all.allocated"] == 2
    assert before["allocated_bytes.all.peak"] == sum(sizes.values())


def test_properties_tell_gpus_apart():
    def body(rank):
        return [torch.cuda.get_device_properties(gpu) for gpu in range(2)], rank

    (first, _), (second, _) = on_gpus(body, 2)
    assert len({str(gpu.uuid) for gpu in first}) == 2
    assert [gpu.uuid for gpu in first] == [gpu.uuid for gpu in second]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", str(first[0].uuid))
    assert first[0].max_threads_per_multi_processor == 2048
    assert first[0].L2_cache_size == 50 * MIB
    assert first[0].shared_memory_per_block_optin == 227 * 1024
    assert repr(first[0]).startswith(
        "_CudaDeviceProperties(name='NVIDIA H100 (simulated)', major=9"
    )
