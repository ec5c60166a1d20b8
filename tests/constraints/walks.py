"""Random texts of grammars, and what another library says about them."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import numpy as np

from specrun.constraints.json_schema import schema_to_gbnf
from specrun.llama import LlamaModel
from specrun.llama.grammar import Grammar


def random_text(grammar: Grammar, model: LlamaModel, seed: int) -> str:
    """A complete random text of the grammar. The longer it gets, the likelier a token that closes something."""
    rng = np.random.default_rng(seed)
    everything = np.arange(model.n_vocab)
    closes = np.array([re.search(rb'["}\]@.]', model.token_bytes(token)) is not None for token in everything])
    written: list[int] = []
    while True:
        allowed = everything[grammar.allowed(written, everything)]
        assert len(allowed), b"".join(map(model.token_bytes, written))
        closing = allowed[closes[allowed]]
        if len(closing) and rng.random() < len(written) / 60:
            allowed = closing
        token = int(rng.choice(allowed))
        if model.is_end_of_generation(token) or (grammar.is_complete(written) and rng.random() < 0.5):
            return b"".join(map(model.token_bytes, written)).decode("utf-8")
        written.append(token)


def is_valid(schema: Any, text: str) -> bool:
    """Whether the jsonschema library finds a text valid, formats included. Numbers are what is written, as decimals."""
    from jsonschema import Draft202012Validator  # it makes grammars of formats for a second, in every test process

    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    validator = Draft202012Validator(exact, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return bool(validator.is_valid(json.loads(text, parse_float=Decimal)))


def check_texts(model: LlamaModel, schema: Any, n: int) -> set[str]:
    """`n` random texts of the schema's grammar, all of which are valid."""
    with Grammar(schema_to_gbnf(schema), model) as grammar:
        texts = {random_text(grammar, model, seed) for seed in range(n)}
    assert not [text for text in texts if not is_valid(schema, text)]
    return texts


def lets_through(model: LlamaModel, schema: Any, text: str) -> bool:
    """Whether the grammar allows `text`, in the model's own tokens, and an end after it."""
    with Grammar(schema_to_gbnf(schema), model) as grammar:
        return grammar.is_complete(model.tokenize(text, add_special=False))
