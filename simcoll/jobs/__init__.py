"""Jobs that already run: traces of PyTorch's profiler (Kineto) and compiled programs (HLO).

A job is read, checked against itself by a replay, and asked what would change it. Formats of
algorithms and logs do not belong here, nor what predicts collectives: that is in the libraries.
"""
