"""Token trees, drafters and acceptance in pure numpy; nothing here knows llama.cpp."""

from specrun.speculation.plan import Plan
from specrun.speculation.planning.chooser import FastestPlan, FixedPlan, PlanChooser
from specrun.speculation.planning.profiled import ByTemperature, ProfiledPlan
from specrun.speculation.record import PassRecord
from specrun.speculation.sample_and_match import Accepted, sample_and_match
from specrun.speculation.tree import TokenTree

__all__ = [
    "Accepted",
    "ByTemperature",
    "FastestPlan",
    "FixedPlan",
    "PassRecord",
    "Plan",
    "PlanChooser",
    "ProfiledPlan",
    "TokenTree",
    "sample_and_match",
]
