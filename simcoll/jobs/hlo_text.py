"""Read the text of a compiled HLO module: computations and their instructions.

Only the form is read here; what instructions cost, and which ranks communicate, is in ``hlo_costs``
and ``hlo_groups``. Text without a schedule is refused: it is not what runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from simcoll.errors import ConfigError, shown
from simcoll.files.reader_arguments import Content, content_of

__all__ = [
    "HOST_SPACE",
    "ArrayShape",
    "HloComputation",
    "HloInstruction",
    "HloModule",
    "parse_hlo",
    "whole_number",
]

ELEMENT_BITS: Mapping[str, int] = {
    "pred": 8,
    **dict.fromkeys(("s2", "u2"), 2),
    **dict.fromkeys(("s4", "u4", "f4e2m1fn"), 4),
    **dict.fromkeys(("s8", "u8", "f8e3m4", "f8e4m3", "f8e4m3b11fnuz", "f8e4m3fn"), 8),
    **dict.fromkeys(("f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0fnu"), 8),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("s32", "u32", "f32"), 32),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 64),
    "c128": 128,
    **dict.fromkeys(("token", "opaque"), 0),
}
"""Bits of an element, by XLA's name of its type."""
HOST_SPACE = 5
"""XLA's number of the host's memory, in layouts as ``S(5)``; 0 is the memory of the device."""
LONGEST_LINE = 64 << 20
MOST_PARTS = 1000
MOST_DEVICES = 1 << 20

