"""Fake results that come from the cache, beside those of PyTorch outside a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import simcoll
from tests.support.deferred import Deferred, needs_torch

torch = Deferred("torch")
fake_tensor = Deferred("torch._subclasses.fake_tensor")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch
PACKAGE = str(Path(simcoll.__file__).parent)


def results():
    """Facts of fake results, each of a call that is repeated, so that it comes from the cache."""
    facts = []
    with fake_tensor.FakeTensorMode() as mode:
        for _ in range(3):
            x = torch.empty(6, 4, dtype=torch.bfloat16)[1:].requires_grad_()
            frozen = x.detach()
            with torch.no_grad():
                values = [
                    *(frozen.t(), frozen.view(2, 10), frozen[2:, 1:3], frozen.expand(3, 5, 4)),
                    *(frozen + 1, frozen @ frozen.t(), frozen.to(torch.float64), frozen.sum(0)),
                    *torch.max(frozen.float(), 1),
                    *torch.empty(3, 4).split(2),
                    *(frozen.add_(1), torch.empty(0, 3).t(), torch.view_as_real(frozen.cfloat())),
                    *(frozen.cfloat().conj(), frozen.cfloat().conj().imag, frozen.to("meta")),
                ]
                with torch.inference_mode():
                    values.append(torch.empty(2, 3) * 2)
            values += [x * 2, (x * 2).t()]
            (x * 3).sum().backward()
            values.append(x.grad)
            facts.append([_facts(value, frozen, mode) for value in values])
    return facts


def _facts(value, source, mode):
    attributes = {
        name: None if content is mode else str(content) for name, content in vars(value).items()
    }
    return (
        *(value.shape, value.stride(), value.storage_offset(), value.dtype, value.device),
        *(value.requires_grad, value.is_conj(), value.is_neg(), value.is_leaf),
        *(value.is_inference(), value._is_view(), value.untyped_storage().nbytes()),
        value.untyped_storage()._cdata == source.untyped_storage()._cdata,
        torch._C._dispatch_keys(value).raw_repr(),
        dict(sorted(attributes.items())),
    )


@pytest.mark.slow
def test_results_are_those_of_pytorch():
    outside = results()
    inside = backend.spawn(lambda *_: results(), 1).returns[0]
    assert len(outside[0]) > 20
    for expected, actual in zip(outside, inside, strict=True):
        for expected_facts, facts in zip(expected, actual, strict=True):
            assert facts == expected_facts


def test_the_memory_of_a_result_cannot_be_read():
    def body(_rank, _size):
        with fake_tensor.FakeTensorMode() as mode:
            mode._allow_unsafe_data_ptr_access = False
            for _ in range(3):
                result = torch.empty(2, 3) + 1
            with pytest.raises(RuntimeError, match="data pointer"):
                result.data_ptr()

    backend.spawn(body, 1)


def test_ranges_are_seen_by_profiles_and_modes_of_the_program():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    names = []

    def body(_rank, _size):
        def range_of_two():
            with torch.autograd.profiler.record_function("two"):
                return torch.ones(2) * 2

        range_of_two()
        with Names():
            range_of_two()
        with torch.profiler.profile() as profile:
            range_of_two()
        return [event.key for event in profile.key_averages()].count("two")

    assert list(backend.spawn(body, 1).returns) == [1]
    assert [name for name in names if name.startswith("profiler::")] == [
        "profiler::_record_function_enter_new",
        "profiler::_record_function_exit._RecordFunction",
    ]


def test_a_repeated_operator_runs_few_functions_of_this_package():
    def body(_rank, _world_size):
        calls = []

        def note(frame, event, function):
            if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
                calls.append(frame.f_code.co_qualname)
            if event == "c_call" and function.__name__ == "getpid":
                calls.append("getpid")

        with fake_tensor.FakeTensorMode():
            x = torch.ones(8, 8)
            sums = [x + x for _ in range(3)]
            sys.setprofile(note)
            sums.append(x + x)
            sys.setprofile(None)
        return calls

    machine = {"topology": "superpod-h100", "compute": "roofline", "gpu": "h100"}
    (calls,) = backend.spawn(body, 1, **machine).returns
    assert "DeviceStream.run" in calls
    assert len(calls) <= 40, calls
    assert "getpid" not in calls
