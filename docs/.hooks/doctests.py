"""Doctests in docstrings as code: without a fence Markdown takes ``>>>`` for a quotation of a
quotation.
"""

import re

import griffe

DOCTEST = re.compile(r"(?:^|(?<=\n\n))>>> .*?(?=\n\n|\Z)", re.DOTALL)


class Doctests(griffe.Extension):
    """Fences the doctests that stand outside of a section ``Examples``."""

    def on_object(self, *, obj, **_):
        if obj.docstring:
            text, head, examples = obj.docstring.value.partition("\nExamples\n-")
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", text) + head + examples
