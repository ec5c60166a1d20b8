"""The states that a head is given are the target's rows of the layers that its file names, in its order."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.facts import tiny_model
from specrun.llama.heads.hidden_states import TargetStates
from specrun.llama_settings import LlamaSettings

TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
CONFIG = ContextConfig(256, n_seq_max=1, n_batch=8, n_outputs=1, settings=LlamaSettings(threads=1))


def states_of(layers: tuple[int, ...], places: list[int]) -> np.ndarray:
    """float32[len(places), len(layers) * n_embd]: what is noted of the tokens at these places of a pass over TEXT."""
    with tiny_model.loaded(n_layers=3) as model, LlamaContext(model, CONFIG) as context:
        states = TargetStates(context, layers, CONFIG, len(layers) * model.n_embd)
        context.decode(committed_tokens(TEXT, 0, 1, n_outputs=0))
        tokens = [TEXT[place] for place in places]
        states.note(0, tokens, np.array(places))
        return states.of(tokens, 0, len(tokens))


@pytest.mark.parametrize("layers", [(0, 1, 2), (2, 0, 1), (2, 1)], ids=str)
def test_layers_are_joined_in_the_order_in_which_they_are_named(layers: tuple[int, ...]) -> None:
    everywhere = list(range(len(TEXT)))
    parts = [states_of((layer,), everywhere) for layer in layers]
    assert not any(np.array_equal(parts[0], other) for other in parts[1:])
    np.testing.assert_array_equal(states_of(layers, everywhere), np.hstack(parts))
    if 0 in layers:
        np.testing.assert_array_equal(parts[layers.index(0)], tiny_model.embedding(TEXT))


def test_a_token_has_the_row_of_its_place_in_the_pass() -> None:
    np.testing.assert_array_equal(states_of((0,), [6, 1, 4]), tiny_model.embedding([TEXT[6], TEXT[1], TEXT[4]]))