_HEADER = re.compile(r"\s*(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)$")
_COMMENT = re.compile(r"/\*.*?\*/")
_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([\d,<=?]*)\](\{[^{}]*\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_PUNCTUATION = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]')
_WHOLE = re.compile(r"\s*([0-9]{1,15})\s*")
_OPERAND = re.compile(r"%?([\w.\-]+(?:#\d+)*)\s*$")


def whole_number(text: str) -> int:
    """A number of at most 15 digits; -1 for any other text.

    >>> whole_number(" 12"), whole_number("1e3")
    (12, -1)
    """
    match = _WHOLE.fullmatch(text)
    return int(match[1]) if match else -1


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """One array: its element type, dimensions, and the number of the memory where it is."""

    dtype: str
    dimensions: tuple[int, ...]
    space: int = 0

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.dimensions)

    @property
    def nbytes(self) -> int:
        """Size in bytes, rounded up for types of less than a byte."""
        return -(-self.elements * ELEMENT_BITS[self.dtype] // 8)


@dataclass(frozen=True)
class HloInstruction:
    """One instruction.

    Attributes
    ----------
    name, opcode
        Such as ``"dot.3"`` and ``"dot"``.
    shapes
        The arrays of its result; nested tuples are flat.
    operands
        Names of its operands, of the same computation. Newer compilers write ``%fusion.3#1`` for an
        element of a tuple, which is an instruction of this name here.
    literal
        The text between the parentheses: a number for a constant or a parameter.
    trailer
        The text after the operands.
    line
        Its line in the text.
    """

    name: str
    opcode: str
    shapes: tuple[ArrayShape, ...]
    operands: tuple[str, ...]
    literal: str
    trailer: str
    line: int

    @property
    def nbytes(self) -> int:
        """Bytes of its result."""
        return sum(shape.nbytes for shape in self.shapes)

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        """Text of each attribute after the operands, such as ``to_apply``."""
        pairs = (part.partition("=") for part in _split(self.trailer))
        return {key.strip(): value.strip() for key, _, value in pairs}

    @property
    def parameter_number(self) -> int:
        """The number of a parameter; -1 for anything else."""
        return whole_number(self.literal) if self.opcode == "parameter" else -1

    @property
    def element(self) -> int:
        """The number of the element that it takes from a tuple; -1 for anything else."""
        return whole_number(self.attribute("index"))

    def attribute(self, name: str) -> str:
        """The text of an attribute; empty without it."""
        return self.attributes.get(name, "") if name in self.trailer else ""

    def computation_name(self, name: str) -> str:
        """The computation that an attribute names; empty without one."""
        return self.attribute(name).removeprefix("%")

    @property
    def collective(self) -> str:
        """Its opcode without the suffix of a start or an end."""
        return self.opcode.removesuffix("-start").removesuffix("-done")

    @property
    def settings(self) -> str:
        """The text of its settings for the back end, which older compilers put between quotes."""
        text = self.attribute("backend_config")
        return text[1:-1].replace('\\"', '"') if text.startswith('"') else text

    @property
    def target(self) -> str:
        """The target of a custom call."""
        return self.attribute("custom_call_target").strip('"')


@dataclass(frozen=True, slots=True, eq=False)
class HloComputation:
    """A computation: instructions in the order of the text, which is that of execution.

    Attributes
    ----------
    name, line
        Its name, and the line of its header.
    instructions
        By name, in order.
    root
        Name of the instruction whose value it returns.
    """

    name: str
    line: int
    instructions: Mapping[str, HloInstruction]
    root: str

    def operand(self, instruction: HloInstruction, position: int) -> HloInstruction | None:
        """The instruction that makes an operand; None without that operand."""
        if position >= len(instruction.operands):
            return None
        return self.instructions.get(instruction.operands[position])

    def operand_bytes(self, instruction: HloInstruction) -> int:
        """Bytes of all operands."""
        return sum(
            self.instructions[name].nbytes
            for name in instruction.operands
            if name in self.instructions
        )


@dataclass(frozen=True, eq=False)
class HloModule:
    """A compiled module.

    Attributes
    ----------
    name
        Its name.
    file
        The file, for messages.
    partitions, replicas
        Devices that it runs on: copies of the program with parts of the data, and with the same.
    computations
        By name.
    entry
        Name of the computation that runs first.
    aliases
        Numbers of the parameters whose memory holds an output.
    text_marks
        What in the text tells the compiler's target: ``"gpu"``, ``"tpu"`` or ``"cpu"``.
    """

    name: str
    file: str | None
    partitions: int
    replicas: int
    computations: Mapping[str, HloComputation]
    entry: str
    aliases: frozenset[int] = frozenset()
    text_marks: frozenset[str] = frozenset()

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.partitions * self.replicas

    @property
    def target(self) -> str:
        """What it was compiled for: ``"gpu"``, ``"tpu"``, ``"cpu"``, or empty if nothing tells."""
        return next((name for name in ("tpu", "gpu", "cpu") if name in self.text_marks), "")

    def refuse(self, instruction: HloInstruction, problem: str) -> ConfigError:
        """The error of an instruction that cannot be read, with its line."""
        return ConfigError(
            f"line {instruction.line}, {instruction.name}: {problem}", file=self.file
        )

    def computation(self, instruction: HloInstruction, attribute: str) -> HloComputation:
        """The computation that an instruction calls.

        Raises
        ------
        ConfigError
            When the text does not have it.
        """
        name = instruction.computation_name(attribute)
        if name not in self.computations:
            problem = f"{attribute}={shown(name)}: the text has no such computation"
            raise self.refuse(instruction, problem)
        return self.computations[name]


# What only one of XLA's back ends writes: layouts in tiles, and names of kernels or of settings.
_MARKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("tpu", re.compile(r"\{[\d,]*:T\(\d|estimated_cycles")),
    (
        "gpu",
        re.compile(
            r"operation_queue_id|__triton|__cu(?:blas|dnn|fft|solver)|__custom_fusion"
            r"|gpu_backend_config|collective_backend_config|scheduling_name="
        ),
    ),
    ("cpu", re.compile(r"outer_dimension_partitions|__ynn_fusion|__onednn|xla_cpu|__xla_cpu")),
)


def parse_hlo(content: Content, file: str | None = None) -> HloModule:
    r"""Read the text of a compiled module, such as ``compiled.as_text()`` of JAX.

    Raises
    ------
    ConfigError
        With the line, for text that is no module, has no schedule, is cut short, or has types that
        are unknown.

    Examples
    --------
    >>> module = parse_hlo(
    ...     "HloModule sum, is_scheduled=true, num_partitions=2\n"
    ...     "ENTRY %main (x: f32[8]) -> f32[8] {\n"
    ...     "  %x = f32[8]{0} parameter(0)\n"
    ...     "  ROOT %y = f32[8]{0} add(%x, %x)\n"
    ...     "}\n"
    ... )
    >>> module.devices, module.computations["main"].instructions["y"].operands
    (2, ('x', 'x'))
    """
    text = content_of(content, "parse_hlo").decode("utf-8", "replace")
    return _TextReader(file).module(text.splitlines())


