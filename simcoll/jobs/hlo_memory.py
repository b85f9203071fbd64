"""The memory that a compiled module needs on each device, from its schedule.

XLA's text holds no addresses, so values are followed from their instruction to their last use: an
estimate of what the buffer assignment reaches, which can be larger where memory fragments.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from simcoll.jobs.hlo_text import HOST_SPACE, HloComputation, HloInstruction, HloModule

__all__ = ["HloMemory", "memory_of"]

_NAMING_WORDS = (
    "bitcast while opt-barrier add-dependency after-all copy-done all-gather-done "
    "all-reduce-done reduce-scatter-done all-to-all-done collective-permute-done "
    "ragged-all-to-all-done async-update async-done"
)
_NAMING = frozenset(_NAMING_WORDS.split())
"""Opcodes whose results are values of their operands."""
_SHARING = frozenset({"kLoop", "kInput"})
_DEEPEST = 100


@dataclass(frozen=True, slots=True)
class HloMemory:
    """Bytes on each device.

    Attributes
    ----------
    arguments, donated
        Of the arguments, and of those whose memory holds an output afterwards.
    outputs
        Of the outputs that need memory of their own.
    peak
        Of arguments, outputs and intermediate values, when they are largest.
    host
        Of arguments and intermediate values in the host's memory.
    """

    arguments: int
    donated: int
    outputs: int
    peak: int
    host: int = 0


def memory_of(module: HloModule) -> HloMemory:
    r"""The memory of a module.

    Examples
    --------
    >>> from simcoll.jobs.hlo_text import parse_hlo
    >>> memory_of(parse_hlo(
    ...     "HloModule sum, is_scheduled=true\n"
    ...     "ENTRY %main (x: f32[8]) -> f32[8] {\n"
    ...     "  %x = f32[8]{0} parameter(0)\n"
    ...     "  %y = f32[8]{0} exponential(%x)\n"
    ...     "  %z = f32[8]{0} add(%y, %x)\n"
    ...     "  ROOT %w = f32[8]{0} multiply(%y, %z)\n"
    ...     "}\n"
    ... ))
    HloMemory(arguments=32, donated=0, outputs=32, peak=128, host=0)
    """
    entry = module.computations[module.entry]
    parameters = {
        instruction.parameter_number: instruction
        for instruction in entry.instructions.values()
        if instruction.opcode == "parameter"
    }
    arguments = sum(_device_bytes(parameter) for parameter in parameters.values())
    donated = sum(
        _device_bytes(parameter)
        for number, parameter in parameters.items()
        if number in module.aliases
    )
    results = _device_bytes(entry.instructions[entry.root])
    host = sum(
        shape.nbytes
        for instruction in entry.instructions.values()
        if instruction.opcode not in _NAMING
        for shape in instruction.shapes
        if shape.space == HOST_SPACE
    )
    outputs = max(0, results - donated)
    peak = arguments + outputs + _Lifetimes(module).peak(entry, 0)
    return HloMemory(arguments, donated, outputs, peak, host)


def _device_bytes(instruction: HloInstruction) -> int:
    return sum(shape.nbytes for shape in instruction.shapes if shape.space == 0)


_Origins: TypeAlias = tuple[str, ...]
"""The instructions in whose memory a value may be."""


@dataclass(frozen=True, slots=True)
class _Lifetimes:
    """Follows values of a computation from instruction to instruction."""

    module: HloModule
    peaks: dict[str, int] = field(default_factory=dict)

    def peak(self, computation: HloComputation, depth: int) -> int:
        """Largest sum of the values that a computation makes, besides those that it returns, whose
        memory its caller has.
        """
        elements = self._elements(computation)
        last_use: dict[str, int] = {}
        order = list(computation.instructions.values())
        for place, instruction in enumerate(order):
            for operand in instruction.operands:
                for origin in chain.from_iterable(elements.get(operand, ())):
                    last_use[origin] = place
        returned = set(chain.from_iterable(elements[computation.root]))
        sizes = {
            instruction.name: _device_bytes(instruction)
            for instruction in order
            if (instruction.name,) in elements[instruction.name]
            and instruction.name not in returned
            and instruction.opcode not in {"parameter", "constant"}
        }
        ending: dict[int, list[str]] = defaultdict(list)
        for name in sizes:
            ending[last_use.get(name, len(order))].append(name)
        live = highest = 0
        for place, instruction in enumerate(order):
            live += sizes.get(instruction.name, 0)
            freed = [sizes[name] for name in ending[place]]
            # An element-wise kernel writes over an operand that it is the last to read.
            shared = (
                min(sizes.get(instruction.name, 0), max(freed, default=0))
                if instruction.attribute("kind") in _SHARING
                else 0
            )
            called = self._inside(instruction, depth)
            highest = max(highest, live + called - shared)
            live -= sum(freed)
        return highest

    def _inside(self, instruction: HloInstruction, depth: int) -> int:
        """Largest sum of the values inside of a loop or a call."""
        if depth > _DEEPEST or instruction.opcode not in {"while", "call"}:
            return 0
        attribute = "body" if instruction.opcode == "while" else "to_apply"
        body = self.module.computation(instruction, attribute)
        if body.name not in self.peaks:
            self.peaks[body.name] = self.peak(body, depth + 1)
        return self.peaks[body.name]

    def _elements(self, computation: HloComputation) -> dict[str, tuple[_Origins, ...]]:
        """For each instruction the origins of its value, element by element of a tuple."""
        elements: dict[str, tuple[_Origins, ...]] = {}
        for instruction in computation.instructions.values():
            operands = [elements.get(name, ()) for name in instruction.operands]
            updated = self._updated_operand(instruction)
            if instruction.opcode == "tuple":
                value: tuple[_Origins, ...] = tuple(
                    tuple(dict.fromkeys(chain.from_iterable(operand))) for operand in operands
                )
            elif instruction.opcode == "get-tuple-element":
                place = max(0, instruction.element)
                operand = operands[0] if operands else ()
                value = operand[place : place + 1] or operand[:1]
            elif updated >= 0:
                value = operands[updated] if updated < len(operands) else ()
            elif instruction.opcode in _NAMING:
                value = operands[0] if operands else ()
            else:
                value = ((instruction.name,),)
            elements[instruction.name] = value
        return elements

    def _updated_operand(self, instruction: HloInstruction) -> int:
        """The place of the operand that an instruction updates in place; -1 without one."""
        if instruction.opcode == "dynamic-update-slice":
            return 0
        if instruction.opcode != "fusion":
            return -1
        body = self.module.computation(instruction, "calls")
        value: HloInstruction | None = body.instructions[body.root]
        updates = False
        while value is not None and value.opcode in {"bitcast", "dynamic-update-slice"}:
            updates = updates or value.opcode == "dynamic-update-slice"
            value = body.operand(value, 0)
        if value is None or value.opcode != "parameter" or not updates:
            return -1
        return value.parameter_number
