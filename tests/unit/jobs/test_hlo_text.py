"""Texts of HLO: all notations, and refusals with the line."""

import gzip
from dataclasses import replace

import numpy as np
import pytest

from simcoll.errors import ConfigError
from simcoll.jobs import hlo_program
from simcoll.jobs.hlo_groups import groups_of_pairs, replica_groups
from simcoll.jobs.hlo_program import HloLoop, program_of
from simcoll.jobs.hlo_text import HloComputation, parse_hlo
from simcoll.jobs.hlo_workload import is_hlo_file, load_hlo

HEADER = "HloModule test, is_scheduled=true, num_partitions=8, entry_computation_layout={()->()}"


def module(*lines, computations="", header=HEADER):
    body = "\n".join(f"  {line}" for line in lines)
    return parse_hlo(f"{header}\n\n{computations}\nENTRY %main () -> f32[] {{\n{body}\n}}\n")


def groups(text, attributes="use_global_device_ids=true"):
    read = module(
        "%x = f32[4]{0} parameter(0)",
        f"ROOT %y = f32[4]{{0}} all-reduce(%x), channel_id=1, replica_groups={text}, {attributes}",
    )
    instruction = read.computations["main"].instructions["y"]
    return replica_groups(read, instruction, "all-reduce").tolist()


EIGHT = np.arange(8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", EIGHT.reshape(2, 4)),
        ("{}", EIGHT[None]),
        ("[2,4]<=[8]", EIGHT.reshape(2, 4)),
        ("[4,2]<=[2,4]T(1,0)", EIGHT.reshape(2, 4).T),
        ("[2,4]<=[2,2,2]T(1,2,0)", EIGHT.reshape(2, 2, 2).transpose(1, 2, 0).reshape(2, 4)),
        ("mesh['a'=2,'b'=4] {'b'}", EIGHT.reshape(2, 4)),
        ("mesh['a'=2,'b'=4] {'a'}", EIGHT.reshape(2, 4).T),
        ("mesh['a'=2,'b'=4] {'b','a'}", EIGHT.reshape(2, 4).T.reshape(1, 8)),
        ("mesh['a'=2,'b'=1,'c'=4] {'b'}", EIGHT[:, None]),
        # The first half of axis b, of two parts of two: b = 2 i + j, groups along i.
        ("mesh['a'=2,'b'=4] {'b':(1)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("mesh['a'=2,'b'=4], device_ids=(7,6,5,4,3,2,1,0) {'b'}", [[7, 6, 5, 4], [3, 2, 1, 0]]),
    ],
)
def test_notations_of_replica_groups(text, expected):
    assert groups(text) == np.array(expected).tolist()


def test_numbers_of_replicas_stand_for_all_their_partitions():
    assert groups("{{0}}", "to_apply=%add") == [list(range(8))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{0,1},{2}}", "expected replica groups of one size"),
        ("{{0,8}}", "replica groups name device 8; the module has 8"),
        ("{{0,1},{1,2}}", "a device is in two replica groups"),
        ("[2,4]<=[9]", "the dimensions do not fit"),
        ("v9(1)", r"unknown notation of replica groups 'v9\(1\)'"),
        ("mesh['a'=2,'b'=4] {'c'}", "unknown axis \"'c'\" of a mesh"),
        ("mesh['a'=2,'b'=2] {'a'}", "a mesh of 4 devices; there are 8"),
        ("mesh['a'=2,'b'=4] {'b':(3)2}", "its parts do not divide 4"),
        ("mesh['a'=2,'b'=4], device_ids=(0,1) {'a'}", "do not name each device once"),
    ],
)
def test_unknown_groups_are_refused_with_the_line(text, message):
    with pytest.raises(ConfigError, match=f"line 6, y: .*{message}"):
        groups(text)


def test_pairs_form_groups():
    shift = [(rank, (rank + 2) % 8) for rank in range(8)]
    matrix, within = groups_of_pairs(shift)
    assert matrix.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert within == ((0, 1), (1, 2), (2, 3), (3, 0))
    matrix, within = groups_of_pairs([(0, 1), (2, 3), (3, 2)])
    assert matrix.tolist() == [[0, 1, 2, 3]]
    assert within == ((0, 1), (2, 3), (3, 2))


