"""Execution plans of MSCCL++: their document, reader and writer.

What other formats need too does not belong here.
"""
