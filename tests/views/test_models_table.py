"""The table of the catalog."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from specrun.views.models_table import about_rate, models_table


def row(alias: str | None, family: str | None, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": alias or "org/repo/m.gguf",
        "alias": alias,
        "family": family,
        "repo": "org/repo",
        "file": "m.gguf",
        "about": "a family",
    }
    facts |= {"licence": "mit", "companions": ["sibling", "mtp"], "bytes": 2 * 10**9, "estimated_bytes": 2 * 10**9}
    facts |= {
        "kind": "dense",
        "fits": "vram",
        "tokens_per_second": 12.4,
        "drafts": [],
        "architecture": "qwen35",
        "here": False,
        "program": None,
        "recommended": False,
        "verified": True,
    }
    return facts | changes


def drawn(*rows: dict[str, Any], width: int = 80) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(models_table(rows))
    return file.getvalue()


def test_families_stand_under_a_line_that_explains_them() -> None:
    text = drawn(
        row("a-1b", "a"),
        row("a-8b", "a", drafts=["a-1b", "a-2b"], licence="other", recommended=True),
        row(
            "b-30b", "b", companions=[], kind="moe", fits="streamed", tokens_per_second=0.42, bytes=None, verified=False
        ),
        row(None, None, kind=None, fits=None, tokens_per_second=None, licence=None, here=True, program="Ollama"),
    )
    lines = [line.rstrip() for line in text.splitlines()]
    assert "a (mit): a family. Drafts: small siblings (best known), MTP layers" in lines
    assert "b (mit): a family. Drafts: the text itself" in lines
    assert "not in the catalog" in lines
    assert max(map(len, lines)) <= 80
    by_name = {line.split()[0]: line for line in lines if line}
    assert by_name["a-8b"].endswith("in VRAM     ~12  a-1b +1  recommended, other")
    assert by_name["b-30b"].split()[1:] == ["?", "~2.00", "GB", "moe", "streamed", "~0.4"]
    assert by_name["org/repo/m.gguf"].split() == ["org/repo/m.gguf", "2.00", "GB", "?", "?", "here", "(Ollama)"]
    starts = {line.index(" GB") for line in lines if " GB" in line and "Ollama" not in line}
    assert len(starts) == 1, "the tables of families are aligned"


def test_what_is_published_but_cannot_be_run_is_said_apart() -> None:
    text = drawn(
        row("a", "a", companions=["mtp", "eagle3", "dflash"]),
        row("b", "b", companions=["mtp", "sibling"], architecture="gemma4"),
        row("d", "d", companions=["assistant", "sibling"], architecture="gemma4"),
        row("c-1b", "c", companions=["dspark"], architecture="qwen2"),
        row("c-8b", "c", companions=["dspark"], architecture="qwen3"),
        width=200,
    )
    lines = [line.rstrip() for line in text.splitlines()]
    assert "a (mit): a family. Drafts: MTP layers (best known), an EAGLE-3 head, a DFlash head" in lines
    other = "published, but not for specrun: MTP layers (best known)"
    assert f"b (mit): a family. Drafts: small siblings; {other}" in lines
    assert "d (mit): a family. Drafts: an assistant (best known), small siblings" in lines
    assert "c (mit): a family. Drafts: a DSpark head" in lines


def test_a_long_name_takes_the_room_of_what_is_optional() -> None:
    lines = drawn(row("a" * 46, "a", fits="streamed", recommended=True), row("b", "a")).splitlines()
    assert lines[-1] == "left out in this width: kind, draft, tok/s"


def test_a_slow_rate_is_not_shown_as_none() -> None:
    assert [about_rate(rate) for rate in (None, 0.0, 0.024, 0.44, 12.3)] == ["", "", "~0.02", "~0.4", "~12"]
