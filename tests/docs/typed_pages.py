"""``python -m tests.docs.typed_pages``: ``mypy --strict`` on every Python example of the README and
the documentation.

``users_program.py`` is checked as well: what the constructors of public records accept. Each page
becomes one module, its blocks in their order and on their lines, outside of the project, so that
simcoll is the installed package, as for a user. Two settings are not those of a user's program: a
page may define a name twice, because it shows several programs of one name; and modules without
types, or with types that take a minute to read, count as untyped (``simcoll_check`` has types, but
nothing can mark a module in one file so).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.test_docs import PAGES, ROOT, blocks

PROGRAM = Path(__file__).with_name("users_program.py")
SETTINGS = """\
[mypy]
strict = True
allow_redefinition = True
disable_error_code = no-redef
[mypy-torch.*,networkx.*,scipy.*,simpy.*,matplotlib.*,ml_dtypes.*,simcoll_check]
follow_imports = skip
ignore_missing_imports = True
[mypy-docs_howto_pytorch]
disallow_subclassing_any = False
warn_return_any = False
"""


def module_of(page):
    """The Python blocks of a page as one module; empty where it has none."""
    lines = []
    for block in blocks(page):
        if block.language == "python":
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return "".join(f"{line}\n" for line in lines)


def write_modules(folder):
    """Write the user's program and the module of every page with examples; the names of their
    files.
    """
    shutil.copy(PROGRAM, folder)
    names = [PROGRAM.name]
    for page in PAGES:
        text = module_of(page)
        if text:
            stem = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
            (folder / f"{stem}.py").write_text(text, encoding="utf-8")
            names.append(f"{stem}.py")
    return names


def check(folder, files):
    """What mypy says of modules in a folder, and its exit status."""
    (folder / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *files]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr, done.returncode


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        said, status = check(folder, write_modules(folder))
    print(f"examples of the documentation: {said}", end="")
    return status


if __name__ == "__main__":
    sys.exit(main())
