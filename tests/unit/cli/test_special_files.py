"""What is written to a device or a pipe goes into it, and no other way leads out of the folder."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from simcoll.errors import ConfigError
from simcoll.formats.output import write_files


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


@pytest.mark.parametrize("target", ["real.svg", "no folder/real.svg"])
def test_a_link_is_replaced_and_its_file_left_alone(target, tmp_path):
    (tmp_path / "real.svg").write_bytes(b"of somebody else")
    (tmp_path / "link.svg").symlink_to(tmp_path / target)
    write_files(tmp_path, {"link.svg": b"drawn"})
    assert not (tmp_path / "link.svg").is_symlink()
    assert (tmp_path / "link.svg").read_bytes() == b"drawn"
    assert (tmp_path / "real.svg").read_bytes() == b"of somebody else"


def test_a_link_to_a_device_is_the_device(tmp_path):
    (tmp_path / "out").symlink_to("/dev/stdout")
    command = f"from simcoll.formats.output import write_file; write_file({str(tmp_path / 'out')!r}, b'drawn')"
    done = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"drawn"
    assert (tmp_path / "out").is_symlink()


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
def test_a_full_disk_is_not_called_a_fault_of_ours():
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "simcoll", "list", "protocols"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (ended.returncode, ended.stderr) == (2, "simcoll: no space is left where the output goes\n")


def test_a_folder_that_may_not_be_looked_into_is_named(tmp_path, monkeypatch):
    def refused(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", refused)
    with pytest.raises(ConfigError, match=r"drawn\.svg: cannot be written: Permission denied"):
        write_files(tmp_path, {"drawn.svg": b"drawn"})
