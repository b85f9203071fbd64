"""The fast engine: the timing model of :mod:`simcoll.emulator.model` as compiled loops over arrays.

``loops`` holds the loops and ``state`` their arrays; ``driver`` feeds them the steps of
:mod:`simcoll.emulator.steps` and grows the state. All compiled code is here, that for folding too,
since one checksum of these files guards numba's cache. Nothing here handles data.
"""
