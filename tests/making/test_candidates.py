"""Which drafts could be made, and how they are named."""

from __future__ import annotations

import pytest

from specrun.errors import UsageError
from specrun.making.candidates import FILE_TYPES, candidates, kept_layers, parse_shares, parse_types


@pytest.mark.parametrize(
    ("n_layers", "share", "kept"),
    [
        (8, 0.5, (0, 2, 5, 7)),
        (8, 1.0, tuple(range(8))),
        (48, 0.05, (0, 47)),
        (2, 0.5, (0, 1)),
        (1, 0.5, (0,)),
    ],
)
def test_first_and_last_layers_stay_and_the_middle_is_thinned_evenly(
    n_layers: int, share: float, kept: tuple[int, ...]
) -> None:
    assert kept_layers(n_layers, share) == kept


def test_every_type_with_every_selection_but_not_the_target_itself() -> None:
    found = candidates(("q2_k", "same"), (0.5, 1.0, 0.55), 8)
    assert [candidate.name for candidate in found] == ["q2_k", "q2_k, 4 of 8 layers", "4 of 8 layers"]
    assert [candidate.file_name for candidate in found] == [
        "draft-q2_k-8of8.gguf",
        "draft-q2_k-4of8.gguf",
        "draft-same-4of8.gguf",
    ]
    assert found[1].dropped == [1, 3, 4, 6]


def test_types_are_llama_cpps() -> None:
    gguf = pytest.importorskip("gguf")
    for name, number in FILE_TYPES.items():
        assert name == "same" or gguf.LlamaFileType[f"MOSTLY_{name.upper()}"] == number


def test_lists_on_the_command_line() -> None:
    assert parse_types("Q2_K, q4_0,q2_k") == ("q2_k", "q4_0")
    assert parse_shares("1,0.5") == (1.0, 0.5)
    for text in ("", "q9_k", "q2_k,"):
        with pytest.raises(UsageError, match="choose among q2_k"):
            parse_types(text)
    for text in ("", "half", "0", "1.5", "nan"):
        with pytest.raises(UsageError, match="--keep-layers"):
            parse_shares(text)
