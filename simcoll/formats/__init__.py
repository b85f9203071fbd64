"""Readers and writers of file formats, one module each, independent of the emulator and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.lazy import lazy_attributes

if TYPE_CHECKING:
    from simcoll.formats.certificate import certificate_bytes, write_certificate
    from simcoll.formats.goal import goal_text, parse_goal
    from simcoll.formats.goal_bytes import goal_binary, parse_goal_binary
    from simcoll.formats.goal_writer import dump_goal, dump_goal_binary
    from simcoll.formats.msccl_writer import dump_msccl_xml
    from simcoll.formats.msccl_xml import load_msccl_xml, parse_msccl_xml
    from simcoll.formats.mscclpp_plan import load_mscclpp_plan, parse_mscclpp_plan
    from simcoll.formats.mscclpp_writer import dump_mscclpp_plan
    from simcoll.formats.schedule_files import load_algorithm, parse_algorithm, schedule_of

__all__ = [
    "certificate_bytes",
    "dump_goal",
    "dump_goal_binary",
    "dump_msccl_xml",
    "dump_mscclpp_plan",
    "goal_binary",
    "goal_text",
    "load_algorithm",
    "load_msccl_xml",
    "load_mscclpp_plan",
    "parse_algorithm",
    "parse_goal",
    "parse_goal_binary",
    "parse_msccl_xml",
    "parse_mscclpp_plan",
    "schedule_of",
    "write_certificate",
]

__getattr__, __dir__ = lazy_attributes(
    "simcoll.formats",
    {
        "simcoll.formats.certificate": ["certificate_bytes", "write_certificate"],
        "simcoll.formats.goal": ["goal_text", "parse_goal"],
        "simcoll.formats.goal_bytes": ["goal_binary", "parse_goal_binary"],
        "simcoll.formats.goal_writer": ["dump_goal", "dump_goal_binary"],
        "simcoll.formats.msccl_writer": ["dump_msccl_xml"],
        "simcoll.formats.msccl_xml": ["load_msccl_xml", "parse_msccl_xml"],
        "simcoll.formats.mscclpp_plan": ["load_mscclpp_plan", "parse_mscclpp_plan"],
        "simcoll.formats.mscclpp_writer": ["dump_mscclpp_plan"],
        "simcoll.formats.schedule_files": ["load_algorithm", "parse_algorithm", "schedule_of"],
    },
)
