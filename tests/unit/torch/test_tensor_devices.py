"""Tensors on simulated GPUs name them to programs, as on GPUs."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
from typing import ClassVar

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
nn, tensor = Deferred("torch.nn"), Deferred("torch.distributed.tensor")
device_mesh, fake_tensor = (
    Deferred("torch.distributed.device_mesh"),
    Deferred("torch._subclasses.fake_tensor"),
)
fsdp = Deferred("torch.distributed.fsdp")
parallel = Deferred("torch.distributed.tensor.parallel")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore::UserWarning")]


def on_gpu_1(body):
    """Run a body on the second of two ranks, each with its own GPU selected."""

    def program(rank, _world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        return body() if rank == 1 else None

    return backend.spawn(program, 2, cuda_is_cpu=True).returns[1]


def on_both(body):
    def program(rank, _world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        return body()

    return backend.spawn(program, 2, cuda_is_cpu=True).returns[1]


def names(*tensors):
    return [str(each.device) for each in tensors]


def test_tensors_tell_their_place():
    def body():
        x, host = torch.zeros(2, device="cuda"), torch.zeros(2)
        assert x.device == torch.device("cuda", 1)
        assert (x.is_cuda, x.is_cpu, x.get_device(), torch.get_device(x)) == (True, False, 1, 1)
        assert (host.is_cuda, host.is_cpu, host.get_device()) == (False, True, -1)
        assert (x.type(), host.type()) == ("torch.cuda.FloatTensor", "torch.FloatTensor")
        assert repr(x) == f"{x}" == "tensor([0., 0.], device='cuda:1')"
        assert repr(host) == "tensor([0., 0.])"
        assert str(x.untyped_storage().device) == "cuda:1"
        assert x.untyped_storage().is_cuda
        assert not host.untyped_storage().is_cuda
        assert torch.zeros(1, device="meta").is_meta
        return names(x, host, x + 1, x.new_zeros(1), torch.zeros_like(host, device=x.device), x.T)

    assert on_gpu_1(body) == ["cuda:1", "cpu", "cuda:1", "cuda:1", "cuda:1", "cuda:1"]


def test_a_device_that_a_tensor_has_told_means_it():
    def body():
        x, host = torch.zeros(2, device="cuda:0"), torch.zeros(2)
        assert x.to(x.device) is x
        assert host.to(host.device) is host
        to_gpu, to_host = host.to(x.device), x.to(host.device)
        layer = nn.Linear(2, 2, device=x.device)
        there = next(layer.to(torch.device("cpu")).parameters())
        return names(to_gpu, host.to(x), to_host, x.cpu(), there, torch.zeros(1, device=x.device))

    assert on_gpu_1(body) == ["cuda:0", "cuda:0", "cpu", "cpu", "cpu", "cuda:0"]


def test_modules_made_for_the_cpu_stay_there_when_a_gpu_is_used():
    def program(_rank, _world_size):
        cpu = torch.device("cpu")
        on_host = [
            torch.zeros(2, device=cpu),
            nn.Linear(2, 2, device=cpu).weight,
            nn.TransformerEncoderLayer(4, 1, device=cpu).linear1.weight,
            nn.utils.skip_init(nn.Linear, 2, 2, device=cpu).weight,
            nn.Linear(2, 2, device="meta").to_empty(device=cpu).weight,
        ]
        x = torch.zeros(2, device="cuda")
        on_gpu = nn.Linear(2, 2, device="meta").to_empty(device=x.device).weight
        return names(*on_host, on_gpu, nn.TransformerEncoderLayer(4, 1, device=x.device).norm1.bias)

    run = backend.spawn(program, 1, cuda_is_cpu=True)
    assert run.returns[0] == ["cpu"] * 5 + ["cuda:0"] * 2


@pytest.mark.slow
def test_lazy_modules_are_where_they_were_moved():
    def body():
        def lazy():
            return nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())

        host, on_gpu, moved = lazy(), lazy().cuda(), lazy().to("cuda:0", torch.float64)
        copied, back = nn.Sequential(copy.deepcopy(on_gpu[0])), lazy().cuda().cpu().double()
        host(torch.ones(2, 5))
        for layers in (on_gpu, copied):
            layers(torch.ones(2, 5, device="cuda"))
        moved(torch.ones(2, 5, device="cuda:0", dtype=torch.float64))
        back(torch.ones(2, 5, dtype=torch.float64))
        assert moved[0].weight.dtype == moved[1].running_mean.dtype == torch.float64
        assert type(on_gpu[0].weight) is nn.Parameter
        return [
            {str(tensor.device) for tensor in layers.state_dict(keep_vars=True).values()}
            for layers in (host, on_gpu, copied, moved, back)
        ]

    assert on_gpu_1(body) == [{"cpu"}, {"cuda:1"}, {"cuda:1"}, {"cuda:0"}, {"cpu"}]


def test_classes_of_tensors_without_operators_of_their_own():
    def body():
        class Named(torch.Tensor):
            calls: ClassVar = []

            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                cls.calls.append(func.__name__)
                return super().__torch_function__(func, types, args, kwargs or {})

        class Weight(nn.Parameter):
            pass

        torch.zeros(1, device="cuda")
        host = torch.zeros(2).as_subclass(Named)
        on_gpu = torch.zeros(2, device="cuda:0").as_subclass(Named)
        weight = Weight(torch.zeros(2))
        devices = names(host, host.data, host + 1, host.cuda(), weight, weight.data, weight.cuda())
        assert names(on_gpu + 1, on_gpu.data) == ["cuda:0", "cuda:0"]
        assert type(host.data) is Named
        Named.calls.clear()
        assert (host + on_gpu.cpu()).tolist() == [0, 0]
        assert "untyped_storage" not in Named.calls
        return devices

    assert on_gpu_1(body) == [*["cpu"] * 3, "cuda:1", *["cpu"] * 2, "cuda:1"]


def test_a_class_of_tensors_in_flight_is_not_read():
    def program(_rank, _world_size):
        class Named(torch.Tensor):
            pass

        dist.init_process_group("nccl")
        x = torch.zeros(2, device="cuda").as_subclass(Named)
        dist.all_reduce(x, async_op=True)
        x.data.add_(1)

    with pytest.raises(RuntimeError, match="writes the output buffer of all_reduce"):
        backend.spawn(program, 2, cuda_is_cpu=True)


def test_modules_gradients_and_optimizers():
    def body():
        layer, host = nn.Linear(2, 2).cuda(), nn.Linear(2, 2)
        layer(torch.ones(1, 2).cuda()).sum().backward()
        host(torch.ones(1, 2)).sum().backward()
        optimizer = torch.optim.AdamW(layer.parameters())
        optimizer.step()
        state = optimizer.state[layer.weight]
        copied = copy.deepcopy(layer).weight
        return names(layer.weight.grad, host.weight.grad, state["exp_avg"], state["step"], copied)

    assert on_gpu_1(body) == ["cuda:1", "cpu", "cuda:1", "cpu", "cuda:1"]


def test_default_devices():
    def body():
        assert str(torch.get_default_device()) == "cpu"
        torch.set_default_device("cuda")
        inside = [str(torch.get_default_device()), *names(torch.zeros(1), torch.empty(1))]
        torch.cuda.set_device(0)
        inside += names(torch.zeros(1))
        torch.set_default_device(None)
        torch.cuda.set_device(1)
        with torch.device("cuda"):
            inside += [str(torch.get_default_device()), *names(torch.zeros(1))]
        with torch.device("cuda:0"):
            inside += [str(torch.get_default_device()), *names(torch.zeros(1))]
        return inside + names(torch.zeros(1))

    said = ["cuda:1", "cuda:1", "cuda:1", "cuda:0", "cuda:1", "cuda:1", "cuda:0", "cuda:0", "cpu"]
    assert on_gpu_1(body) == said


LOCATIONS = [
    (None, "cuda:1", "cpu"),
    ("cpu", "cpu", "cpu"),
    ("cuda", "cuda:1", "cuda:1"),
    ("cuda:0", "cuda:0", "cuda:0"),
    ({"cuda:1": "cuda:0"}, "cuda:0", "cpu"),
    ({"cuda:1": "cpu"}, "cpu", "cpu"),
    (lambda storage, _location: storage, "cpu", "cpu"),
    (lambda storage, _location: storage.cuda(), "cuda:1", "cuda:1"),
    (lambda _storage, _location: None, "cuda:1", "cpu"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("location", "x", "host"), LOCATIONS)
def test_a_file_is_loaded_where_map_location_says(location, x, host):
    def body():
        file = io.BytesIO()
        torch.save([torch.ones(2, device="cuda"), torch.ones(2)], file)
        file.seek(0)
        return names(*torch.load(file, map_location=location))

    assert on_gpu_1(body) == [x, host]


def test_a_file_from_a_gpu_that_the_node_lacks_is_refused():
    def body():
        file = io.BytesIO()
        torch.save(torch.ones(2, device="cuda"), file)
        torch.cuda.device_count = lambda: 1  # a node with fewer
        file.seek(0)
        with pytest.raises(RuntimeError, match="deserialize object on CUDA device 1 but"):
            torch.load(file)
        return True

    assert on_gpu_1(body)


def test_objects_arrive_on_the_gpu_of_their_sender():
    def body():
        mine = torch.ones(1, device="cuda"), torch.ones(1)
        everyone = [None, None]
        dist.all_gather_object(everyone, mine)
        return names(*everyone[0], *everyone[1], *pickle.loads(pickle.dumps(mine)))

    assert on_both(body) == ["cuda:0", "cpu", "cuda:1", "cpu", "cuda:1", "cpu"]


@pytest.mark.slow
def test_meshes_and_distributed_tensors():
    def body():
        mesh = device_mesh.init_device_mesh("cuda", (2, 1), mesh_dim_names=("a", "b"))
        assert mesh.device_type == mesh["a"].device_type == "cuda"
        assert "'cuda'" in repr(mesh)
        hosts = device_mesh.init_device_mesh("cpu", (2,))
        assert hosts.device_type == "cpu"
        # As on GPUs, a tensor on the host is moved to the mesh's.
        x = tensor.distribute_tensor(torch.zeros(4), mesh["a"], [tensor.Shard(0)])
        local = tensor.DTensor.from_local(torch.zeros(2), mesh["a"], [tensor.Shard(0)])
        new = tensor.zeros(4, device_mesh=mesh["a"], placements=[tensor.Shard(0)])
        layer = nn.Linear(4, 4)
        fsdp.fully_shard(layer, mesh=mesh["a"])
        y = layer(torch.zeros(2, 4, device="cuda"))
        assert x.is_cuda
        return names(x, x.to_local(), x.full_tensor(), local, new, layer.weight, y)

    assert on_both(body) == ["cuda:1"] * 7


def test_saved_meshes_are_those_of_any_program():
    """Whoever loads one, also with ``weights_only``, needs no class of this package."""

    def body():
        mesh = device_mesh.init_device_mesh("cuda", (2,))
        x = tensor.DTensor.from_local(torch.ones(2), mesh, [tensor.Shard(0)])
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        again = torch.load(file, weights_only=True)
        assert (again.device_mesh, again.device_mesh.device_type) == (mesh, "cuda")
        everyone = [None, None]
        dist.all_gather_object(everyone, mesh)
        assert everyone == [mesh, mesh] == [copy.deepcopy(mesh), mesh]
        assert again.full_tensor().tolist() == [1.0] * 4
        return names(again, again.to_local()), b"simcoll" in file.getvalue()

    assert on_both(body) == (["cuda:1", "cuda:1"], False)


@pytest.mark.slow
def test_tensors_of_ranks_that_one_plays_are_on_the_gpu_of_their_mesh():
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def program(_rank, _world_size):
        dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
        with LocalTensorMode(4):
            mesh = device_mesh.init_device_mesh("cuda", (4,))
            x = tensor.distribute_tensor(torch.ones(8), mesh, [tensor.Shard(0)])
            meta = tensor.DTensor.from_local(torch.ones(2, device="meta"), mesh, [tensor.Shard(0)])
            real = torch.ones_like(meta, device="cuda")
            return x.device.type, x.is_cuda, real.device.type

    said = backend.spawn(program, 1, cuda_is_cpu=True).returns[0]
    assert said == ("cuda", True, "cuda")


def test_a_group_of_parameters_of_fully_shard_may_be_given_a_gpu():
    """PyTorch's own tests make them so."""
    from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_init, _fsdp_param_group

    def body():
        layer = nn.Linear(4, 4, device="cuda")
        mesh = _fsdp_init._init_default_fully_shard_mesh()
        group = _fsdp_param_group.FSDPParamGroup(
            list(layer.parameters()),
            (layer,),
            _fsdp_common.FSDPMeshInfo(mesh, shard_mesh_dim=0),
            None,
            torch.device("cuda", torch.cuda.current_device()),
            None,
            fsdp.MixedPrecisionPolicy(),
            fsdp.OffloadPolicy(),
        )
        group.lazy_init()
        group.unshard()
        group.wait_for_unshard()
        return names(layer.weight), layer.weight.shape

    assert on_both(body) == (["cuda:1"], (4, 4))


