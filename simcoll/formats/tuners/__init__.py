"""Files by which libraries choose algorithms: NCCL's tuner plugins and MPI's rules.

What the best choice is, is found in ``simcoll.planning.tuners``.
"""
