"""Start a program as several processes on this machine, with the environment torchrun gives.

``python -m simcoll.distributed.launch --nproc-per-node 4 program.py --its arguments`` starts ``program.py`` four times.
Several machines need the same call on each, with ``--nnodes``, ``--node-rank``, ``--master-addr`` and ``--master-port``.
"""

from __future__ import annotations

import os
import secrets
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.distributed.start.command_line import own_app, separated, status_of
from simcoll.distributed.start.processes import Job, Worker, free_port, run_workers, worker_environment
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Job", "launch", "main"]

app = own_app(
    "python -m simcoll.distributed.launch",
    "Start a program as several processes, with the environment torchrun gives.",
)


def launch(
    program: Sequence[str],
    arguments: Sequence[str],
    job: Job,
    *,
    environment: Mapping[str, str] | None = None,
    local_rank_argument: bool = False,
) -> int:
    """Start the workers of this machine and wait for them.

    Parameters
    ----------
    program
        The words that start the program, such as ``[sys.executable, "train.py"]``.
    arguments
        Its arguments.
    job
        How many, and where they meet.
    environment
        Variables of all workers; this process's by default.
    local_rank_argument
        Give each worker ``--local-rank=<r>`` before its arguments.

    Returns
    -------
    0 when all ended well; else the exit status of the first that did not (128 + the signal, for one that was killed), or
    128 + the signal that ended the launcher. The others are then asked to end (SIGTERM), and killed after ten seconds.

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
        shared.setdefault("SIMCOLL_STORE_SECRET", secrets.token_hex(16))

    def worker(local_rank: int) -> Worker:
        rank_words = [f"--local-rank={local_rank}"] if local_rank_argument else []
        return Worker([*program, *rank_words, *arguments], shared | worker_environment(job, local_rank))

    return run_workers([worker(local_rank) for local_rank in range(job.nproc_per_node)])


def _both(name: str) -> Parameter:
    """An option under its own name and under the one with underscores, as torchrun has them."""
    return Parameter(name=[f"--{name}", f"--{name.replace('-', '_')}"], negative=())


@app.default
def _launch(
    program: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    nproc_per_node: Annotated[int, _both("nproc-per-node")] = 1,
    nnodes: int = 1,
    node_rank: Annotated[int, _both("node-rank")] = 0,
    master_addr: Annotated[str, _both("master-addr")] = "127.0.0.1",
    master_port: Annotated[int, _both("master-port")] = 29_500,
    run_id: Annotated[str, _both("run-id")] = "none",
    standalone: Annotated[bool, Parameter(negative=())] = False,
    use_env: Annotated[bool, _both("use-env")] = False,
    module: Annotated[bool, Parameter(name=["--module", "-m"], negative=())] = False,
    no_python: Annotated[bool, _both("no-python")] = False,
) -> int:
    """Start a program as several processes, with the environment torchrun gives.

    Parameters
    ----------
    program
        The program to run.
    arguments
        Its arguments.
    nproc_per_node
        Processes on each machine.
    nnodes
        Machines.
    node_rank
        Which of the machines this is.
    master_addr
        The address of machine 0.
    master_port
        Where rank 0 listens; 0 chooses a free port (one machine only).
    run_id
        A name for this job.
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
    if standalone and nnodes != 1:
        raise ConfigError("--standalone is for one machine")
    if master_port == 0 and nnodes != 1:
        raise ConfigError("--master-port 0 is for one machine: the others could not know the port")
    port = free_port() if standalone or master_port == 0 else master_port
    python = [] if no_python else [sys.executable, "-u", *(["-m"] if module else [])]
    job = Job(nproc_per_node, nnodes, node_rank, master_addr, port, run_id)
    return launch([*python, program], arguments, job, local_rank_argument=not (use_env or no_python))


_VALUED = ("nproc-per-node", "nnodes", "node-rank", "master-addr", "master-port", "run-id")


def main(words: Sequence[str] | None = None) -> int:
    """The command line; the exit status is that of `launch`, or 2 for arguments that cannot be."""
    valued = {f"--{form}" for name in _VALUED for form in (name, name.replace("-", "_"))}
    return status_of(app, separated(sys.argv[1:] if words is None else words, valued))
