"""Faults and failures: single collectives under random faults, and the useful time of long jobs.

Events themselves are the emulator's.
"""
