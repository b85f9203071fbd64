"""GOAL, the language of LogGOPSim and ATLAHS, as text and binary, and its writer.

Timing of GOAL programs is the emulator's.
"""
