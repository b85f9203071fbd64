"""Schedules in files: the project's own JSON, MSCCL's XML, and the table of every format that holds
an algorithm.

Formats that need more than one module have folders of their own.
"""
