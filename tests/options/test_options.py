"""Option values that cannot be, and the environment twins of options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specrun.errors import UsageError
from specrun.llama import library
from specrun.options.sampling_options import settled
from specrun.options.speculation_options import ModelOptions
from tests.conftest import SCRIPT_TEXT, SpecrunHere
from tests.models import random_llama


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-tokens", "0"),
        ("--max-tokens", "-5"),
        ("--temp", "nan"),
        ("--temp", "-1"),
        ("--temp", "inf"),
        ("--top-k", "-1"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--min-p", "2"),
        ("--repeat-penalty", "0"),
        ("--presence-penalty", "nan"),
        ("--frequency-penalty", "inf"),
        ("--repeat-last-n", "-1"),
        ("--seed", "-7"),
        ("--logit-bias", "5"),
        ("--logit-bias", "100000000+1"),
        ("--seed", "99999999999999999999"),
        ("--budget", "0"),
        ("--budget", "100000"),
        ("--depth", "-1"),
        ("--width", "0"),
        ("--ctx-size", "0"),
        ("--ctx-size", "99999999999"),
        ("--threads", "0"),
        ("--threads-batch", "5000"),
        ("--batch-size", "0"),
        ("--ubatch-size", "1000000"),
        ("--main-gpu", "-1"),
        ("--n-cpu-moe", "-1"),
        ("--tensor-split", "1,x"),
        ("--rpc", "localhost"),
        ("--rpc", ":50052"),
        ("--rpc", "a:0"),
        ("--rpc", "a:70000"),
        ("--rpc", "a:1,b"),
        ("--rpc", ",".join(f"a:{port}" for port in range(1, 18))),
        ("--tensor-split", "0,0"),
        ("--tensor-split", "-1,2"),
        ("--tensor-split", "nan"),
        ("--gpu-layers", "-2"),
        ("--gpu-layers", "99999999999"),
        ("--gpu-layers", "most"),
        ("--gpu-layers-draft", "-2"),
    ],
)
def test_a_value_out_of_range_is_named_in_one_line(here: SpecrunHere, script: Path, option: str, value: str) -> None:
    here("generate", "x", "-m", script, "-md", script, option, value).assert_fails(2, option, "must be")


def test_json_and_jsonl_exclude_each_other(here: SpecrunHere) -> None:
    here("generate", "x", "--json", "--jsonl").assert_fails(2, "--json")


def test_a_draft_alone_is_refused(here: SpecrunHere, script: Path) -> None:
    here("generate", "x", "--draft", script).assert_fails(2, "--target")


def test_minus_one_means_no_limit(here: SpecrunHere, script: Path) -> None:
    assert here("generate", "x", "-m", script, "-n", "-1").stdout == f"{SCRIPT_TEXT}\n"


def test_gpu_layers_without_a_gpu_are_ignored_with_a_notice(here: SpecrunHere, script: Path) -> None:
    if library.has_gpu():
        pytest.skip("this llama.cpp has a GPU backend")
    result = here("generate", "x", "-m", script, "--speculate", "off", "-ngl", "5")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")
    assert "without a GPU backend" in result.stderr


def test_target_and_draft_can_come_from_the_environment(here: SpecrunHere, script: Path) -> None:
    result = here("generate", "x", SPECRUN_TARGET=str(script), SPECRUN_DRAFT=str(script))
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")


def test_an_option_is_stronger_than_the_environment(here: SpecrunHere, script: Path) -> None:
    result = here("generate", "x", "-m", script, SPECRUN_TARGET="/nowhere.gguf")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")


@pytest.mark.slow
def test_every_way_to_speculate_writes_the_same(here: SpecrunHere, random_model: Path) -> None:
    arguments = ["generate", "x", "-m", random_model, "-md", random_model, "-n", "12"]
    texts = {here(*arguments, "--speculate", method).stdout for method in ("auto", "off", "chain", "tree")}
    assert len(texts) == 1
    assert texts != {""}


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["-fa", "off", "-ctv", "q8_0"], ("--cache-type-v q8_0", "flash attention")),
        (["-fa", "off", "-ctvd", "q4_0"], ("--cache-type-v-draft q4_0", "flash attention")),
        (["--cpu-moe", "--n-cpu-moe", "3"], ("--cpu-moe", "--n-cpu-moe")),
        (["--tensor-split", "3,1", "--split-mode", "none"], ("--tensor-split", "--split-mode")),
    ],
)
def test_combinations_that_cannot_be_are_refused(
    here: SpecrunHere, script: Path, options: list[str], parts: tuple[str, ...]
) -> None:
    here("generate", "x", "-m", script, "-md", script, *options).assert_fails(2, *parts)


def test_a_cache_type_that_does_not_divide_the_heads_is_refused(here: SpecrunHere, tmp_path: Path) -> None:
    path = random_llama(tmp_path / "model.gguf", n_embd=96, n_head=2)
    here("generate", "x", "-m", path, "--speculate", "off", "-ctk", "q8_0").assert_fails(2, "--cache-type-k", "48")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["-ctk", "q8_0", "-ctv", "q4_0", "-ctkd", "f32", "-ctvd", "iq4_nl"],
        ["-fa", "off"],
        ["-fa", "auto", "-ctv", "f16"],
        ["--repack"],
        ["--no-repack", "-lm", "none", "-tb", "2", "--no-op-offload"],
        ["--load-mode", "mmap+mlock"],
        ["-ngl", "all", "-ngld", "auto", "-ncmoe", "1", "-ts", "3,1", "-mg", "0", "-sm", "row"],
        ["-cmoe", "-sm", "none"],
    ],
)
def test_every_knob_of_llama_cpp_runs(here: SpecrunHere, script: Path, options: list[str]) -> None:
    result = here("generate", "x", "-m", script, "-md", script, *options)
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n"), result


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ()),
        (["15043+1", "7-0.5", "8-inf", "9+.5"], ((15043, 1.0), (7, -0.5), (8, -1e6), (9, 0.5))),
        ({15043: 1, 8: float("-inf")}, ((15043, 1.0), (8, -1e6))),
    ],
)
def test_biases_are_read_from_the_command_line_and_from_python(given: Any, expected: Any) -> None:
    assert settled("logit_bias", given) == expected


@pytest.mark.parametrize("text", ["15043", "x+1", "5+", "5=1", "5+1e3x", "-5+1"])
def test_a_bias_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--logit-bias must be .*15043\+1.5"):
        settled("logit_bias", [text])


def test_quotes_around_the_demo_pairs_name_do_not_take_its_draft() -> None:
    assert ModelOptions("'embedded' ", '"none"') == ModelOptions("embedded", "none")
