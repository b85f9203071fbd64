"""The data of a run: buffers of all ranks, their limit of memory, and the steps in order without
time.

Nothing here knows the time.
"""
