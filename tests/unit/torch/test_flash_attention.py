"""Attention over sequences of several lengths on simulated GPUs, beside PyTorch's own attention."""

from __future__ import annotations

import math

import pytest

from tests.support.deferred import Deferred, needs_torch
from tests.unit.torch.test_operator_work import gpu  # noqa: F401  # a fixture

torch, functional = Deferred("torch"), Deferred("torch.nn.functional")
varlen = Deferred("torch.nn.attention.varlen")
backend, errors = Deferred("simcoll.torch"), Deferred("simcoll.errors")

pytestmark = needs_torch

LENGTHS = (3, 9, 1)
MASKS = {
    "all": ((-1, -1), lambda query, key: query + key > -1),
    "causal": ((-1, 0), lambda query, key: key <= query),
    "window": ((2, 0), lambda query, key: (key <= query) & (query - key <= 2)),
    "both sides": ((1, 2), lambda query, key: (query - key <= 1) & (key - query <= 2)),
}


def on_gpu(body):
    return backend.spawn(lambda _rank, _size: body(), 1, cuda_is_cpu=True).returns[0]


def tensors(heads=4):
    torch.manual_seed(1)
    shapes = (4, heads, heads)
    return [torch.randn(sum(LENGTHS), count, 8, requires_grad=True) for count in shapes]


def with_gradients(output, inputs):
    torch.manual_seed(2)
    output.backward(torch.randn_like(output))
    return [output.detach(), *(tensor.grad for tensor in inputs)]


def sequence_by_sequence(inputs, sees):
    parts = []
    for sequence in zip(*(tensor.split(LENGTHS) for tensor in inputs), strict=True):
        place = torch.arange(len(sequence[0]))
        mask = sees(place[:, None], place[None])
        heads_first = [part.transpose(0, 1)[None] for part in sequence]
        part = functional.scaled_dot_product_attention(
            *heads_first, attn_mask=mask, enable_gqa=True
        )
        parts.append(part[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("mask", MASKS)
def test_values_and_gradients_are_those_of_each_sequence(mask, heads):
    window, sees = MASKS[mask]

    def body():
        inputs = tensors(heads)
        offsets = torch.tensor([0, 3, 12, 13], dtype=torch.int32)
        options = {} if heads == 4 else {"enable_gqa": True}
        output = varlen.varlen_attn(*inputs, offsets, offsets, 9, 9, window_size=window, **options)
        return with_gradients(output, inputs)

    inputs = tensors(heads)
    expected = with_gradients(sequence_by_sequence(inputs, sees), inputs)
    for value, right in zip(on_gpu(body), expected, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["all", "causal"])
def test_nested_tensors_are_sequences(mask):
    def body():
        inputs = tensors()
        offsets = torch.tensor([0, 3, 12, 13])
        nested = [torch.nested.nested_tensor_from_jagged(part, offsets) for part in inputs]
        output = functional.scaled_dot_product_attention(
            *(part.transpose(1, 2) for part in nested), is_causal=mask == "causal"
        )
        return with_gradients(output.transpose(1, 2).values(), inputs)

    inputs = tensors()
    expected = with_gradients(sequence_by_sequence(inputs, MASKS[mask][1]), inputs)
    for value, right in zip(on_gpu(body), expected, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-5, atol=2e-6)


def test_a_query_before_the_first_key_is_zero():
    """With more queries than keys, a causal mask ends at the last key."""

    def body():
        query, key = torch.ones(4, 1, 8), torch.ones(2, 1, 8)
        offsets = [torch.tensor([0, end], dtype=torch.int32) for end in (4, 2)]
        return varlen.varlen_attn(query, key, key, *offsets, 4, 2, window_size=(-1, 0))

    assert on_gpu(body)[:, 0, 0].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_what_is_not_computed_is_refused():
    def body():
        x, offsets = torch.ones(4, 1, 8), torch.tensor([0, 4])
        torch.ops.aten._flash_attention_forward(x, x, x, offsets, offsets, 4, 4, 0.5, False, False)

    with pytest.raises(errors.ConfigError, match="is not computed with dropout_p= on simulated"):
        on_gpu(body)


@pytest.mark.slow
def test_sequences_of_nested_tensors_are_timed_by_their_pairs(gpu):  # noqa: F811
    def seconds(lengths, *, is_causal=False):
        def program(_rank, _size):
            values = torch.ones(sum(lengths), 4, 64, dtype=torch.bfloat16)
            nested = torch.nested.nested_tensor(list(values.split(lengths)), layout=torch.jagged)
            heads_first = nested.transpose(1, 2)
            begin = backend.emulated_time()
            functional.scaled_dot_product_attention(*[heads_first] * 3, is_causal=is_causal)
            return backend.emulated_time() - begin

        options = {"compute": "roofline", "gpu": gpu, "cuda_is_cpu": True}
        return backend.spawn(program, 1, **options).returns[0]

    def pairs(lengths):
        return sum(length**2 for length in lengths)

    whole = seconds([512])
    for lengths in ([256, 256], [384, 128], [64] * 8):
        ratio = seconds(lengths) / whole
        assert math.isclose(ratio, pairs(lengths) / pairs([512]), rel_tol=0.1), lengths
    assert math.isclose(seconds([512], is_causal=True) / whole, 0.5, rel_tol=0.05)
