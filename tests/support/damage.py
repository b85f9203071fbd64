"""Ways to damage a file: each changes bytes in place, by chance and by words of other sound
files.
"""

from __future__ import annotations

import re

__all__ = ["WAYS"]

WORDS = [
    b"0",
    b"-1",
    b"1",
    b"2147483647",
    b"2147483648",
    b"9223372036854775807",
    b"9223372036854775808",
    b"1e400",
    b"-0.0",
    b"0.9",
    b"nan",
    b"inf",
    b"1_0",
    b"0x10",
    b"9" * 5000,
    b"1e-300",
    b"true",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b'"0"',
    b"\xef\xbc\x95",
    b"\xd9\xa3",
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x1b[2J",
    b"\xe2\x80\xae",
    b"<!DOCTYPE a>",
    b"&amp;",
    b"&x;",
    b"--",
    b"-->",
    b"<!--",
    b"'''",
    b'"""',
    b"a.b.c",
    b"[[",
    b"]]",
    b" " * 300,
    b"\n" * 50,
    b"(" * 200,
    b"[" * 200,
    b"A" * 70_000,
]
_TOKENS = re.compile(rb'"[^"\n]{0,80}"|[A-Za-z_][\w.-]*|-?\d[\d.eE+-]*|[^\w\s]|\s+')


def _span(data, chance, most=64):
    begin = chance.randrange(len(data))
    return begin, min(len(data), begin + chance.randint(1, most))


def _flip(data, chance, _seeds):
    data[chance.randrange(len(data))] = chance.randrange(256)


def _cut(data, chance, _seeds):
    begin, end = _span(data, chance)
    del data[begin:end]


def _truncate(data, chance, _seeds):
    del data[chance.randrange(len(data)) :]


def _repeat(data, chance, _seeds):
    begin, end = _span(data, chance, 400)
    data[end:end] = data[begin:end] * chance.choice((1, 1, 2, 50))


def _splice(data, chance, seeds):
    other = chance.choice(seeds)
    if other:
        begin, end = _span(other, chance, 400)
        at = chance.randrange(len(data) + 1)
        data[at:at] = other[begin:end]


def _word(data, chance, _seeds):
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.choice(WORDS)


def _token(data, chance, seeds):
    """Another word in the place of one: of the list above, or of a sound file."""
    begin = chance.randrange(len(data))
    token = _TOKENS.search(data, begin)
    if token:
        other = _TOKENS.search(source := chance.choice(seeds), chance.randrange(len(source) or 1))
        data[slice(*token.span())] = (
            other[0] if other and chance.random() < 0.5 else chance.choice(WORDS)
        )


def _number(data, chance, _seeds):
    """Another number in the place of one, nearby or far."""
    numbers = list(re.finditer(rb"\d+", data))
    if numbers:
        found = chance.choice(numbers)
        value = int(found[0][:18])
        new = chance.choice(
            (
                value + 1,
                value - 1,
                -value,
                value * 2,
                value**2,
                0,
                1 << chance.randrange(70),
                chance.randrange(100),
            )
        )
        data[slice(*found.span())] = str(new).encode()


def _line(data, chance, _seeds):
    """Lines swapped, dropped or doubled."""
    lines = bytes(data).split(b"\n")
    a, b = chance.randrange(len(lines)), chance.randrange(len(lines))
    way = chance.randrange(3)
    if way == 0:
        lines[a], lines[b] = lines[b], lines[a]
    elif way == 1:
        del lines[a]
    else:
        lines.insert(b, lines[a])
    data[:] = b"\n".join(lines)


WAYS = (
    _flip,
    _cut,
    _truncate,
    _repeat,
    _splice,
    _word,
    _token,
    _token,
    _token,
    _number,
    _number,
    _number,
    _line,
    _line,
)
