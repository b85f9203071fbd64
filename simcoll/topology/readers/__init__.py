"""Readers of foreign descriptions of machines: NCCL's XML, ``nvidia-smi``, InfiniBand listings,
ASTRA-sim, SimGrid and GraphML.

They make topologies; the rest of the package needs none of them, apart from ``files``.
"""
