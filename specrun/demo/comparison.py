"""One text written twice by the same loaded target: plainly, and with drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile

from specrun.display_text import rate_text, size_text
from specrun.engine.model import Model
from specrun.engine.request import make_request
from specrun.interrupts import never
from specrun.options.sampling_options import SamplingOptions
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.method import OFF

PROMPT = "def read_config(path):"
N_DRAFTED = 8  # tokens that are drafted before each pass: so many are right more often than not with this pair
MOST_TOKENS = 96
_FEWEST_TOKENS = 24
_N_WARM = 4  # tokens that are written before, so that memory is taken and the speed is known when the clock starts
_LEAST_GAIN = 1.1  # times plain decoding's speed; less may be chance
_SECONDS = 30.0  # that the plain text may take; on a slow disk it is shorter


class Comparison:
    """The two texts of a prompt, greedy, one after the other.

    Nothing else differs between them: the same process, weights, memory, settings of llama.cpp and prompt. A few tokens
    are written at once, whose time says how long the texts can be.

    model: loaded with the plan of the second text. most_tokens: of each text.
    """

    def __init__(self, model: Model, most_tokens: int = MOST_TOKENS) -> None:
        self.model = model
        request = make_request(SamplingOptions(temp=0.0, max_tokens=_N_WARM))
        request = replace(request, prompt=model.prompt_tokens(PROMPT, raw=True))
        warm = model.complete(request, FixedPlan(OFF.plan())).run()
        n_tokens = max(int(_SECONDS * warm.statistics.tokens_per_second), _FEWEST_TOKENS)
        request = replace(request, max_tokens=min(n_tokens, most_tokens))
        self.plain = model.complete(request, FixedPlan(OFF.plan()))
        self.fast = model.complete(request)

    def write(self, interrupted: Callable[[], bool] = never) -> Iterator[tuple[int, str]]:
        """Write both texts. Yields the index of a text, 0 for the plain text, which comes first, and a piece of it.

        Raises KeyboardInterrupt once `interrupted` returns True.
        """
        for which, completion in enumerate((self.plain, self.fast)):
            self.model.engine.reset()
            for piece in completion.stream(interrupted):
                yield which, piece
            if completion.finish_reason == "interrupted":
                raise KeyboardInterrupt

    @property
    def is_streamed(self) -> bool:
        """Whether each pass of both texts reads weights from disk."""
        return self.model.residency.mode == "ring"

    @property
    def ratio(self) -> float:
        """How many times as fast the second text was written as the first."""
        return self.fast.statistics.tokens_per_second / self.plain.statistics.tokens_per_second

    @property
    def pass_cost(self) -> float:
        """How many times as long a pass with its drafts took as a plain one."""
        return self.fast.statistics.tokens_per_pass / self.ratio

    @property
    def verdict(self) -> str:
        """What came out, in a sentence."""
        reads = f", which reads {size_text(self.model.residency.streamed_bytes)} from disk," if self.is_streamed else ""
        brought = f"{self.fast.statistics.tokens_per_pass:.1f} tokens instead of 1"
        return (
            f"{self._sameness}, {self.ratio:.1f} times as fast: each pass of the large model{reads} brought {brought}, "
            f"and took {self.pass_cost:.1f} times as long"
        )

    @property
    def beside(self) -> str:
        """A sentence about the same texts in RAM, to stand beside those for which weights were streamed."""
        rates = [rate_text(completion.statistics.tokens_per_second) for completion in (self.plain, self.fast)]
        lesson = "drafts pay where passes wait for weights; elsewhere specrun omits them"
        if self.ratio > _LEAST_GAIN:
            lesson = "on this machine drafts pay there too; where they do not, specrun omits them"
        return (
            f"With all weights in RAM the pair writes {rates[0]} tokens/s plainly and {rates[1]} with the same drafts, "
            f"{self.ratio:.1f} times as fast: {lesson}"
        )

    @property
    def _sameness(self) -> str:
        """Whether the texts are the same. On a processor whose kernels round passes of each size alike they are."""
        if self.plain.token_ids == self.fast.token_ids:
            return "the same text"
        pairs = zip(self.plain.token_ids, self.fast.token_ids, strict=False)
        n_same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return (
            f"the same text for {n_same} tokens, where rounding decided between two tokens that were nearly equal "
            "(`--exact` prevents it)"
        )
