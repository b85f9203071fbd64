"""NCCL: the suite on a GPU where there is one, and always a stand-in that checks the sequence of
calls.

:mod:`tests.conformance.test_local` has the suite on the stand-in.
"""

import ctypes
import gc
import importlib
import re
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import realcoll
import simcoll
from realcoll.transports import gpu_is_here, kernels
from realcoll.transports.kernels import bfloat16_source, float32_source, pair_table
from tests.support.conformance_cases import check_alone, select
from tests.support.fake_cupy import alone, install

needs_gpu = pytest.mark.skipif(
    not gpu_is_here(), reason="needs a GPU, CuPy and libnccl: pip install '.[cuda12]'"
)


@pytest.fixture(autouse=True)
def started_alone(monkeypatch):
    alone(monkeypatch)


@pytest.fixture
def fake(monkeypatch):
    return install(monkeypatch)


@needs_gpu
@pytest.mark.parametrize("options", [{}, {"channel_streams": True}, {"graph": True}], ids=str)
def test_gpu_gives_the_results_of_the_emulator(options):
    transport = realcoll.NcclTransport(**options)
    assert [fault for case in select() for fault in check_alone(case, [transport])] == []
    transport.close()


def ring(n=2, **params):
    return simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=n, in_place=True, **params), n, "float32"
    )


def test_a_step_is_one_group_then_its_reductions(fake):
    nccl, log = fake
    prepared = realcoll.prepare(ring(), realcoll.NcclTransport())
    prepared.load([np.ones(2, "float32")] * 2)
    log.clear()
    prepared.run()
    reductions = ["stream", "kernel"] * 2
    assert log == ["groupStart", "groupEnd", *reductions, "groupStart", "groupEnd"]
    assert [found.tolist() for found in prepared.fetch().values()] == [[2, 2], [2, 2]]
    assert nccl.depth == 0


@pytest.mark.slow
def test_memory_that_only_messages_use_is_kept(fake):
    nccl, log = fake
    prepared = realcoll.prepare(
        simcoll.bind(simcoll.schedule("barrier", nranks=5), 0), realcoll.NcclTransport()
    )
    gc.collect()
    prepared.run()  # the stand-in looks where each message goes
    assert nccl.memory
    assert "groupEnd" in log


def test_each_channel_has_its_own_communicator(fake):
    transport = realcoll.NcclTransport(channel_streams=True)
    prepared = realcoll.prepare(ring(4, channels=3), transport)
    prepared.load([np.ones(4, "float32")] * 4)
    prepared.run()
    assert len(fake[0].comms) == 1 + 3
    assert prepared.fetch()[0].tolist() == [4] * 4


def test_a_graph_is_captured_once_and_launched_from_then_on(fake):
    _, log = fake
    prepared = realcoll.prepare(ring(), realcoll.NcclTransport(graph=True))
    prepared.load([np.ones(2, "float32")] * 2)
    for _ in range(4):
        prepared.run()
    assert [word for word in log if word in ("begin_capture", "end_capture", "launch")] == [
        "begin_capture",
        "end_capture",
        "launch",
        "launch",
        "launch",
    ]


def test_an_error_of_nccl_aborts_and_is_told(fake):
    nccl, _ = fake
    prepared = realcoll.prepare(ring(), realcoll.NcclTransport())
    nccl.failing = "unhandled cuda error"
    with pytest.raises(
        realcoll.FaultError, match="all_reduce n=2 in place: NCCL: unhandled cuda error"
    ):
        prepared.run()
    assert [comm.aborted for comm in nccl.comms] == [True]
    with pytest.raises(realcoll.FaultError, match="of no use after an earlier failure"):
        realcoll.prepare(ring(), prepared.transport)


def test_a_stream_that_never_ends_times_out(fake):
    transport = realcoll.NcclTransport(timeout_s=0.1)
    prepared = realcoll.prepare(ring(), transport)
    transport.stream.done = False
    with pytest.raises(realcoll.FaultError):
        prepared.run()
    assert fake[0].comms[0].aborted


def test_what_is_missing_is_said_in_one_line(monkeypatch, fake):
    nccl, _ = fake
    nccl.available = False
    with pytest.raises(realcoll.MissingError, match="nvidia-nccl-cu12"):
        realcoll.NcclTransport()
    install(monkeypatch)
    monkeypatch.setattr(
        sys.modules["cupy.cuda"].nvrtc, "getVersion", lambda: importlib.import_module("no_nvrtc")
    )
    with pytest.raises(realcoll.MissingError, match="nvidia-cuda-nvrtc-cu12"):
        realcoll.NcclTransport()
    install(monkeypatch, devices=0)
    with pytest.raises(realcoll.MissingError, match="no GPU here"):
        realcoll.NcclTransport()
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(realcoll.MissingError, match=r"pip install 'simcoll\[cuda12\]'") as caught:
        realcoll.NcclTransport()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
)
def test_the_table_of_8_bit_floats(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype))
    table = pair_table("sum", kind)
    one, two, three = (int(np.array(value, kind).view(np.uint8)) for value in (1, 2, 3))
    assert table[256 * one + two] == three
    assert table.shape == (65536,)


