"""Every method by its name. A new drafter is a file in `drafters/` and a line here; papers have lists of their own."""

from __future__ import annotations

from specrun.errors import UsageError
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.guessed import DRAFTLESS, SINGLE_SOURCES
from specrun.speculation.drafters.sequoia import SEQUOIA_MATCH
from specrun.speculation.drafters.specexec import DFLASH, EAGLE3, MTP, SPECEXEC
from specrun.speculation.method import OFF, Method
from specrun.speculation.papers.growers import GROWERS
from specrun.speculation.papers.rules import RULES

_OWN = (OFF, CHAIN, SPECEXEC, SEQUOIA_MATCH, ADAPTIVE, MERGED, DRAFTLESS, EAGLE3, MTP, DFLASH)
METHODS = {method.name: method for method in (*_OWN, *SINGLE_SOURCES, *GROWERS, *RULES)}
# Other names of methods: that of `--speculate`, and those of the multi-candidate paper for the same rules.
ALIASES = {"tree": SPECEXEC.name, "multi-candidate": "specinfer", "multi-candidate-without-replacement": "rsd"}


def find(name: str) -> Method:
    """The method of this name or alias. Raises UsageError for an unknown name."""
    name = ALIASES.get(name, name)
    if name not in METHODS:
        raise UsageError(f"there is no method {name}; `specrun methods` lists all methods")
    return METHODS[name]
