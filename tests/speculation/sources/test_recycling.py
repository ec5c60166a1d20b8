"""The successor table gives what a dict of the same rows gives, and stays within its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.sources.recycling import N_SUCCESSORS, TokenRecycling
from tests.speculation.sources.naive import guessed

N_VOCAB = 300


def rows(rng: np.random.Generator, n: int, n_vocab: int = N_VOCAB) -> tuple[np.ndarray, np.ndarray]:
    tokens = rng.integers(n_vocab, size=n).astype(np.int32)
    top = np.array([rng.permutation(n_vocab)[:N_SUCCESSORS] for _ in range(n)], np.int32)
    return tokens, top


def successors(table: TokenRecycling, token: int) -> list[int]:
    return [found for found, _ in guessed(table, [token], N_SUCCESSORS)]


def test_it_is_a_dict_of_the_last_successors() -> None:
    rng = np.random.default_rng(0)
    table, model = TokenRecycling(), dict[int, list[int]]()
    for _ in range(60):
        tokens, top = rows(rng, 12)
        table.learn(tokens, top)
        model.update(zip(tokens.tolist(), top.tolist(), strict=True))
        for token in range(N_VOCAB):
            assert successors(table, token) == model.get(token, [])
    assert len(model) > 200


def test_guesses_are_the_last_tokens_successors_with_their_rank() -> None:
    table = TokenRecycling()
    table.learn(np.array([5, 5], np.int32), np.array([range(8), range(20, 28)], np.int32))
    assert guessed(table, [], 3) == []
    table.extend([9, 5])
    table.extend([])
    assert guessed(table, [], 3) == [(20, 7), (21, 6), (22, 5)]
    assert guessed(table, [9, 5], 1) == [(20, 7)]
    assert guessed(table, [9], 3) == []
    table.reset()
    assert guessed(table, [], 3) == []
    assert successors(table, 5) == list(range(20, 28))


def test_a_full_table_gives_up_the_rows_that_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specrun.speculation.sources.recycling.MAX_ROWS", 20)
    rng = np.random.default_rng(1)
    table, model = TokenRecycling(), dict[int, list[int]]()
    for _ in range(300):
        tokens, top = rows(rng, 1)
        table.learn(tokens, top)
        if tokens[0] not in model and len(model) == 20:
            del model[next(iter(model))]
        model[int(tokens[0])] = top[0].tolist()
    for token in range(N_VOCAB):
        assert successors(table, token) == model.get(token, [])
    table.learn(*rows(rng, 100))  # more at once than it holds
    assert sum(bool(successors(table, token)) for token in range(N_VOCAB)) == 20
