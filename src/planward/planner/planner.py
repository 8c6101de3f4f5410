"""The planner: prompts a model, judges its completions with VAL, samples and repairs until a plan is valid."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planward.core.prompt_templates import PromptTemplate
from planward.core.prompts import encode_prompt, fit_prompt
from planward.core.records import Record
from planward.core.tasks import Messages
from planward.core.verdicts import Verdict, VerifierError
from planward.inference import models, vllm
from planward.inference.decoding import generate_greedy
from planward.inference.sampling import Sample, generate_samples
from planward.params import ParamsError
from planward.planner.costs import measure_cost
from planward.planner.feedback import TEMPLATE, FailureVariables
from planward.planner.problems import ExampleSelector, build_record
from planward.planner.results import Attempt, PlanResult, choose_attempt
from planward.planner.search import SearchConfig
from planward.planner.settings import find_model, load_settings
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.task import PlanningTask
from planward.val import InputError
from planward.val.inputs import read_inputs

CONTEXT_REASON = "the conversation would exceed prompt.max_tokens"


@dataclass
class Conversation:
    """A problem's prompt, which grows by two turns with every repair, and its attempts so far.

    Attributes:
        ids: token ids of the prompt.
        fault: why the verifier cannot judge plans for this problem; None as long as it can.
    """

    record: Record
    prompt: str | Messages
    ids: list[int]
    num_examples: int
    attempts: list[Attempt] = field(default_factory=list)
    stop_reason: str = ""
    fault: Exception | None = None

    @property
    def solved(self) -> bool:
        return any(attempt.verdict.success for attempt in self.attempts)

    def build_result(self) -> PlanResult:
        """Return the result; without a valid plan, raises the fault, where there is one."""
        if self.fault is not None and not self.solved:
            raise self.fault
        meta = self.record.meta
        return PlanResult(
            meta.domain_file, meta.problem_file, self.num_examples, tuple(self.attempts), self.stop_reason
        )


class Planner:
    """Plans for PDDL problems from a trained model.

        planner = Planner("models/base")
        result = planner.plan("domain.pddl", "problem.pddl")
        if result.success:
            print(result.format_plan())

    The weights are loaded once. Prompts are made as in training, by the settings of `planner.settings.load_settings`.

    Args:
        model: a folder of weights, a run in results/models such as `grpo-400-3407`, or None: the run that solves most
            test problems.
        repair_template: a Jinja file with the block `user`, the turn after a failed plan; None: the built-in one.

    Raises:
        ParamsError: the model or a template is missing or faulty, or the prompt is a chat and the model has no chat
            template.
        BackendError: params.yaml asks for a backend that cannot run here.
    """

    def __init__(self, model: str | Path | None = None, *, repair_template: Path | None = None) -> None:
        self.folder = find_model(model)
        self.settings = settings = load_settings(self.folder)
        self.prompt_config = settings.prompt
        self._files = TemporaryDirectory(prefix="planward-plan-")  # deleted with the planner
        if settings.template is not None:
            template = Path(self._files.name, "prompt.jinja")
            template.write_text(settings.template, encoding="utf-8")
            self.prompt_config = settings.prompt.model_copy(update={"template": template})
        self.repair_template = repair_template or TEMPLATE
        self._repair = PromptTemplate(self.repair_template)
        # Prompts and verdicts need these sections only; files are named by absolute paths.
        sections = PlanningParams.model_construct(prompt=self.prompt_config, val=settings.val, difficulty={})
        self.task = PlanningTask(sections, Path())
        length = settings.prompt.max_tokens + settings.prompt.max_completion_tokens
        if settings.model.generation == "vllm":
            self.network, self.tokenizer = vllm.load_vllm(settings.model, str(self.folder), length, settings.seed)
        else:
            self.network, self.tokenizer = models.load_model(
                settings.model, str(self.folder), length, settings.seed, training=False
            )
        self.has_chat = self.tokenizer.chat_template is not None and settings.prompt.style == "full"
        if settings.prompt.style == "full" and not self.has_chat:
            raise ParamsError(f"{self.folder}: has no chat template; fix: prompt.style: compact in params.yaml")

    def plan(
        self,
        domain: str | Path,
        problem: str | Path,
        *,
        examples: Sequence[Record] | ExampleSelector = (),
        samples: int = 1,
        temperature: float | None = None,
        best: bool = False,
        repair: int = 0,
        seed: int | None = None,
    ) -> PlanResult:
        """Plan for one problem.

        Args:
            domain, problem: PDDL files.
            examples: worked examples for the prompt (see `problems.read_examples`), or a function that selects them.
                As many as fit stay, the last ones first.
            samples: at most so many completions, judged in rounds until one is valid.
            temperature: of the samples; None: greedy decoding for one sample, 1.0 for more.
            best: draw all samples, and choose the valid plan of the lowest cost.
            repair: further turns with the verdict on the best failed plan, for models with a chat template.
            seed: of the samples; None: `seed` of params.yaml.

        Raises:
            PddlError, InputError: a PDDL file is missing or invalid.
            ValueError: the problem cannot be stated in the prompt; the message says why.
            VerifierError: no verdict could be reached.
        """
        search = self.build_search(samples, temperature, best=best, repair=repair, seed=seed)
        conversation = self.start(Path(domain), Path(problem), examples)
        self.solve([conversation], search)
        return conversation.build_result()

    def build_search(
        self, samples: int, temperature: float | None, *, best: bool, repair: int, seed: int | None
    ) -> SearchConfig:
        """Return the checked settings of a search; None stands for what `plan` says."""
        if temperature is None:
            temperature = 0.0 if samples == 1 else 1.0
        if repair and not self.has_chat:
            raise ParamsError(
                f"repair: {self.folder} has no chat template, or prompt.style is compact, so there is no further turn "
                "to tell it the verdict; fix: samples instead of repair, or a chat model with prompt.style: full"
            )
        return SearchConfig(samples, temperature, best, repair, self.settings.seed if seed is None else seed)

    def start(self, domain: Path, problem: Path, examples: Sequence[Record] | ExampleSelector = ()) -> Conversation:
        """Check a problem's files and build its prompt; raises as `plan`."""
        read_inputs(domain, problem)
        record = build_record(domain, problem)
        try:
            candidates = examples(record) if callable(examples) else examples
            prompt, kept_examples = fit_prompt(
                self.task, record, candidates, lambda text: len(self._encode(text)), self.prompt_config.max_tokens
            )
        except RecursionError:
            raise InputError(f"{problem}: nested too deeply") from None
        return Conversation(record, prompt, self._encode(prompt), len(kept_examples))

    def solve(self, conversations: Sequence[Conversation], search: SearchConfig) -> None:
        """Add attempts to conversations, together, until each has a valid plan or `search` ends."""
        active = list(conversations)
        for turn in range(search.repair + 1):
            if turn:
                active = [conversation for conversation in active if self._add_feedback(conversation)]
            for num_samples, seed in search.iter_rounds():
                active = [c for c in active if c.fault is None and (search.best or not c.solved)]
                if active:
                    self._attempt(active, turn, num_samples, search.temperature, seed)
            active = [c for c in active if c.fault is None and not c.solved]

    def _attempt(
        self, conversations: Sequence[Conversation], turn: int, num_samples: int, temperature: float, seed: int
    ) -> None:
        """Add `num_samples` completions with verdicts to each conversation."""
        samples = self._generate([conversation.ids for conversation in conversations], num_samples, temperature, seed)
        pairs = [(c, sample) for c, row in zip(conversations, samples, strict=True) for sample in row]
        for (conversation, sample), verdict in zip(pairs, self._judge(pairs), strict=True):
            if isinstance(verdict, Exception):
                conversation.fault = verdict
                continue
            cost = None
            if verdict.success:
                meta = conversation.record.meta
                files = Path(meta.domain_file), Path(meta.problem_file)
                cost = measure_cost(*files, verdict.plan, self.settings.val.timeout)
            conversation.attempts.append(Attempt(turn, sample.text, verdict, cost, sample.num_tokens))

    def _generate(
        self, prompts: Sequence[Sequence[int]], num_samples: int, temperature: float, seed: int
    ) -> list[list[Sample]]:
        length, batch_size = self.prompt_config.max_completion_tokens, self.settings.batch_size
        generation = self.settings.model.generation
        common: Any = {"generation": generation, "progress": False}
        if temperature:
            return generate_samples(
                self.network, self.tokenizer, prompts, num_samples, temperature, length, batch_size, seed, **common
            )
        texts = generate_greedy(self.network, self.tokenizer, prompts, length, batch_size, **common)
        return [[Sample(text, min(self._count_tokens(text) + 1, length))] for text in texts]

    def _judge(self, pairs: Sequence[tuple[Conversation, Sample]]) -> list[Verdict | Exception]:
        """Return VAL's verdicts, or why there is none."""
        plans = [(c.record, self.task.undo_renaming(c.record, sample.text)) for c, sample in pairs]
        with suppress(InputError, VerifierError):
            return list(self.task.judge(plans))
        return [self._judge_alone(*plan) for plan in plans]

    def _judge_alone(self, record: Record, completion: str) -> Verdict | Exception:
        try:
            return self.task.judge([(record, completion)])[0]
        except (InputError, VerifierError) as error:
            return error

    def _add_feedback(self, conversation: Conversation) -> bool:
        """Add the best failed attempt of the last turn and its verdict as two turns; False where they do not fit."""
        turn = conversation.attempts[-1].turn
        failed_attempt = choose_attempt(tuple(attempt for attempt in conversation.attempts if attempt.turn == turn))
        feedback = self._repair.render(FailureVariables(failed_attempt.verdict))
        assert not isinstance(conversation.prompt, str)
        prompt = [*conversation.prompt, {"role": "assistant", "content": failed_attempt.completion}, *feedback]
        ids = self._encode(prompt)
        if len(ids) > self.prompt_config.max_tokens:
            conversation.stop_reason = CONTEXT_REASON
            return False
        conversation.prompt, conversation.ids = prompt, ids
        return True

    def _encode(self, prompt: str | Messages) -> list[int]:
        return encode_prompt(self.tokenizer, prompt, self.prompt_config.chat_template_options)

    def _count_tokens(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
