"""Plans from a trained model: prompt, sampling, verdicts by VAL, repair. Docs: docs/how-to/planning.md."""

from planward.planner.planner import Planner
from planward.planner.results import Attempt, PlanResult
from planward.planner.search import SearchConfig

__all__ = ["Attempt", "PlanResult", "Planner", "SearchConfig"]
