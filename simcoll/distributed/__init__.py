"""The programming interface: torch.distributed's names and semantics on the emulator.

Rank programs, groups, collectives and the stores that ranks meet in live here. What a collective does does not: that is a
schedule, played by the emulator.
"""
