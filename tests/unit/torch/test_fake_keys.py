"""Keys of fake operators: equal exactly where PyTorch's own are."""

import itertools

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, nn, backend = Deferred("torch"), Deferred("torch.nn"), Deferred("simcoll.torch")
fake_tensor = Deferred("torch._subclasses.fake_tensor")
symbolic_shapes = Deferred("torch.fx.experimental.symbolic_shapes")
fake_keys = Deferred("simcoll.torch.fake_keys")
roofline = Deferred("simcoll.torch.roofline")

pytestmark = needs_torch


def arguments():
    """Positional and keyword arguments of operators, some of which differ in one respect."""
    x = torch.ones(4, 6)
    base = torch.ones(60)
    image = torch.ones(2, 3, 4, 5)
    integers = torch.ones(4, 6, dtype=torch.int32)
    tensors = [
        x,
        torch.zeros(4, 6),
        x.double(),
        x.t(),
        x.t().contiguous().t(),
        base[:24].view(4, 6),
        base[12:36].view(4, 6),
        torch.ones(4, 6).requires_grad_(),
        nn.Parameter(torch.ones(4, 6)),
        torch.ones(4, 6, dtype=torch.complex64),
        torch.ones(4, 6, dtype=torch.complex64).conj(),
        torch._neg_view(torch.ones(4, 6)),
        image,
        image.contiguous(memory_format=torch.channels_last),
        torch.ones(0, 6),
        torch.ones(()),
        integers,
        torch.ones(4, 6, device="meta"),
    ]
    with torch.inference_mode():
        tensors.append(torch.ones(4, 6))
    numbers = [1, 1.0, True, 0, False, None, "mean", torch.float32, torch.strided]
    numbers += [torch.device("cpu"), torch.device("meta"), torch.contiguous_format, 2, (1,), [1]]
    calls = [((tensor,), {}) for tensor in tensors]
    calls += [((x, number), {}) for number in numbers]
    calls += [((x,), {"alpha": number}) for number in numbers]
    calls += [((x,), {"beta": 1}), ((x, 1, 1), {}), ((x, [1, 1]), {}), ((x, [x, x]), {})]
    calls += [(([x, x],), {}), (([x], x), {}), ((x, x), {}), ((x, torch.Size([1])), {})]
    calls += [((), {"size": [2, 3]}), ((), {"size": [2, 4]}), ((), {}), ((x, {"a": x}), {})]
    return calls


def key(mode, add, call):
    """The arguments of a call in a key; None where PyTorch has none."""
    state, result = fake_tensor._CacheKeyState(mode.shape_env), []
    try:
        for values in filter(len, call):
            add(mode, result, values, state, [])
    except fake_tensor._BypassDispatchCache:
        return None
    return tuple(result)


def test_keys_are_equal_exactly_where_those_of_pytorch_are():
    standard = fake_tensor.FakeTensorMode._prep_args_for_hash
    (_, _, ours), _ = fake_keys.key_replacements()
    with fake_tensor.FakeTensorMode() as mode:
        calls = arguments()
        pairs = [(key(mode, ours, call), key(mode, standard, call)) for call in calls]
    assert [mine is None for mine, _ in pairs] == [theirs is None for _, theirs in pairs]
    assert sum(mine != theirs for mine, theirs in pairs) > len(pairs) // 2  # the short form is used
    for (mine, theirs), (other_mine, other_theirs) in itertools.combinations(pairs, 2):
        assert (mine == other_mine) == (theirs == other_theirs), (theirs, other_theirs)


@pytest.mark.slow
def test_tensors_of_another_mode_symbols_and_functions_are_left_to_pytorch():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    (_, _, ours), _ = fake_keys.key_replacements()
    with fake_tensor.FakeTensorMode():
        stranger = torch.ones(3)
    mode = fake_tensor.FakeTensorMode(shape_env=ShapeEnv())
    symbolic = mode.from_tensor(torch.ones(5, 7), static_shapes=False)
    for call in (((stranger,), {}), ((lambda: 0,), {}), ((torch.ones(2),), {})):
        assert key(mode, ours, call) is None
    standard = fake_tensor.FakeTensorMode._prep_args_for_hash
    assert len(key(mode, ours, ((symbolic,), {}))) == len(key(mode, standard, ((symbolic,), {})))


def test_the_cache_answers_in_a_run():
    def program(_rank, _world_size):
        with fake_tensor.FakeTensorMode():
            x = torch.ones(3, 5)
            x @ x.t()
            before = fake_tensor.FakeTensorMode.cache_hits
            results = [torch.ones(3, 5) @ x.t() for _ in range(4)]
            hits = fake_tensor.FakeTensorMode.cache_hits - before
        return hits, {tuple(result.shape) for result in results}

    assert backend.spawn(program, 1).returns[0] == (12, {(3, 3)})


@pytest.mark.slow
def test_answers_are_those_that_pytorch_composes_anew():
    """PyTorch's own check compares each answer of the cache with the operator's."""

    def program(_rank, _world_size):
        mode = fake_tensor.FakeTensorMode()
        mode.cache_crosscheck_enabled = True
        with mode:
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
            optimizer = torch.optim.AdamW(layer.parameters(), foreach=True)
            for length in (6, 6, 9, 6):
                layer(torch.ones(2, length, 16)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return fake_tensor.FakeTensorMode.cache_hits

    assert backend.spawn(program, 1).returns[0] > 100


@pytest.mark.slow
def test_calls_of_an_equal_key_take_the_time_that_each_would_take(monkeypatch):
    shared, anew = roofline.OperatorCosts.kernel_of_key, roofline.OperatorCosts.kernel
    kernels = []

    def compare(self, key, func, args, kwargs, result):
        kernel = shared(self, key, func, args, kwargs, result)
        assert kernel == anew(self, func, args, kwargs, result)
        kernels.append((len(self._kernels), kernel))
        return kernel

    monkeypatch.setattr(roofline.OperatorCosts, "kernel_of_key", compare)

    def program(_rank, _world_size):
        with fake_tensor.FakeTensorMode():
            layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            image = nn.Conv2d(3, 8, 3)
            optimizer = torch.optim.AdamW(layer.parameters(), foreach=True)
            for precision, length in (("high", 6), ("highest", 6), ("highest", 9), ("high", 6)):
                torch.set_float32_matmul_precision(precision)
                layer(torch.ones(2, length, 64)).square().mean().backward()
                torch.backends.cudnn.allow_tf32 = precision == "high"
                image(torch.ones(1, 3, 16, 16))
                optimizer.step()
                optimizer.zero_grad()

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        backend.spawn(program, 1, topology="dgx-h100", compute="roofline", gpu="h100")
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
    assert 50 < kernels[-1][0] < len(kernels) - 50


@pytest.mark.slow
def test_parts_of_tensors_with_symbolic_sizes_are_told_apart():
    """Their storage has a symbolic size, which has no hash; PyTorch exports models by them."""

    def program(*_):
        mode = fake_tensor.FakeTensorMode(shape_env=symbolic_shapes.ShapeEnv())
        context = symbolic_shapes.StatelessSymbolicContext(
            dynamic_sizes=[symbolic_shapes.DimDynamic.DYNAMIC, symbolic_shapes.DimDynamic.STATIC]
        )
        whole = mode.from_tensor(torch.ones(5, 6), symbolic_context=context)
        with mode:
            part = whole.as_strided((2, 3), (6, 1), 1)
            assert not isinstance(part.untyped_storage().nbytes(), int)
            return [tuple((part + 1).shape), tuple((part @ part.t()).shape)]

    assert backend.spawn(program, 1).returns == (program(),)
