"""What is said of the models of a command before they are loaded."""

from __future__ import annotations

from pathlib import Path

from specrun.cli import opening
from specrun.options.speculation_options import ModelOptions


def test_one_file_for_both_models_is_seen_by_whatever_name(script: Path, tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(script)
    assert opening._is_own_draft(ModelOptions(str(script), str(tmp_path / "link.gguf")))
    assert opening._is_own_draft(ModelOptions("qwen-14b", "qwen-14b"))
    for draft in ("qwen-0.5b", "none", str(tmp_path / "none.gguf"), None):
        assert not opening._is_own_draft(ModelOptions(str(script), draft))
