"""What carries the calls of rank programs: the world, its clock, operations in flight, records.

Knows nothing of torch's argument rules; these are in ``api``.
"""
