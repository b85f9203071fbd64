"""The semantics of torch.distributed as a suite for any backend: ``python -m
simcoll.testing.conformance --backend torch:gloo``.
"""
