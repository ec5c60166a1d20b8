"""Trees of texts that share a pass."""

from __future__ import annotations

from specrun.catalog import embedded
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import Passes
from specrun.decoding.shared_drafts import drafts_of_several
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.controllers.sharing import Sharing
from specrun.speculation.drafters.cost_aware import MERGED
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import Guide, RunCosts


def test_a_text_whose_times_reach_less_far_than_the_pass_gets_no_tree() -> None:
    """As where the number of threads changed after another text began: its passes have other times."""
    settings, plan = LlamaSettings(threads=1), MERGED.plan(16, 8)
    given = RunOptions(
        embedded.TARGET, embedded.DRAFT, (plan,), ctx_size=1024, settings=settings, draft_settings=settings, parallel=3
    )
    with Model(given) as model:
        prompt = model.prompt_tokens("def add(a, b):\n    return a + b\n", raw=True)
        texts = []
        for engine, sizes in zip(model.slots.engines, [(1, 2, 64, 256), (1, 3, 4), (1, 3, 4)], strict=True):
            table = CostTable([PassTime(n, 0, 20.0 + 0.01 * n) for n in sizes])
            guide = Guide(RunCosts.of(CostModel(table, CostTable([PassTime(n, 0, 0.1) for n in (1, 8)]))))
            long = prompt * 4 if len(texts) == 2 else prompt
            text = Generation(engine, Request(long, SamplingParameters(temperature=0), 32), FixedPlan(plan, guide))
            text.begin()
            texts.append(text)
        *writing, reading = texts
        Passes().read(writing)
        steps = drafts_of_several(writing, [reading], Sharing())
        assert reading.chunk_cells > 16
        assert len(steps[0].tree) > 1
        assert len(steps[1].tree) == 1
