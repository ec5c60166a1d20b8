"""Writes the same texts plainly and with speculation, by the same loaded target, and compares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TypeAlias

import numpy as np

from specrun.bench import BenchPrompt, fitting
from specrun.decoding.generation import Generation, Request, StepOfText
from specrun.decoding.passes import write_alone
from specrun.display_text import counted
from specrun.llama.context import Logits
from specrun.llama.invariance import tree_along, true_path
from specrun.llama.target import TargetContext
from specrun.loading.model import Model
from specrun.long_run import Run
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan, PlanChooser
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Method
from specrun.speculation.tree import TokenTree, n_in_order
from specrun.verifying.findings import Divergence, Finding, SeedTest, near_tie_gap

TREE = SPECEXEC.plan(16, 8)  # drafts in every pass, which `auto` does not do where that does not pay
_AROUND = 8  # tokens before and after a divergence that are shown
_COMPARED_ROWS = 16  # of the tokens up to a divergence: a quarter of a usual text
_LIKELIEST = 4  # tokens whose logits are compared, too
_MOST_SIZES = 6  # sizes of passes that are compared where texts part; each reads the text again
_ROOM = 1.5  # times as far as in the positions that were measured, a gap may move in a tree that was not


@dataclass(frozen=True)
class VerifySettings:
    """What is compared."""

    sampling: SamplingParameters  # of all texts, with each of `temperatures` in turn
    temperatures: tuple[float, ...]
    max_tokens: int  # most tokens of a text
    n_seeds: int  # for methods that keep only the distribution
    raw: bool = False  # continue the prompts as they are, without the chat template


@dataclass
class _Text:
    """Tokens of an answer, its end-of-generation token included, and the sizes of the passes that wrote it."""

    tokens: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    n_drafted: int = 0


@dataclass(frozen=True)
class Verifier:
    """A loaded pair under test. Its weights, contexts and settings are the same for all texts."""

    model: Model
    settings: VerifySettings
    run: Run

    def findings(self, prompts: Sequence[BenchPrompt]) -> Iterator[Finding]:
        """Compare all prompts at all temperatures. Raises PromptError if none fits the context, KeyboardInterrupt."""
        settings = self.settings
        pairs = fitting(prompts, self.model, settings.max_tokens, settings.raw, self.run.note)
        n = len(pairs) * len(settings.temperatures)
        # Temperatures and plans take unlike times, and texts that part take more, so the first prompt has to be over.
        what = f"{counted(n, 'text')}, each written plainly and with speculation and compared"
        run = self.run.work(what, told_from=1 / len(pairs))
        for i, (prompt, tokens) in enumerate(pairs):
            self.model.engine.reset()  # once: all texts, and what compares them, begin with the prompt as read now
            for j, temperature in enumerate(settings.temperatures):
                sampling = replace(settings.sampling, temperature=temperature)
                stage = run.part(i, len(pairs)).part(j, len(settings.temperatures))
                label = f"{prompt.kind}, prompt {i + 1} of {len(pairs)}, T={temperature:g}"
                yield from self._compared(prompt, tokens, sampling, stage.labelled(label))

    def _compared(
        self, prompt: BenchPrompt, tokens: list[int], sampling: SamplingParameters, stage: Run
    ) -> Iterator[Finding]:
        plain: _Text | None = None
        ways = list(self._ways(sampling.temperature))
        for i, (name, plans, method) in enumerate(ways, start=1):
            part = stage.part(i, 1 + len(ways))  # plain decoding is the first
            about = Finding(prompt.kind, prompt.text, sampling.temperature, sampling.seed, name)
            about = replace(about, is_lossy=not method.lossless)
            if method.samples and sampling.temperature > 0:
                n_seeds = self.settings.n_seeds
                test, passes = seed_test(self.model, tokens, sampling, n_seeds, plans, name, part)
                n_drafted = sum(len(done.tree) > 1 for done in passes)
                n_tokens = sum(len(done.tokens) for done in passes)
                yield replace(about, n_tokens=n_tokens, n_passes=len(passes), n_drafted=n_drafted, test=test)
                continue
            if plain is None:
                stage.done(0).show("writing plainly")
                plain = self._write(tokens, sampling, FixedPlan(OFF.plan()))
            part.done(0).show(f"writing with {name}")
            text = self._write(tokens, sampling, plans)
            about = replace(about, n_tokens=len(text.tokens), n_passes=len(text.sizes), n_drafted=text.n_drafted)
            # Where the longer text begins with the shorter one, that ends there.
            pairs = enumerate(zip_longest(plain.tokens, text.tokens))
            at = next((i for i, (token, other) in pairs if token != other), None)
            if at is not None:
                part.done(0.5).show("measuring how much batching explains")
                about = replace(about, divergence=self._divergence(tokens, sampling, plain, text, at))
            yield about

    def _ways(self, temperature: float) -> Iterator[tuple[str, PlanChooser, Method]]:
        """What speculates: the plan that the options ask for, and beside `auto` a tree in every pass."""
        plans = self.model.plans
        asked = plans.at(temperature)
        if len(plans.candidates) == 1:
            yield str(asked.plan()), asked, asked.plan().method
            return
        yield "auto", asked, OFF  # all its methods sample and match
        tree = TREE if self.model.engine.draft else DRAFTLESS.plan(TREE.budget)
        yield str(tree), plans.fixed(tree, temperature), tree.method

    def _write(self, prompt: list[int], sampling: SamplingParameters, plans: PlanChooser) -> _Text:
        engine, text, n_pending = self.model.engine, _Text(), 0
        request = Request(prompt, sampling, self.settings.max_tokens)
        for done in write_alone(Generation(engine, request, plans, interrupted=self.run.interrupted)):
            if done.finish == "interrupted":
                raise KeyboardInterrupt
            text.tokens += done.accepted.tokens
            text.sizes.append(n_pending + len(done.tree))
            text.n_drafted += len(done.tree) > 1
            n_pending = len(done.accepted.path) - n_in_order(done.accepted.path)
        return text

    def _divergence(
        self, prompt: list[int], sampling: SamplingParameters, plain: _Text, text: _Text, at: int
    ) -> Divergence:
        """What plain decoding's own logits say about the first token that differs."""
        gap, explained = None, 0.0
        if at < min(len(plain.tokens), len(text.tokens)):
            target = self.model.engine.target
            written = plain.tokens[: at + 1]
            rows = rows_after(target, prompt, written, PLAIN, min(len(written), _COMPARED_ROWS))
            sampler = Sampler(sampling, target.n_vocab)
            recent = sampler.recent([*prompt, *plain.tokens[:at]])
            gap = near_tie_gap(sampler, rows[-1], len(prompt) + at, recent, plain.tokens[at], text.tokens[at])
            if not self.model.exactness.is_exact:
                # Penalties divide or multiply logits, and their errors alike.
                scale = max(sampling.repeat_penalty, 1 / sampling.repeat_penalty) / (sampling.temperature or 1.0)
                # A filter may compare the two with the likeliest tokens, which also tell more of few positions.
                tokens = [plain.tokens[at], text.tokens[at], *np.argpartition(rows[-1], -_LIKELIEST)[-_LIKELIEST:]]
                for batched in rows_of_sizes(target, prompt, written, len(rows), _some(text.sizes)):
                    if sampler.sample(batched[-1], len(prompt) + at, recent) == text.tokens[at]:
                        explained = max(explained, gap)
                    moved = batched[:, tokens] - rows[:, tokens]
                    explained = max(explained, _ROOM * float(np.ptp(moved, axis=1).max()) * scale)
        return Divergence(at, gap, explained, self._around(plain, at), self._around(text, at))

    def _around(self, text: _Text, at: int) -> str:
        piece = text.tokens[max(at - _AROUND, 0) : at + 1 + _AROUND]
        token_bytes = self.model.llama_model.token_bytes
        return b"".join(token_bytes(token, special=True) for token in piece).decode("utf-8", errors="replace")


