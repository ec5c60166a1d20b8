"""The widening script: a wider and deeper model computes what the small one does, and nothing half-done remains."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from scripts.widening import compare, model
from specrun.catalog import embedded
from specrun.making.make import Candidate
from tests.models import TOKENS, Reader, edited, metadata_of, random_bert, random_llama, truncated, write_tensors

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.long
Type = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def source(made: Path) -> Path:
    """A llama of width 64: two query heads of 32, one key/value head."""
    return random_llama(made / "narrow.gguf")


def run(*arguments: str | Path) -> int:
    return int(model.main([str(argument) for argument in arguments]))


def widened(source: Path, *arguments: str | Path) -> tuple[Path, Any]:
    """The wider model and how it compares with its source."""
    path = source.with_name("widened.gguf")
    assert run(source, path, "--no-check", "--force", *arguments) == 0
    return path, compare.compare(source, path, 1)


def tensors(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def value(path: Path, key: str) -> Any:
    return gguf.GGUFReader(path).fields[key].contents()


# --- it computes the same ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [[], ["--layers", 4], ["--ff", 256], ["--embd", 128], ["--embd", 192], ["--embd", 256]]
)
def test_a_wider_model_has_the_same_logits_bit_for_bit(source: Path, size: list[Any]) -> None:
    _, report = widened(source, *size)
    assert report.difference == 0
    assert report.partings == []
    assert report.n_same_best == report.n_tokens == compare.N_TEXT


def test_the_demo_draft_with_tied_embeddings_can_be_widened(tmp_path: Path) -> None:
    source = tmp_path / "draft.gguf"
    source.write_bytes(embedded.DRAFT.read_bytes())
    path, report = widened(source, "--embd", 512, "--layers", 5, "--ff", 1024, "--heads", 16, "--kv-heads", 4)
    assert report.failure(0.1) is None
    assert "output.weight" not in tensors(path)


@pytest.mark.parametrize(
    ("had", "wanted"),
    [
        ((2, 1), (8, 1)),  # a wider group
        ((2, 1), (8, 4)),  # more groups
        ((4, 2), (12, 3)),  # both
        ((4, 1), (4, 4)),  # a group split: its key/value head is copied
        ((6, 1), (16, 4)),  # the same, unevenly
        ((4, 4), (16, 4)),  # no groups before
        ((3, 1), (24, 2)),
    ],
)
def test_query_heads_keep_their_key_value_head(tmp_path: Path, had: tuple[int, int], wanted: tuple[int, int]) -> None:
    source = random_llama(tmp_path / "a.gguf", n_embd=32 * had[0], n_head=had[0], n_head_kv=had[1])
    _, report = widened(source, "--heads", wanted[0], "--kv-heads", wanted[1])
    assert report.failure(0.1) is None


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_wider_heads_give_the_same_logits_bit_for_bit_where_they_are_added_up_alike(tmp_path: Path, kind: str) -> None:
    """Four times as wide, so queries are doubled. CPUs add up 32, 64 or 128 products at once."""
    source = random_llama(tmp_path / "a.gguf", n_embd=512, n_head=4, n_head_kv=2, weight_type=Type[kind.upper()])
    path, report = widened(source, "--head-dim", 512, "--heads", 8, "--layers", 3, "--type", kind)
    assert report.difference == 0
    assert report.partings == []
    assert value(path, "llama.rope.freq_base") == pytest.approx(10_000.0**4)
    assert tensors(path)["blk.2.attn_q.scale"].data.tolist() == [2.0]


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_demo_target_with_wider_heads_is_close_and_says_so(
    tmp_path: Path, head_dim: int, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "target.gguf"
    source.write_bytes(embedded.TARGET.read_bytes())
    path, report = widened(source, "--head-dim", head_dim)
    assert report.n_same_best > 0.95 * report.n_tokens
    assert all(gap < report.difference for _, gap in report.partings)
    assert tensors(path)["blk.0.attn_q.weight"].shape.tolist() == [256, 8 * head_dim]
    assert ("--head-dim 128 is closer" in capsys.readouterr().err) == (head_dim == 64)


def test_factors_of_the_rotation_stay_with_the_numbers_that_rotate(tmp_path: Path) -> None:
    freqs = np.linspace(1, 8, 64, dtype=np.float32)
    plain = random_llama(tmp_path / "plain.gguf", n_embd=256)
    reader = Reader(plain)
    added = tensors(plain)["output_norm.weight"]._replace(name="rope_freqs.weight", data=freqs)
    source = write_tensors(tmp_path / "a.gguf", metadata_of(reader), [*reader.tensors, added])
    path, report = widened(source, "--head-dim", 512)
    assert report.difference == 0
    np.testing.assert_array_equal(tensors(path)["rope_freqs.weight"].data, [*freqs, *[1] * 192])


def test_a_width_between_the_exact_ones_is_close_and_says_so(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, report = widened(source, "--embd", 96)
    assert report.failure(0.1) is None
    assert "for the same bits choose --embd 256 or 1024" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q5_1", "q5_0", "q4_1", "q4_0", "mxfp4"])
def test_weights_of_every_type_are_kept(tmp_path: Path, kind: str) -> None:
    source = random_llama(tmp_path / "a.gguf", weight_type=Type[kind.upper()])
    path, report = widened(source, "--embd", 256, "--layers", 3, "--type", kind)
    assert tensors(path)["blk.0.attn_q.weight"].tensor_type == Type[kind.upper()]
    assert report.failure(0.1) is None


def test_another_type_than_the_source_has_is_close_and_says_so(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, report = widened(source, "--embd", 256, "--type", "f16")
    assert tensors(path)["blk.0.attn_q.weight"].tensor_type == Type.F16
    assert report.difference < report.spread
    assert "not all matrices of the source are F16" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("q4_0", "Q4_0"), ("q3_k_m", "Q3_K"), ("q4_k_m", "Q4_K"), ("q5_k_m", "Q5_K"), ("q6_k", "Q6_K"),
     ("iq4_nl", "IQ4_NL"), ("iq4_xs", "IQ4_XS")],
)  # fmt: skip
def test_the_other_types_are_made_by_llama_cpps_quantizer(
    source: Path, capsys: pytest.CaptureFixture[str], kind: str, expected: str
) -> None:
    wide = ["--embd", 256, "--ff", 256, "--heads", 8, "--vocab", 4096]
    path, report = widened(source, *wide, "--type", kind)
    assert tensors(path)["blk.1.attn_q.weight"].tensor_type == Type[expected]
    assert (
        report.n_same_best > report.n_tokens / 4
    )  # by chance 1 in 4,096; the weights are random, rounding weighs much
    assert report.added < -1000
    assert f"not all matrices of the source are {kind.upper()}" in capsys.readouterr().err


def test_widths_that_a_k_quant_does_not_divide_are_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(source, tmp_path / "wide.gguf", "--embd", 256, "--ff", 288, "--type", "q4_k_m") == 2
    assert_one_line(capsys, "--ff 288 is not a multiple of 256, as q4_k_m needs; give 512")
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_quantizer_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def stopped(_: Candidate, wide: Path, *__: object, **___: object) -> None:
        seen.append(wide.stat().st_size)
        raise KeyboardInterrupt

    monkeypatch.setattr(Candidate, "write", stopped)
    wide = ["--embd", 256, "--ff", 256, "--heads", 8, "--type", "q4_k_m"]
    assert run(source, tmp_path / "wide.gguf", *wide, "--no-check") == 130
    assert seen[0] > 0
    assert list(tmp_path.iterdir()) == []


def test_weights_keep_their_bytes_and_the_rest_is_noise_or_zero(source: Path) -> None:
    path, _ = widened(source, "--embd", 128, "--layers", 3, "--ff", 256, "--heads", 4)
    old, new = tensors(source), tensors(path)
    block = 34  # bytes of 32 weights
    for name, rows, blocks in [("attn_q", 64, 2), ("ffn_up", 128, 2), ("ffn_down", 64, 4), ("attn_output", 64, 2)]:
        name = f"blk.1.{name}.weight"
        np.testing.assert_array_equal(new[name].data[:rows, : blocks * block], old[name].data, err_msg=name)
    for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
        assert np.count_nonzero(new[f"blk.2.{name}.weight"].data) > new[f"blk.2.{name}.weight"].data.size // 2
    for name in ("attn_output", "ffn_down"):
        assert not new[f"blk.2.{name}.weight"].data.any()
        assert not new[f"blk.1.{name}.weight"].data[:, {"attn_output": 2, "ffn_down": 4}[name] * block :].any()


def test_metadata_are_copied_with_the_new_sizes(tmp_path: Path) -> None:
    source = edited(tmp_path / "a.gguf", embedded.DRAFT, {"general.name": "ant", "llama.rope.freq_base": 5000.0})
    path, _ = widened(source, "--embd", 1024, "--layers", 5)
    old, new = gguf.GGUFReader(source).fields, gguf.GGUFReader(path).fields
    for key in old:
        if key.startswith(("tokenizer.", "llama.rope.freq")):
            assert new[key].contents() == old[key].contents(), key
            assert new[key].types == old[key].types, key
    assert value(path, "general.name") == "ant widened to 19.1M"
    assert value(path, "llama.embedding_length") == 1024
    assert value(path, "llama.attention.key_length") == value(path, "llama.rope.dimension_count") == 32
    assert value(path, "llama.attention.layer_norm_rms_epsilon") == pytest.approx(1e-5 / 4)


def test_the_seed_decides_the_noise(source: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        assert run(source, path, "--no-check", "--ff", 256, "--seed", seed) == 0
    one, same, other = (path.read_bytes() for path in paths)
    assert one == same != other


# --- added tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_added_tokens_never_win_and_change_no_bit(tmp_path: Path, tied: bool) -> None:
    source = tmp_path / "a.gguf"
    if tied:
        source.write_bytes(embedded.DRAFT.read_bytes())
    else:
        random_llama(source)
    width = 1024 if tied else 256
    n_before = len(value(source, TOKENS))
    path, report = widened(source, "--embd", width, "--vocab", n_before + 100)
    assert report.difference == 0
    assert report.partings == []
    assert report.added < -1000
    assert value(path, TOKENS)[n_before] == f"[PAD{n_before}]"
    assert value(path, "llama.vocab_size") == len(value(path, TOKENS)) == n_before + 100
    assert len(tensors(path)["output.weight"].data) == n_before + 100


def test_added_tokens_work_with_every_type(source: Path) -> None:
    for kind in ("f16", "q4_0"):
        wide = ["--embd", 256, "--ff", 256, "--heads", 8, "--vocab", 4096]
        _, report = widened(source, *wide, "--type", kind)
        assert report.added < -1000, kind
        assert report.n_added == 0, kind


# --- it refuses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--embd", 32], "--embd 32 is smaller than the source's 64; give 64 or more"),
        (["--layers", 1], "--layers 1 is smaller than the source's 2"),
        (["--ff", 0], "--ff 0 is smaller than the source's 128"),
        (["--heads", 1], "--heads 1 is smaller"),
        (["--kv-heads", 0], "--kv-heads 0 is smaller"),
        (["--vocab", 10], "--vocab 10 is smaller"),
        (["--head-dim", 16], "--head-dim 16 is smaller than the source's 32"),
        (["--head-dim", 80], "--head-dim 80 is not a multiple of 32; give 96"),
        (["--head-dim", 320], "--head-dim 320 is too wide for the rotation of"),
        (["--embd", 100], "--embd 100 is not a multiple of 32; give 128"),
        (["--ff", 129], "--ff 129 is not a multiple of 32; give 160"),
        (["--heads", 5, "--kv-heads", 2], "--heads 5 is not a multiple of --kv-heads 2; give 6"),
        (["--vocab", 5000], "--vocab needs a spare width; give --embd 96 or more"),
        (["--type", "q4_k"], "invalid choice: 'q4_k'"),
        (["--embd", "wide"], "invalid int value: 'wide'"),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_a_line(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[Any],
    message: str,
) -> None:
    assert refused(source, tmp_path / "wide.gguf", *arguments) == 2
    assert_one_line(capsys, message)
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_finds_no_room_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = random_llama(tmp_path / "a.gguf", n_embd=256, n_head=8, n_head_kv=2)
    assert refused(source, tmp_path / "wide.gguf", "--heads", 12, "--kv-heads", 6) == 0
    assert refused(source, tmp_path / "other.gguf", "--heads", 9, "--kv-heads", 3) == 2
    assert_one_line(capsys, "leave 3 query heads to a key/value head where the source has 4", "or 4 --kv-heads")


def test_sources_that_cannot_be_widened_are_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    bad = {
        tmp_path / "none.gguf": "no such file",
        tmp_path / "text.gguf": "is not a readable GGUF file",
        truncated(tmp_path / "half.gguf", source, 100_000): "is not a readable GGUF file",
        random_bert(tmp_path / "bert.gguf"): "is a bert model; choose one of the llama architecture",
        edited(tmp_path / "moe.gguf", source, {"llama.expert_count": 8}): "has no tensor blk.0.ffn_down_exps.weight",
        edited(tmp_path / "split.gguf", source, {"split.count": 2}): "one part of a split file",
        edited(tmp_path / "list.gguf", source, {"llama.feed_forward_length": [128, 128]}): "one value for each layer",
        edited(tmp_path / "lacks.gguf", source, {"llama.block_count": None}): "lacks llama.block_count",
        edited(tmp_path / "deep.gguf", source, {"llama.block_count": 3}): "has no tensor blk.2.attn_k.weight",
        edited(tmp_path / "flat.gguf", source, {"llama.block_count": 1}): "has a tensor blk.1.attn_k.weight, which",
        edited(tmp_path / "words.gguf", source, {TOKENS: None}): "has no vocabulary",
        random_llama(tmp_path / "heads.gguf", n_head=4, weight_type=Type.F32): "has a head width of 16, not a multiple",
    }
    for path, message in bad.items():
        assert refused(path, tmp_path / "wide.gguf") == 2
        assert_one_line(capsys, str(path), message)
    assert not (tmp_path / "wide.gguf").exists()


def test_destinations_that_cannot_be_are_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    present = tmp_path / "present.gguf"
    present.write_text("precious")
    assert refused(source, present) == 2
    assert_one_line(capsys, "present.gguf exists; --force replaces it")
    assert refused(source, source, "--force") == 2
    assert_one_line(capsys, "is the source itself")
    assert refused(source, tmp_path) == 2
    assert_one_line(capsys, "is a folder; give the name of a file")
    assert refused(source, tmp_path / "no" / "wide.gguf") == 2
    assert_one_line(capsys, "no such folder; make it first")
    assert present.read_text() == "precious"
    assert run(source, present, "--force", "--no-check") == 0
    assert tensors(present)


def test_a_full_disk_is_noticed_before_writing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # More than any disk has, and nothing of it is made.
    assert refused(source, tmp_path / "wide.gguf", "--embd", 1 << 30, "--ff", 1 << 30) == 2
    assert_one_line(capsys, "MB free and the model needs", "make room or choose smaller sizes")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted, nothing written"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2, "cannot be written: No space left"),
    ],
)
def test_an_interrupted_write_leaves_nothing(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    code: int,
    message: str,
) -> None:
    seen: list[list[Path]] = []

    def add(*_: object) -> None:
        seen.append(list(tmp_path.iterdir()))
        if len(seen) == 5:
            raise failure

    monkeypatch.setattr(model.Progress, "add", add)
    assert run(source, tmp_path / "wide.gguf", "--no-check") == code
    assert_one_line(capsys, message)
    assert [path.name for path in seen[-1]] == [f"wide.gguf.{os.getpid()}.partial"]
    assert list(tmp_path.iterdir()) == []


# --- the check -----------------------------------------------------------------------------------------------------


def test_the_check_finds_another_model(source: Path, tmp_path: Path) -> None:
    report = compare.compare(source, random_llama(tmp_path / "other.gguf", seed=1), 1)
    assert "more than rounding explains" in report.failure(0.1)
    assert len(report.partings) == len(compare.PROMPTS)


@pytest.mark.parametrize(
    ("changed", "failure"),
    [
        ({}, None),
        ({"difference": float("nan")}, "more than rounding explains"),
        ({"difference": 0.3}, "more than rounding explains"),
        ({"partings": [(3, 0.05)]}, None),
        ({"partings": [(3, 0.05), (4, 0.15)]}, "a greedy text differs"),
        ({"n_added": 1}, "an added token was the best"),
    ],
)
def test_which_results_of_the_check_are_failures(changed: dict[str, Any], failure: str | None) -> None:
    same = {
        "n_tokens": 9,
        "difference": 0.1,
        "spread": 2.0,
        "n_same_best": 9,
        "added": None,
        "n_added": 0,
        "partings": [],
    }
    found = compare.Report(**same | changed).failure(0.1)
    assert failure in found if failure else found is None


def test_the_command_reports_and_fails_with_the_check(source: Path, tmp_path: Path) -> None:
    options = ["--embd", "256", "--threads", "1"]
    command = [sys.executable, "-m", "scripts.widening.model", source, tmp_path / "w.gguf", *options]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "parameters" in result.stdout
    assert "largest difference of a logit 0 (" in result.stdout
    assert "greedy texts of 64 tokens: 3 of 3 the same" in result.stdout
    assert result.stderr == ""


def test_a_failed_check_is_the_exit_code(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = random_llama(tmp_path / "other.gguf", seed=1)
    real = compare.compare
    monkeypatch.setattr(compare, "compare", lambda one, _, threads: real(one, other, threads))
    assert run(source, tmp_path / "wide.gguf", "--threads", 1) == 1
    assert "check failed: logits differ by" in capsys.readouterr().err


def refused(*arguments: str | Path) -> int:
    """Exit code of a run without the check."""
    try:
        return run(*arguments, "--no-check")
    except SystemExit as stop:
        return int(stop.code or 0)


def assert_one_line(capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if "note:" not in line]
    assert len(lines) == 1, err
    assert all(part in lines[0] for part in parts), err
    assert not out or "parameters" in out
