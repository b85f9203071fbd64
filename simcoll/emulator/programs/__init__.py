"""Programs: many collectives, messages and computations on streams, with dependencies.

``operations`` and ``program`` define the types, ``program_request`` is the record of a run to come,
``program_ways`` has the ways to play it, ``run`` chooses one, and ``program_result`` is the record
of the run. ``program_player`` plays each operation with a separate player under SimPy;
``step_lowering`` turns a program into timed steps, which ``compiled_programs`` gives to the
compiled engine, whole or folded. Both use the lanes and links of ``resources``.
"""

from simcoll.emulator.programs.operations import Call, Compute, Operation, Send
from simcoll.emulator.programs.program import Program
from simcoll.emulator.programs.program_request import ProgramObserver
from simcoll.emulator.programs.program_result import ProgramResult
from simcoll.emulator.programs.run import emulate_program

__all__ = [
    "Call",
    "Compute",
    "Operation",
    "Program",
    "ProgramObserver",
    "ProgramResult",
    "Send",
    "emulate_program",
]
