"""Readers and writers of files, one format a file. They know the core, never the emulator or the command line."""
