"""Whether attention is faster without flash attention on this CPU: what is measured, kept and followed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specrun import kept_facts
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.hardware.memory import Memory
from specrun.llama.quantizer import quantize
from specrun.llama_settings import LlamaSettings
from specrun.loading import kernel_trials
from specrun.loading.default_settings import with_defaults
from specrun.loading.kernel_trials import WITHOUT_FLASH, Heads, is_faster_without_flash
from specrun.loading.model import Model
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions
from specrun.locations import data_dir
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.eagle_heads import random_eagle3
from tests.models import random_llama

_Q4_0 = 2  # llama_ftype


@pytest.fixture
def q4_0(random_model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "random-q4_0.gguf"
    quantize(str(random_model), str(path), _Q4_0, [], 1)
    return path


def kept() -> list[Path]:
    return sorted((data_dir() / "attention").glob("*.json"))


def keep(target: Path, without: bool) -> None:
    """As if a trial for this target had ended so."""
    is_faster_without_flash(GgufFile.read(target), None)
    (path,) = kept()
    kept_facts.write("attention", kept_facts.read(path).of, without)


@pytest.mark.slow
def test_a_trial_is_made_once_and_its_result_is_followed(q4_0: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = GgufFile.read(q4_0)
    n_trials = []
    measure = kernel_trials.attention_ms
    monkeypatch.setattr(kernel_trials, "attention_ms", lambda *given: n_trials.append(1) or measure(*given))
    first = is_faster_without_flash(file, None)
    assert is_faster_without_flash(file, None) == first
    assert len(n_trials) == 1
    (path,) = kept()
    keep(q4_0, not first)
    assert is_faster_without_flash(file, None) != first
    path.write_text("{")
    is_faster_without_flash(file, None)
    assert len(n_trials) == 2, "a damaged result is measured again"
    is_faster_without_flash(file, 1)
    assert len(n_trials) == 3, "another number of threads is another trial"


def defaulted(options: RunOptions) -> LlamaSettings:
    return with_defaults(plan_load(options)).options.settings


@pytest.mark.parametrize("without", [True, False])
def test_an_untuned_target_in_ram_follows_the_trial(q4_0: Path, without: bool) -> None:
    keep(q4_0, without)
    usual = LlamaSettings(repack=True, type_v="f16")
    assert defaulted(RunOptions(q4_0, None, (OFF.plan(),))) == (WITHOUT_FLASH.over(usual) if without else usual)


@pytest.mark.parametrize(("n_texts", "is_off"), [(4, True), (5, False)])
def test_many_texts_keep_flash_attention_which_reads_only_a_texts_own_cells(
    q4_0: Path, n_texts: int, is_off: bool
) -> None:
    keep(q4_0, True)
    assert (defaulted(RunOptions(q4_0, None, (OFF.plan(),), parallel=n_texts)).flash_attn == "off") == is_off


def test_no_trial_where_the_user_decided_or_weights_stream(q4_0: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(q4_0, True)
    options = RunOptions(q4_0, None, (OFF.plan(),))
    for decided in (LlamaSettings(flash_attn="on"), LlamaSettings(type_k="f32"), LlamaSettings(type_v="bf16")):
        assert defaulted(replace(options, settings=decided)).flash_attn == decided.flash_attn
    assert defaulted(replace(options, exact=True)).flash_attn is None
    monkeypatch.setattr(Memory, "read", lambda: Memory(1000, 1000))
    assert defaulted(options).flash_attn is None


def test_no_trial_for_attention_of_another_kind(tmp_path: Path) -> None:
    file = GgufFile.read(random_llama(tmp_path / "model.gguf"))
    without_q = replace(file, tensors=tuple(tensor for tensor in file.tensors if "attn_q" not in tensor.name))
    assert Heads.of(without_q) is None
    assert not is_faster_without_flash(without_q, None)
    assert not kept()


@pytest.mark.slow
@pytest.mark.parametrize("is_head", [False, True])
@pytest.mark.parametrize("without", [True, False])
def test_the_draft_follows_the_trial_and_the_text_stays_the_targets_own(
    without: bool, is_head: bool, tmp_path: Path
) -> None:
    draft = random_eagle3(tmp_path / "head.gguf") if is_head else embedded.DRAFT
    keep(draft, without)
    texts = []
    for plan in (SPECEXEC.plan(16, 8), OFF.plan()):
        with Model(RunOptions(embedded.TARGET, draft, (plan,), ctx_size=512)) as model:
            texts.append("".join(model.stream("def read(path):", raw=True, max_tokens=64, temp=0)))
            if plan.drafts:
                assert model.engine.draft
                assert model.engine.draft.context.config.settings.flash_attn == ("off" if without else None)
    assert texts[0] == texts[1]
