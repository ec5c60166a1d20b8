"""One text written twice by the same loaded target: plainly, and with speculation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile

from specrun.engine.model import Model
from specrun.engine.request import make_request
from specrun.interrupts import never
from specrun.options.sampling_options import SamplingOptions
from specrun.speculation.controllers.auto import Auto
from specrun.speculation.controllers.chooser import FixedPlan, PlanChooser
from specrun.speculation.method import OFF

PROMPT = "def read_config(path):"
N_TOKENS = 160
_N_WARM = 2  # tokens that are written before, so that all weights are in memory when the clock starts
_TRIED = 8  # tokens of the pass whose cost is reported where speculation does not pay
_HARDLY_ANY = 1.2  # tokens a pass; with fewer, nearly all passes were plain
_PAYS = 1.1  # times plain decoding's rate; machines vary by less from run to run


class Comparison:
    """The two texts of a prompt, greedy, one after the other.

    Nothing else differs between them: the same process, weights, settings of llama.cpp and prompt.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        request = make_request(SamplingOptions(temp=0.0, max_tokens=N_TOKENS))
        request = replace(request, prompt=model.prompt_tokens(PROMPT, raw=True))
        self._warm_up = replace(request, max_tokens=_N_WARM)
        self.plain = model.complete(request, FixedPlan(OFF.plan()))
        self.fast = model.complete(request)

    def write(self, interrupted: Callable[[], bool] = never) -> Iterator[tuple[int, str]]:
        """Write both texts. Yields the index of a text, 0 for the plain text, which comes first, and a piece of it.

        Raises KeyboardInterrupt once `interrupted` returns True.
        """
        self._model.complete(self._warm_up, FixedPlan(OFF.plan())).run()
        for which, completion in enumerate((self.plain, self.fast)):
            self._model.engine.reset()
            for piece in completion.stream(interrupted):
                yield which, piece
            if completion.finish_reason == "interrupted":
                raise KeyboardInterrupt

    @property
    def ratio(self) -> float:
        """How many times as fast the second text was written as the first."""
        return self.fast.statistics.tokens_per_second / self.plain.statistics.tokens_per_second

    @property
    def verdict(self) -> str:
        """What came out, in a sentence or two."""
        fast, plain = self.fast.statistics, self.plain.statistics
        if self.ratio >= _PAYS and fast.tokens_per_pass >= _HARDLY_ANY:
            return (
                f"{self._sameness}, {self.ratio:.1f} times as fast: each pass of the large model brought "
                f"{fast.tokens_per_pass:.1f} tokens instead of 1"
            )
        if _gave_up(self.fast.plans) or fast.tokens_per_pass < _HARDLY_ANY:
            why = f"specrun left it off by itself, because {self._costs}"
        else:
            cost = (fast.target_seconds / fast.passes) / (plain.target_seconds / plain.passes)
            why = (
                f"a pass over a token tree took {cost:.1f} times as long as one over a token, and brought "
                f"{fast.tokens_per_pass:.1f} tokens"
            )
        return (
            f"{self._sameness}, {self.ratio:.2f} times as fast, so speculation does not pay here: {why}. It pays where "
            "weights are read from slower memory than these: from SSD, or from RAM beside a GPU"
        )

    @property
    def _costs(self) -> str:
        """What passes over several tokens cost here."""
        profile = self._model.plans.profile
        if profile is None:
            return "passes over several tokens cost more here than they bring"
        table, n_before = profile.costs.target, len(self.plain.request.prompt)
        cost = table.ms(_TRIED, n_before) / table.ms(1, n_before)
        return f"a pass over {_TRIED} tokens takes {cost:.1f} times as long here as one over 1"

    @property
    def _sameness(self) -> str:
        """Whether the texts are the same. In F16, passes over one token and over more use different kernels."""
        if self.plain.token_ids == self.fast.token_ids:
            return "the same text"
        pairs = zip(self.plain.token_ids, self.fast.token_ids, strict=False)
        n_same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return (
            f"the same text for {n_same} tokens, where rounding decided between two tokens that were nearly equal "
            "(`--exact` prevents it)"
        )


def _gave_up(plans: PlanChooser) -> bool:
    return isinstance(plans, Auto) and plans.gave_up
