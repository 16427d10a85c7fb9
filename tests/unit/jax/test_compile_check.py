"""What `compile-check` reads, adds up and advises; nothing is compiled here (tests/integration/test_compile_check.py does)."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from common import cli
from common.commands import compile_check as command
from common.errors import ConfigError, RunError
from common.model_shape import BUILT_IN
from rolloutpipe_jax import compile_check
from rolloutpipe_jax.memory import GIB, Footprint, Program, Setup, advise, state_gib, working_gib
from rolloutpipe_jax.topology import Topology, parse_mesh, parse_topology

WORDS = ["compile-check", "--topology", "v5e:2x4", "--model", "qwen3-1.7b"]
# As the models' cards give them, in billions.
SIZES = {
    "qwen3-0.6b": 0.6,
    "qwen3-1.7b": 1.7,
    "qwen3-4b": 4.0,
    "qwen3-8b": 8.2,
    "qwen3-14b": 14.8,
    "qwen3-32b": 32.8,
    "llama3-8b": 8.0,
}


def setup_of(model: str = "qwen3-1.7b", topology: str = "v5e:2x4", **changes: object) -> Setup:
    where = parse_topology(topology)
    values = {"topology": where, "fsdp": where.num_chips, "tp": 1, "model": model, "shape": BUILT_IN[model], **changes}
    return Setup(**values)


def footprint_of(**changes: object) -> Footprint:
    accumulate = Program(temporaries=70, outputs=8, code=1, compile_s=3.0)
    step = Program(temporaries=9, outputs=0, code=2, compile_s=1.0)
    values = {"parameters": 10, "gradient_sums": 10, "moments": 20, "batch": 5, "accumulate": accumulate, "step": step}
    return Footprint(**(values | changes))


@pytest.mark.parametrize("model", BUILT_IN)
def test_built_in_shapes_have_the_parameters_that_the_models_are_known_for(model):
    assert SIZES[model] == pytest.approx(BUILT_IN[model].num_params / 1e9, abs=0.05)


@pytest.mark.parametrize(("name", "chips"), [("v5e:2x4", 8), ("v6e:16x16", 256), ("v5p:2x2x1", 4), ("v5e:1x1", 1)])
def test_a_topology_has_the_chips_of_its_grid(name, chips):
    assert (parse_topology(name).num_chips, parse_topology(name).name) == (chips, name)


@pytest.mark.parametrize("name", ["v5e:0x2", "v5e:2x3", "v5e:8", "v5e", "v5p:2x2", "v9:2x2", "", "2x4", "V5E:2x4", "v5e:2x4 "])
def test_an_unknown_topology_is_refused_before_the_compiler_sees_it(name):
    """Of v5e:0x2 libtpu 0.0.52 dies by a division by zero."""
    with pytest.raises(ConfigError, match=r"^--topology: must be a known TPU slice, got '.*v5p:2x2x1"):
        parse_topology(name)


def test_larger_topologies_are_of_the_same_family_and_in_order():
    assert [each.name for each in parse_topology("v6e:4x8").larger()] == ["v6e:8x8", "v6e:8x16", "v6e:16x16"]
    assert parse_topology("v5e:16x16").larger() == ()


@pytest.mark.parametrize(
    ("text", "mesh"),
    [(None, (8, 1)), ("fsdp=8,tp=1", (8, 1)), ("tp=4,fsdp=2", (2, 4)), ("tp=2", (4, 2)), ("fsdp=8", (8, 1)), ("tp=8", (1, 8))],
)
def test_an_axis_left_out_takes_the_other_chips(text, mesh):
    assert parse_mesh(text, 8) == mesh


@pytest.mark.parametrize("text", ["fsdp=4", "fsdp=4,tp=1", "tp=3", "fsdp=8,tp=2", "tp=16"])
def test_a_mesh_that_does_not_use_every_chip_is_refused(text):
    with pytest.raises(ConfigError, match=r"^--mesh: must use the topology's 8 chips, got 'fsdp=\d+,tp=\d+'; use fsdp="):
        parse_mesh(text, 8)


@pytest.mark.parametrize("text", ["", "8,1", "dp=8", "fsdp=0,tp=8", "fsdp=-8", "fsdp=8.0", "tp=2,tp=4", "fsdp=²"])
def test_a_mesh_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=r"^--mesh: must .*write fsdp=N,tp=M$"):
        parse_mesh(text, 8)


def test_the_peak_is_the_larger_of_both_programs_and_counts_the_moments_in_both():
    found = footprint_of()
    assert found.while_accumulating == 10 + 10 + 20 + 3 + 5 + 78
    assert found.while_stepping == 10 + 10 + 20 + 3 + 9
    assert found.peak == 126
    assert footprint_of(step=Program(temporaries=100, outputs=0, code=2, compile_s=1.0)).peak == 143


def test_parts_add_up_to_the_peak():
    parts = footprint_of().parts()
    assert sum(size for name, size in parts.items() if name != "step_temporaries") == footprint_of().while_accumulating
    shared = sum(parts[name] for name in ("parameters", "gradient_sums", "moments", "programs", "step_temporaries"))
    assert shared == footprint_of().while_stepping


def test_what_fits_the_compiler_may_not_fit_beside_the_moments():
    setup = setup_of()
    size = int(setup.topology.hbm_gib * GIB) - footprint_of().peak
    assert footprint_of(moments=20 + size).fits(setup)
    assert not footprint_of(moments=21 + size).fits(setup)


def test_where_the_compiler_gave_up_nothing_fits():
    gave_up = Program(temporaries=1, outputs=0, code=0, compile_s=1.0, is_too_large=True)
    assert not footprint_of(accumulate=gave_up).fits(setup_of())
    assert not footprint_of(step=gave_up).fits(setup_of())


def test_tokens_and_flops():
    setup = setup_of(rows=2, fsdp=4, tp=2)
    assert setup.tokens == 4 * 2 * 4096
    assert setup.flops == 6 * 1_720_574_976 * 32_768


def test_free_changes_are_advised_first_and_end_the_advice_where_they_are_enough():
    (advice,) = advise(setup_of(remat=False), 20.0)
    assert advice.what == "remat: leave out --no-remat"
    assert advice.fits and advice.estimated_gib < 15.75
    assert advice.setup == setup_of()


@pytest.mark.parametrize(
    ("changes", "measured_gib"),
    [({}, 1.600), ({"remat": False}, 5.488), ({"attention": "xla"}, 3.121), ({"fsdp": 4, "tp": 2}, 1.211)],
)
def test_the_estimate_is_near_what_the_compiler_said(changes, measured_gib):
    """Qwen3-1.7B on v5e:2x4, one row of 4096 tokens a chip: docs/compile-check.md."""
    assert working_gib(setup_of(**changes)) == pytest.approx(measured_gib, rel=0.2)


def test_the_compilers_figure_scales_the_advice_on_the_same_program():
    setup = setup_of("qwen3-8b", rows=4)
    plain = [each.estimated_gib for each in advise(setup, state_gib(setup) + working_gib(setup))]
    doubled = [each.estimated_gib for each in advise(setup, state_gib(setup) + 2 * working_gib(setup))]
    assert doubled[0] - plain[0] == pytest.approx(plain[0] - state_gib(setup))


def test_changes_that_are_not_enough_alone_are_put_on_top_of_each_other():
    setup = setup_of("qwen3-8b", remat=False, attention="xla", dtype="float32", seq_len=4000)
    free = [each for each in advise(setup, 150.0) if "leave out" in each.what]
    assert [each.what.partition(":")[0] for each in free] == ["remat", "splash attention", "bfloat16 compute"]
    assert free[-1].setup == setup_of("qwen3-8b", seq_len=4096)
    sizes = [each.estimated_gib for each in free]
    assert sizes == sorted(sizes, reverse=True)


def test_the_smallest_topology_that_fits_is_advised():
    setup = setup_of("qwen3-8b")
    (chips,) = [each for each in advise(setup, state_gib(setup) + working_gib(setup)) if "more chips:" in each.what]
    assert chips.setup.topology == Topology("v5e", "4x4") and chips.fits
    assert (chips.setup.fsdp, chips.setup.tp) == (16, 1)


def test_rows_go_before_length():
    setup = setup_of(rows=8)
    batches = [each.what for each in advise(setup, 16.0) if "rows" in each.what or "sequences" in each.what]
    assert batches == ["fewer rows: --rows 4"]


def test_advice_can_be_typed():
    for each in advise(setup_of("qwen3-8b", rows=2, loss="gspo", remat=False), 60.0):
        words = each.setup.words.split()
        assert words[0] == "compile-check" and "--no-remat" not in words
        given = dict(zip(words[1::2], words[2::2], strict=True))
        again = command.make_setup(
            topology=given["--topology"],
            model=given["--model"],
            mesh=given["--mesh"],
            seq_len=int(given["--seq-len"]),
            rows=int(given.get("--rows", 1)),
            attention="splash",
            dtype="bfloat16",
            remat=True,
            loss=given["--loss"],
        )
        assert again == each.setup


def test_a_chip_too_small_for_anything_gets_advice_that_says_so():
    advice = advise(setup_of("qwen3-32b", "v5e:1x1"), 600.0)
    assert [each.fits for each in advice if "sequences" in each.what] == [False]
    assert any(each.fits for each in advice if "more chips" in each.what)


BAD = [
    (["--topology", "v5e:2x3"], "--topology: must be a known TPU slice, got 'v5e:2x3'"),
    (["--mesh", "fsdp=4"], "--mesh: must use the topology's 8 chips, got 'fsdp=4,tp=1'; use fsdp=8,tp=1"),
    (
        ["--topology", "v5e:4x4", "--mesh", "tp=16"],
        "--mesh: tp must divide the model's 8 key and value heads, got 'fsdp=1,tp=16'",
    ),
    (["--seq-len", "4000"], "--seq-len: must be a multiple of 128 with splash attention, got 4000; use 4096"),
    (["--seq-len", "0"], "--seq-len: must be 1 or more, got 0"),
    (["--rows", "-1"], "--rows: must be 1 or more, got -1"),
    (["--model", "gpt2"], "--model: must be a built-in shape (qwen3-0.6b"),
    (["--attention", "flash"], "--attention: must be one of splash, xla, got 'flash'"),
    (["--dtype", "int8"], "--dtype: must be one of bfloat16, float32, got 'int8'"),
    (["--loss", "ppo"], "--loss: must be one of grpo, dr_grpo, dapo, gspo, cispo, got 'ppo'"),
]


@pytest.mark.parametrize(("words", "line"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_bad_input_is_one_line_and_exit_2(words, line, capsys):
    assert cli.run([*WORDS, *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"rolloutpipe: {line}") and err.count("\n") == 1


@pytest.mark.parametrize(("package", "extra"), [("jax", "jax"), ("libtpu", "tpu")])
def test_a_package_that_is_missing_is_named_with_its_extra(package, extra, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == package else object())
    assert cli.run(WORDS) == 2
    err = capsys.readouterr().err
    assert err.startswith("rolloutpipe: compile-check: needs a package that is not installed")
    assert f"got '{package}'; pip install 'rolloutpipe[{extra}]'" in err


def test_what_does_not_fit_is_exit_1_with_advice_and_a_result(tmp_path: Path, monkeypatch, capsys):
    need = Program(temporaries=17 * GIB, outputs=0, code=0, compile_s=2.0, is_too_large=True)
    monkeypatch.setattr(compile_check, "footprint", lambda setup: footprint_of(accumulate=need))
    assert cli.run([*WORDS, "--no-remat", "--json", str(tmp_path / "result.json")]) == 1
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["fits"] is False and result["gib_per_chip"] == pytest.approx(17.0)
    (advice,) = result["advice"]
    assert advice["fits"] and advice["command"].endswith("--seq-len 4096 --mesh fsdp=8,tp=1")
    out = capsys.readouterr().out
    assert "does not fit: 17.00 GiB of 15.75 GiB a chip" in out and "leave out --no-remat" in out


def test_a_compiler_that_dies_is_told_with_its_last_words(monkeypatch):
    """As it does of a topology without chips, which the command does not let through."""
    script = "import os, sys; print('F0000 check failed: chips > 0', file=sys.stderr, flush=True); os.abort()"
    run = compile_check.subprocess.run
    monkeypatch.setattr(
        compile_check.subprocess, "run", lambda command, **options: run([sys.executable, "-c", script], **options)
    )
    with pytest.raises(RunError, match=r"process ended with -6: .*F0000 check failed: chips > 0"):
        compile_check.footprint(setup_of())


def test_the_compilers_word_on_memory_is_read():
    words = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries "
        "(17.73G) exceeds available HBM (15.75G). HLO module: jit__accumulate.\nSee https://openxla.org/xla/errors/error_1000"
    )
    found = compile_check._TOO_LARGE.search(words)
    assert found is not None and found.groups() == ("17.73", "G")


def test_the_table_shows_the_parts_and_the_verdict(monkeypatch):
    monkeypatch.setattr(compile_check, "footprint", lambda setup: footprint_of(parameters=2 * GIB))
    console = Console(width=130, record=True)
    result = command.check(setup_of(), console)
    text = console.export_text()
    assert result["fits"] and "parameters (float32)" in text and "2.000" in text
    assert "3.383e+14 FLOPs" in text  # 6 x 1.72e9 x 32,768
    assert replace(setup_of(), rows=2).tokens == 2 * result["tokens"]
