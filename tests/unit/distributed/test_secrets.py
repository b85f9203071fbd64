"""Where the secret of a job comes from, and what is refused without one."""

import os
import socket

import pytest

from simcoll.distributed.server.secret import check_reach, job_secret, new_secret
from simcoll.distributed.stores import DistNetworkError, TCPStore
from simcoll.errors import ConfigError

LONG = "sixteen letters or more"


def secret_file(folder, content=LONG + "\n", mode=0o600):
    path = folder / "secret"
    path.write_text(content)
    path.chmod(mode)
    return {"SIMCOLL_SECRET_FILE": str(path)}


def test_it_is_in_a_variable_or_in_a_file(tmp_path):
    assert job_secret({}) == ""
    assert job_secret(secret_file(tmp_path)) == LONG
    assert job_secret(secret_file(tmp_path) | {"SIMCOLL_SECRET": "mine"}) == "mine"
    assert len(new_secret()) == 64 != len({new_secret() for _ in range(9)}) == 9


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602])
def test_a_file_that_others_may_touch_is_refused(tmp_path, mode):
    with pytest.raises(
        ConfigError, match=r"others may read or replace the job's secret; .* chmod 600"
    ):
        job_secret(secret_file(tmp_path, mode=mode))


@pytest.mark.parametrize("content", ["", "short", "x" * 5000, "é" * 20])
def test_a_secret_that_is_none_is_refused(tmp_path, content):
    with pytest.raises(ConfigError, match="expected a secret of 16 to 4096 ASCII characters; "):
        job_secret(secret_file(tmp_path, content))


def test_links_pipes_and_missing_files_are_refused(tmp_path):
    there = secret_file(tmp_path)["SIMCOLL_SECRET_FILE"]
    (tmp_path / "link").symlink_to(there)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, says in (
        ("link", "cannot be read"),
        ("pipe", "others may"),
        ("missing", "No such file"),
        (".", "others may"),
    ):
        with pytest.raises(ConfigError, match=says):
            job_secret({"SIMCOLL_SECRET_FILE": str(tmp_path / name)})


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1"])
def test_this_machine_is_served_without_one(address):
    check_reach(address, "")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "10.0.0.1", "fe80::1%eth0"])
def test_other_machines_are_not(address):
    with pytest.raises(ConfigError, match="without a secret only this machine is served"):
        check_reach(address, b"")
    check_reach(address, b"a secret")


def test_a_store_is_held_to_it(monkeypatch, tmp_path):
    monkeypatch.delenv("SIMCOLL_SECRET", raising=False)
    with pytest.raises(
        DistNetworkError,
        match=r"others can reach 0\.0\.0\.0: give all processes of the job the same SIMCOLL_SECRET",
    ):
        TCPStore("127.0.0.1", 0, is_master=True, bind="0.0.0.0")
    with (
        socket.create_server(("0.0.0.0", 0)) as listener,
        pytest.raises(DistNetworkError, match="others can reach"),
    ):
        TCPStore("127.0.0.1", 0, is_master=True, master_listen_fd=os.dup(listener.fileno()))
    monkeypatch.setenv(
        "SIMCOLL_SECRET_FILE", secret_file(tmp_path, mode=0o644)["SIMCOLL_SECRET_FILE"]
    )
    with pytest.raises(DistNetworkError, match="others may read"):
        TCPStore("127.0.0.1", 0, is_master=True)
    secret_file(tmp_path)
    with (
        TCPStore("127.0.0.1", 0, is_master=True, bind="0.0.0.0") as store,
        TCPStore("127.0.0.1", store.port) as other,
    ):
        other.set("k", "v")
        assert store.get("k") == b"v"
    with (
        TCPStore("127.0.0.1", 0, is_master=True) as store,
        pytest.raises(DistNetworkError, match="missing or wrong"),
    ):
        TCPStore("127.0.0.1", store.port, secret="another", is_master=False)


def test_launchers_make_one(monkeypatch):
    from realcoll.start import local_launch as launch
    from realcoll.start.pmi import Board
    from simcoll.distributed.start.processes import ProcessJob

    monkeypatch.delenv("SIMCOLL_SECRET", raising=False)
    board = Board(2)
    found = [
        worker.environment["SIMCOLL_SECRET"]
        for worker in launch._workers(ProcessJob(2, master_port=0), board, ["x.py"])
    ]
    board.close()
    assert len(set(found)) == 1
    assert len(found[0]) == 64
