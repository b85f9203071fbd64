"""Damaged files for every reader, from sound ones; nothing but ConfigError and ScheduleError may
come back.

A mutation is a function of (seed, reader, number), so every input can be made again.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
import signal
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path

import simcoll
from simcoll.core.device_program import DeviceProgram
from simcoll.distributed.runtime.objects import ObjectDecodingError, decode, encode
from simcoll.errors import MOST_LETTERS, ConfigError, ScheduleError
from simcoll.formats.logs.nccl_graph import parse_nccl_graphs
from simcoll.formats.logs.nccl_log import load_nccl_log
from simcoll.formats.logs.nccl_tests import load_log
from simcoll.formats.recognise import recognise
from simcoll.formats.reports.aicb_calls import parse_aicb_calls
from simcoll.formats.reports.astra_workload import parse_astra_workload
from simcoll.formats.reports.deepspeed_comms import parse_deepspeed_comms
from simcoll.formats.reports.flight_findings import findings
from simcoll.formats.reports.flight_record import (
    FlightEntry,
    FlightRecord,
    dump_flight_record,
    parse_flight_record,
)
from simcoll.formats.reports.nccl_inspector import inspector_findings, parse_inspector
from simcoll.formats.reports.nccl_ras import parse_ras, parse_ras_text, ras_findings
from simcoll.formats.reports.watchdog import parse_watchdog
from simcoll.formats.schedules.schedule_files import FORMATS, algorithm_content, parse_algorithm
from simcoll.formats.tuners.tuner_files import TUNER_FORMATS
from simcoll.formats.tuners.tuner_rules import Rule
from simcoll.jobs.example_traces import ExampleJob
from simcoll.jobs.hlo_memory import memory_of
from simcoll.jobs.hlo_program import program_of
from simcoll.jobs.hlo_text import parse_hlo
from simcoll.jobs.hlo_workload import hlo_workload
from simcoll.jobs.job import traced_job
from simcoll.jobs.job_report import job_lines
from simcoll.jobs.rank_trace import load_rank_trace
from simcoll.libraries.calibration import Calibration, calibration_toml, parse_calibration
from simcoll.libraries.environment import parse_environment
from simcoll.libraries.library import parse_library
from simcoll.planning.designs.space import load_space
from simcoll.planning.reliability.goodput import goodput_grid
from simcoll.planning.sweeps.scenario import load_scenario, scenario_topology, sweep_of
from simcoll.planning.sweeps.sweep_grid import load_sweep, sweep_grid
from simcoll.planning.tuners.nccl_graphs import (
    channels_of_log,
    channels_schedule,
    connection_lines,
    fit_lines,
)
from simcoll.proving import verify_device_program
from simcoll.topology import load_topology
from simcoll.topology.readers.astra_network import parse_astra_network
from simcoll.topology.readers.graph_files import (
    graphml_text,
    parse_graphml,
    parse_simgrid,
    simgrid_text,
)
from simcoll.topology.readers.ib_fabric import parse_ib_fabric
from simcoll.topology.readers.nccl_xml import parse_nccl_xml
from simcoll.topology.readers.smi_matrix import parse_smi_matrix
from simcoll.traces.astra_system import parse_astra_system
from simcoll.traces.chakra import parse_chakra
from simcoll.traces.chakra_writer import dump_chakra
from simcoll.traces.gathering import gather_traces
from simcoll.traces.rank_traces import Together, TraceStep
from simcoll.training.design import load_design
from simcoll.training.gpu import load_gpu, parse_gpu
from simcoll.training.hugging_face import model_from_hf
from simcoll.training.measured_kernels import parse_measured
from simcoll.training.operation_list import load_operations
from simcoll.workload.workload import Rules, read_workload, write_workload
from tests.support import fabrics, nccl_logs, nccl_reports
from tests.support.damage import WAYS

__all__ = [
    "READERS",
    "WITHOUT_READER",
    "Finding",
    "Tally",
    "damaged",
    "fuzz",
    "judged",
    "schedules",
]

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = (ConfigError, ScheduleError, ObjectDecodingError)
MOST_STEPS = 1 << 12
"""Steps that are proved: a proof plays every step, some thousands a second."""
SLOW_S = 5.0
"""CPU seconds that one input may take."""


@contextmanager
def _file(content, ending):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"input{ending}"
        path.write_bytes(content)
        yield path


def _at_path(load, ending):
    """A reader of files as one of bytes."""

    def read(content):
        with _file(content, ending) as path:
            return load(path)

    return read


def _proved(parse):
    """A reader whose small results, of few steps, are proved as well: the proof must survive them,
    too.
    """

    def read(content):
        found = parse(content, None)
        if isinstance(found, DeviceProgram):
            verify_device_program(found)
        if isinstance(found, simcoll.Schedule) and found.nranks * found.layout.size <= 1 << 14:
            few = sum(1 for _ in islice(found.steps(), MOST_STEPS + 1)) <= MOST_STEPS
            if few:
                simcoll.verify(found)
        return found

    return read


def _scenario(path):
    scenario, _ = load_scenario(path)
    return sweep_of(scenario, str(path)), scenario_topology(scenario, path)


def _sweep(path):
    return sweep_grid(load_sweep(path), path)


OSU = (
    b"mpirun -n 36 -x UCX_TLS=rc ./osu_alltoall\n"
    b"# OSU MPI All-to-All Personalized Exchange Latency Test v7.5\n# Datatype: MPI_CHAR.\n"
    b"# Size       Avg Latency(us)        Validation\n1                      10.29        Pass\n"
    b"2         10.56        Pass\n\n"
    b"# OSU NCCL-CUDA Allreduce Latency Test v7.5\n# Size       Avg Latency(us)\n"
    b"1073741824           8955.18\n"
)


def _logs():
    numbers = nccl_logs.table(["Tree", "Ring", "NVLS"], ["AllReduce", "AllGather"])
    yield "\n".join(nccl_logs.blocks(numbers)).encode()
    yield "\n".join(nccl_logs.one_line(numbers)).encode()
    yield (ROOT / "docs" / "howto" / "two-nodes.log").read_bytes()
    yield IN_SITU
    yield OSU
    yield json.dumps(
        {
            "version": 1,
            "args": ["./all_reduce_perf", "-b", "8"],
            "env": ["NCCL_ALGO=Ring"],
            "nccl_version": 22703,
            "config": {
                "nranks": 2,
                "ngpus": 1,
                "devices": [{"rank": 0, "hostname": "a", "pid": 1, "device_info": "H100"}],
            },
            "results": [
                {
                    "size": 8,
                    "count": 2,
                    "type": "float",
                    "redop": "sum",
                    "root": -1,
                    "out_of_place": {"time": 10.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0},
                    "in_place": {"time": 10.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0},
                }
            ],
        }
    ).encode()


def _nccl_channels(path):
    """Reads the channels, says whether they fit a machine, and makes schedules of them."""
    machine = load_topology("dgx-h100", nodes=2)
    for found in load_nccl_log(path):
        for channels in channels_of_log(found, machine):
            list(fit_lines(channels, machine))
            channels_schedule(channels)
        list(connection_lines(found, machine))


def _nccl_logs():
    rings, trees = [(0, 1, 2, 3), (3, 2, 1, 0)], [(-1, 0, 1, 1), (1, -1, 1, 2)]
    for old, whole in ((False, True), (False, False), (True, True)):
        ways = [(0, 1, "P2P/CUMEM"), (3, 0, "NET/IB/0/GDRDMA")]
        places = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
        said = nccl_logs.channels(rings, trees, places, old=old, whole=whole, ways=ways)
        yield "\n".join(line for lines in said for line in lines).encode()


def _of_folder(*patterns):
    return [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]


SCHEDULES = [
    ("all_reduce", "ring", 4),
    ("all_gather", "bruck", 4),
    ("all_to_all", "direct", 4),
    ("broadcast", "tree", 4),
    ("barrier", None, 4),
]


def schedules():
    """Schedules of several shapes."""
    for kind, name, n in SCHEDULES:
        yield simcoll.schedule(kind, name, nranks=n)
    yield simcoll.schedule("all_reduce", "hierarchical", nranks=8, box=4)


FILES_OF = {"msccl": ("tests/unit/formats/data/*.xml", "docs/howto/all-gather.xml")}
OPTIONS_OF = {"mscclpp": ({"protocol": "Simple"}, {"protocol": "LL"})}


def _written(target):
    """Sound files of a format: what its writer makes of schedules, and files by hand."""
    found = _of_folder(*FILES_OF.get(target.name, ()))
    for schedule in schedules():
        for options in OPTIONS_OF.get(target.name, ({},)):
            try:
                found.append(algorithm_content(schedule, target, **options))
            except ConfigError as error:
                if "cannot hold" not in str(error):  # what plays the files may lack a collective
                    raise
    return found


MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "tie_word_embeddings": False,
}
SWEEP = b"""title = "t"\ntopologies = ["dgx-h100"]\ncollectives = ["all_reduce"]\nsizes = { begin = "8", end = "1M", factor = 4 }
nodes = [1, 2]\nalgorithms = ["ring:channels=2"]\nprotocols = ["LL"]\nseeds = [0, 1]\njitter = "1 us"\n"""
LATENT = {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "q_lora_rank": 8,
}
WINDOWS = {
    "model_type": "gemma3_text",
    "sliding_window": 16,
    "layer_types": ["full_attention", "sliding_attention"],
    "mlp_only_layers": [0],
    "sliding_window_pattern": 2,
    "attn_config": {"kv_n_heads": 2},
    "max_window_layers": 1,
}
DESIGN = b"""[model]\nlayers = 2\nhidden = 64\nheads = 4\nvocabulary = 128\nsequence = 32\nglobal_batch = 8
[topology]\nname = "dgx-h100"\nslow = { "3" = 1.1 }\n[parallel]\ntp = 2\npp = 2\nmicro_batch = 1\n"""
OBJECTS = [["foo", 12, {1: 2}, (3, {4}), None, 2.5, b"x", 10**30, 1j, range(4)], {"a": [{"b": ()}]}]


@dataclass(frozen=True)
class Reader:
    """A reader of bytes, and how to get sound files for it."""

    read: object
    seeds: object


VECTOR = (((4, 2), "Float"),)
FLIGHT = dump_flight_record(
    FlightRecord(
        "2.4",
        (("0", (0, 1)),),
        (FlightEntry("0", 1, "nccl:all_reduce", VECTOR, VECTOR, "started"),),
    )
)
NCCL_GRAPH = b"""<graphs version="1"><graph id="0" pattern="4" speedintra="12" speedinter="12" typeintra="SYS">
<channel><gpu dev="0"/><gpu dev="a"/></channel></graph></graphs>"""

_BOTH = Together("k", (0, 1), "all_gather", "tp", 64, dtype="bfloat16", sizes=((3, 5),), root=0)
_MESSAGE = Together("m", (1, 0), "send", "pp", 4096)
TRACES = [
    [
        TraceStep("a", name="w", time_fs=10**9, flops=8.0),
        TraceStep("b", (0,), together=_BOTH),
        TraceStep("b", (1,), together=_MESSAGE),
    ],
    [TraceStep("b", together=_BOTH), TraceStep("b", together=_MESSAGE)],
]
ALONE = [
    TraceStep("a", name="w", time_fs=10**9, flops=8.0),
    TraceStep("a", (0,), together=Together("s", (0,), "all_reduce", "dp", 4096, dtype="bfloat16")),
    TraceStep("b", (0, 1), together=Together("v", (0,), "all_to_all", "ep", 64, sizes=((64,),))),
    TraceStep("c", (2,), name="x", time_fs=5),
]


def _hlo_workload(content):
    """Every reader of compiled programs: text, costs, groups, memory, and the workload."""
    program = program_of(parse_hlo(content))
    memory_of(program.module)
    return hlo_workload(program, load_gpu("h100"), cpu=True)


DEEPSPEED = b"""\
[INFO] Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     tput_avg (Gbps)
broadcast
                    2.0 KB              146                 11.12               0.08                0.43
