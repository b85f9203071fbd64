"""Measurements that other programs print: NCCL's logs, graphs and tuning tables, nccl-tests and the
OSU benchmarks.

They are read here, never interpreted; fits are in ``simcoll.libraries`` and
``simcoll.planning.measured``.
"""
