"""Lets the target write texts, and keeps what it computes of them, through llama.cpp, wherever its weights lie."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from specrun.errors import PromptError
from specrun.llama.batch import committed_tokens
from specrun.llama.heads import hidden_states
from specrun.loading.draft_loading import check_heads
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.long_run import Run
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import CostTable
from specrun.tuning.pass_timer import TargetTimer, rounds

from .records import Record, Records, records, refused
from .shape import HeadShape
from .text_writer import write_together

TEMPERATURE = 0.8  # the default of `specrun generate`
_AT_ONCE = 16  # texts that are written together; streamed, a pass over 16 tokens costs little more than over one
_WRITTEN = 192  # tokens that the target writes of each
_LONGEST_PROMPT = 256  # tokens; longer prompts are left out
_READ_AT_ONCE = 128  # tokens of a pass that gives states and logits of all; both take memory
_LEAST_WRITTEN = 32  # the same where passes take long
_BATCH_SECONDS = 120.0  # that some texts are written for; what a killed process loses, with the reading of them
_TIMED = (1, _AT_ONCE, _READ_AT_ONCE)
_CTX, _ROUNDS, _TIMING_SECONDS = 64, 5, 10.0
_SHUFFLE = 20_011  # a prime, larger than the number of shipped prompts: neighbours are of other tasks and topics


def shipped_prompts() -> list[str]:
    """Prompts of many kinds: each task with each topic, in an order that mixes both."""
    value = json.loads(Path(__file__).with_name("prompts.json").read_text(encoding="utf-8"))
    pairs = [task.format(topic) for task, topic in product(value["tasks"], value["topics"])]
    return [pairs[i * _SHUFFLE % len(pairs)] for i in range(len(pairs))]


def mixed(given: Sequence[str], shipped: Sequence[str]) -> list[str]:
    """The given prompts and the shipped ones in turn, until each of both was taken."""
    if not given:
        return list(shipped)
    n = max(len(given), len(shipped))
    return [prompt for i in range(n) for prompt in (given[i % len(given)], shipped[i % len(shipped)])]


class Gatherer:
    """The loaded target, which writes texts after prompts. Use it in a `with` statement.

    prompts: taken in turn, again and again; each text has a seed of its own. raw: they are continued as they are,
    without the chat template. costs: times of the target's passes over one token and over the numbers used here.
    Raises PromptError if none of the prompts is short enough, and the errors of `Model`.
    """

    def __init__(self, target: Path, shape: HeadShape, prompts: Sequence[str], raw: bool, run: Run) -> None:
        options = RunOptions(target, None, (OFF.plan(),), largest=SPECEXEC.plan(_READ_AT_ONCE, _AT_ONCE))
        check_heads(options.settings)
        self._shape = shape
        self._model = Model(options, show=run.display)
        try:
            for notice in self._model.notices:
                run.note(notice)
            self._target = self._model.engine.target
            hidden_states.keep_layer_inputs(self._target.context.handle, shape.target_layers)
            run.show("tokenizing prompts")
            tokenized = [self._model.prompt_tokens(prompt, raw) for prompt in prompts]
            longest = max(min(_LONGEST_PROMPT, self._model.engine.ctx_size - _WRITTEN), 1)
            self._prompts = [tokens for tokens in tokenized if 0 < len(tokens) <= longest]
            if not self._prompts:
                what = f"all prompts are empty or have more than {longest} tokens"
                raise PromptError(f"{what}; give shorter ones with --texts")
            if n_long := len(tokenized) - len(self._prompts):
                run.note(f"{n_long} of {len(tokenized)} prompts are left out: they have more than {longest} tokens")
            run.show("timing passes")
            timer, stage = TargetTimer(self._target, self._prompts[0]), run.stage(_TIMING_SECONDS)
            timer.fill(_CTX)
            sizes = [n for n in _TIMED if n <= self._target.room()]  # hybrids have less room
            self.costs = CostTable(rounds(timer, _CTX, sizes, _ROUNDS, stage).pass_times())
        except BaseException:
            self._model.close()
            raise
        self._at_once = min(_AT_ONCE, self._target.max_leaves)
        n_written = 1e3 * _BATCH_SECONDS / self._ms(self._at_once)
        self._n_written = int(min(max(n_written, _LEAST_WRITTEN), _WRITTEN))

    def __enter__(self) -> Gatherer:
        return self

    def __exit__(self, *_: object) -> None:
        self._model.close()

    @property
    def tokens_per_second(self) -> float:
        """Tokens that are gathered per second, by the times of passes: those of texts and of their prompts."""
        n_tokens = self._at_once * (float(np.mean([len(tokens) for tokens in self._prompts])) + self._n_written)
        reading = n_tokens / _READ_AT_ONCE * self._ms(_READ_AT_ONCE)
        return 1e3 * n_tokens / (self._n_written * self._ms(self._at_once) + reading)

    def _ms(self, n: int) -> float:
        """Milliseconds of passes over n tokens, of several where a pass cannot have so many."""
        largest = self.costs.largest
        return self.costs.ms(min(n, largest), _CTX) * max(n / largest, 1.0)

    def gather(self, kept: Records, run: Run) -> float:
        """Write some texts and keep their records. Returns the seconds that it took.

        Raises KeyboardInterrupt, and SpecrunError if the disk refuses; the texts at hand are lost then, no others.
        """
        started = time.perf_counter()
        first = len(kept.texts)
        prompts: list[list[int]] = []
        free = self._target.context.config.n_ctx
        while len(prompts) < self._at_once:
            prompt = self._prompts[(first + len(prompts)) % len(self._prompts)]
            free -= len(prompt) + self._n_written
            if prompts and free < 0:
                break
            prompts.append(prompt)
        labelled = run.labelled(f"{kept.n_tokens:,} tokens of the target's texts")
        stage, least = labelled.stage(_BATCH_SECONDS), min(_LEAST_WRITTEN, self._n_written)
        by_temperature = write_together(
            self._target, prompts, [TEMPERATURE], least, self._n_written, stage, first_seed=first
        )
        texts = by_temperature[TEMPERATURE]
        read = [self._read([*text.prompt, *self._to_its_end(text.written)], labelled) for text in texts]
        try:
            kept.add(read)
        except OSError as error:
            raise refused(f"texts cannot be kept in {kept.folder}", error) from error
        return time.perf_counter() - started

    def _to_its_end(self, written: list[int]) -> list[int]:
        """A text up to its first end-of-generation token, which is kept."""
        is_end = self._model.llama_model.is_end_of_generation
        return written[: next((i + 1 for i, token in enumerate(written) if is_end(token)), len(written))]

    def _read(self, tokens: list[int], run: Run) -> Record:
        """The records of a text, which the target reads in few passes."""
        context, layers = self._target.context, self._shape.target_layers
        size = min(_READ_AT_ONCE, context.config.n_outputs, context.config.n_batch)
        states, logits = [], []
        self._target.reset()
        try:
            for start in range(0, len(tokens), size):
                run.show("reading states")
                part = tokens[start : start + size]
                logits.append(context.decode(committed_tokens(part, start, 1, len(part))).copy())
                rows = [hidden_states.layer_inputs(context.handle, k, len(part), self._shape.width) for k in layers]
                states.append(np.hstack(rows))
        finally:
            self._target.reset()
        return records(tokens, np.concatenate(states), np.concatenate(logits))
