"""Core records and arithmetic: collectives, steps, layouts, schedules, plans, per-rank programs.

Nothing here depends on algorithms, proofs, topologies or time.
"""
