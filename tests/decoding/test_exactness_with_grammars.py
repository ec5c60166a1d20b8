"""With a grammar, too, every plan writes the tokens of plain decoding, and the text matches the grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.constraints.json_schema import schema_to_gbnf
from specrun.constraints.rules import Trigger
from specrun.decoding.completion import Completion
from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request, StepOfText
from specrun.decoding.passes import write_alone
from specrun.llama.grammar import Grammar, TriggeredGrammar
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.registry import METHODS
from specrun.speculation.tree import TokenTree, TreeShape
from specrun.verifying.findings import chi_square_p_value
from tests.engines import chooser, code_prompts, engine, next_token
from tests.models import random_llama

LARGEST = ADAPTIVE.plan(64, 12, 8)
OTHERS = [METHODS[name].plan(12, 4) for name in ("opt-tree", "ddd", "cape", "specdec++")]
STATIC = METHODS["sequoia-match"].plan().shaped(TreeShape.branching((3, 2, 1)))
PLANS = [CHAIN.plan(depth=4), SPECEXEC.plan(24, 8), LARGEST, STATIC, *OTHERS]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "kind": {"enum": ["function", "class", "module"]},
        "arguments": {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 8},
                    "size": {"type": "integer", "minimum": 0, "maximum": 64},
                },
                "required": ["name", "size"],
            },
        },
        "doc": {"type": ["string", "null"], "maxLength": 20},
        "weight": {"type": "number"},
    },
    "required": ["name", "kind", "arguments", "weight"],
}
SAMPLINGS = [
    SamplingParameters(temperature=0),
    SamplingParameters(temperature=0.8),
    SamplingParameters(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0),
    SamplingParameters(repeat_penalty=1.3, repeat_last_n=16),
]


@pytest.fixture(scope="module")
def demo() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, LARGEST) as e:
        yield e


@pytest.fixture(scope="module")
def by_schema(demo: Engine) -> Iterator[Grammar]:
    with Grammar(schema_to_gbnf(SCHEMA), demo.target.context.model) as grammar:
        yield grammar


def steps(
    e: Engine, prompt: list[int], sampling: SamplingParameters, plan: Plan, grammar: Grammar, most: int | None = None
) -> list[StepOfText]:
    e.reset()
    return list(write_alone(Generation(e, Request(prompt, sampling, most), chooser(plan), constraint=grammar)))


def tokens_of(written: list[StepOfText]) -> list[int]:
    return [token for step in written for token in step.tokens]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_json_by_a_schema_is_the_same_with_every_plan(
    demo: Engine, by_schema: Grammar, sampling: SamplingParameters
) -> None:
    token_bytes = demo.target.context.model.token_bytes
    for seed, prompt in enumerate(code_prompts(demo, 3, 30)):
        seeded = replace(sampling, seed=seed)
        plain = steps(demo, prompt, seeded, OFF.plan(), by_schema)
        assert plain[-1].finish == "stop"
        value = json.loads(b"".join(map(token_bytes, tokens_of(plain))))
        assert set(SCHEMA["required"]) <= set(value) <= set(SCHEMA["properties"])
        assert 1 <= len(value["name"]) <= 12
        assert all(0 <= argument["size"] <= 64 for argument in value["arguments"])
        for plan in PLANS:
            written = steps(demo, prompt, seeded, plan, by_schema)
            assert tokens_of(written) == tokens_of(plain), f"{plan}, seed {seed}"
            assert written[-1].finish == "stop"
            assert len(written) < len(plain), "nothing was accepted"


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS[:3], ids=str)
def test_a_grammar_that_counts_from_a_text_on_is_the_same_with_every_plan(
    demo: Engine, sampling: SamplingParameters
) -> None:
    model = demo.target.context.model
    trigger = Trigger("e")
    with Grammar('root ::= " "? [A-Z]{4,9} "\\n" [0-9]{3}', model) as grammar:
        n_bound = 0
        for seed, prompt in enumerate(code_prompts(demo, 3, 30)):
            seeded = replace(sampling, seed=seed)
            texts = set()
            for plan in (OFF.plan(), *PLANS[:3]):
                bound = TriggeredGrammar(grammar, trigger, model, ())
                demo.reset()
                request = Request(prompt, seeded, 48)
                written = tokens_of(list(write_alone(Generation(demo, request, chooser(plan), constraint=bound))))
                assert bound.is_complete(written) or len(written) == 48
                texts.add(b"".join(map(model.token_bytes, written)).decode())
            (text,) = texts
            _, found, behind = text.partition("e")
            n_bound += bool(found)
            assert re.fullmatch(r" ?[A-Z]{0,9}(\n[0-9]{0,3})?", behind)
        assert n_bound > 1


@pytest.mark.slow
def test_the_tree_holds_nothing_that_is_forbidden(demo: Engine, by_schema: Grammar) -> None:
    n_drafted = 0
    for plan in PLANS:
        for seed, prompt in enumerate(code_prompts(demo, 3, 30)):
            written: list[int] = []
            sampling = SamplingParameters(temperature=1.5 * (seed > 0), seed=seed)
            for step in steps(demo, prompt, sampling, plan, by_schema):
                for node in range(1, len(step.tree)):
                    path = step.tree.tokens[step.tree.path_to(node)[1:]].tolist()
                    assert by_schema.allowed([*written, *path[:-1]], np.array(path[-1:]))[0]
                    n_drafted += 1
                written += step.tokens
    assert n_drafted > 300


@pytest.mark.slow
def test_a_grammar_that_can_only_end(demo: Engine) -> None:
    prompt = code_prompts(demo, 1, 30)[0]
    for gbnf, text in (('root ::= ""', b""), ('root ::= "ab"', b"ab")):
        with Grammar(gbnf, demo.target.context.model) as grammar:
            for plan in (OFF.plan(), *PLANS):
                written = steps(demo, prompt, SamplingParameters(), plan, grammar)
                assert b"".join(map(demo.target.context.model.token_bytes, tokens_of(written))) == text
                assert written[-1].finish == "stop"


class NothingAfter:
    """Allows everything for `n` tokens, then nothing, not even the end."""

    def __init__(self, n: int) -> None:
        self._n = n

    def allowed(self, written: list[int], tokens: np.ndarray) -> np.ndarray:
        return np.full(len(tokens), len(written) < self._n)


@pytest.mark.slow
@pytest.mark.parametrize("n", [0, 1, 7])
def test_where_nothing_is_allowed_the_text_ends_and_the_next_one_is_as_usual(demo: Engine, n: int) -> None:
    prompt = code_prompts(demo, 1, 30)[0]
    free = list(write_alone(Generation(demo, Request(prompt, SamplingParameters(), n + 5), FixedPlan(OFF.plan()))))
    for plan in (OFF.plan(), *PLANS):
        generation = Generation(demo, Request(prompt, SamplingParameters()), chooser(plan), constraint=NothingAfter(n))
        written = list(write_alone(generation))
        assert tokens_of(written) == tokens_of(free)[:n]
        assert written[-1].finish == "stop"
        assert generation.statistics.completion_tokens == n
        again = write_alone(Generation(demo, Request(prompt, SamplingParameters(), n + 5), chooser(plan)))
        assert tokens_of(list(again)) == tokens_of(free)


def test_max_tokens_cuts_and_the_completion_says_so(demo: Engine, by_schema: Grammar) -> None:
    prompt = code_prompts(demo, 1, 30)[0]
    for most, is_unfinished in ((5, True), (None, False)):
        request = Request(prompt, SamplingParameters(), most)
        completion = Completion(demo, request, FixedPlan(CHAIN.plan(depth=4)), by_schema)
        assert "".join(completion.stream()) == completion.text
        assert completion.is_unfinished is is_unfinished
    assert not Completion(demo, request, FixedPlan(OFF.plan())).is_unfinished


def test_a_draft_with_fewer_tokens_drafts_what_it_can(tmp_path: Any) -> None:
    target = random_llama(tmp_path / "target.gguf", vocab_extra=96, n_layer=3)
    draft = random_llama(tmp_path / "draft.gguf")
    schema = {"type": "array", "items": {"enum": ["one", "two", 3]}, "minItems": 2, "maxItems": 6}
    with engine(target, draft, PLANS[1]) as e, Grammar(schema_to_gbnf(schema), e.target.context.model) as grammar:
        for seed in range(3):
            sampling = SamplingParameters(temperature=1.0, seed=seed)
            plain = steps(e, [5, 6, 7], sampling, OFF.plan(), grammar, 200)
            speculated = steps(e, [5, 6, 7], sampling, PLANS[1], grammar, 200)
            assert tokens_of(speculated) == tokens_of(plain)


@pytest.mark.slow
def test_sampled_tokens_follow_the_targets_distribution_over_what_is_allowed(demo: Engine) -> None:
    """Of two tokens written with a tree under a grammar, over seeds: the target's own, renormalised at each."""
    plan, n_seeds = SPECEXEC.plan(12, 2), 400
    sampling = SamplingParameters(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
    model = demo.target.context.model
    prompt = code_prompts(demo, 1, 40, seed=3)[0]
    with Grammar("root ::= [abc]{1,2} [xyz]{3}", model) as grammar:
        allowed = np.arange(model.n_vocab)

        def following(written: list[int]) -> dict[int, float]:
            demo.reset()
            everything = replace(sampling, top_k=model.n_vocab)
            p = next_token(demo.target, [*prompt, *written], everything)
            kept = {token: p[token] for token in allowed[grammar.allowed(written, allowed)].tolist()}
            return {token: share / sum(kept.values()) for token, share in kept.items()}

        expected = {(a, b): p * q for a, p in following([]).items() for b, q in following([a]).items()}
        counts = dict.fromkeys(expected, 0)
        for seed in range(n_seeds):
            written = write_alone(
                Generation(demo, Request(prompt, replace(sampling, seed=seed), 2), FixedPlan(plan), constraint=grammar)
            )
            first, second = tokens_of(list(written))
            counts[first, second] += 1
    assert len(expected) > 20
    observed = np.array([counts[pair] for pair in expected])
    assert chi_square_p_value(observed, n_seeds * np.array(list(expected.values()))) > 1e-4


def test_a_tree_without_candidates_is_its_root(demo: Engine) -> None:
    prompt = code_prompts(demo, 1, 30)[0]
    with Grammar('root ::= "a"', demo.target.context.model) as grammar:
        last = steps(demo, prompt, SamplingParameters(), SPECEXEC.plan(24, 8), grammar)[0].tree
    assert isinstance(last, TokenTree)
    assert last.depth <= 2, "the letter and the end: nothing comes after it"
