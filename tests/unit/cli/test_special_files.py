"""What is written to a device or a pipe goes into it, and no other way leads out of the folder."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.files.output import write_files


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
    command = (
        "from simcoll.files.output import write_file; "
        f"write_file({str(tmp_path / 'out')!r}, "
        "b'drawn')"
    )
    done = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"drawn"
    assert (tmp_path / "out").is_symlink()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no names of descriptors")
@pytest.mark.parametrize("name", ["1", "link"])
def test_the_name_of_a_descriptor_is_not_replaced_where_it_is_a_file(name, tmp_path):
    """As /dev/stdout is, under ``>``: what is printed before and after stays, and so does the
    name.
    """
    (tmp_path / "fd").symlink_to("/proc/self/fd")
    (tmp_path / "link").symlink_to("fd/1")
    place = tmp_path / ("fd/1" if name == "1" else name)
    command = (
        "from simcoll.files.output import refuse_places, write_file; print('before');"
        f"refuse_places([{str(place)!r}]); write_file({str(place)!r}, b'drawn\\n'); print('after')"
    )
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", command], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\ndrawn\nafter\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["fd", "link", "out"]


@pytest.mark.slow
def test_places_that_cannot_be_written_are_refused_before_anything_runs(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    Path("m.toml").write_text(
        'name = "m"\nfamily = "crossbar"\nnranks = 2\nbandwidth = "1 GB/s"\nlatency = "0"\n'
    )
    Path("again.toml").symlink_to("m.toml")
    for options, said in (
        (["--csv", "no/rows.csv"], "no/rows.csv: cannot be written: No such file"),
        (["--csv", "folder"], "folder: cannot be written: there is a folder of this name"),
        (["--csv", "loop"], "loop: cannot be written: Too many levels"),
        (["--csv", "x" * 300], "cannot be written: File name too long"),
        (
            ["--csv", "rows", "--svg", "rows"],
            "rows: cannot be written: it is named for two outputs",
        ),
        (["--csv", "m.toml"], "m.toml: cannot be written: it is also read"),
        (["--csv", "again.toml"], "again.toml: cannot be written: it is also read"),
    ):
        assert (
            main(["perf", "all_reduce", "-t", "m.toml", "-a", "ring", "-p", "ideal", *options]) == 2
        )
        told = capsys.readouterr()
        assert (told.out, said in told.err) == ("", True), told.err
    assert main(["tune", "-t", "m.toml", "-o", "m.toml", "--format", "mpich"]) == 2
    assert "it is also read" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "again.toml",
        "folder",
        "loop",
        "m.toml",
    ]


@pytest.mark.slow
def test_a_standard_output_that_is_closed_is_no_fault_of_ours():
    command = f"exec {sys.executable} -m simcoll list protocols >&-"
    ended = subprocess.run(["bash", "-c", command], check=False, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
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
    assert (ended.returncode, ended.stderr) == (2, "simcoll: no space is left for the output\n")


@pytest.mark.slow
def test_a_limit_of_file_sizes_is_not_called_a_fault_of_ours(tmp_path):
    # -B: Python would cut compiled modules off at the limit, too, and later runs would load them.
    command = (
        f"ulimit -f 1; exec {sys.executable} -B -m simcoll perf all_reduce -t dgx-h100 > "
        f"{tmp_path}/table"
    )
    ended = subprocess.run(["bash", "-c", command], check=False, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (2, "simcoll: no space is left for the output\n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
def test_an_error_that_cannot_be_printed_keeps_its_status():
    with Path("/dev/full").open("w") as full:
        assert (
            subprocess.run(
                [sys.executable, "-m", "simcoll", "list", "nothing"], check=False, stderr=full
            ).returncode
            == 2
        )


def test_a_folder_that_may_not_be_looked_into_is_named(tmp_path, monkeypatch):
    def refused(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", refused)
    with pytest.raises(ConfigError, match=r"drawn\.svg: cannot be written: Permission denied"):
        write_files(tmp_path, {"drawn.svg": b"drawn"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["run", "sweep", "plan", "goodput", "step", "flight", "graph", "job", "verify", "diff x"],
)
@pytest.mark.parametrize("name", ["x" * 300, "file/x", "nowhere/x.et"])
def test_a_name_that_no_file_can_have_is_bad_input(command, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert main([*command.split(), name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
