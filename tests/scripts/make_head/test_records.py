"""What is kept of texts on disk, and which tokens a head can draft by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts.make_head.records import N_LIKELY, Record, Records, records
from scripts.make_head.vocabulary import vocabulary_of

WIDTH, N_VOCAB = 6, 300


def text(n: int, seed: int) -> Record:
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((n, WIDTH)).astype(np.float32)
    return records(rng.integers(0, N_VOCAB, n).tolist(), states, rng.standard_normal((n, N_VOCAB)).astype(np.float32))


def test_a_record_has_the_likeliest_tokens_and_their_probabilities() -> None:
    logits = np.random.default_rng(0).standard_normal((5, N_VOCAB)).astype(np.float32)
    made = records([1, 2, 3, 4, 5], np.full((5, WIDTH), 1e6, np.float32), logits)
    order = np.argsort(-logits, axis=1)[:, :N_LIKELY]
    exponentials = np.exp(logits)
    np.testing.assert_array_equal(made["likely"], order)
    expected = np.take_along_axis(exponentials / exponentials.sum(axis=1, keepdims=True), order, axis=1)
    np.testing.assert_allclose(made["chance"], expected, rtol=2e-3)
    assert made["begins"].tolist() == [True, False, False, False, False]
    assert np.isfinite(made["state"]).all(), "states beyond half precision are cut off"


def test_what_was_added_is_there_for_the_next_process(tmp_path: Path) -> None:
    kept = Records.read(tmp_path)
    texts = [text(n, seed) for seed, n in enumerate((9, 4, 7))]
    kept.add(texts[:2])
    kept.add(texts[2:])
    again = Records.read(tmp_path)
    assert again.texts == kept.texts == [(0, 0, 9), (0, 9, 13), (1, 0, 7)]
    assert (again.n_tokens, again.n_bytes) == (20, 20 * texts[0].dtype.itemsize)
    cut = again.window([(0, 10, 13), (1, 0, 7)], 4)
    np.testing.assert_array_equal(cut.tokens[0, :3], texts[1]["token"][1:])
    np.testing.assert_array_equal(cut.states[1], texts[2]["state"][:4])
    assert cut.valid.tolist() == [[True, True, True, False], [True] * 4]
    assert cut.begins.tolist() == [[False] * 4, [True, False, False, False]]


def test_a_damaged_part_is_written_again(tmp_path: Path) -> None:
    kept = Records.read(tmp_path)
    for seed in range(3):
        kept.add([text(5, seed)])
    second = sorted(tmp_path.iterdir())[1]
    second.write_bytes(second.read_bytes()[:100])
    again = Records.read(tmp_path)
    assert len(again.texts) == 1
    again.add([text(5, 1)])
    assert len(Records.read(tmp_path).texts) == 3


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Records.read(tmp_path)
    kept.add([text(5, 0)])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        kept.add([text(5, 1)])
    assert len(kept.texts) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["texts-00000.npy"]


def test_every_sixteenth_text_is_held_out(tmp_path: Path) -> None:
    kept = Records.read(tmp_path)
    kept.add([text(3, seed) for seed in range(20)])
    assert kept.of_use(held_out=True) == [kept.texts[0], kept.texts[16]]
    assert len(kept.of_use(held_out=False)) == 18


def test_the_likeliest_tokens_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    kept = Records.read(tmp_path)
    kept.add([text(40, 0), text(30, 1)])
    (part,) = kept.parts
    expected = np.zeros(N_VOCAB)
    np.add.at(expected, part["likely"], part["chance"].astype(float))
    found = vocabulary_of(kept, N_VOCAB, 20)
    assert found.kept.tolist() == sorted(np.argsort(-expected, kind="stable")[:20].tolist())
    assert found.read.tolist() == sorted(set(part["token"].tolist()))
    assert vocabulary_of(kept, N_VOCAB, 10_000).kept.tolist() == np.flatnonzero(expected).tolist()
    places = found.places(found.kept)
    assert places[found.kept].tolist() == list(range(20))
    assert (places >= 0).sum() == 20