# 17 and 241 have more bits than these types keep; 512 is beyond the range of one; expected: the
# nearest value to the true quotient.
@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
)
@pytest.mark.parametrize("n", [2, 17, 241, 512])
def test_the_table_of_averages(dtype, n):
    kind = np.dtype(getattr(ml_dtypes, dtype))
    values = np.arange(256, dtype=np.uint8).view(kind).astype(np.float64)
    finite = values[np.isfinite(values)]
    got = kernels.mean_table(kind, n).view(kind).astype(np.float64)[np.isfinite(values)]
    for value, found in zip(finite, got, strict=True):
        assert abs(found - value / n) == np.abs(finite - value / n).min()


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "complex64", "complex128"]
)
def test_averages_of_kernels_have_the_bits_of_the_host(dtype, fake):
    kind = simcoll.core.reduction.parse_dtype(dtype)
    for n in (3, 49, 257, 2049):
        given = np.random.default_rng(n).standard_normal(64).astype(kind)
        host, kept = given.copy(), given.copy()
        simcoll.types.Reduction("avg").finish(host, n)
        kernels.finisher(sys.modules["cupy"], kind, n)(kept.view(kernels.device_dtype(kind)))
        assert kept.tobytes() == host.tobytes()


def binary32(kind, right):
    """C for what the kernels use, on the host."""
    return f"""
#include <math.h>
#include <string.h>
static float __uint_as_float(unsigned int u) {{ float f; memcpy(&f, &u, 4); return f; }}
static unsigned int __float_as_uint(float f) {{ unsigned int u; memcpy(&u, &f, 4); return u; }}
static float add_f32(float a, float b) {{ return a + b; }}
static float mul_f32(float a, float b) {{ return a * b; }}
static float div_f32(float a, float b) {{ return a / b; }}
static int less_f32(float a, float b) {{ return a < b; }}
void run({kind} *ts, const {right} *rs, long n) {{
  for (long i = 0; i < n; i++) {{ {kind} t = ts[i]; {right} r = rs[i];
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("op", ["sum", "product", "min", "max", "divide"])
@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_the_kernels_of_ours_compiled_for_the_host_give_the_bits_of_numpy(name, op, tmp_path):
    kind, letter, source = {
        "bfloat16": (np.dtype(ml_dtypes.bfloat16), "unsigned short", bfloat16_source(op)),
        "float32": (np.dtype(np.float32), "float", float32_source(op)),
    }[name]
    other = "float" if op == "divide" else letter  # the number of ranks is a float32
    (tmp_path / "k.c").write_text(f"{binary32(letter, other)}{source} ts[i] = t; }} }}\n")
    subprocess.run(
        ["cc", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-o", "k.so", "k.c", "-lm"],
        cwd=tmp_path,
        check=True,
    )
    library = ctypes.CDLL(str(tmp_path / "k.so"))
    rng, bits = np.random.default_rng(0), np.dtype(f"u{kind.itemsize}")
    left = np.tile(np.arange(65536, dtype=bits), 16) << (8 * kind.itemsize - 16)
    right = rng.integers(0, 2 ** (8 * kind.itemsize), left.size, dtype=bits)
    right[::7] = left[::7]
    right[::5] &= 2 ** (8 * kind.itemsize - 9) - 1  # too small for a full mantissa
    right = right.view(kind)
    if op == "divide" and name == "bfloat16":
        right = rng.integers(0, 2**32, left.size, dtype=np.uint32).view(np.float32)
        right[::3] = rng.integers(1, 2**20, right[::3].size)
    call = {
        "sum": np.add,
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "divide": np.divide,
    }[op]
    with np.errstate(all="ignore"):
        want = call(left.view(kind), right).astype(kind)
        nan = np.isnan(want)
    got = left.copy()
    library.run(
        got.ctypes.data_as(ctypes.c_void_p),
        right.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_long(got.size),
    )
    with np.errstate(all="ignore"):
        assert np.isnan(got.view(kind)[nan]).all()
    assert np.array_equal(got[~nan], want[~nan].view(bits))


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
@pytest.mark.parametrize("op", ["sum", "product", "min", "max", "divide"])
def test_the_kernels_of_ours_compile_for_a_gpu_and_keep_small_numbers(name, op):
    nvrtc = pytest.importorskip("cupy", reason="needs CuPy: pip install '.[cuda12]'").cuda.nvrtc
    kind = "unsigned short" if name == "bfloat16" else "float"
    other = "float" if op == "divide" else kind
    body = (bfloat16_source if name == "bfloat16" else float32_source)(op)
    begin = (
        f'extern "C" __global__ void k({kind} *ts, const {other} *rs) {{ {kind} &t = '
        f"ts[threadIdx.x]; {other} r = rs[threadIdx.x];"
    )
    program = nvrtc.createProgram(f"{kernels.EXACT}{begin}{body} }}", "k.cu", (), ())
    nvrtc.compileProgram(program, ("-arch=compute_90", "-ftz=true"))  # as CuPy does
    instructions = set(re.findall(r"\b[a-z]+[a-z.]*\.f32", nvrtc.getPTX(program).decode()))
    # Whether a number is NaN does not depend on it.
    assert {word for word in instructions if ".ftz" in word} <= {
        "abs.ftz.f32",
        "setp.gtu.ftz.f32",
        "setp.nan.ftz.f32",
    }
    assert instructions & {"add.rn.f32", "mul.rn.f32", "div.rn.f32", "setp.lt.f32"}
