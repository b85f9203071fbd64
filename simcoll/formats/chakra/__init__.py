"""The encoding of Chakra's execution traces, node by node.

What the nodes mean as a workload is in ``simcoll.traces``.
"""
