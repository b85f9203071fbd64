"""The fast engine: the timing model of :mod:`simcoll.emulator.model` as compiled loops over arrays.

``kernel`` holds the loops and ``state`` their arrays, ``timed`` reduces a plan to the few numbers per transfer that determine its
time, ``machine`` feeds steps to the loops and grows the state. Nothing here handles data.
"""
