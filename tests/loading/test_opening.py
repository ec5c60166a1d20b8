"""What is opened: where experts are read from disk, a draft model only if a profile follows a plan with it; and what
options mean for a model of Ollama's.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import specrun
from specrun.catalog import embedded
from specrun.hardware.memory import Memory
from specrun.loading.opening import GAINS_NOTHING, LEFT_OUT
from specrun.loading.opening import for_experts as of_plan
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.method import OFF
from tests.models import edited, random_qwen3_moe
from tests.other_programs import in_ollama
from tests.profiles.test_profile import ADAPTIVE, made


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    """What `auto` asks for, with a mixture for which there is not enough memory."""
    monkeypatch.setattr(Memory, "read", lambda: Memory(1000, 1000))
    path = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4, n_expert=8)
    return RunOptions(path, embedded.DRAFT, SpeculationOptions().plans())


def for_experts(options: RunOptions, temperature: float | None = None) -> tuple[RunOptions, str | None]:
    plan, why = of_plan(options, plan_load(options), temperature)
    return plan.options, why


def test_without_a_profile_the_memory_is_for_experts(options: RunOptions) -> None:
    assert options.drafts
    alone, why = for_experts(options)
    assert why == LEFT_OUT
    assert alone.draft is None
    assert [plan.method for plan in alone.plans] == [DRAFTLESS, OFF]


def test_the_draft_stays_where_it_takes_nothing_from_experts(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = replace(options, target=embedded.TARGET)
    assert for_experts(dense) == (dense, None)
    monkeypatch.setattr(Memory, "read", lambda: Memory(10**11, 10**11))
    assert for_experts(options) == (options, None)


def test_the_draft_stays_where_a_plan_with_it_is_asked_for(options: RunOptions) -> None:
    chain = CHAIN.plan(depth=4)
    for wanted in (replace(options, plans=(chain,), follow=False), replace(options, largest=chain)):
        assert for_experts(wanted) == (wanted, None)


def test_a_profile_decides(options: RunOptions) -> None:
    """One greedy plan of this profile drafts, and nothing pays when sampling."""
    profile = made()
    assert profile.plans[0].plan == ADAPTIVE
    tuned = replace(options, profile=profile)
    assert for_experts(tuned) == for_experts(tuned, 0.0) == (tuned.with_profile, None)
    assert not profile.at(0.8).plan.drafts
    assert for_experts(tuned, 0.8)[0].draft is None, "no text to come is drafted for"
    off = replace(profile, plans=[replace(plan, plan=OFF.plan()) for plan in profile.plans])
    alone, why = for_experts(replace(options, profile=off))
    assert why == GAINS_NOTHING
    assert alone.draft is None
    assert alone.profile
    assert alone.profile.settings == profile.settings
    assert not alone.with_profile.drafts


OLLAMA_TEMPLATES = {
    "chatml": "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}<|im_start|>user\n{{ .Prompt }}",
    "llama3": "<|start_header_id|>user<|end_header_id|>\n\n{{ .Prompt }}<|eot_id|>",
    "gemma": "<start_of_turn>user\n{{ .Prompt }}<end_of_turn>\n<start_of_turn>model\n",
    "phi3": "<|user|>\n{{ .Prompt }}<|end|>\n<|assistant|>\n{{ .Response }}<|end|>",
    "llama2-sys": "[INST] <<SYS>>{{ .System }}<</SYS>>\n\n{{ .Prompt }} [/INST]",
    None: "### Instruction:\n{{ .Prompt }}\n\n### Response:\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OLLAMA_TEMPLATES)
def test_a_template_of_ollama_s_is_one_of_llama_cpp_s_where_the_file_has_none(
    script: Path, tmp_path: Path, name: str | None
) -> None:
    bare = edited(tmp_path / "bare.gguf", script, {"tokenizer.chat_template": None})
    own = edited(tmp_path / "own.gguf", script, {"tokenizer.chat_template": "{{ messages[0].content }}"})
    folder, template = Path(os.environ["OLLAMA_MODELS"]), OLLAMA_TEMPLATES[name]
    in_ollama(folder, "registry.ollama.ai/library/bare/latest", bare, template=template)
    in_ollama(folder, "registry.ollama.ai/library/own/latest", own, template=template)
    with specrun.load("ollama:bare", draft="none", threads=1) as model:
        assert model.llama_model.chat_template == name
        assert [notice for notice in model.notices if "template" in notice] == (
            [f"chat template: llama.cpp's {name}, whose format Ollama's template of ollama:bare has"] if name else []
        )
    with specrun.load("ollama:own", draft="none", threads=1) as model:
        assert model.llama_model.chat_template == "{{ messages[0].content }}", "the file's own comes first"
