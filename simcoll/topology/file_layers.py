"""Topology files on disk: the shipped ones, those at a path, and the files that they extend."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcoll.errors import ConfigError, expect, nearest
from simcoll.files.lookalikes import lookalike
from simcoll.files.paths import is_file, shipped_files
from simcoll.files.text import parse_toml
from simcoll.terminal import printable

__all__ = [
    "ASTRA_NETWORK",
    "IB_LISTING",
    "MARKED",
    "FileLayer",
    "beside",
    "content_of",
    "layers_of",
    "refuse_other_nodes",
    "shipped_topologies",
    "split_values",
]

MAX_FILE_BYTES = 2**20
MAX_DUMP_BYTES = 2**24
MAX_BASES = 4

SMI_MATRIX = re.compile(
    rb"\bGPU0\W{1,12}(?:X\W|GPU1\b)|"
    rb"^[> \t]{0,8}=*\s?(?:LINK TYPE TABLE:|Link Type between two GPUs)|"
    rb'"num_hops"\s*:|"\(Topology\) Hops between DRM devices',
    re.MULTILINE,
)
"""Two cells of a matrix of ``nvidia-smi topo -m``, or a title of AMD's tables, or a key of their
JSON.
"""
MARKED = 1 << 16
"""Number of bytes at the start of a file that identify its format."""
IB_LISTING = re.compile(
    rb'^(?:(?:Switch|Ca|Hca|Rt)\s+\d+\s+"|(?:Switch|CA):?\s[^\n]{1,200}:$|'
    rb'0x[0-9a-f]{16}\s+"[^"\n]{0,200}"\s+\d+\s+\d+\[)',
    re.MULTILINE,
)
"""A vertex in the output of ``ibnetdiscover`` or ``iblinkinfo``, or in a net file of ``ibsim``."""
ASTRA_NETWORK = re.compile(rb"^topology[ \t]{0,8}:[ \t]{0,8}(?:\[|#|\r?$)", re.MULTILINE)
"""A line that only ASTRA-sim's network.yml contains."""


_VALUE = re.compile(r":(?=[a-z_]{1,40}(?:\.[a-z_]{1,40}){0,3}=)")
"""The separator before a value that follows the name of a topology."""


@dataclass(frozen=True, slots=True)
class FileLayer:
    """One file: its name for messages, and its document or, if it is an NCCL dump, its bytes."""

    file: str
    document: dict[str, Any]
    dump: bytes | None = None


def shipped_topologies() -> dict[str, str]:
    """Names of the shipped topologies, each with its one-line description."""
    return {
        name: str(parse_toml(path.read_bytes(), path.name).get("description", ""))
        for name, path in shipped_files("topologies").items()
    }


def split_values(name: str) -> tuple[str, str]:
    """Split a topology into its name or path and the values that follow after colons, verbatim.

    >>> split_values("dgx-h100:nodes=2:nic.bandwidth=100 Gbps"), split_values("C:/dump.xml")
    (('dgx-h100', ':nodes=2:nic.bandwidth=100 Gbps'), ('C:/dump.xml', ''))
    """
    match = None if is_file(name) else _VALUE.search(name)
    return (name, "") if match is None else (name[: match.start()], name[match.start() :])


def _document(text: str) -> dict[str, Any]:
    """Values after colons as a TOML document: a value that is not a number, boolean or list is
    text.
    """
    document: dict[str, Any] = {}
    for part in _VALUE.split(text)[1:]:
        key, value = part.split("=", 1)
        try:
            parsed = parse_toml(f"value = {value}".encode())["value"]
        except ConfigError:
            parsed = value
        *tables, last = key.split(".")
        table = document
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{name} in {text[:80]!r} has a value and values below it")
        if last in table:
            raise ConfigError(
                f"{key} is given twice, as {table[last]!r} and as {parsed!r}; leave one out"
            )
        table[last] = parsed
    return document


def beside(folder: Path, name: str) -> str:
    """The name of a topology for use by another process, with files in ``folder`` resolved
    first.
    """
    base, values = split_values(name)
    return str((folder / base).resolve()) + values if is_file(folder / base) else name