reduce_scatter_tensor
                    678.86 MB           40                  602.29              9.69                1468.06
"""
AICB = b"""\
[rank0 ~ rank127]
comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count
CommType.all_reduce,CommGroup.tp_group,8,4096,init,None,None,,0.25,None,None,2
CommType.isend,CommGroup.pp_group,2,8192,forward,8,None,,None,None,None,1
CommType.epoch_end,None,None,None,,None,None,,None,None,None,1
"""
LAYER = b"layer -1 1000 ALLREDUCE 16777216 1 NONE 0 1 ALLGATHER_DP_EP 4096 1\n"
SIMAI = (
    b"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 2 pp: 1 vpp: 8 ga: 1 "
    b"all_gpus: 32 checkpoints: 0 checkpoint_initiates: 0\n2\n" + 2 * LAYER
)
IN_SITU = b"""\
collective,size_bytes,ranks,service_ns,waiting_ns,beside_computation,group,device
all_reduce,1048576,8,40000,0,no,dp (0),NVIDIA H100 80GB
all_gather,16777216,8,190000,10,yes,dp (0),NVIDIA H100 80GB
"""


def _traces():
    """Traces of one rank, in dialects with sizes in different places."""
    for dialect in ("2.1", "2.13", "rocm"):
        document = ExampleJob(ranks=2, steps=1, layers=1, dialect=dialect).play()[0][0]
        yield json.dumps(document).encode()


def _traced_job(path):
    job = traced_job([load_rank_trace(path)])
    return job_lines(job)


def _hlo_texts():
    """A loop with collectives and a permute, and one of convolutions."""
    folder = ROOT / "tests" / "unit" / "jobs" / "hlo"
    return [
        gzip.decompress((folder / f"{name}-h100.txt.gz").read_bytes())
        for name in ("pipeline", "convolutions")
    ]


def tuner_rules(name):
    """Two rules that a format of tuners can say."""
    of_nccl = name in {"nccl-csv", "ncclx"}
    algorithms = ("han", "tuned") if name == "openmpi-han" else ("ring", "rabenseifner")
    shape = {"nodes": 2, "ranks": 16} if name == "ncclx" else {}
    return [
        Rule(
            "all_reduce",
            low,
            high,
            ("tree", "ring")[place] if of_nccl else algorithms[place],
            "simple" if of_nccl else "",
            **shape,
        )
        for place, (low, high) in enumerate(((0, 4095), (4096, -1)))
    ]


READERS = {
    **{
        each.name: Reader(_proved(each.read), partial(_written, each))
        for each in FORMATS
        if each.write is not None
    },
    "nccl-graph": Reader(parse_nccl_graphs, lambda: [NCCL_GRAPH]),
    "flight-record": Reader(
        lambda content: findings({0: parse_flight_record(content)}),
        lambda: [FLIGHT, pickle.dumps(json.loads(FLIGHT))],
    ),
    "smi-matrix": Reader(
        lambda content: parse_smi_matrix(
            content, nvlink_bandwidth="25 GB/s", pcie_bandwidth="32 GB/s", cpu_bandwidth="20 GB/s"
        ),
        lambda: [b"     GPU0 GPU1 GPU2\nGPU0 X NV4 SYS\nGPU1 NV4 X SYS\nGPU2 SYS SYS X\n"],
    ),
    "graphml": Reader(parse_graphml, lambda: [graphml_text(load_topology("dgx-h100", nodes=1))]),
    "simgrid": Reader(parse_simgrid, lambda: [simgrid_text(load_topology("crossbar"))]),
    **{
        f"tuner-{name}": Reader(
            TUNER_FORMATS[name].parse,
            lambda name=name: [TUNER_FORMATS[name].dump(tuner_rules(name))],
        )
        for name in TUNER_FORMATS
    },
    "ras": Reader(
        lambda content: ras_findings(parse_ras(content)),
        lambda: [
            nccl_reports.ras(
                {0: 9, 1: 5},
                missing=[(2, {"considered_dead": True})],
                status=[(1, {"async_error": 6})],
            )
        ],
    ),
    "ras-text": Reader(
        lambda content: parse_ras_text(content.decode("utf-8", "replace")),
        lambda: [
            (
                b"0 1 4 8 32 32 RUNNING MISMATCH\n\n#0-0 (ab) MISMATCH\n  different A operation counts\n"
                b"  30 ranks have launched up to operation 75\n"
                b"  Rank 3 has not launched any operations -- GPU 3 managed by process 7 on node n\n"
            )
        ],
    ),
    "watchdog": Reader(
        lambda content: findings(parse_watchdog(content.decode("utf-8", "replace"))),
        lambda: [
            (
                b"[rank1]:[E] [PG ID 0 PG GUID 0(default_pg) Rank 1] at work: 2, last enqueued NCCL work: "
                b"3, last completed NCCL work: 1.\n[Rank 0] Watchdog caught collective operation timeout: "
                b"WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=4)\n"
            )
        ],
    ),
    "inspector": Reader(
        lambda content: inspector_findings(parse_inspector(content)),
        lambda: [
            nccl_reports.inspector(
                [nccl_reports.call(r, n) for n in range(3) for r in range(4)], each
            )
            for each in (None, 1)
        ],
    ),
    "ib-fabric": Reader(
        lambda content: parse_ib_fabric(
            content, nvlink_bandwidth="100 GB/s", pcie_bandwidth="50 GB/s"
        ).route([0], [0]),
        lambda: [write(*fabrics.fat_tree()) for write in (fabrics.discovered, fabrics.linked)],
    ),
    "nccl-log": Reader(_at_path(_nccl_channels, ".log"), _nccl_logs),
    "algorithm": Reader(
        _proved(parse_algorithm),
        lambda: [READERS[name].seeds()[0] for name in ("schedule", "msccl", "goal")],
    ),
    "hlo": Reader(_hlo_workload, _hlo_texts),
    "kineto": Reader(_at_path(_traced_job, ".json"), _traces),
    "deepspeed-comms": Reader(parse_deepspeed_comms, lambda: [DEEPSPEED]),
    "aicb-calls": Reader(parse_aicb_calls, lambda: [AICB]),
    "astra-workload": Reader(parse_astra_workload, lambda: [SIMAI, b"DATA\n1\n" + LAYER]),
    "recognise": Reader(
        recognise,
        lambda: [
            seed
            for name in ("schedule", "msccl", "goal", "log", "topology")
            for seed in READERS[name].seeds()
        ],
    ),
    "nccl-topology": Reader(parse_nccl_xml, lambda: _of_folder("docs/howto/four-gpu-box.xml")),
    "topology": Reader(_at_path(load_topology, ".toml"), lambda: _of_folder("topologies/*.toml")),
    "scenario": Reader(_at_path(_scenario, ".toml"), lambda: _of_folder("scenarios/*.toml")),
    "sweep": Reader(_at_path(_sweep, ".toml"), lambda: [SWEEP]),
    "plan": Reader(
        _at_path(lambda path: load_space(path).points(1), ".toml"),
        lambda: _of_folder("scenarios/plans/*.toml"),
    ),
    "goodput": Reader(
        _at_path(goodput_grid, ".toml"), lambda: _of_folder("scenarios/goodput/*.toml")
    ),
    "library": Reader(
        lambda content: parse_library(content, "file"), lambda: _of_folder("libraries/*.toml")
    ),
    "calibration": Reader(
        parse_calibration, lambda: [calibration_toml(Calibration(launch_fs=-15 * 10**8)).encode()]
    ),
    "log": Reader(_at_path(load_log, ".log"), lambda: list(_logs())),
    "environment": Reader(
        lambda content: parse_environment(content.decode(errors="replace")),
        lambda: [
            b"NCCL_ALGO=Ring,Tree,NCCL_PROTO=^LL128",
            b"NCCL_NVLS_ENABLE=0 NCCL_MIN_CTAS=4 LAUNCHER=torch",
        ],
    ),
    "gpu": Reader(lambda content: parse_gpu(content, "file"), lambda: _of_folder("gpus/*.toml")),
    "design": Reader(
        _at_path(load_design, ".toml"), lambda: [DESIGN, *_of_folder("designs/*.toml")]
    ),
    "astra-network": Reader(
        parse_astra_network,
        lambda: [
            (
                b"# dimensions\ntopology: [ Ring, Switch ]\nnpus_count: [ 4, 2 ]  # NPUs\n"
                b"bandwidth: [ 50.0, 25 ]\nlatency: [ 500.0, 1e3 ]\n"
            ),
            (
                b"topology: [ FullyConnected ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]\n"
                b"latency: [ 0 ]\n"
            ),
        ],
    ),
    "astra-system": Reader(
        parse_astra_system,
        lambda: [
            (
                b'{"all-reduce-implementation": ["ring"], "roofline-enabled": 1, "peak-perf": 9.5, '
                b'"local-mem-bw": 1600}'
            )
        ],
    ),
    "chakra": Reader(
        lambda content: parse_chakra([(content, "t.0.et")]), lambda: dump_chakra([ALONE], Rules())
    ),
    "workload": Reader(
        read_workload, lambda: [write_workload(gather_traces(TRACES, rules=Rules()))]
    ),
    "operations": Reader(
        _at_path(load_operations, ".toml"), lambda: _of_folder("docs/howto/experts.toml")
    ),
    "measured": Reader(
        lambda content: parse_measured(content, "file"),
        lambda: [b"operator,shape,dtype,milliseconds\ngemm,8x8,bf16,0.5\nadd,,fp32,1e-3\n"],
    ),
    "model": Reader(
        _at_path(model_from_hf, ".json"),
        lambda: [json.dumps(MODEL | more).encode() for more in ({}, LATENT, WINDOWS)],
    ),
    "objects": Reader(decode, lambda: [encode(each) for each in OBJECTS]),
}

WITHOUT_READER = {
    "mscclpp-old": "recognised so that the reader of plans can refuse it by name",
    "toml": "settings of no one format",
    "hwloc": "named, with what to use in its place",
    "ibstat": "named, with what to use in its place",
    "slurm-topology": "named, with what to use in its place",
    "stablehlo": "named, with what to use in its place",
    "perftest": "recognised so that a comparison can refuse it by name",
    "bandwidth-test": "recognised so that a comparison can refuse it by name",
    "chrome-trace": "written for a viewer",
    "xml": "of another program",
    "json": "of another program",
    "gzip": "packed",
    "pickle": "of another program",
    "empty": "nothing",
    "binary": "of another program",
    "text": "of another program",
}
"""Kinds of files that are only recognised, to say in an error what a file is."""


@cache
def _seeds(name):
    return tuple(READERS[name].seeds())


def damaged(name, seed, number):
    """An input: a sound file with a few changes."""
    chance = random.Random(f"{seed} {name} {number}")
    seeds = _seeds(name)
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        if not data:
            break
        chance.choice(WAYS)(data, chance, seeds)
    return bytes(data)


@dataclass(frozen=True)
class Finding:
    """An input that was not refused as it should be."""

    reader: str
    number: int
    what: str
    content: bytes


@dataclass
class Tally:
    """Outcomes by reader."""

    accepted: Counter = field(default_factory=Counter)
    refused: Counter = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


class _Slow(BaseException):
    """Passes every ``except Exception``."""


def judged(name, content):
    """None for an accepted input, "" for one that was properly refused, else what is wrong."""

    def stop(*_):
        raise _Slow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SLOW_S)
    try:
        READERS[name].read(content)
    except EXPECTED as error:
        return (
            "" if len(str(error)) < 2 * MOST_LETTERS else f"a message of {len(str(error))} letters"
        )
    except _Slow:
        return f"more than {SLOW_S:g} CPU seconds"
    except Exception as error:  # noqa: BLE001  that is what is looked for
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        place = f"{Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}"
        return f"{type(error).__name__} at {place}: {str(error)[:100]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return None


def fuzz(name, numbers, seed, tally):
    """Judge some inputs of a reader."""
    for number in numbers:
        content = damaged(name, seed, number)
        what = judged(name, content)
        if what is None:
            tally.accepted[name] += 1
        elif not what:
            tally.refused[name] += 1
        else:
            tally.findings.append(Finding(name, number, what, content))
