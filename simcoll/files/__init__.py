"""The ground of every reader and writer: guarded TOML, JSON and XML, names of files, and output
that is whole or absent.

It knows no domain: nothing here may import anything but errors and units.
"""
