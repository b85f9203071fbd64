"""Start a program as several processes on this machine, with the environment torchrun gives.

``python -m simcoll.distributed.launch --nproc-per-node 4 program.py --its arguments`` starts
``program.py`` four times. Several machines need the same call on each, with ``--nnodes``,
``--node-rank``, ``--master-addr`` and ``--master-port``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated

from cyclopts import App, Parameter

from simcoll.command_line import separate_program, status_of
from simcoll.distributed.server.secret import VARIABLE, job_secret, new_secret
from simcoll.distributed.start.processes import ProcessJob, Worker, run_workers, worker_environment
from simcoll.errors import ConfigError
from simcoll.help_text import PARAGRAPHS
from simcoll.stopping import run_program

__all__ = ["ProcessJob", "launch", "main"]

app = App(
    help_formatter=PARAGRAPHS,
    name="python -m simcoll.distributed.launch",
    help="Start a program as several processes, with the environment torchrun gives.",
    help_flags=["--help", "-h"],
    version_flags=[],
    suppress_keyboard_interrupt=False,  # status_of says so
)
_FLAG = Parameter(negative=())
_ONE = ProcessJob()


def launch(
    program: Sequence[str],
    arguments: Sequence[str],
    job: ProcessJob,
    *,
    environment: Mapping[str, str] | None = None,
    local_rank_argument: bool = False,
) -> int:
    """Start the workers of this machine and wait for them.

    Parameters
    ----------
    program
        Command that starts the program, such as ``[sys.executable, "train.py"]``.
    arguments
        Its arguments.
    job
        The number of workers, and their rendezvous.
    environment
        Environment of all workers. Default: this process's.
    local_rank_argument
        Give each worker ``--local-rank=<r>`` before its arguments.

    Returns
    -------
    0 if all workers succeed; else the exit status of the first that fails (128 + signal if it was
    killed), or 128 + the signal that ended the launcher. The remaining workers then get SIGTERM,
    and SIGKILL ten seconds later.

    Raises
    ------
    ConfigError
        The program cannot be started.
    """
    shared = dict(os.environ if environment is None else environment)
    if job.nproc_per_node > 1:
        # Else each worker would start as many threads as there are cores.
        shared.setdefault("OMP_NUM_THREADS", "1")
    if job.nnodes == 1:
        # Only these workers use their store.
        shared.setdefault(VARIABLE, job_secret(shared) or new_secret())

    def worker(local_rank: int) -> Worker:
        rank_words = [f"--local-rank={local_rank}"] if local_rank_argument else []
        return Worker(
            [*program, *rank_words, *arguments], shared | worker_environment(job, local_rank)
        )

    return run_workers([worker(local_rank) for local_rank in range(job.nproc_per_node)])


@app.default
def _launch(
    program: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    job: Annotated[ProcessJob, Parameter(name="*")] = _ONE,
    standalone: Annotated[bool, _FLAG] = False,
    use_env: Annotated[bool, _FLAG] = False,
    module: Annotated[bool, Parameter(name=["--module", "-m"], negative=())] = False,
    no_python: Annotated[bool, _FLAG] = False,
) -> int:
    """Start a program as several processes, with the environment torchrun gives.

    Parameters
    ----------
    program
        The program to run.
    arguments
        Its arguments.
    standalone
        One machine, any free port.
    use_env
        Do not pass --local-rank: the program reads LOCAL_RANK.
    module
        The program is a module, as in python -m.
    no_python
        The program is not a Python file: run it as it is.
    """
    if no_python and module:
        raise ConfigError("--no-python and --module exclude each other")
    if standalone and job.nnodes != 1:
        raise ConfigError("--standalone is for one machine")
    python = [] if no_python else [sys.executable, "-u", *(["-m"] if module else [])]
    if standalone:
        job = replace(job, master_port=0)
    return launch(
        [*python, program], arguments, job, local_rank_argument=not (use_env or no_python)
    )


def main(words: Sequence[str] | None = None) -> int:
    """The command line; the exit status is that of `launch`, or 2 for invalid arguments."""
    valued = {
        f"--{form}"
        for field in fields(ProcessJob)
        for form in (field.name, field.name.replace("_", "-"))
    }
    return status_of(app, separate_program(sys.argv[1:] if words is None else words, valued))


if __name__ == "__main__":
    run_program(main)
