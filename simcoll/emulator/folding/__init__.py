"""Symmetric runs: classes of ranks and messages, of which one is played, and the expansion to all of them.

Compiled helpers are in ``fast``.
"""
