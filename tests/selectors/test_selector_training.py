"""Training of the pointer: what is learned, which epoch is kept, and resuming after an interruption."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from planward.core.records import Meta, Record
from planward.selectors.beams import Beam, QueryBeams
from planward.selectors.config import SelectorsConfig
from planward.selectors.dataset import BeamGroup, stack_beams
from planward.selectors.loop import CHECKPOINT_FILE, History, is_better, train_pointer
from planward.selectors.methods import Method, select_informative_groups
from planward.selectors.pointer import Pointer
from planward.selectors.validation import compute_fingerprint
from planward.tasks.planning.config import PlanningParams

SIZE = 8  # of an embedding
NUM_CLASSES = 4
BuildConfig = Callable[..., SelectorsConfig]


@pytest.fixture(scope="session")
def build_config(shipped_selectors: SelectorsConfig) -> BuildConfig:
    """The shipped configuration with a small pointer and few epochs; keyword arguments are laid over the methods."""

    def build_config(**methods: dict[str, Any]) -> SelectorsConfig:
        raw = shipped_selectors.model_dump()
        raw |= {"pointer": {"hidden": 16, "layers": 1, "heads": 2, "dropout": 0.1}, "batch_size": 4, "shot_num": 2}
        fast = {"epochs": 3, "learning_rate": 3e-3, "patience": 3}
        for method in ("sft", "rce", "grpo"):
            raw[method] |= fast | methods.get(method, {})
        return SelectorsConfig.model_validate(raw)

    return build_config


def build_groups(count: int, seed: int = 0, pool_sizes: tuple[int, ...] = (9, 7)) -> list[BeamGroup]:
    """Queries of four classes, a weak signal in the embeddings; only examples of the query's class help."""
    generator = torch.Generator().manual_seed(seed)

    def sample_embedding(label: int) -> torch.Tensor:
        noise = torch.randn(SIZE, generator=generator) * torch.tensor(
            [1.0] * NUM_CLASSES + [40.0] * (SIZE - NUM_CLASSES)
        )
        return 0.1 * noise + torch.nn.functional.one_hot(torch.tensor(label), SIZE)

    groups = []
    for number in range(count):
        label, size = number % NUM_CLASSES, pool_sizes[number % len(pool_sizes)]
        labels = [label, label, *(int(torch.randint(NUM_CLASSES, (), generator=generator)) for _ in range(size - 2))]
        order = torch.randperm(size, generator=generator).tolist()
        labels = [labels[i] for i in order]
        right = [i for i in range(size) if labels[i] == label]
        wrong = [i for i in range(size) if labels[i] != label] or right[2:]
        beams = [[right[0], right[1]], [right[1], right[0]], [right[0], wrong[0]], [wrong[0], right[1]]][
            : 4 - number % 2
        ]
        scores = [2.0, 1.9, 0.5, -1.0][: len(beams)]
        success = [1.0, 1.0, 0.0, 0.0][: len(beams)]
        pool = torch.stack([sample_embedding(candidate) for candidate in labels])
        tensors = (torch.tensor(beams), torch.tensor(scores), torch.tensor(success))
        groups.append(BeamGroup(sample_embedding(label), pool, *tensors))
    return groups


def build_pointer(config: SelectorsConfig, seed: int = 0) -> Pointer:
    torch.manual_seed(seed)
    return Pointer(SIZE, config.pointer).eval()


def validate_with(values: Iterator[float]) -> Callable[[Pointer], float]:
    return lambda _: next(values)


def train(
    method: Method, pointer: Pointer, groups: list[BeamGroup], config: SelectorsConfig, folder: Path, **changes: Any
) -> History:
    """Train; by default every epoch is better than the one before."""
    rising = (number / 1000 for number in range(1000))
    changes = {"validate": validate_with(rising), "seed": 7} | changes
    reference = changes.pop("reference", copy.deepcopy(pointer) if method == "grpo" else None)
    validation = str(changes.get("validation", ""))
    return train_pointer(
        method, pointer, groups, config, changes["seed"], changes["validate"], reference, folder, validation=validation
    )


def compute_log_prob(pointer: Pointer, groups: list[BeamGroup], beam: int) -> float:
    """Mean log-probability of the groups' beams with this index."""
    with torch.no_grad():
        total = 0.0
        for group in groups:
            mask = torch.ones(1, len(group.pool), dtype=torch.bool)
            choices = group.beams[None, beam : beam + 1]
            steps = pointer.compute_log_probs(group.query[None], group.pool[None], mask, choices)
            total += float(steps.gather(-1, choices[..., None]).sum())
    return total / len(groups)


