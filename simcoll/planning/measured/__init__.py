"""Predictions against measurements: comparison, calibration and accuracy.

Readers of logs are in ``simcoll.formats.logs``.
"""
