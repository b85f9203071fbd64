"""The runtime of rank programs: the world, its clock, operations in flight, records.

It knows nothing of torch's argument rules; these are in ``api``.
"""
