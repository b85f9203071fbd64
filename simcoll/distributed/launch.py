"""The command ``python -m simcoll.distributed.launch``; see :mod:`simcoll.distributed.start.launch`."""

from __future__ import annotations

import sys

from simcoll.distributed.start.launch import Job, launch, main

__all__ = ["Job", "launch", "main"]

if __name__ == "__main__":
    sys.exit(main())