def layers_of(name: str) -> list[FileLayer]:
    """The layers of a topology by name or path: its bases, the most basic first, itself, and the
    values after its name.
    """
    name, values = split_values(name)
    path, file = _locate(name, Path())
    layers, chain = [_parse(_content(path, file), file)], [path]
    while (base := layers[0].document.pop("extends", None)) is not None:
        try:
            path, layer = _base(base, chain)
        except ConfigError as error:
            if error.file is not None:  # the error is in the base itself
                raise
            raise ConfigError(error.message, file=layers[0].file, path="$.extends") from None
        layers, chain = [layer, *layers], [*chain, path]
    if values:
        identity = {
            key: text for key, text in layers[-1].document.items() if key in {"name", "description"}
        }
        layers.append(FileLayer(layers[-1].file, identity | _document(values)))
    return layers


def refuse_other_nodes(name: str, nodes: int) -> None:
    """Refuse a number of nodes beside a name that states another one.

    Raises
    ------
    ConfigError
        With both numbers.

    Examples
    --------
    >>> refuse_other_nodes("dgx-h100:nodes=2", 4)
    Traceback (most recent call last):
    simcoll.errors.ConfigError: 'dgx-h100:nodes=2' has 2 nodes, and 4 are asked for beside it; ...
    """
    stated = _document(split_values(name)[1]).get("nodes", nodes)
    if stated != nodes:
        raise ConfigError(
            f"{name!r} has {stated} nodes, and {nodes} are asked for beside it; leave one out"
        )


def content_of(name: str) -> bytes:
    """The content of all files of a topology and of the values after its name, in a form that can
    be hashed.
    """
    import msgspec  # small tables do not need it

    layers = [(layer.document, layer.dump) for layer in layers_of(name)]
    return msgspec.json.encode(layers, order="sorted", enc_hook=str)


def _base(base: object, chain: list[Path]) -> tuple[Path, FileLayer]:
    """The file that the last of a chain of files extends."""
    expect(base, str, "expected the name of a topology, or the path of a file")
    path, file = _locate(str(base), chain[-1].parent)
    try:
        content = _content(path, file)
    except ConfigError as error:
        raise ConfigError(error.message) from None
    if path.resolve() in [above.resolve() for above in chain]:
        raise ConfigError(
            f"{base!r} leads back to {printable(str(file))}; a file cannot extend itself"
        )
    if len(chain) > MAX_BASES:
        raise ConfigError(
            f"{base!r} would be base number {len(chain)}; expected at most {MAX_BASES}"
        )
    return path, _parse(content, file)


def _locate(name: str, folder: Path) -> tuple[Path, str]:
    """The file of a shipped topology, or the one at a path relative to a folder, and its name for
    messages.
    """
    shipped = shipped_files("topologies")
    if name in shipped:
        return shipped[name], f"{name}.toml"
    if (
        name.endswith((".toml", ".xml", ".yml"))
        or "/" in name
        or "\\" in name
        or is_file(folder / name)
    ):
        return folder / name, str(folder / name)
    raise ConfigError(
        f"unknown topology {name!r}; {nearest(name, shipped)}; or give the path of a file"
    )


def _content(path: Path, file: str) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_DUMP_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=file) from None
    except ValueError as error:
        raise ConfigError(f"not a path: {error}", file=repr(file)) from None


def _parse(content: bytes, file: str) -> FileLayer:
    if not content.strip():
        raise ConfigError("an empty file; expected the description of a machine", file=file)
    similar = lookalike(content)
    if similar is not None:
        raise ConfigError(
            f"this is {similar[1]}; use a dump of NCCL (NCCL_TOPO_DUMP_FILE) or nvidia-smi topo -m "
            "for a node, and ibnetdiscover or iblinkinfo for a fabric",
            file=file,
        )
    if (
        file.endswith(".xml")
        or content.lstrip()[:1] == b"<"
        or SMI_MATRIX.search(content[:MARKED])
        or IB_LISTING.search(content[:MARKED])
        or ASTRA_NETWORK.search(content[:MARKED])
    ):
        return FileLayer(file, {}, content)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(
            f"larger than {MAX_FILE_BYTES} bytes; is this a topology file?", file=file
        )
    try:
        return FileLayer(file, parse_toml(content, file))
    except ConfigError:
        if file.endswith(".toml"):
            raise
        raise ConfigError(
            "not a topology: expected TOML, an NCCL topology dump, the output of nvidia-smi topo "
            "-m, rocm-smi --showtopo, amd-smi topology, ibnetdiscover or iblinkinfo, GraphML, a "
            "SimGrid platform, or a network.yml of ASTRA-sim",
            file=file,
        ) from None
