"""DTensor's caches, where the ranks of a mesh have shards of different sizes."""

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, tensors = Deferred("torch"), Deferred("torch.distributed.tensor")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


@pytest.mark.slow
@pytest.mark.parametrize("rows", [5, 11])
def test_uneven_shards_over_two_dimensions_of_a_mesh_are_put_together(rows):
    """11 rows on 2 x 2 ranks are 6 and 5 along the first dimension, then 3, 3 and 3, 2."""
    whole = torch.arange(rows * 2.0).reshape(rows, 2)

    def program(_rank, _size):
        mesh = tensors.init_device_mesh("cpu", (2, 2))
        twice = [tensors.Shard(0), tensors.Shard(0)]
        sharded = tensors.distribute_tensor(whole.clone(), mesh, twice)
        columns = sharded.redistribute(mesh, [tensors.Shard(1), tensors.Replicate()])
        return sharded.full_tensor(), columns.full_tensor()

    for results in backend.spawn(program, 4).returns:
        assert all(torch.equal(result, whole) for result in results)


def test_caches_are_pytorchs_after_the_run():
    from torch.distributed.tensor import _redistribute

    before = _redistribute._gen_transform_infos, _redistribute._planner_cache
    backend.spawn(lambda *_: None, 1)
    after = _redistribute._gen_transform_infos, _redistribute._planner_cache
    assert all(one is other for one, other in zip(before, after, strict=True))
