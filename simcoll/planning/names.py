"""Valid names by option, for shell completion."""

from __future__ import annotations

from simcoll.algorithms import ALGORITHMS
from simcoll.command_line import SHELLS
from simcoll.core.collective import KINDS
from simcoll.core.protocol import PROTOCOL_NAMES
from simcoll.core.reduction import REDUCTIONS
from simcoll.files.paths import shipped_files
from simcoll.formats.tuners.tuner_files import TUNER_FORMATS
from simcoll.planning.sweeps.scenario import shipped_scenarios
from simcoll.topology import shipped_topologies
from simcoll.training.gpu import shipped_gpus

__all__ = ["DTYPES", "option_names"]

DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "int32", "int64", "uint8")


def option_names() -> dict[str, tuple[str, ...]]:
    """The shipped names, by the parameter that takes them.

    >>> option_names()["protocol"]
    ('ideal', 'LL', 'LL128', 'Simple')
    """
    topologies = tuple(shipped_topologies())
    algorithms = tuple(dict.fromkeys(algorithm.name for algorithm in ALGORITHMS))
    return {
        "topology": topologies,
        "predict": topologies,
        "algorithm": algorithms,
        "file": algorithms,
        "source": algorithms,
        "collective": tuple(KINDS),
        "protocol": PROTOCOL_NAMES,
        "dtype": DTYPES,
        "op": (*REDUCTIONS, "avg"),
        "library": ("nccl", "rccl"),
        "gpu": tuple(shipped_gpus()),
        "scenario": tuple(shipped_scenarios()),
        "shell": SHELLS,
        "plan": tuple(shipped_files("scenarios/plans")),
        "given": tuple(shipped_files("scenarios/sweeps")),
        "job": tuple(shipped_files("scenarios/goodput")),
        "format": tuple(TUNER_FORMATS),
    }
