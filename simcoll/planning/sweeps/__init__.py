"""Tables of collectives: over sizes, algorithms, protocols and groups, of one scenario or a grid of
them.

Nothing about training or measurements.
"""
