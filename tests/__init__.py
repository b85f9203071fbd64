"""Tests: see README.md."""
