"""The search for designs of training clusters, and the reports on them.

What one step costs is in ``simcoll.training``.
"""
