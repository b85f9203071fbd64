"""The names of torch.distributed: collectives, point-to-point, objects, groups, meshes, debugging.

Arguments are checked here as PyTorch checks them; the operations themselves are in ``runtime``.
"""