@dataclass(eq=False)
class _TextReader:
    """Reads lines one after another; ``line`` is the current one, for messages."""

    file: str | None
    line: int = 0
    name: str = ""
    header: str = ""
    entry: str = ""
    marks: set[str] = field(default_factory=set)
    computations: dict[str, HloComputation] = field(default_factory=dict)
    shapes: dict[str, tuple[ArrayShape, ...]] = field(default_factory=dict)

    def _refuse(self, problem: str) -> ConfigError:
        return ConfigError(f"line {self.line}: {problem}", file=self.file)

    def module(self, lines: list[str]) -> HloModule:
        numbered = iter(enumerate(lines, 1))
        for number, line in numbered:
            self.line = number
            if len(line) > LONGEST_LINE:
                raise self._refuse(f"longer than {LONGEST_LINE:,} characters")
            if not self.header:
                self._read_header(line)
            elif line.strip() and not line.lstrip().startswith(("//", "#")):
                match = _HEADER.match(line)
                if match is not None and not line[:1].isspace():
                    self._read_computation(match[2], bool(match[1]), numbered)
        if not self.header:
            raise ConfigError("no line begins with HloModule", file=self.file)
        if not self.entry:
            raise ConfigError(
                f"ends at line {self.line} without an ENTRY computation", file=self.file
            )
        partitions, replicas = self._count("num_partitions"), self._count("replica_count")
        if partitions > 1 and replicas > 1:
            raise ConfigError(
                f"{replicas} replicas of {partitions} partitions; expected one of both to be 1",
                file=self.file,
            )
        return HloModule(
            self.name,
            self.file,
            partitions,
            replicas,
            self.computations,
            self.entry,
            self._aliases(),
            frozenset(self.marks),
        )

    def _read_header(self, line: str) -> None:
        if not line.strip():
            return
        if not line.startswith("HloModule "):
            if "stablehlo." in line or line.lstrip().startswith(("module @", "#loc", "module {")):
                raise self._refuse(
                    "this is StableHLO (lowered.as_text()), which is not compiled; expected "
                    "lowered.compile().as_text()"
                )
            raise self._refuse(f"expected HloModule, got {shown(line.strip()[:60])}")
        self.header = line
        self.name = line.removeprefix("HloModule ").partition(",")[0].strip()
        if "is_scheduled=true" not in line:
            raise self._refuse(
                "the module has no schedule (is_scheduled=true), so it is not what runs; expected "
                "compiled.as_text(), or the dump of XLA that ends in after_optimizations.txt"
            )

    def _count(self, key: str) -> int:
        match = re.search(rf"\b{key}=(\d{{1,9}})\b", self.header)
        count = int(match[1]) if match else 1
        if not 1 <= count <= MOST_DEVICES:
            raise ConfigError(f"{key}: expected 1 to {MOST_DEVICES:,}, got {count}", file=self.file)
        return count

    def _aliases(self) -> frozenset[int]:
        start = self.header.find("input_output_alias={")
        if start < 0:
            return frozenset()
        end = self.header.find("entry_computation_layout", start)
        listed = self.header[start : end if end > 0 else None]
        return frozenset(int(number) for number in re.findall(r":\s*\((\d{1,9}),", listed))

    def _read_computation(
        self, name: str, is_entry: bool, numbered: Iterator[tuple[int, str]]
    ) -> None:
        """Read instructions up to the line of the closing brace."""
        begin = self.line
        instructions: dict[str, HloInstruction] = {}
        tuples: dict[str, str] = {}
        root = ""
        for number, line in numbered:
            self.line = number
            if line.startswith("}"):
                break
            joined_line = self._joined_line(line, numbered)
            match = _INSTRUCTION.match(joined_line)
            if match is None:
                if line.strip():
                    raise self._refuse(f"expected an instruction, got {shown(line.strip()[:60])}")
                continue
            instruction = self._instruction(match[2], match[3])
            if match[3].startswith("("):
                tuples[instruction.name] = match[3]
            for operand in instruction.operands:
                if "#" in operand:
                    self._add_element(operand, instructions, tuples)
            if instruction.name in instructions:
                raise self._refuse(f"{instruction.name} is there twice in {name}")
            instructions[instruction.name] = instruction
            if match[1]:
                root = instruction.name
            self._note_marks(line)
        else:
            raise self._refuse(f"the text ends inside of computation {name}")
        if name in self.computations or not instructions:
            problem = "is there twice" if instructions else "has no instructions"
            raise self._refuse(f"computation {name} {problem}")
        root = root or next(reversed(instructions))
        self.computations[name] = HloComputation(name, begin, instructions, root)
        if is_entry:
            self.entry = name

    def _joined_line(self, line: str, numbered: Iterator[tuple[int, str]]) -> str:
        """An instruction with the lines that follow where its text breaks within brackets."""
        parts = [line]
        depth = _depth(line) if line.rstrip()[-1:] in {"{", "(", "["} else 0
        while depth > 0:
            self.line, part = next(numbered, (self.line, None))
            if part is None or len(parts) > MOST_PARTS:
                raise self._refuse("the text of an instruction has no end")
            parts.append(part)
            depth += _depth(part)
        return "".join(parts)

    def _add_element(
        self, name: str, instructions: dict[str, HloInstruction], tuples: dict[str, str]
    ) -> None:
        """Add the element of a tuple that an operand names by ``#`` and its number."""
        if name in instructions:
            return
        base, _, number = name.rpartition("#")
        if "#" in base:
            self._add_element(base, instructions, tuples)
        text = tuples.get(base, "")
        parts = _split(text[1 : _closing(text, 0) - 1])
        if int(number) >= len(parts):
            raise self._refuse(f"{base} has no element {number}")
        part = parts[int(number)].strip()
        if part.startswith("("):
            tuples[name] = part
        instructions[name] = HloInstruction(
            name,
            "get-tuple-element",
            self._shapes(part),
            (base,),
            base,
            f", index={number}",
            self.line,
        )

    def _note_marks(self, line: str) -> None:
        for target, pattern in _MARKS:
            if target not in self.marks and pattern.search(line):
                self.marks.add(target)

    def _instruction(self, name: str, text: str) -> HloInstruction:
        if "/*" in text:
            text = _COMMENT.sub("", text)
        end = _closing(text, 0) if text.startswith("(") else text.find(" ")
        opcode = _OPCODE.match(text, end) if end > 0 else None
        if opcode is None:
            raise self._refuse(f"expected a type and an operation, got {shown(text[:60])}")
        close = _closing(text, opcode.end() - 1)
        if close < 0:
            raise self._refuse(f"{name}: a parenthesis is not closed")
        literal = text[opcode.end() : close - 1]
        operands: tuple[str, ...] = ()
        if opcode[1] not in {"parameter", "constant", "iota"}:
            matches = (_OPERAND.search(part) for part in _split(literal))
            operands = tuple(match[1] for match in matches if match)
        return HloInstruction(
            name,
            opcode[1],
            self._shapes(text[:end]),
            operands,
            literal,
            text[close:],
            self.line,
        )

    def _shapes(self, text: str) -> tuple[ArrayShape, ...]:
        if text not in self.shapes:
            self.shapes[text] = tuple(self._shape(*match) for match in _SHAPE.findall(text))
        return self.shapes[text]

    def _shape(self, dtype: str, dimensions: str, layout: str) -> ArrayShape:
        if dtype not in ELEMENT_BITS:
            raise self._refuse(f"unknown type of elements {shown(dtype)}")
        sizes = [size.lstrip("<=") for size in dimensions.split(",") if size]
        if any(whole_number(size) < 0 for size in sizes):
            raise self._refuse(f"dimensions [{dimensions}]: expected whole numbers")
        space = _SPACE.search(layout)
        return ArrayShape(dtype, tuple(map(int, sizes)), int(space[1]) if space else 0)


def _closing(text: str, start: int) -> int:
    """The place after the bracket that closes the one at ``start``; -1 without one."""
    depth = 0
    for match in _PUNCTUATION.finditer(text, start):
        mark = match[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
            if depth == 0:
                return match.end()
    return -1


def _depth(text: str) -> int:
    """The number of brackets that are open at its end."""
    marks = (match[0] for match in _PUNCTUATION.finditer(text))
    return sum(1 if mark in "([{" else -1 if mark in ")]}" else 0 for mark in marks)


def _split(text: str) -> list[str]:
    """The parts of a list at its commas outside of brackets and quotes."""
    parts, depth, start = [], 0, 0
    for match in _PUNCTUATION.finditer(text):
        mark = match[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
        elif mark == "," and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    return [part for part in parts if part.strip()]
