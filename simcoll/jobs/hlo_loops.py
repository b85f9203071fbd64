"""How often the loops of HLO run: as the compiler says, or as the condition and the counter do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simcoll.jobs.hlo_text import HloComputation, HloInstruction, HloModule

__all__ = ["trip_count"]

_KNOWN = re.compile(r'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"?(\d{1,18})"?')
_WHOLE = re.compile(r"-?\d{1,18}$")
_COPYING = frozenset({"bitcast", "copy", "convert", "reshape"})
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class _Value:
    """A number, or an element of the state of a loop plus a number."""

    constant: int
    element: int | None = None


def trip_count(module: HloModule, computation: HloComputation, loop: HloInstruction) -> int:
    """Number of iterations of a ``while``.

    Without the compiler's ``known_trip_count``, the condition must compare an element of the state
    with a constant, the loop must begin with a constant, and its body must add one to it.

    Raises
    ------
    ConfigError
        With the line, for a loop whose number of iterations cannot be derived.
    """
    compiler_count = _KNOWN.search(loop.settings)
    if compiler_count:
        return int(compiler_count[1])
    reader = _LoopReader(module)
    condition = module.computation(loop, "condition")
    body = module.computation(loop, "body")
    compared = reader.comparison(condition)
    if compared is not None:
        counter, direction, limit = compared
        begin = reader.initial(computation, loop, counter)
        step = reader.step(body, counter)
        if begin is not None and step:
            return _iterations(begin, step, direction, limit)
    raise module.refuse(
        loop,
        "the number of iterations is not known; expected known_trip_count, or a counter that is "
        "compared with a constant (lax.scan and lax.fori_loop have one)",
    )


def _iterations(begin: int, step: int, direction: str, limit: int) -> int:
    """Iterations while a counter compares with a limit."""
    distance = limit - begin if direction in {"LT", "LE"} else begin - limit
    if direction in {"LE", "GE"}:
        distance += 1
    pace = step if direction in {"LT", "LE"} else -step
    return max(0, -(-distance // pace)) if pace > 0 else 0


@dataclass(frozen=True, slots=True)
class _LoopReader:
    """Follows values back to constants and to elements of the state of a loop."""

    module: HloModule

    def comparison(self, condition: HloComputation) -> tuple[int, str, int] | None:
        """The counter's place in the state, the direction, and the limit."""
        computation, root = condition, condition.instructions[condition.root]
        outer: tuple[HloComputation, HloInstruction] | None = None
        if root.opcode == "fusion":
            outer = (condition, root)
            computation = self.module.computation(root, "calls")
            root = computation.instructions[computation.root]
        if root.opcode != "compare":
            return None
        counter, limit = (
            self.value(computation, operand, outer)
            for operand in (computation.operand(root, 0), computation.operand(root, 1))
        )
        direction = root.attribute("direction")
        if counter is None or limit is None or direction not in _MIRRORED:
            return None
        if counter.element is None:
            counter, limit, direction = limit, counter, _MIRRORED[direction]
        if counter.element is None or limit.element is not None:
            return None
        return counter.element, direction, limit.constant - counter.constant

    def initial(
        self, computation: HloComputation, loop: HloInstruction, counter: int
    ) -> int | None:
        """The counter before the loop."""
        state = computation.operand(loop, 0)
        if state is None or state.opcode != "tuple":
            return None
        value = self.value(computation, computation.operand(state, counter), None)
        return value.constant if value and value.element is None else None

    def step(self, body: HloComputation, counter: int) -> int | None:
        """What an iteration adds to the counter."""
        root = body.instructions[body.root]
        if root.opcode != "tuple":
            return None
        value = self.value(body, body.operand(root, counter), None)
        return value.constant if value and value.element == counter else None

    def value(
        self,
        computation: HloComputation,
        instruction: HloInstruction | None,
        caller: tuple[HloComputation, HloInstruction] | None,
        depth: int = 0,
    ) -> _Value | None:
        """A value as a number, or as an element of the state plus a number; None otherwise.

        ``caller`` is the fusion whose parameters the computation's are.
        """
        if instruction is None or depth > _DEEPEST:
            return None
        operands = [
            computation.operand(instruction, place) for place in range(len(instruction.operands))
        ]
        if instruction.opcode == "constant":
            text = instruction.literal.strip().strip("{}")
            return _Value(int(text)) if _WHOLE.match(text) else None
        if instruction.opcode == "get-tuple-element" and caller is None:
            if operands[:1] and operands[0] and operands[0].opcode == "parameter":
                return _Value(0, instruction.element) if instruction.element >= 0 else None
            return None
        if instruction.opcode == "parameter" and caller is not None:
            computation, fusion = caller
            if instruction.parameter_number < 0:
                return None
            operand = computation.operand(fusion, instruction.parameter_number)
            return self.value(computation, operand, None, depth + 1)
        if instruction.opcode in _COPYING and operands:
            return self.value(computation, operands[0], caller, depth + 1)
        if instruction.opcode in {"add", "subtract"} and len(operands) == 2:
            augend, addend = (
                self.value(computation, operand, caller, depth + 1) for operand in operands
            )
            return _sum(augend, addend, -1 if instruction.opcode == "subtract" else 1)
        if instruction.opcode == "fusion" and caller is None:
            body = self.module.computation(instruction, "calls")
            inner = body.instructions[body.root]
            return self.value(body, inner, (computation, instruction), depth + 1)
        return None


def _sum(augend: _Value | None, addend: _Value | None, sign: int) -> _Value | None:
    if (
        augend is None
        or addend is None
        or (augend.element is not None and addend.element is not None)
    ):
        return None
    if addend.element is not None and sign < 0:
        return None
    element = addend.element if augend.element is None else augend.element
    return _Value(augend.constant + sign * addend.constant, element)
