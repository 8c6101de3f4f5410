"""The planning task: PDDL problems, judged in-process in training and by VAL for every published number."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Any

from planward import val
from planward.core.prompt_templates import PromptTemplate
from planward.core.records import Record
from planward.core.tasks import NO_RENAMING, Messages, Renaming
from planward.core.verdicts import Label, Outcome, Verdict
from planward.pddl.expressions import UnsupportedError
from planward.pddl.language import Problem, load_domain, load_problem
from planward.pddl.renaming import invert_names, rename_plan, rename_problem, sample_object_names
from planward.pddl.simulation import PlanVerifier
from planward.tasks.planning.completion import MAX_CHARS, extract_plan
from planward.tasks.planning.config import REFERENCE_LENGTH, PlanningParams
from planward.tasks.planning.difficulty import parse_difficulty
from planward.tasks.planning.examples import sample_examples
from planward.tasks.planning.identity import identify_problem
from planward.tasks.planning.lexicon import Lexicon, build_lexicon, render_prompt
from planward.tasks.planning.lines import LineValidator
from planward.tasks.planning.neutral import TooManySymbols
from planward.tasks.planning.prompt import render_compact_prompt
from planward.tasks.planning.prompt_variables import ExampleVariables, ProblemVariables
from planward.tasks.planning.reward import build_verdict
from planward.tasks.planning.sources import generate_domain_records, prepare_problems

TEMPLATE = Path(__file__).parent / "templates/full.jinja"  # of style `full`, where params.yaml names none
MIN_PLANS_WITH_PROGRESS = 200  # VAL takes seconds for more, so a progress bar is shown


class PlanningTask:
    """Implements `Task` and the optional parts of `core.tasks` for problems whose PDDL files are below `root`."""

    name = "planning"
    labels = tuple(map(str, Label))

    def __init__(self, params: PlanningParams, root: Path) -> None:
        self.params, self.root = params, root
        self.domains = tuple(params.difficulty)
        self.load_problem = lru_cache(maxsize=4096)(self._load_problem)
        self.line_validator = LineValidator(self, params, root, self.load_problem)
        self.load_lexicon = lru_cache(maxsize=2048)(self._load_lexicon)
        self.build_verifier = lru_cache(maxsize=64)(lambda *files: PlanVerifier(self.load_problem(*files)))
        self.compute_core = cache(lambda *files: identify_problem(*(root / file for file in files)).core)

    def prepare_problems(self, folder: Path) -> None:
        prepare_problems(self.params, folder)

    def generation_units(self) -> list[str]:
        """The domains to generate; each has its own random generator."""
        problems = self.params.problems
        return list(problems.generated) if problems.source == "generated" else []

    def generate_unit(self, unit: str, folder: Path) -> Iterator[Record]:
        return generate_domain_records(self.params, unit, folder)

    def validate_line(self, line: dict[str, Any], domain: str) -> tuple[Record, str]:
        return self.line_validator.validate_line(line, domain)

    def validate_problem(self, line: dict[str, Any], domain: str) -> tuple[Record, str, str]:
        return self.line_validator.validate_problem(line, domain)

    def check_domain(self, problem: Record) -> None:
        self.line_validator.check_domain(problem)

    def score_difficulty(self, problem: Record) -> float | None:
        """Compute the difficulty; None where the file's name does not match the domain's pattern."""
        difficulty, length = self.params.difficulty[problem.domain], 0
        if REFERENCE_LENGTH in difficulty.weights:
            length = self.count_reference_actions(problem) or 0
        return parse_difficulty(problem.meta.problem_file, difficulty, length)

    def count_reference_actions(self, problem: Record) -> int | None:
        """Count the actions of the reference plan as verdicts do; None where the reference is missing or no plan."""
        return len(extract_plan(problem.response or "") or ()) or None

    def select_examples(self, problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
        return sample_examples(problem, pool, count, seed)

    def draw_renaming(self, problem: Record, seed: str) -> Renaming:
        """Exchange names as `pddl.renaming` allows; empty for PDDL that only VAL supports."""
        try:
            return sample_object_names(self._load(problem), Random(f"{seed}:{problem.id}"))
        except UnsupportedError:
            return NO_RENAMING

    def core_digest(self, problem: Record) -> str:
        """Digest of the problem without constraints; of its words for PDDL that only VAL supports."""
        return str(self.compute_core(problem.meta.domain_file, problem.meta.problem_file))

    def prompt(self, problem: Record, examples: Sequence[Record], renaming: Renaming = NO_RENAMING) -> str | Messages:
        """Render a prompt in the style and with the names of params.yaml.

        Raises:
            TooManySymbols: there are not enough neutral names; the message names the problem.
            PromptTemplateError: the template of style `full` is faulty; the message names file and line.
        """
        plans = [_format_reference(example) for example in examples]
        config = self.params.prompt
        if config.style == "full":
            pairs = zip(examples, plans, strict=True)
            example_variables = [ExampleVariables(example, self.root, self._load, plan) for example, plan in pairs]
            problem_variables = ProblemVariables(problem, self.root, self._load, renaming)
            return self._template.render(problem_variables, example_variables, system_turn=config.system_turn)
        lexicon = self._find_lexicon(problem, renaming)
        if lexicon is None:
            parsed_problem = rename_problem(self._load(problem), renaming) if renaming else self._load(problem)
            return render_compact_prompt(parsed_problem, zip(map(self._load, examples), plans, strict=True))
        lexicons = [
            self.load_lexicon(example.meta.domain_file, example.meta.problem_file, neutral=lexicon.is_neutral)
            for example in examples
        ]
        for record, record_lexicon in ((problem, lexicon), *zip(examples, lexicons, strict=True)):
            _check_symbols(record, record_lexicon)
        return render_prompt(lexicon, list(zip(lexicons, plans, strict=True)))

    def reference_completion(self, problem: Record, renaming: Renaming = NO_RENAMING) -> str:
        """Return the reference plan, one action per line; raises ValueError where the record has none."""
        return self.rename_completion(problem, _format_reference(problem), renaming)

    def undo_renaming(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> str:
        if len(completion) > MAX_CHARS:  # holds no plan, in whatever names
            return completion
        lexicon = self._find_lexicon(problem, renaming)
        text = lexicon.decode_plan(completion) if lexicon else completion
        return rename_plan(text, invert_names(renaming)) if renaming else text

    def rename_completion(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> str:
        lexicon = self._find_lexicon(problem, renaming)
        text = rename_plan(completion, renaming) if renaming else completion
        return lexicon.encode_plan(text) if lexicon else text

    def verify(self, problem: Record, completion: str, renaming: Renaming | None = None) -> Verdict:
        if renaming is not None:
            completion = self.undo_renaming(problem, completion, renaming)
        plan = extract_plan(completion)
        if plan is None:
            return _build_prose_verdict()
        try:
            verifier = self.build_verifier(problem.meta.domain_file, problem.meta.problem_file)
            return build_verdict(verifier.verify(plan), plan)
        except UnsupportedError as reason:
            warnings.warn(f"VAL judges {problem.domain}: {reason}", stacklevel=2)
            return self.judge([(problem, completion)])[0]

    def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
        plans = [extract_plan(completion) for _, completion in pairs]
        jobs = [
            (self.root / record.meta.domain_file, self.root / record.meta.problem_file, "\n".join(plan))
            for (record, _), plan in zip(pairs, plans, strict=True)
            if plan is not None
        ]
        limits = self.params.val
        caption = "VAL" if len(jobs) > MIN_PLANS_WITH_PROGRESS else None
        outcomes = iter(val.validate_many(jobs, limits.timeout, limits.workers, caption))
        return [_build_prose_verdict() if plan is None else build_verdict(next(outcomes), plan) for plan in plans]

    @cached_property
    def _template(self) -> PromptTemplate:
        return PromptTemplate(self.params.prompt.template or TEMPLATE)

    def _find_lexicon(self, problem: Record, renaming: Renaming) -> Lexicon | None:
        """Return the lexicon of a problem's prompt; None where the prompt has the problem's own names.

        These are prompts of style `full`, with `prompt.names: literal`, and of PDDL that only VAL supports.
        """
        if self.params.prompt.style == "full" or self.params.prompt.names == "literal":
            return None
        try:
            return self.load_lexicon(problem.meta.domain_file, problem.meta.problem_file, frozenset(renaming.items()))
        except UnsupportedError:
            return None

    def _load_lexicon(
        self,
        domain_file: str,
        problem_file: str,
        renaming: frozenset[tuple[str, str]] = frozenset(),
        *,
        neutral: bool = False,
    ) -> Lexicon:
        problem = self.load_problem(domain_file, problem_file)
        if renaming:  # at random, for training: a canonical order would undo it
            return build_lexicon(rename_problem(problem, dict(renaming)), neutral=neutral, canonical=False)
        return build_lexicon(problem, neutral=neutral)

    def _load(self, record: Record) -> Problem:
        return self.load_problem(record.meta.domain_file, record.meta.problem_file)

    def _load_problem(self, domain_file: str, problem_file: str) -> Problem:
        return load_problem(self.root / problem_file, load_domain(self.root / domain_file))


def _check_symbols(problem: Record, lexicon: Lexicon) -> None:
    """Raise TooManySymbols, naming the problem, where there are not enough neutral names."""
    try:
        _ = lexicon.header, lexicon.text
    except TooManySymbols as error:
        raise TooManySymbols(
            f"problem {problem.id} ({problem.meta.problem_file}) has {error} in a compact prompt; fix: set "
            "prompt.style: full, for a model with a chat template, or leave the problem out"
        ) from None


def _format_reference(problem: Record) -> str:
    """Return the reference plan in the problem's own names; raises ValueError where the record has none."""
    plan = extract_plan(problem.response or "")
    if not plan:
        raise ValueError(f"{problem.id or problem.meta.problem_file}: the record holds no reference plan")
    return "\n".join(plan)


def _build_prose_verdict() -> Verdict:
    return build_verdict(Outcome(Label.FORMAT, 0, detail="no plan in the completion"), [])