def compute_accuracy(pointer: Pointer, groups: list[BeamGroup]) -> float:
    """Share of queries for which the first choice is of the query's class."""
    hits = 0
    for group in groups:
        mask = torch.ones(1, len(group.pool), dtype=torch.bool)
        choice = int(pointer.choose_greedily(group.query[None], group.pool[None], mask, 1))
        hits += int(group.pool[choice, :NUM_CLASSES].argmax()) == int(group.query[:NUM_CLASSES].argmax())
    return hits / len(groups)


def copy_weights(pointer: Pointer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in pointer.state_dict().items()}


def are_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_imitation_learns_what_the_cosine_does_not_show(build_config: BuildConfig, tmp_path: Path) -> None:
    config = build_config(sft={"epochs": 8})
    pointer, held_out = build_pointer(config), build_groups(60, seed=1)
    before = compute_accuracy(pointer, held_out)
    train("sft", pointer, build_groups(60), config, tmp_path)
    assert compute_accuracy(pointer, held_out) > before + 0.3


@pytest.mark.parametrize("method", ["rce", "grpo"])
def test_the_better_beam_becomes_more_likely_than_the_worse(
    build_config: BuildConfig, tmp_path: Path, method: Method
) -> None:
    config, groups = build_config(), build_groups(24)
    pointer = build_pointer(config)
    before = compute_log_prob(pointer, groups, 0) - compute_log_prob(pointer, groups, 2)
    train(method, pointer, groups, config, tmp_path)
    assert compute_log_prob(pointer, groups, 0) - compute_log_prob(pointer, groups, 2) > before + 0.05


@pytest.mark.parametrize("method", ["sft", "rce", "grpo"])
@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_resumed_run_ends_with_the_same_weights(
    build_config: BuildConfig, tmp_path: Path, method: Method, epoch: int
) -> None:
    config, groups = build_config(), build_groups(10)
    straight_pointer = build_pointer(config)
    expected = train(method, straight_pointer, groups, config, tmp_path / "a", validate=lambda _: 0.5)

    def interrupt(_: Pointer) -> float:
        nonlocal calls
        calls += 1
        if calls == epoch + (method != "sft"):
            raise KeyboardInterrupt
        torch.rand(calls)  # random draws of validation must not affect training
        return 0.5

    calls, pointer = 0, build_pointer(config)
    reference = copy.deepcopy(pointer) if method == "grpo" else None
    with pytest.raises(KeyboardInterrupt):
        train(method, pointer, groups, config, tmp_path / "b", validate=interrupt, reference=reference)
    pointer = build_pointer(config)  # as in a new process
    history = train(method, pointer, groups, config, tmp_path / "b", validate=lambda _: 0.5, reference=reference)
    assert history == expected
    assert are_same(copy_weights(pointer), copy_weights(straight_pointer))


def test_a_checkpoint_of_other_inputs_is_ignored(build_config: BuildConfig, tmp_path: Path) -> None:
    config, pointer = build_config(), build_pointer(build_config())
    train("sft", pointer, build_groups(10), config, tmp_path)
    for groups, seed in ((build_groups(10, seed=1), 7), (build_groups(10), 8)):
        fresh_pointer, resumed_pointer = build_pointer(config), build_pointer(config)
        train("sft", fresh_pointer, groups, config, tmp_path / f"{seed}", seed=seed)
        train("sft", resumed_pointer, groups, config, tmp_path, seed=seed)
        assert are_same(copy_weights(fresh_pointer), copy_weights(resumed_pointer))
        assert not are_same(copy_weights(fresh_pointer), copy_weights(pointer))


