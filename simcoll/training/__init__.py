"""Training steps of a transformer: designs, GPUs, memory, layers, pipelines, and their workloads.

Any workload can be lowered and played by ``simcoll.workload``, which may not import from here.
"""