def _some(sizes: Sequence[int]) -> list[int]:
    """At most `_MOST_SIZES` of the sizes above a plain pass's, the smallest and the largest among them."""
    found = sorted({size for size in sizes if size > PLAIN})
    step = max((len(found) - 1) / (_MOST_SIZES - 1), 1.0)
    return [found[round(i * step)] for i in range(min(_MOST_SIZES, len(found)))]


_N_TOKENS = 2  # of a beginning: the second token is drafted after a drafted token
_N_WRITTEN = _N_TOKENS + 1  # so that the first pass drafts as many levels as a beginning has tokens
_LEAST_EXPECTED = 5  # seeds that must begin with a token for what follows it to be told apart

Beginning: TypeAlias = tuple[int, ...]


def expected_beginnings(
    model: Model, prompt: list[int], sampling: SamplingParameters, n_seeds: int
) -> dict[Beginning, float]:
    """The target's own probability of each way in which an answer can begin: two tokens, or one.

    One token stands for all that follows it if it ends the text, or if few of `n_seeds` texts are expected to begin
    with it. Every probability comes from passes of one token.
    """
    target = model.engine.target
    sampler = Sampler(sampling, target.n_vocab)

    def next_token(text: list[int]) -> dict[int, float]:
        target.set_prompt(text)
        row = target.score(TokenTree.root_only(text[-1]))[0]
        target.drop_tree()
        found = sampler.distribution(row, sampler.recent(text))
        return dict(zip(found.tokens.tolist(), found.probabilities.tolist(), strict=True))

    expected: dict[Beginning, float] = {}
    for first, share in next_token(prompt).items():
        if n_seeds * share < _LEAST_EXPECTED or model.llama_model.is_end_of_generation(first):
            expected[(first,)] = share
        else:
            expected |= {(first, second): share * p for second, p in next_token([*prompt, first]).items()}
    return expected


