"""Rates of GPUs and what they rest on: a rate that nobody measured is pessimistic, and said."""

from __future__ import annotations

import json

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.planning.designs.decision import alternatives_of, verdict
from simcoll.training.design import design_from
from simcoll.training.evidence import rate_lines, rates_of
from simcoll.training.gpu import load_gpu, parse_gpu, shipped_gpus
from simcoll.training.steps import step

OWN = """
[peak]
bf16 = { value = "1000 TFLOPS", source = "mine" }
fp8 = { value = "2000 TFLOPS", source = "mine" }
[memory]
size = { value = "100 GB", source = "mine" }
bandwidth = { value = "3 TB/s", source = "mine" }
"""


def design_on(topology: str, dtype: str):
    return design_from(
        {
            "model": {
                "name": "llama-3.1-8b",
                "sequence": 8192,
                "global_batch": 16,
                "dtype": dtype,
            },
            "topology": {"name": topology},
            "parallel": {"tp": 8},
        }
    )


def measured_shares(table: str, *, vector: bool = False) -> list[float]:
    shares = []
    for name in shipped_gpus():
        gpu = load_gpu(name)
        for place, word in gpu.evidence.items():
            kind, _, dtype = place.partition(".")
            if kind == table and word == "measured" and (dtype == "fp32") == vector:
                shares.append(gpu.values[place] / gpu.peak(dtype))
    return shares


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_missing_rate_is_the_lowest_measured_share(dtype):
    rate = parse_gpu(OWN, "own.toml").rate(f"gemm.{dtype}", dtype)
    shares = measured_shares("gemm")
    peak = {"bf16": 1e15, "fp8": 2e15}[dtype]
    assert rate.evidence == "lowest"
    assert rate.value == pytest.approx(min(shares) * peak)
    assert rate.high == pytest.approx(max(shares) * peak)


def test_a_missing_rate_of_32_bits_is_a_share_that_needs_no_matrix_units():
    assert "gemm.fp32" not in load_gpu("mi300x").values
    rate = load_gpu("mi300x").rate("gemm.fp32", "fp32")
    shares = measured_shares("gemm", vector=True)
    assert min(shares) > 0.7
    assert rate.value == pytest.approx(min(shares) * load_gpu("mi300x").peak("fp32"))


def test_missing_attention_is_the_lowest_share_of_products():
    slow = OWN.replace(
        "[memory]", '[gemm]\nbf16 = { value = "300 TFLOPS", source = "x" }\n[memory]'
    )
    gpu = parse_gpu(slow, "own.toml")
    # Backward passes of FlashAttention-2 on A100 reach 170 of 271.2 TFLOPS, the lowest.
    assert gpu.rate("attention.forward", "bf16").value == pytest.approx(300e12 * 170 / 271.2)
    assert gpu.rate("gemm.bf16", "bf16").evidence == "unstated"


def test_an_unmeasured_gpu_is_no_faster_than_the_one_that_public_runs_prefer():
    """Public runs of 8-bit training put MI300X behind H100, whose peak is lower."""
    computes = [
        step(design_on(topology, "fp8"), tier=1, exposed=False).compute_fs
        for topology in ("mi300x", "dgx-h100")
    ]
    assert computes[0] > computes[1]


def test_a_16_bit_type_has_the_rate_of_the_other():
    gpu = load_gpu("b200")
    assert "gemm.fp16" not in gpu.values
    rate = gpu.rate("gemm.fp16", "fp16")
    assert (rate.value, rate.evidence) == (gpu.values["gemm.bf16"], "sibling")


def test_the_lines_name_each_rate_that_nobody_measured():
    lines = list(rate_lines("mi355x", rates_of(design_on("mi355x", "fp8"))))
    assert "gemm.bf16 measured" in lines[0]
    assert lines[1].startswith(
        "gemm.fp8 of mi355x: 2,232 TFLOPS (up to 4,375 TFLOPS), not measured"
    )
    (only,) = rate_lines("h100", rates_of(design_on("dgx-h100", "bf16")))
    assert only == (
        "h100: gemm.bf16, attention.forward, attention.backward measured; sustained.share from "
        "published steps"
    )


@pytest.mark.slow
def test_the_result_has_the_evidence(tmp_path, capsys):
    design = tmp_path / "design.toml"
    design.write_text(
        "[model]\nname = 'llama-3.1-8b'\nsequence = 8192\nglobal_batch = 16\ndtype = 'fp8'\n"
        "[topology]\nname = 'mi355x'\n[parallel]\ntp = 8\n"
    )
    assert main(["step", str(design), "--tier", "1", "-o", str(tmp_path / "out")]) == 0
    assert "rates       gemm.fp8 of mi355x: 2,232 TFLOPS" in capsys.readouterr().out
    result = json.loads((tmp_path / "out" / "step.json").read_text())
    by_place = {rate["place"]: rate for rate in result["rates"]}
    assert by_place["gemm.fp8"]["evidence"] == "lowest"
    assert by_place["gemm.bf16"]["evidence"] == "measured"


def test_a_verdict_begins_with_uneven_evidence():
    rows = [
        {
            "key": name,
            "point": {"case": {"alternative": name}},
            "result": {"usd": usd, "rates": {"gemm.fp8": word}},
        }
        for name, usd, word in (("mi300x", 90.0, "lowest"), ("h100", 100.0, "measured"))
    ]
    sentences = verdict("usd", alternatives_of(rows), ())
    assert sentences[0] == (
        "Uneven evidence: of h100 all rates are measured; not gemm.fp8 of mi300x."
    )
    assert sentences[1].startswith("Best by cost to train: mi300x")
    same = [{**row, "result": {**row["result"], "rates": {}}} for row in rows]
    assert verdict("usd", alternatives_of(same), ())[0].startswith("Best by")


def test_a_type_that_a_gpu_lacks_is_named_where_it_stands():
    with pytest.raises(
        ConfigError, match=r"\$\.model\.dtype: GPU 'h100' has no peak for dtype 'fp9'"
    ):
        design_on("dgx-h100", "fp9")
