"""The fast engine: the timing model of :mod:`simcoll.emulator.model` as compiled loops over arrays.

``kernel`` holds the loops and their state, ``timed`` turns a plan into the few numbers per transfer that time depends
on, ``machine`` feeds steps to the loops and grows the state, ``play`` makes one run of it. Nothing here knows data.
"""
