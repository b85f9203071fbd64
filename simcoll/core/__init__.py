"""The vocabulary: collectives, steps, layouts, schedules, plans, programs, and what all else computes with.

Records and arithmetic; nothing here knows of algorithms, proofs, topologies or time.
"""