@pytest.mark.slow
def test_a_loss_in_parallel_makes_distributed_tensors_inside_operators():
    def body():
        mesh = device_mesh.init_device_mesh("cuda", (2,))
        torch.manual_seed(0)
        scores = torch.randn(4, 6, device="cuda", requires_grad=True)
        classes = torch.tensor([0, 5, 2, 3], device="cuda")
        nn.functional.cross_entropy(scores, classes).backward()
        columns = tensor.distribute_tensor(scores.detach(), mesh, [tensor.Shard(1)])
        columns.requires_grad_()
        with parallel.loss_parallel():
            loss = nn.functional.cross_entropy(columns, classes)
            loss.backward()
        assert torch.allclose(columns.grad.full_tensor(), scores.grad)
        return names(loss, columns.grad, columns.grad.full_tensor())

    assert on_both(body) == ["cuda:1"] * 3


def test_fully_shard_without_a_mesh_uses_the_gpu_of_its_rank():
    def program(_rank, _world_size):
        dist.init_process_group("nccl")
        layer = fsdp.fully_shard(nn.Linear(4, 4))
        return names(layer.weight), str(torch.cuda.current_device())

    assert backend.spawn(program, 2, cuda_is_cpu=True).returns[1] == (["cuda:1"], "1")


@pytest.mark.slow
def test_fully_shard_moves_to_its_mesh_only_what_it_manages():
    def body():
        host = device_mesh.init_device_mesh("cpu", (2,))
        layers = nn.Sequential(nn.Linear(2, 2, device="cuda"), nn.Linear(2, 2))
        fsdp.fully_shard(layers, mesh=host)
        partly = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device=torch.device("cpu")))
        fsdp.fully_shard(partly, ignored_params=set(partly[1].parameters()))
        return names(*layers.parameters()), names(*partly.parameters())

    assert on_both(body) == (["cpu"] * 4, ["cuda:1"] * 2 + ["cpu"] * 2)


