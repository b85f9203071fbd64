"""Substitutes of functions, called in the forms of those that they replace."""

from __future__ import annotations

import inspect

import pytest

from tests.support.deferred import Deferred, needs_torch

replacing = Deferred("simcoll.torch.replacing")

pytestmark = needs_torch


def test_a_form_of_call_is_bound_once(monkeypatch):
    bound = []
    bind = inspect.Signature.bind

    def counted_bind(self, *args, **kwargs):
        bound.append((args, kwargs))
        return bind(self, *args, **kwargs)

    monkeypatch.setattr(inspect.Signature, "bind", counted_bind)

    def standard(device=None, stream=0): ...
    def substitute(stream=7):
        return stream

    function = replacing.by_signature(standard, substitute)
    assert [function(), function(1), function(1, 2), function(stream=3, device=1)] == [7, 7, 2, 3]
    forms = len(bound)
    assert [function(), function(2), function(5, 6), function(stream=8, device=1)] == [7, 7, 6, 8]
    assert len(bound) == forms == 4
    with pytest.raises(TypeError, match="unexpected keyword argument 'streams'"):
        function(streams=1)


def test_lists_of_arguments_are_passed_on():
    def standard(first, *rest, **names): ...
    def substitute(rest, names):
        return rest, names

    assert replacing.by_signature(standard, substitute)(1, 2, 3, a=4) == ((2, 3), {"a": 4})
    assert replacing.by_signature(standard, lambda *args: args)(1, 2) == (1, 2)
