"""The command ``python -m simcoll.distributed.run``; see :mod:`simcoll.distributed.start.run`."""

from __future__ import annotations

import sys

from simcoll.distributed.start.run import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
