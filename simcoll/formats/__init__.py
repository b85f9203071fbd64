"""Readers and writers of file formats, a folder for each kind, independent of the emulator and the
command line.

``recognise`` tells formats apart by content. What readers of every package share is in
:mod:`simcoll.files`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.lazy import lazy_attributes

if TYPE_CHECKING:
    from simcoll.formats.goal.binary import goal_binary, parse_goal_binary
    from simcoll.formats.goal.goal_writer import dump_goal, dump_goal_binary
    from simcoll.formats.goal.language import goal_text, parse_goal
    from simcoll.formats.mscclpp.plan_writer import dump_mscclpp_plan
    from simcoll.formats.mscclpp.reader import load_mscclpp_plan, parse_mscclpp_plan
    from simcoll.formats.schedules.certificate import certificate_bytes, write_certificate
    from simcoll.formats.schedules.msccl_writer import dump_msccl_xml
    from simcoll.formats.schedules.msccl_xml import load_msccl_xml, parse_msccl_xml
    from simcoll.formats.schedules.schedule_files import (
        load_algorithm,
        parse_algorithm,
        schedule_of,
    )

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
        "simcoll.formats.schedules.certificate": ["certificate_bytes", "write_certificate"],
        "simcoll.formats.goal.language": ["goal_text", "parse_goal"],
        "simcoll.formats.goal.binary": ["goal_binary", "parse_goal_binary"],
        "simcoll.formats.goal.goal_writer": ["dump_goal", "dump_goal_binary"],
        "simcoll.formats.schedules.msccl_writer": ["dump_msccl_xml"],
        "simcoll.formats.schedules.msccl_xml": ["load_msccl_xml", "parse_msccl_xml"],
        "simcoll.formats.mscclpp.reader": ["load_mscclpp_plan", "parse_mscclpp_plan"],
        "simcoll.formats.mscclpp.plan_writer": ["dump_mscclpp_plan"],
        "simcoll.formats.schedules.schedule_files": [
            "load_algorithm",
            "parse_algorithm",
            "schedule_of",
        ],
    },
)