def loop(known="", limit="4", start="1", step="2", direction="LT"):
    """A loop whose body multiplies."""
    computations = f"""
%body (p: (s32[], bf16[4,4])) -> (s32[], bf16[4,4]) {{
  %p = (s32[], bf16[4,4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = bf16[4,4] get-tuple-element(%p), index=1
  %c = s32[] constant({step})
  %j = s32[] add(%i, %c)
  %y = bf16[4,4] dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %t = (s32[], bf16[4,4]) tuple(%j, %y)
}}
%less (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %less = pred[] compare(%a, %b), direction={direction}
}}
%condition (q: (s32[], bf16[4,4])) -> pred[] {{
  %q = (s32[], bf16[4,4]) parameter(0)
  %k = s32[] get-tuple-element(%q), index=0
  %n = s32[] {limit}
  ROOT %r = pred[] fusion(%k, %n), kind=kLoop, calls=%less
}}
"""
    return module(
        f"%s = s32[] {start}",
        "%z = bf16[4,4]{1,0} parameter(0)",
        "%t0 = (s32[], bf16[4,4]) tuple(%s, %z)",
        f"ROOT %w = (s32[], bf16[4,4]) while(%t0), condition=%condition, body=%body{known}",
        computations=computations,
    )


def count(text):
    (step,) = program_of(text).steps
    assert isinstance(step, HloLoop)
    return step.count


def test_trip_counts():
    known = ', backend_config={"known_trip_count":{"n":"7"}}'
    assert count(loop(known, start="constant(0)", limit="parameter(1)")) == 7
    older = known.replace('"', r"\"").replace("={", '="{') + '"'
    assert count(loop(older, start="constant(0)", limit="parameter(1)")) == 7
    # 1, 3, 5, 7, 9 are below 10.
    assert count(loop(start="constant(1)", limit="constant(10)")) == 5
    assert count(loop(start="constant(1)", limit="constant(9)", direction="LE")) == 5
    assert count(loop(start="constant(9)", limit="constant(0)", step="-3", direction="GT")) == 3
    assert program_of(loop(start="constant(9)", limit="constant(9)")).steps == ()


