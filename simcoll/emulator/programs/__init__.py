"""Programs: many collectives, messages and works at once, on streams and with dependencies.

``operations`` and ``program`` have the types; ``run`` plays them and ``result`` is the record. ``reference`` plays every operation with a
player of its own under SimPy; ``lowering`` turns a program into timed steps, which ``playing`` gives to the compiled engine, whole or
folded; both stand on one ``ground`` of lanes and links.
"""

from simcoll.emulator.programs.operations import Call, Compute, Operation, Send
from simcoll.emulator.programs.program import Program
from simcoll.emulator.programs.result import ProgramResult
from simcoll.emulator.programs.run import ProgramObserver, emulate_program

__all__ = ["Call", "Compute", "Operation", "Program", "ProgramObserver", "ProgramResult", "Send", "emulate_program"]
