"""Symmetric and repeated runs: classes of ranks and messages, of which one is played, and what a
run leaves for the next.

``partition`` guesses classes and ``certification`` proves them; ``quotient`` has one message of
each, ``unpriced`` the same without costs, ``expanding`` the times of all messages. ``loaded_run``
is a run in the arrays of the compiled loops, ``remembered`` the memory of both. Compiled helpers
are in ``fast``.
"""