def seed_test(
    model: Model,
    prompt: list[int],
    sampling: SamplingParameters,
    n_seeds: int,
    plans: PlanChooser,
    name: str,
    run: Run,
) -> tuple[SeedTest, list[StepOfText]]:
    """Begin an answer with each of `n_seeds` seeds, from the seed of `sampling` on, and count the beginnings.

    name: of the plans. Returns the counts, and the passes that wrote the beginnings.
    """
    expected = expected_beginnings(model, prompt, sampling, n_seeds)
    counts, passes = Counter[Beginning](), list[StepOfText]()
    for n_done in range(n_seeds):
        run.done(n_done / n_seeds).show(f"{name}, seed {n_done + 1} of {n_seeds}")
        tokens: list[int] = []
        request = Request(prompt, replace(sampling, seed=sampling.seed + n_done), _N_WRITTEN)
        for done in write_alone(Generation(model.engine, request, plans)):
            passes.append(done)
            tokens += done.accepted.tokens
            if len(tokens) >= _N_TOKENS:
                break
        counts[tuple(tokens[:1]) if tuple(tokens[:1]) in expected else tuple(tokens[:_N_TOKENS])] += 1
    observed = [counts[beginning] for beginning in expected]
    shares = (*(n_seeds * share for share in expected.values()), 0.0)
    return SeedTest((*observed, n_seeds - sum(observed)), shares), passes


PLAIN = 1  # tokens of a pass of plain decoding


def rows_after(target: TargetContext, prompt: Sequence[int], written: Sequence[int], size: int, n_rows: int) -> Logits:
    """float32[n_rows, n_vocab]: the logits that predict the last `n_rows` tokens of `written`.

    The written tokens are scored and committed in passes of `size` tokens, so that the cache, too, holds what such
    passes leave: passes over one token as in plain decoding, larger ones over chains and trees in turn. What the cache
    already holds of the prompt is not read again, so it must have been read as a prompt. n_rows: at most the written
    tokens.
    """
    text = [*prompt, *written]
    # Passes that go beyond the end still have their size: they are filled with tokens that were written before.
    filled = [*text, *(written[i % len(written)] for i in range(size))]
    rows = np.empty((n_rows, target.n_vocab), np.float32)
    first = len(text) - n_rows  # the token that the first row predicts
    target.set_prompt(list(prompt))
    for n_passes in range(len(written)):
        root = len(target.tokens) - 1
        if root >= len(text) - 1:
            break
        count = max(min(size - target.n_pending, target.room()), 1)
        # A tree has a second leaf path, which a context that was made for chains cannot hold.
        is_chain = n_passes % 2 == 0 or target.max_leaves < 2
        tree = TokenTree.root_only(text[root]) if count == 1 else tree_along(filled[root : root + count], is_chain)
        path = true_path(tree)[: len(text) - 1 - root]
        found = target.score(tree)[path]
        begin = max(first - root - 1, 0)  # rows before it are not wanted
        if begin < len(path):
            at = root + 1 + begin - first
            rows[at : at + len(path) - begin] = found[begin:]
        target.commit(tree, path, text[root + len(path)])
    return rows


def rows_of_sizes(
    target: TargetContext, prompt: Sequence[int], written: Sequence[int], n_rows: int, sizes: Iterable[int]
) -> Iterator[Logits]:
    """What `rows_after` gives for passes of each size, but that of the written tokens only the last 2 `n_rows` are
    decoded in such passes, and those before count as the prompt.
    """
    begin = max(len(written) - 2 * n_rows, 0)
    for size in sizes:
        yield rows_after(target, [*prompt, *written[:begin]], written[begin:], size, n_rows)
