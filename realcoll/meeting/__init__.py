"""Processes meet here, agree on a plan, and find out which of them failed."""
