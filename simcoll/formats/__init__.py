"""Readers and writers of files, one format a file, without knowledge of the emulator or the command line."""

from simcoll.formats.msccl_writer import dump_msccl_xml
from simcoll.formats.msccl_xml import load_msccl_xml
from simcoll.formats.schedule_files import load_algorithm, schedule_of

__all__ = ["dump_msccl_xml", "load_algorithm", "load_msccl_xml", "schedule_of"]
