"""Lets the tests and the programs they start share one list of cases."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