@pytest.mark.parametrize(("kind", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_fully_shard_refuses_tensors_of_another_kind_of_mesh(kind, other):
    def body():
        shards, tensors = (
            device_mesh.init_device_mesh(kind, (2, 1), mesh_dim_names=("dp", "tp"))
            for kind in (other, kind)
        )
        layer = nn.Linear(2, 2)
        parallel.parallelize_module(layer, tensors["tp"], parallel.ColwiseParallel())
        message = (
            f"Requires DTensor to have mesh of the same type .* {kind} for DTensor and {other}"
        )
        with pytest.raises(ValueError, match=message):
            fsdp.fully_shard(layer, mesh=shards["dp"])
        return True

    assert on_both(body)


def test_data_parallel_moves_its_inputs():
    def body():
        seen = []
        layer = nn.Linear(2, 2).cuda()
        layer.register_forward_pre_hook(lambda _, inputs: seen.extend(names(*inputs)))
        model = nn.parallel.DistributedDataParallel(layer, device_ids=[1])
        host = torch.ones(1, 2)
        model(host).sum().backward()
        return [*seen, *names(host, layer.weight.grad), str(model.device)]

    def program(rank, _world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(1)
        return body()

    said = backend.spawn(program, 2, cuda_is_cpu=True).returns[1]
    assert said == ["cuda:1", "cpu", "cuda:1", "cuda:1"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("arguments", ["moved", "device_id", "offload", "parameters of the module"])
def test_the_first_fsdp_computes_on_the_gpu_of_its_module(arguments):
    chosen = {
        "moved": {},
        "device_id": {"device_id": 1},
        "offload": {"cpu_offload": fsdp.CPUOffload(offload_params=True)},
        "parameters of the module": {"use_orig_params": True},
    }[arguments]

    def body():
        seen = []
        layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        layer.register_forward_pre_hook(lambda layer, x: seen.extend(names(*x, layer[0].weight)))
        layer = layer if arguments == "device_id" else layer.cuda()
        model = fsdp.FullyShardedDataParallel(layer, **chosen)
        model(torch.ones(2, 4)).sum().backward()
        parameter = next(model.parameters())
        assert names(parameter) == names(parameter.grad)
        seen += names(parameter, next(model.buffers()))
        return [*seen, str(model.compute_device), *names(*model.state_dict().values())]

    sharded = "cpu" if arguments == "offload" else "cuda:1"
    assert on_both(body) == ["cuda:1", "cuda:1", sharded, "cuda:1", "cuda:1"] + ["cuda:1"] * 7


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("use_orig_params", [False, True])
def test_the_first_fsdp_trains_alike_with_offload(use_orig_params):
    def body(offloads):
        torch.manual_seed(0)
        model = fsdp.FullyShardedDataParallel(
            nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)),
            device_id=torch.cuda.current_device(),
            use_orig_params=use_orig_params,
            cpu_offload=fsdp.CPUOffload(offload_params=offloads),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        losses = []
        for step in range(3):
            loss = model(torch.full((2, 4), step + 1.0, device="cuda")).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    assert on_both(lambda: body(False)) == on_both(lambda: body(True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_first_fsdp_refuses_modules_on_another_device():
    def body():
        sharded, mine = fsdp.FullyShardedDataParallel, torch.cuda.current_device()
        with pytest.raises(RuntimeError, match=f"move the module to cuda:{mine} before training"):
            sharded(nn.Linear(2, 2))(torch.ones(1, 2))
        with pytest.raises(ValueError, match=f"cuda:{1 - mine} vs cuda:{mine}"):
            sharded(nn.Linear(2, 2).to(f"cuda:{1 - mine}"), device_id=mine)
        with pytest.raises(ValueError, match="has CPU parameters or buffers when `sync_module"):
            sharded(nn.Linear(2, 2), sync_module_states=True)
        return True

    assert on_both(body)


@pytest.mark.slow
def test_fully_shard_moves_the_inputs_of_its_outermost_module():
    def body():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        seen = []
        model[0].register_forward_pre_hook(lambda _, inputs: seen.extend(names(*inputs)))
        for module in (*model, model):
            fsdp.fully_shard(module)
        host = torch.ones(1, 4)
        seen += names(model(host), host)
        seen += names(fsdp.fully_shard(nn.Identity())(host))
        return seen

    assert on_both(body) == ["cuda:1", "cuda:1", "cpu", "cuda:1"]


def test_fake_tensors():
    def body():
        with fake_tensor.FakeTensorMode():
            x, host = torch.zeros(2, device="cuda"), torch.zeros(2)
            assert repr(x) == "FakeTensor(..., device='cuda:1', size=(2,))"
            return names(x, host, x + 1)

    assert on_gpu_1(body) == ["cuda:1", "cpu", "cuda:1"]


def test_transformed_subclassed_sparse_and_nested_tensors():
    class Named(torch.Tensor):
        pass

    def body():
        x = torch.ones(2, device="cuda")
        seen = []
        torch.func.vmap(lambda row: seen.append(str(row.device)) or row)(x)
        nested = torch.nested.nested_tensor([x, x], layout=torch.jagged)
        return seen + names(x.as_subclass(Named), x.to_sparse(), nested)

    assert on_gpu_1(body) == ["cuda:1"] * 4


def test_a_wrapper_of_a_program_moves_what_it_wraps():
    def body():
        # Two numbers for each element, in a class of PyTorch's tests.
        two_tensor = importlib.import_module("torch.testing._internal.two_tensor")
        pair = two_tensor.TwoTensor(torch.arange(3.0), torch.arange(3.0) + 1)
        model = nn.Linear(3, 1, bias=False)
        model.weight = nn.Parameter(two_tensor.TwoTensor(torch.ones(1, 3), torch.ones(1, 3)))
        on_gpu, on_host = pair.cuda(), copy.deepcopy(model.cuda()).cpu()
        assert names(pair, on_gpu, on_gpu.b, on_gpu.cuda()) == ["cpu", *["cuda:1"] * 3]
        assert on_gpu.cuda() is on_gpu
        assert names(on_gpu.cpu(), on_gpu.to("cpu", torch.float64).a) == ["cpu"] * 2
        assert names(on_gpu.detach(), model.weight) == ["cuda:1"] * 2
        assert names(on_host.weight, on_host.weight.b) == ["cpu"] * 2
        assert names(on_host.cuda().weight) == ["cuda:1"]
        number = on_gpu.new_tensor(2.0, device="cpu")  # of one class with what it is made from
        assert number.item() == 2.0
        loss = (model.weight @ on_gpu).sum()
        loss.backward()
        gradient = model.weight.grad
        return str(gradient.device), gradient.a.tolist(), gradient.b.tolist()

    assert on_gpu_1(body) == ("cuda:1", [[0.0, 1.0, 2.0]], [[1.0, 2.0, 3.0]])


def test_without_gpus_tensors_are_on_the_cpu():
    def program(_rank, _world_size):
        return str(torch.zeros(1).device), repr(torch.zeros(1))

    assert backend.spawn(program, 1).returns == (("cpu", "tensor([0.])"),)
    # Nor does a program that uses no GPU see one.
    assert backend.spawn(program, 1, cuda_is_cpu=True).returns == (("cpu", "tensor([0.])"),)