@pytest.mark.parametrize(
    "change", [{"limit": "parameter(1)"}, {"start": "parameter(1)"}, {"step": "x"}]
)
def test_an_unknown_trip_count_is_refused_with_the_line(change):
    with pytest.raises(ConfigError, match=r"line 29, w: the number of iterations is not known"):
        program_of(loop(**({"start": "constant(0)", "limit": "constant(4)"} | change)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('custom-call(%x), custom_call_target="my_kernel"', "custom call 'my_kernel' is not known"),
        ("cholesky(%x)", "the work of 'cholesky' is not known"),
        ("send(%x), channel_id=1", "'send': messages outside of collectives are not read"),
        ("all-gather-start(%x), replica_groups={}", "y: it is started and not ended in main"),
        ("all-gather-done(%x)", "ends what was not started in the same computation"),
        ("fusion(%x), calls=%nothing", "calls='nothing': the text has no such computation"),
        ("dot(%x, %x), lhs_contracting_dims={5}", r"contracted dimensions \[5\] of \(4, 4\)"),
        ("collective-permute(%x), source_target_pairs={{0,1},{0,2}}", "devices below 8, each once"),
        (
            "all-reduce(%x), channel_id=1, replica_groups={{0},{1,2}}, use_global_device_ids=true",
            "replica groups of one size",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_line(line, message):
    read = module("%x = f32[4,4]{1,0} parameter(0)", f"ROOT %y = f32[4,4]{{1,0}} {line}")
    with pytest.raises(ConfigError, match=f"line 6.*{message}"):
        program_of(read)


def branches(operation):
    computations = f"""
%one (a: f32[4,4]) -> f32[4,4] {{
  %a = f32[4,4] parameter(0)
  ROOT %b = f32[4,4] {operation}
}}
%two (c: f32[4,4]) -> f32[4,4] {{
  ROOT %c = f32[4,4] parameter(0)
}}
"""
    return module(
        "%i = s32[] parameter(0)",
        "%x = f32[4,4] parameter(1)",
        "ROOT %y = f32[4,4] conditional(%i, %x, %x), branch_computations={%one, %two}",
        computations=computations,
    )


def test_branches_may_communicate_alike():
    gather = (
        "all-reduce(%a), channel_id=1, use_global_device_ids=true, "
        "replica_groups=[1,8]<=[8], to_apply=%add"
    )
    text = branches(gather)
    with pytest.raises(ConfigError, match="communicate, multiply or loop differently"):
        program_of(text)
    two = text.computations["two"]
    alike = HloComputation("two", two.line, text.computations["one"].instructions, "b")
    steps = program_of(replace(text, computations={**text.computations, "two": alike})).steps
    assert [step.collective.kind for step in steps] == ["all_reduce"]


def test_a_conditional_takes_the_branch_that_moves_more():
    program = program_of(branches("exponential(%a)"))
    assert [step.name for step in program.steps] == ["b"]
    assert program.assumptions == ("conditionals take the branch that moves most bytes",)
    product = "dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    with pytest.raises(ConfigError, match=r"line 15, y: which branch runs is decided by data"):
        program_of(branches(product))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line begins with HloModule"),
        ("hello", "line 1: expected HloModule, got 'hello'"),
        ("module @jit_f {\n  stablehlo.add", r"line 1: this is StableHLO \(lowered.as_text\(\)\)"),
        ("HloModule m, num_partitions=8", r"line 1: the module has no schedule"),
        (HEADER, "ends at line 1 without an ENTRY computation"),
        (f"{HEADER}\nENTRY %m () -> f32[] {{\n  %x = f32[] constant(0)", "ends inside of"),
        (f"{HEADER}\nENTRY %m () -> f32[] {{\n  what\n}}", "line 3: expected an instruction"),
        (f"{HEADER}\nENTRY %m () -> q7[] {{\n  %x = q7[] constant(0)\n}}", "unknown type .* 'q7'"),
        (f"{HEADER.replace('=8', '=0')}\nENTRY", "num_partitions: expected 1 to|without an ENTRY"),
    ],
)
def test_other_texts_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_hlo(text)


def test_operands_may_have_types_and_no_percent_sign():
    read = module(
        "x = f32[8,4]{1,0} parameter(0)",
        "y = f32[4,2]{1,0} parameter(1)",
        "ROOT z = f32[8,2]{1,0} dot(f32[8,4]{1,0} x, /*index=1*/f32[4,2]{1,0} y), "
        'lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="a,b)=(c"}',
    )
    assert program_of(read).flops == {"tf32": 2 * 8 * 2 * 4}


@pytest.mark.parametrize("cut", [0, 1, 10, 100])
def test_files(tmp_path, cut):
    text = f"{HEADER}\nENTRY %m () -> f32[] {{\n  ROOT %x = f32[] constant(0)\n}}\n".encode()
    (tmp_path / "plain.txt").write_bytes(text)
    packed = gzip.compress(text)
    (tmp_path / "packed.txt.gz").write_bytes(packed[: len(packed) - cut])
    assert is_hlo_file(tmp_path / "plain.txt")
    assert load_hlo(tmp_path / "plain.txt").steps == ()
    if not cut:
        assert is_hlo_file(tmp_path / "packed.txt.gz")
        assert load_hlo(tmp_path / "packed.txt.gz").module.devices == 8
    else:
        with pytest.raises(ConfigError, match=r"cut short|cannot be decompressed"):
            load_hlo(tmp_path / "packed.txt.gz")


def test_custom_calls_of_cuda_libraries():
    gemm = (
        'custom-call(%x, %x), custom_call_target="__cublas$lt$matmul", backend_config='
        '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    )
    read = module("%x = bf16[4,4]{1,0} parameter(0)", f"ROOT %y = bf16[4,4]{{1,0}} {gemm}")
    assert program_of(read).flops == {"bf16": 2 * 4**3}
    attention = (
        'custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax{}", backend_config='
        '{{"cudnn_fmha_backend_config":{{"intermediate_tensor_shape":{{"dimensions":'
        '["2","8","128","128"]}},"{}_dot_dimension_numbers":{{"lhs_contracting_dimensions":'
        '["3"]}},"mask_type":"{}"}}}}'
    )
    product = 2 * 2 * 8 * 128 * 128 * 64
    # The backward pass of jax 0.10 has names of its own for its products.
    for suffix, name, mask, expected in [
        ("", "bmm1", "NO_MASK", {"attention.forward": 2 * product}),
        ("Backward", "bmm2_grad_gemm2", "CAUSAL", {"attention.backward": 5 * product // 2}),
        ("BackwardF8", "bmm2_grad_gemm2", "NO_MASK", {"attention.backward": 5 * product}),
    ]:
        read = module(
            "%q = bf16[2,128,8,64]{3,2,1,0} parameter(0)",
            f"ROOT %y = bf16[2,128,8,64]{{3,2,1,0}} {attention.format(suffix, name, mask)}",
        )
        assert program_of(read).flops == expected


def collectives(*lines, computations=""):
    read = module("%x = bf16[16,4]{1,0} parameter(0)", *lines, computations=computations)
    return read, program_of(read)


GLOBAL = "channel_id=1, use_global_device_ids=true"


@pytest.mark.parametrize(
    ("lines", "kind", "size_bytes", "synchronous"),
    [
        # All operands of a combined collective count; an all_gather as its result.
        (
            (
                "%y = f32[8]{0} parameter(1)",
                (
                    "%s = ((bf16[16,4], f32[8]), (bf16[64,4], f32[32])) all-gather-start(%x, %y), "
                    f"replica_groups=[2,4]<=[8], dimensions={{0}}, {GLOBAL}"
                ),
                "ROOT %d = (bf16[64,4], f32[32]) all-gather-done(%s)",
            ),
            "all_gather",
            4 * (128 + 32),
            False,
        ),
        (
            (
                (
                    f"%s = bf16[4,4] reduce-scatter-start(%x), replica_groups=[2,4]<=[8], {GLOBAL}, "
                    'backend_config={"collective_backend_config":{"is_sync":true}}'
                ),
                "ROOT %d = bf16[4,4] reduce-scatter-done(%s)",
            ),
            "reduce_scatter",
            128,
            True,
        ),
        (
            (
                (
                    "ROOT %d = bf16[16,4] ragged-all-to-all(%x, %x, %x, %x, %x, %x), "
                    "replica_groups={{0,1,2,3,4,5,6,7}}, channel_id=1"
                ),
            ),
            "all_to_all",
            128,
            True,
        ),
        (
            ("ROOT %d = bf16[16,4] collective-permute(%x), source_target_pairs={{1,1},{0,2}}",),
            "send_recv",
            128,
            True,
        ),
    ],
)
def test_forms_of_collectives(lines, kind, size_bytes, synchronous):
    _, program = collectives(*lines)
    ((collective, count),) = program.collectives
    assert (collective.kind, count) == (kind, 1)
    assert (collective.size_bytes, collective.synchronous) == (size_bytes, synchronous)


def test_a_collective_may_run_in_a_computation_of_its_own():
    inner = """
%wrapped (a: bf16[16,4]) -> bf16[16,4] {
  %a = bf16[16,4] parameter(0)
  ROOT %b = bf16[16,4] all-to-all(%a), replica_groups={{0,1,2,3},{4,5,6,7}}, channel_id=3
}
%graph (p: bf16[16,4]) -> bf16[16,4] {
  %p = bf16[16,4] parameter(0)
  %s = ((bf16[16,4]), bf16[16,4]) async-start(%p), calls=%wrapped
  %e = bf16[16,4] exponential(%p)
  %u = ((bf16[16,4]), bf16[16,4]) async-update(%s)
  %d = bf16[16,4] async-done(%u)
  ROOT %r = bf16[16,4] add(%d, %e)
}
"""
    _, program = collectives("ROOT %c = bf16[16,4] call(%x), to_apply=%graph", computations=inner)
    names = [type(step).__name__ for step in program.steps]
    assert names == ["HloStart", "HloWork", "HloEnd", "HloWork"]
    assert program.steps[0].collective.groups.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def across_a_loop(body, end="%d = f32[8] all-gather-done(%g)"):
    """An all_gather that is started before a loop, whose state holds it, and ended after it."""
    state = "(s32[], f32[8], (f32[4], f32[8]))"
    computations = f"""
%body (p: {state}) -> {state} {{
  %p = {state} parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %y = f32[8] get-tuple-element(%p), index=1
  %h = (f32[4], f32[8]) get-tuple-element(%p), index=2
  {body}
  ROOT %t = {state} tuple(%i, %z, %h)
}}
%condition (q: {state}) -> pred[] {{
  ROOT %q = {state} parameter(0)
}}
"""
    return module(
        "%i0 = s32[] constant(0)",
        "%x = f32[4] parameter(0)",
        "%y0 = f32[8] parameter(1)",
        f"%s = (f32[4], f32[8]) all-gather-start(%x), replica_groups=[4,2]<=[8], {GLOBAL}",
        f"%t0 = {state} tuple(%i0, %y0, %s)",
        f"%w = {state} while(%t0), condition=%condition, body=%body, "
        'backend_config={"known_trip_count":{"n":"3"}}',
        "%g = (f32[4], f32[8]) get-tuple-element(%w), index=2",
        end,
        "ROOT %r = f32[8] negate(%d)",
        computations=computations,
    )


def test_a_collective_may_run_across_a_loop():
    program = program_of(across_a_loop("%z = f32[8] negate(%y)"))
    start, loop, end, _ = program.steps
    assert start.collective is end.collective
    assert (loop.count, [step.name for step in loop.steps]) == (3, ["z"])


def test_a_collective_may_not_end_in_a_loop_that_it_runs_across():
    with pytest.raises(ConfigError, match="e: it ends in a loop what was started before it"):
        program_of(across_a_loop("%e = f32[8] all-gather-done(%h)\n  %z = f32[8] negate(%e)"))
    with pytest.raises(ConfigError, match="s: it is started and not ended in main"):
        program_of(across_a_loop("%z = f32[8] negate(%y)", end="%d = f32[8] negate(%y0)"))


def test_elements_of_tuples_may_be_named_by_their_number():
    read, program = collectives(
        '%u = (f32[8], bf16[2]) custom-call(%x), custom_call_target="AllocateBuffer"',
        "%t = (bf16[16,4], (f32[8], bf16[2])) tuple(%x, %u)",
        "%y = bf16[2] negate(%t#1#1)",
        "ROOT %z = bf16[16,4] negate(%t#0)",
    )
    main = read.computations["main"]
    assert main.operand_bytes(main.instructions["y"]) == 4
    assert [step.cost.nbytes for step in program.steps[-2:]] == [8, 256]
    with pytest.raises(ConfigError, match="line 7: t has no element 2"):
        collectives("%t = (f32[8], f32[2]) tuple(%x, %x)", "ROOT %y = f32[2] negate(%t#2)")
    with pytest.raises(ConfigError, match="nowhere has no element 0"):
        collectives("ROOT %y = f32[2] negate(%nowhere#0)")


def test_an_instruction_may_go_on_in_the_next_line():
    _, program = collectives(
        "%y = bf16[16,4] negate(%x), frontend_attributes={kernel_metadata={",
        "",
        '"block":"{1}"',
        "}}, metadata={}",
        "ROOT %z = bf16[16,4] negate(%y)",
    )
    assert [step.name for step in program.steps] == ["y", "z"]
    with pytest.raises(ConfigError, match="the text of an instruction has no end"):
        collectives("%y = bf16[16,4] negate(%x), frontend_attributes={{", "a", "b")


def test_a_copy_may_run_beside_the_work():
    inner = """
%part (a: bf16[16,4]) -> bf16[2,4] {
  %a = bf16[16,4] parameter(0)
  ROOT %b = bf16[2,4] slice(%a), slice={[0:2], [0:4]}
}
"""
    _, program = collectives(
        "%s = ((bf16[16,4]), bf16[2,4], s32[]) async-start(%x), calls=%part",
        "%e = bf16[16,4] exponential(%x)",
        "ROOT %d = bf16[2,4] async-done(%s)",
        computations=inner,
    )
    assert [(step.name, step.cost.nbytes) for step in program.steps] == [("b", 32), ("e", 256)]


@pytest.mark.parametrize(("kernel", "tensors"), [("fwd", 2), ("dkv", 4), ("dq", 3)])
def test_attention_kernels_of_tpus(kernel, tensors):
    """Half of 2 b h s t d for each product, with the causal mask."""
    call = 'custom_call_target="tpu_custom_call"'
    lines = (
        "%m = s8[1,4,4] parameter(1)",
        "%q = bf16[2,8,512,64] parameter(2)",
        "%k = bf16[2,4,256,64] parameter(3)",
        f"ROOT %splash_mha_{kernel}_segmented.1 = bf16[2,8,512,64] custom-call(%m, %q, %k, %k), {call}",
    )
    _, program = collectives(*lines)
    (flops,) = program.flops.values()
    assert flops == tensors * 2 * 8 * 512 * 256 * 64
    with pytest.raises(ConfigError, match="expected queries, keys and values"):
        collectives(*lines[:3], lines[3].replace("%q, %k, %k", "%q"))
    with pytest.raises(ConfigError, match="custom call 'tpu_custom_call' is not known"):
        collectives(*lines[:3], lines[3].replace("splash_mha", "own"))


def test_bytes_in_the_memory_of_the_host_are_apart():
    _, program = collectives("ROOT %y = bf16[16,4]{1,0:S(5)} copy(%x)")
    (step,) = program.steps
    assert (step.cost.nbytes, step.cost.host_bytes) == (128, 128)


def test_only_the_parts_that_a_slice_or_an_update_touches_count():
    inner = """
%body (p: bf16[16,4], i: s32[]) -> bf16[16,4] {
  %p = bf16[16,4] parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  %one = bf16[1,4] dynamic-slice(%p, %i, %z), dynamic_slice_sizes={1,4}
  %e = bf16[1,4] exponential(%one)
  ROOT %u = bf16[16,4] dynamic-update-slice(%p, %e, %i, %z)
}
"""
    lines = (
        "%i = s32[] parameter(1)",
        "ROOT %f = bf16[16,4] fusion(%x, %i), kind=kLoop, calls=%body",
    )
    _, program = collectives(*lines, computations=inner)
    (step,) = program.steps
    # A row is read and one written; and the index.
    assert step.cost.nbytes == 8 + 8 + 4


def nested(levels, call):
    """Computations that call the next smaller one twice."""
    texts = [
        f"%b{level} (p: s32[]) -> s32[] {{\n  %p = s32[] parameter(0)\n"
        f"  %v = s32[] {call.format(level - 1)}\n  ROOT %w = s32[] {call.format(level - 1)}\n}}"
        for level in range(1, levels)
    ]
    smallest = (
        "%b0 (p: s32[]) -> s32[] {\n  %p = s32[] parameter(0)\n  ROOT %n = s32[] negate(%p)\n}"
    )
    last = "%p = s32[] parameter(0)", f"ROOT %r = s32[] {call.format(levels - 1)}"
    return module(*last, computations="\n".join([smallest, *texts]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "call", "message"),
    [
        (60, "call(%p), to_apply=%b{}", "unfold to more than 10,000"),
        (3000, "call(%p), to_apply=%b{}", "calls are nested more than 100 deep"),
        (3000, "fusion(%p), calls=%b{}", "fusions are nested more than 100 deep"),
    ],
)
def test_bombs_are_refused(levels, call, message, monkeypatch):
    monkeypatch.setattr(hlo_program, "MOST_STEPS", 10_000)  # a hundredth, and of the time
    with pytest.raises(ConfigError, match=message):
        program_of(nested(levels, call))


def test_tuples_of_tuples_take_no_memory_to_read():
    from simcoll.jobs.hlo_memory import memory_of

    lines = [f"%t{n + 1} = (f32[4]) tuple(%t{n}, %t{n})" for n in range(300)]
    assert memory_of(module("%t0 = f32[4] parameter(0)", *lines)).arguments == 16


def test_a_fusion_may_hold_a_collective():
    inner = """
%scatter (a: bf16[16,4]) -> bf16[2,4] {
  %a = bf16[16,4] parameter(0)
  %s = bf16[2,4] reduce-scatter-start(%a), replica_groups={}, channel_id=1, use_global_device_ids=true
  ROOT %d = bf16[2,4] reduce-scatter-done(%s)
}
"""
    _, program = collectives("ROOT %f = bf16[2,4] fusion(%x), calls=%scatter", computations=inner)
    ((collective, _),) = program.collectives
    assert (collective.kind, collective.size_bytes, collective.synchronous) == (
        "reduce_scatter",
        128,
        True,
    )
