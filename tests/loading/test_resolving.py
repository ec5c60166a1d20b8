"""What the options of a command mean for a model of Ollama's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import specrun
from tests.models import edited
from tests.other_programs import in_ollama

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
