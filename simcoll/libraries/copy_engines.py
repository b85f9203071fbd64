"""Collectives that NCCL gives to the copy engines of GPUs: registered buffers, and no blocks."""

from __future__ import annotations

from simcoll.errors import ConfigError
from simcoll.libraries.question import Question

__all__ = ["AUTOMATIC_ELEMENTS", "refuse_copy_engines", "takes_copy_engines_when_large"]

COLLECTIVES = ("all_gather", "all_to_all", "gather", "scatter")
COLLECTIVES_OVER_NODES = ("all_gather", "all_to_all")
FIRST_VERSION = (2, 28)
FIRST_VERSION_OVER_NODES = (2, 30)
FIRST_AUTOMATIC_VERSION = (2, 29)
AUTOMATIC_ELEMENTS = 8 * 2**20
"""Elements of a rank above which NCCL takes copy engines on Blackwell by itself."""


def refuse_copy_engines(question: Question) -> None:
    """Refuse a collective that runs without a kernel, whose time is unknown.

    The conditions are those of ``src/ce_coll.cc`` and ``src/enqueue.cc`` of NCCL 2.28 to 2.30.

    Raises
    ------
    ConfigError
        With the way to the time of a kernel.
    """
    environment, collective, library = question.environment, question.collective, question.library
    if not (environment.zero_ctas and environment.registered) or library.name != "nccl":
        return
    is_one_domain = question.machine.domains == 1 and question.machine.inside == "nvlink"
    offered = COLLECTIVES if is_one_domain else COLLECTIVES_OVER_NODES
    oldest = FIRST_VERSION if is_one_domain else FIRST_VERSION_OVER_NODES
    if question.machine.inside != "nvlink" or _version(question) < oldest:
        return
    if collective in offered:
        raise ConfigError(
            f"NCCL_CTA_POLICY=2 gives {collective} of registered buffers to copy engines in "
            f"{library}, whose time no published table states; without NCCL_CTA_POLICY it is that "
            "of kernels"
        )


def takes_copy_engines_when_large(question: Question) -> bool:
    """Whether NCCL takes copy engines for many elements without being asked to."""
    return (
        question.collective == "all_gather"
        and question.machine.generation == "blackwell"
        and _version(question) >= FIRST_AUTOMATIC_VERSION
    )


def _version(question: Question) -> tuple[int, ...]:
    return tuple(int(number) for number in question.library.version.split(".")[:2])
