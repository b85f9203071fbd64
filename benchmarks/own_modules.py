"""What it costs that ranks import modules for themselves: CPU seconds and memory of scripts that
import one package, by ranks.

``python benchmarks/own_modules.py [PACKAGE]``; the package is accelerate by default.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import cyclopts

RANKS = (1, 8, 32)


def cost(nranks: int, *options: str, script: str) -> tuple[float, float]:
    """CPU seconds and peak MiB of a run."""
    words = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "simcoll.torch",
        "-n",
        str(nranks),
        *options,
        script,
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int(Path(script + ".kib").read_text()) / 1024


def main(package: str = "accelerate", /) -> None:
    """Measure a script that imports a package."""
    with tempfile.TemporaryDirectory() as folder:
        script = str(Path(folder) / "script.py")
        peak = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"
        for what, options in (("own", ()), ("shared", ("--shared", package))):
            Path(script).write_text(
                f"import os, resource, torch.distributed as dist\nimport {package}\n"
                "dist.init_process_group()\ndist.barrier()\n"
                "if os.environ['RANK'] == '0':\n"
                f"    open({script + '.kib'!r}, 'w').write(str({peak}))\n"
            )
            for nranks in RANKS:
                seconds, mib = cost(nranks, *options, script=script)
                print(
                    f"{package}, {what:6s} {nranks:3d} ranks: {seconds:6.2f} CPU s, {mib:6.0f} MiB"
                )


if __name__ == "__main__":
    cyclopts.run(main)
