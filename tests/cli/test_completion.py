"""What shells offer: models, methods, options, and files where none of them fits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.options import expand
from specrun.speculation.registry import METHODS
from tests.conftest import SpecrunHere
from tests.other_programs import in_lm_studio
from tests.waiting import TIMEOUT_S


def offered(here: SpecrunHere, *words: str, **variables: str) -> list[str]:
    """What bash would offer for the last word."""
    line = " ".join(["specrun", *words])
    result = here(_SPECRUN_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words)), **variables)
    assert (result.code, result.stderr) == (0, ""), result
    return result.stdout.split()


def test_models_of_this_machine_come_first(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    own = "qwen-org/own-GGUF:Q8_0"
    in_lm_studio(tmp_path / "home" / ".lmstudio" / "models", "qwen-org/own-GGUF/own-Q8_0.gguf", script)
    for words in (["chat", "qwen-"], ["run", "qwen-"], ["generate", "--target", "qwen-"], ["bench", "-m", "qwen-"]):
        assert offered(here, *words)[0] == own
        assert "qwen-14b" in offered(here, *words)
    assert offered(here, "models", "info", "qwen-") == [own]
    assert own not in offered(here, "pull", "qwen-")
    assert "none" in offered(here, "generate", "--draft", "n")


def test_methods_and_other_words(here: SpecrunHere) -> None:
    assert set(offered(here, "generate", "--method", "''")) == set(METHODS)
    assert offered(here, "generate", "--speculate", "t") == ["tree"]
    assert offered(here, "models", "l") == ["list"]


def test_options_of_the_short_help_come_alone(here: SpecrunHere) -> None:
    usual = offered(here, "generate", "-")
    assert "--temp" in usual
    assert "--rpc" not in usual
    assert all(expand.option_of(name) == name for name in usual)
    assert offered(here, "generate", "--rp") == ["--rpc"]
    assert offered(here, "generate", "--temper") == ["--temperature"]
    assert "--rpc" not in offered(here, "generate", "-")


def test_nothing_is_offered_where_the_shell_offers_files(here: SpecrunHere) -> None:
    for words in (["generate", "-f", "x"], ["chat", "./x"], ["generate", "-m", "/x"]):
        assert offered(here, *words) == []


def test_a_broken_catalog_is_no_matter_of_completion(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    in_lm_studio(tmp_path / "home" / ".lmstudio" / "models", "org/own-GGUF/own-Q8_0.gguf", script)
    (tmp_path / "models.toml").write_text("no TOML")
    broken = {"SPECRUN_CONFIG_DIR": str(tmp_path)}
    for words in (["chat", "q"], ["pull", "q"], ["models", "rm", "o"]):
        assert offered(here, *words, **broken) == []
    assert offered(here, "chat", "e", **broken) == [embedded.NAME]


@pytest.mark.slow
def test_completing_loads_no_llama_cpp() -> None:
    program = """
import sys
from specrun.cli import main
sys.argv = ["specrun"]
try:
    main()
finally:
    print("imported:", sorted({"llama_cpp", "numpy", "jinja2", "httpx2"} & set(sys.modules)))
"""
    completing = {"_SPECRUN_COMPLETE": "complete_bash", "COMP_WORDS": "specrun chat qwen-14", "COMP_CWORD": "2"}
    run = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | completing, capture_output=True, text=True, check=False
    )
    assert run.stdout == "qwen-14b\nimported: []\n", run


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs bash on a terminal")
def test_a_real_bash_completes_models_and_files(tmp_path: Path) -> None:
    import pexpect

    (tmp_path / "my-model.gguf").touch()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    bash = pexpect.spawn(
        "bash", ["--norc", "--noprofile"], env={**os.environ, "PATH": path}, cwd=tmp_path, timeout=TIMEOUT_S
    )
    bash.sendline("PS1='ready> '; bind 'set bell-style none'; eval \"$(specrun --show-completion)\"; echo d''one")
    bash.expect_exact("done")
    bash.expect_exact("ready> ")
    bash.send("specrun chat qwen-14\t")
    bash.expect_exact("qwen-14b ")
    bash.send("\x15specrun chat ./my\t")
    bash.expect_exact("./my-model.gguf ")
    bash.send("\x15specrun generate -m embedded -f my\t")
    bash.expect_exact("-f my-model.gguf ")
    bash.close(force=True)
