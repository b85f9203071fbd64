"""Timing models of communication libraries: constants from files, choices of algorithm, and
calibrations to measurements.
"""
