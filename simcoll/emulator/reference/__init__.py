"""The reference engine: the SimPy player of plans with its fabric and messages.

Nothing compiled may be imported here.
"""
