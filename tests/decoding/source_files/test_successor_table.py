"""A saved successor table comes back, and one that does not belong to this target is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specrun.decoding.run_sources import load_successors, save_successors
from specrun.errors import DraftSourceError
from specrun.speculation.sources.recycling import N_SUCCESSORS, TokenRecycling

N_VOCAB = 300


def table_of(n_rows: int, max_rows: int = N_VOCAB) -> TokenRecycling:
    rng = np.random.default_rng(n_rows)
    table = TokenRecycling(N_VOCAB, max_rows)
    top = [rng.permutation(N_VOCAB)[:N_SUCCESSORS] for _ in range(n_rows)]
    table.learn(rng.integers(N_VOCAB, size=n_rows).astype(np.int32), np.array(top, np.int32).reshape(-1, N_SUCCESSORS))
    return table


@pytest.mark.parametrize("table", [table_of(50), table_of(50, max_rows=20), table_of(0)])
def test_what_is_saved_is_loaded(table: TokenRecycling, tmp_path: Path) -> None:
    save_successors(tmp_path / "new" / "table", table, "tok")
    loaded = load_successors(tmp_path / "new" / "table", "tok", N_VOCAB)
    assert len(loaded) == len(table)
    for one, other in zip(loaded.rows(), table.rows(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert {path.name for path in (tmp_path / "new").iterdir()} <= {"table", ".lock"}


def test_a_table_of_another_tokenizer_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table"
    save_successors(file, table_of(50), "tok")
    for fingerprint, n_vocab, message in (("other", N_VOCAB, "tokenizer"), ("tok", 299, "vocabulary")):
        with pytest.raises(DraftSourceError, match=message):
            load_successors(file, fingerprint, n_vocab)
    whole = file.read_bytes()
    file.write_bytes(whole[:-4] + b"\xff\xff\xff\x7f")
    with pytest.raises(DraftSourceError, match="damaged"):
        load_successors(file, "tok", N_VOCAB)
    with pytest.raises(DraftSourceError, match="cannot be read"):
        load_successors(tmp_path / "missing", "tok", N_VOCAB)


def test_what_another_session_saved_meanwhile_stays(tmp_path: Path) -> None:
    file = tmp_path / "table"
    tops = np.arange(2 * N_SUCCESSORS, dtype=np.int32).reshape(2, N_SUCCESSORS)
    one, other = TokenRecycling(N_VOCAB), TokenRecycling(N_VOCAB)
    one.learn(np.array([1, 2], np.int32), tops)
    other.learn(np.array([2, 3], np.int32), tops)
    save_successors(file, one, "tok")
    save_successors(file, other, "tok")
    tokens, successors = load_successors(file, "tok", N_VOCAB).rows()
    assert dict(zip(tokens.tolist(), successors.tolist(), strict=True)) == {
        1: tops[0].tolist(),
        2: tops[0].tolist(),
        3: tops[1].tolist(),
    }
    assert file.stat().st_mode & 0o077 == 0
