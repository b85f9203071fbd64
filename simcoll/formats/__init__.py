"""Readers and writers of files, one format a file, without knowledge of the emulator or the command line."""

from simcoll.formats.msccl_xml import load_msccl_xml

__all__ = ["load_msccl_xml"]
