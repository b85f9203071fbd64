"""What is written to a device, a pipe or a link goes into it: the file itself is not replaced."""

import os
import stat

import pytest

from simcoll.errors import ConfigError
from simcoll.planning.output import write_files


def test_a_pipe_gets_the_content_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)
    try:
        write_files(tmp_path, {"pipe": b"drawn"})
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert os.read(end, 100) == b"drawn"
    finally:
        os.close(end)


def test_a_link_stays_a_link_and_its_file_gets_the_content(tmp_path):
    (tmp_path / "link.svg").symlink_to(tmp_path / "real.svg")
    write_files(tmp_path, {"link.svg": b"drawn"})
    assert (tmp_path / "link.svg").is_symlink()
    assert (tmp_path / "real.svg").read_bytes() == b"drawn"


def test_a_link_that_cannot_be_written_through_is_left_alone(tmp_path):
    (tmp_path / "link.svg").symlink_to(tmp_path / "no folder" / "real.svg")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_files(tmp_path, {"link.svg": b"drawn"})
    assert (tmp_path / "link.svg").is_symlink()
