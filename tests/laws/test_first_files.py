"""The first files that people give to each reader are read, or named for what they are.

``python -m tests.laws.test_first_files`` prints the table of ``docs/reference/first-files.md``.
"""

from pathlib import Path

import pytest

from simcoll.errors import ConfigError
from tests.support.first_files import Refusal
from tests.support.first_files.every import EVERY, LEAST

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "first-files.md"
CASES = [(reader, file) for reader in EVERY for file in reader.files]


def table():
    """The kinds of files of each reader."""
    lines = ["| what is read | first files |", "|---|---|"]
    for reader in EVERY:
        kinds = "; ".join(file.kind for file in reader.files)
        lines.append(f"| {reader.title} | {kinds} |")
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reader", "file"), CASES, ids=[f"{reader.title}: {file.kind}" for reader, file in CASES]
)
def test_a_first_file(reader, file, tmp_path):
    contents = file.content if isinstance(file.content, dict) else {"file": file.content}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    path = tmp_path if isinstance(file.content, dict) else tmp_path / "file"
    if isinstance(file.expected, Refusal):
        try:
            answer = reader.read(path)
        except ConfigError as error:
            answer = Refusal(str(error))
        assert isinstance(answer, Refusal), answer
        assert file.expected.words in answer.words
    else:
        assert reader.read(path) == file.expected


def test_each_reader_has_ten_kinds_and_the_page_lists_them():
    for reader in EVERY:
        kinds = [file.kind for file in reader.files]
        assert len(kinds) == len(set(kinds)) >= LEAST, reader.title
    assert table() in PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(table(), end="")
