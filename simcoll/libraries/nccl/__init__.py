"""NCCL's own choice: its graphs, tuning table, algorithm, protocol, channels and threads.

These modules state what NCCL computes before it starts a kernel, which is exact and needs no
measurement. Times that a machine takes are predicted in :mod:`simcoll.libraries.corrected`.
"""
