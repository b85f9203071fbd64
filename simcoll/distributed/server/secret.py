"""The shared secret of a job, by which its processes authenticate, and the rule for servers without
one.

simcoll's launchers generate it. Under other launchers (mpirun, srun, torchrun) it comes from a file
that only its owner can read, or from a variable. An identifier that others can guess or list, such
as a batch job's number, is not a secret.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import stat
from collections.abc import Mapping

from simcoll.errors import ConfigError

__all__ = ["FILE_VARIABLE", "VARIABLE", "check_reach", "is_own_file", "job_secret", "new_secret"]

VARIABLE = "SIMCOLL_SECRET"
FILE_VARIABLE = "SIMCOLL_SECRET_FILE"
LEAST_LETTERS, MOST_BYTES = 16, 4096
MAKE_ONE = (
    f"(umask 077; head -c 32 /dev/urandom | base64 > secret); export {FILE_VARIABLE}=$PWD/secret"
)


def new_secret() -> str:
    """Generate a secret of 256 random bits."""
    return secrets.token_hex(32)


def job_secret(environment: Mapping[str, str]) -> str:
    """The secret in ``SIMCOLL_SECRET``, or in the file that ``SIMCOLL_SECRET_FILE`` names; empty
    without either.

    Raises
    ------
    ConfigError
        When the file cannot be read, others may read or write it, or it holds no 16 characters.
    """
    if environment.get(VARIABLE):
        return environment[VARIABLE]
    path = environment.get(FILE_VARIABLE)
    if not path:
        return ""
    try:
        descriptor = os.open(
            path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        )
    except OSError as error:
        raise ConfigError(f"the job's secret cannot be read: {error.strerror}", file=path) from None
    try:
        if not is_own_file(descriptor):
            why = (
                "others may read or replace the job's secret; expected a file of your own with "
                "mode 0600: chmod 600"
            )
            raise ConfigError(why, file=path)
        content = os.read(descriptor, MOST_BYTES + 1).strip()
    finally:
        os.close(descriptor)
    if not LEAST_LETTERS <= len(content) <= MOST_BYTES or not content.isascii():
        raise ConfigError(
            f"expected a secret of {LEAST_LETTERS} to {MOST_BYTES} ASCII characters; {MAKE_ONE}",
            file=path,
        )
    return content.decode("ascii")


def is_own_file(descriptor: int) -> bool:
    """Whether an open file is a regular file of this user, without access for others."""
    status = os.fstat(descriptor)
    mine = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return (
        stat.S_ISREG(status.st_mode)
        and mine
        and not (hasattr(os, "getuid") and status.st_mode & 0o077)
    )


def check_reach(address: str, secret: str | bytes) -> None:
    """Refuse to serve other machines without a secret.

    Raises
    ------
    ConfigError
        For an address that others can reach and an empty secret.

    Examples
    --------
    >>> check_reach("127.0.0.1", "")
    >>> check_reach("192.0.2.7", "something that strangers cannot guess")
    >>> check_reach("192.0.2.7", "")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simcoll.errors.ConfigError: without a secret only this machine is served, and others ...
    """
    if secret or ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return
    raise ConfigError(
        f"without a secret only this machine is served, and others can reach {address}: give all "
        "processes of the job the same "
        f"{VARIABLE}, or a file of mode 0600 that all can read: {MAKE_ONE}"
    )