def test_a_checkpoint_of_other_validation_or_code_is_ignored(
    build_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = build_config()

    def count_epochs(validation: str) -> int:
        """Train; the number of epochs that this run has validated."""
        values = iter([0.5] * 10)
        train(
            "sft",
            build_pointer(config),
            build_groups(10),
            config,
            tmp_path,
            validate=validate_with(values),
            validation=validation,
        )
        return 10 - len(list(values))

    assert [count_epochs(name) for name in ("a", "a", "b")] == [3, 0, 3]
    monkeypatch.setattr("planward.selectors.loop.compute_code_digest", lambda _: b"other code")
    assert count_epochs("b") == 3


def test_what_validation_depends_on(shipped_params: PlanningParams, tmp_path: Path) -> None:
    meta = Meta(scenario="d", domain_file="d.pddl", problem_file="p.pddl")
    problems = [Record(id=name, prompt="Plan.", meta=meta) for name in "abc"]
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    arguments: dict[str, Any] = {
        "problems": problems[:1],
        "pools": {"a": problems[1:]},
        "embeddings": {"a": torch.ones(2)},
        "params": shipped_params,
        "model": tmp_path,
    }
    before = compute_fingerprint(**arguments)
    assert compute_fingerprint(**arguments) == before
    changes: list[dict[str, Any]] = [
        {"problems": [problems[0].model_copy(update={"prompt": "Plan!"})]},
        {"pools": {"a": problems[2:]}},
        {"embeddings": {"a": torch.zeros(2)}},
        {"params": shipped_params.model_copy(update={"seed": 1})},
    ]
    assert before not in [compute_fingerprint(**arguments | change) for change in changes]
    (tmp_path / "model.safetensors").write_bytes(b"others")
    assert compute_fingerprint(**arguments) != before


@pytest.mark.parametrize("damage", ["truncated", "empty", "bit", "foreign"])
def test_a_damaged_checkpoint_is_set_aside_and_training_starts_anew(
    build_config: BuildConfig, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config, groups = build_config(), build_groups(10)
    straight_pointer, resumed_pointer = build_pointer(config), build_pointer(config)
    history = train("sft", straight_pointer, groups, config, tmp_path)
    file = tmp_path / CHECKPOINT_FILE
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    contents = {"truncated": content[:-1], "empty": b"", "bit": content, "foreign": save({"weight": torch.ones(3)})}
    file.write_bytes(contents[damage])
    assert train("sft", resumed_pointer, groups, config, tmp_path) == history
    assert are_same(copy_weights(straight_pointer), copy_weights(resumed_pointer))
    assert f"warning: {file} is not used" in capsys.readouterr().out
    assert (tmp_path / f"unusable-{CHECKPOINT_FILE}").read_bytes() == contents[damage]


def test_the_best_epoch_is_kept_and_training_stops_without_a_better_one(
    build_config: BuildConfig, tmp_path: Path
) -> None:
    config = build_config(sft={"epochs": 9, "patience": 2})
    weights: list[dict[str, torch.Tensor]] = []
    values = chain([0.1, 0.4, 0.4, 0.3], repeat(0.9))

    def validate(pointer: Pointer) -> float:
        assert not pointer.training
        weights.append(copy_weights(pointer))
        return next(values)

    pointer = build_pointer(config)
    history = train("sft", pointer, build_groups(8), config, tmp_path, validate=validate)
    assert [row["epoch"] for row in history.epochs] == [1, 2, 3, 4]
    assert [row["kept"] for row in history.epochs] == [False, True, False, False]
    assert are_same(copy_weights(pointer), weights[1])
    assert history.summarise()["best_epoch"] == 2
    assert history.summarise()["validation_success"] == 0.4


@pytest.mark.parametrize("method", ["rce", "grpo"])
def test_no_method_ends_below_its_initial_weights(build_config: BuildConfig, tmp_path: Path, method: Method) -> None:
    config = build_config()
    pointer = build_pointer(config)
    before = copy_weights(pointer)
    history = train(
        method, pointer, build_groups(8), config, tmp_path, validate=validate_with(chain([0.5], repeat(0.4)))
    )
    assert history.best == 0
    assert are_same(copy_weights(pointer), before)


def test_ties_in_success_are_broken_by_the_kl() -> None:
    def build_row(success: float, kl: float | None = None) -> dict[str, float]:
        return {"validation_success": success} | ({} if kl is None else {"kl": kl})

    target = (0.01, 0.1)
    assert is_better(build_row(0.5, 0.05), build_row(0.5, 0.0), target)
    assert not is_better(build_row(0.5, 0.05), build_row(0.5, 0.02), target)
    assert not is_better(build_row(0.5, 0.2), build_row(0.5, 0.0), target)
    assert not is_better(build_row(0.4, 0.05), build_row(0.5, 0.0), target)
    assert is_better(build_row(0.6, 0.5), build_row(0.5, 0.05), target)
    assert not is_better(build_row(0.5), build_row(0.5), target)


def test_steps_are_logged(build_config: BuildConfig, tmp_path: Path) -> None:
    config, groups = build_config(), build_groups(10)
    pointer = build_pointer(config)
    rce = train("rce", pointer, groups, config, tmp_path / "rce")
    assert [row["step"] for row in rce.steps] == list(range(1, 10))
    assert [rce.steps[i]["temperature"] for i in (0, 4, 8)] == pytest.approx([2.0, 1.25, 0.5])
    grpo = train("grpo", pointer, groups, config, tmp_path / "grpo")
    first, last = grpo.steps[0], grpo.steps[-1]
    assert first["kl"] == pytest.approx(0, abs=1e-6)  # the reference has the initial weights, and dropout is off
    assert first["beta"] == config.grpo.beta
    assert grpo.steps[1]["beta"] == pytest.approx(config.grpo.beta / config.grpo.beta_factor)
    assert last["kl"] > 0 < last["advantage"]
    assert grpo.epochs[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert all(math.isfinite(value) for row in (*rce.steps, *grpo.steps) for value in row.values())


def test_early_groups_are_the_best_beams(build_config: BuildConfig, tmp_path: Path) -> None:
    """Only the third and fourth beam differ in reward, so nothing is learned while the first two are the group."""
    config = build_config(grpo={"early_beams": 2, "early_until": 0.5, "reward": "correctness", "epochs": 2})
    groups = [group for group in build_groups(16) if len(group.beams) == 4]
    history = train("grpo", build_pointer(config), groups, config, tmp_path)
    assert [row["left_out"] for row in history.steps] == [4, 4, 0, 0]
    assert [row["grad_norm"] > 0 for row in history.steps] == [False, False, True, True]


def test_uninformative_groups_are_left_out(build_config: BuildConfig, tmp_path: Path) -> None:
    config = build_config(grpo={"low_score": 0.5, "reward": "combined"})
    group, *rest = build_groups(5)
    equal = BeamGroup(group.query, group.pool, group.beams, torch.ones(4), torch.ones(4))
    failure = BeamGroup(group.query, group.pool, group.beams, group.scores - 9, torch.zeros(4))
    promising_failure = BeamGroup(group.query, group.pool, group.beams, group.scores + 9, torch.zeros(4))
    groups = [equal, failure, promising_failure, *rest]
    assert select_informative_groups(groups, config.grpo) == [promising_failure, *rest]
    assert train("grpo", build_pointer(config), groups, config, tmp_path).left_out == 2


def test_without_informative_groups_the_weights_do_not_change(build_config: BuildConfig, tmp_path: Path) -> None:
    config = build_config()
    group = build_groups(1)[0]
    pointer = build_pointer(config)
    before = copy_weights(pointer)
    groups = [BeamGroup(group.query, group.pool, group.beams, torch.ones(4), torch.ones(4))]
    history = train("grpo", pointer, groups, config, tmp_path)
    assert are_same(copy_weights(pointer), before)
    assert history.summarise()["left_out"] == 1
    assert history.summarise()["validation_success"] == 0


def test_rewards_include_diversity_if_it_has_a_weight(build_config: BuildConfig) -> None:
    pool = torch.tensor([[1.0, 0.0], [0.99, 0.1], [0.0, 1.0], [0.1, 0.9]])
    beams = torch.tensor([[0, 1], [0, 2]])  # the first has an example and its nearest neighbour
    groups = [BeamGroup(pool[0], pool, beams, torch.ones(2), torch.zeros(2))]
    assert select_informative_groups(groups, build_config().grpo) == []
    assert (
        select_informative_groups(groups, build_config(grpo={"diversity_weight": 1.0, "low_score": 0.0}).grpo) == groups
    )


def test_padding_is_masked_and_ranks_follow_scores() -> None:
    batch = stack_beams(build_groups(2))
    assert batch.mask.tolist() == [[True] * 4, [True] * 3 + [False]]
    assert batch.ranks[0].tolist() == [0, 1, 2, 3]
    group = build_groups(1)[0]
    reversed_scores = BeamGroup(group.query, group.pool, group.beams, group.scores.flip(0), group.success)
    assert stack_beams([reversed_scores]).ranks.tolist() == [[3, 2, 1, 0]]


def test_the_checkpoint_is_the_only_file(build_config: BuildConfig, tmp_path: Path) -> None:
    config = build_config()
    train("sft", build_pointer(config), build_groups(4), config, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [CHECKPOINT_FILE]


def test_a_loss_that_is_not_finite_raises(build_config: BuildConfig, tmp_path: Path) -> None:
    config = build_config(sft={"learning_rate": 1e30})
    with pytest.raises(FloatingPointError, match="lower learning_rate"):
        train("sft", build_pointer(config), build_groups(16), config, tmp_path)


def test_invalid_training_inputs_raise(build_config: BuildConfig, tmp_path: Path) -> None:
    config, groups = build_config(), build_groups(4)
    group = groups[0]
    short = BeamGroup(group.query, group.pool, group.beams[:, :1], group.scores, group.success)
    unknown = BeamGroup(group.query, group.pool, group.beams, group.scores, group.success * math.nan)
    with pytest.raises(ValueError, match="no queries"):
        train("sft", build_pointer(config), [], config, tmp_path)
    with pytest.raises(ValueError, match=r"different lengths \[1, 2\]; fix: .*raise prompt\.max_tokens or lower"):
        train("sft", build_pointer(config), [*groups, short], config, tmp_path)
    with pytest.raises(ValueError, match="success"):
        train("grpo", build_pointer(config), [unknown], config, tmp_path)
    with pytest.raises(ValueError, match="frozen reference"):
        train("grpo", build_pointer(config), groups, config, tmp_path, reference=None)


@pytest.mark.parametrize(("beta", "accepted"), [(0.0, True), (0.1, True), (1.0, True), (0.05, False), (1.5, False)])
def test_beta_outside_its_bounds_raises(build_config: BuildConfig, beta: float, accepted: bool) -> None:
    values = {"beta": beta, "beta_bounds": [0.1, 1.0]}
    if accepted:
        assert build_config(grpo=values).grpo.beta == beta
        return
    with pytest.raises(ValueError, match=rf"beta \({beta}\) must be 0 or within beta_bounds \(\[0\.1, 1\.0\]\)"):
        build_config(grpo=values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.ones(3)}, "must be"),
        ({"scores": torch.ones(3)}, "must be"),
        ({"beams": torch.zeros(2, 0, dtype=torch.long)}, "needs candidates"),
        ({"beams": torch.tensor([[0, 1], [2, 4]])}, "outside its pool of 4"),
        ({"beams": torch.tensor([[0, 1], [2, 2]])}, "repeats an example"),
        ({"scores": torch.tensor([0.1, math.nan])}, "finite"),
    ],
)
def test_malformed_groups_raise(change: dict[str, torch.Tensor], message: str) -> None:
    tensors = {
        "query": torch.ones(2),
        "pool": torch.ones(4, 2),
        "beams": torch.tensor([[0, 1], [2, 3]]),
        "scores": torch.tensor([0.2, 0.1]),
        "success": torch.tensor([1.0, math.nan]),
    }
    BeamGroup(**tensors)
    with pytest.raises(ValueError, match=message):
        BeamGroup(**tensors | change)


def test_groups_are_built_from_beams() -> None:
    embeddings = {name: torch.tensor([float(number), 1.0]) for number, name in enumerate("abcq")}
    row = QueryBeams("q", ("c", "a", "b"), (Beam(("a", "c"), 0.5, True), Beam(("b", "a"), 0.25)))
    group = BeamGroup.from_beams(row, embeddings)
    assert group.query.tolist() == [3, 1]
    assert group.pool[:, 0].tolist() == [2, 0, 1]
    assert group.beams.tolist() == [[0, 1], [1, 2]]  # the example next to the query first
    assert group.scores.tolist() == [0.5, 0.25]
    assert group.success[0] == 1
    assert math.isnan(group.success[1])
    with pytest.raises(ValueError, match="q: no embedding of c"):
        BeamGroup.from_beams(row, {name: vector for name, vector in embeddings.items() if name != "c"})
    with pytest.raises(ValueError, match="q: a beam has b, which is not in the pool"):
        BeamGroup.from_beams(QueryBeams("q", ("c", "a"), row.beams), embeddings)
    with pytest.raises(ValueError, match="q: a beam repeats an example"):
        BeamGroup.from_beams(QueryBeams("q", ("c", "a"), (Beam(("a", "a"), 0.5),)), embeddings)
