"""The selector's training: what is learnt, which epoch is kept, and that an interruption changes nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch

from planward.demonstrations.beams import Beam, QueryBeams
from planward.demonstrations.phases import CHECKPOINT, Example, History, Phase, better, grouped, teaching, train
from planward.demonstrations.pointer import Pointer
from planward.params import Demonstrations, Params

SIZE = 8
KINDS = 4
Make = Callable[..., Demonstrations]


@pytest.fixture(scope="session")
def options(shipped: Params) -> Make:
    """The shipped settings with a small pointer and few epochs; keyword arguments are laid over the phases."""

    def options(**phases: dict[str, Any]) -> Demonstrations:
        raw = shipped.demonstrations.model_dump()
        raw |= {"pointer": {"hidden": 16, "layers": 1, "heads": 2, "dropout": 0.1}, "batch_size": 4, "shot_num": 2}
        fast = {"epochs": 3, "learning_rate": 3e-3, "patience": 3}
        for phase in ("sft", "rce", "grpo"):
            raw[phase] |= fast | phases.get(phase, {})
        return Demonstrations.model_validate(raw)

    return options


def examples(count: int, seed: int = 0, pools: tuple[int, ...] = (9, 7)) -> list[Example]:
    """Queries of four kinds, which is a faint part of the embeddings; only examples of a query's own kind help."""
    generator = torch.Generator().manual_seed(seed)

    def embedding(kind: int) -> torch.Tensor:
        noise = torch.randn(SIZE, generator=generator) * torch.tensor([1.0] * KINDS + [40.0] * (SIZE - KINDS))
        return 0.1 * noise + torch.nn.functional.one_hot(torch.tensor(kind), SIZE)

    made = []
    for number in range(count):
        kind, size = number % KINDS, pools[number % len(pools)]
        kinds = [kind, kind, *(int(torch.randint(KINDS, (), generator=generator)) for _ in range(size - 2))]
        order = torch.randperm(size, generator=generator).tolist()
        kinds = [kinds[place] for place in order]
        right = [place for place in range(size) if kinds[place] == kind]
        wrong = [place for place in range(size) if kinds[place] != kind] or right[2:]
        beams = [[right[0], right[1]], [right[1], right[0]], [right[0], wrong[0]], [wrong[0], right[1]]][
            : 4 - number % 2
        ]
        scores = [2.0, 1.9, 0.5, -1.0][: len(beams)]
        success = [1.0, 1.0, 0.0, 0.0][: len(beams)]
        pool = torch.stack([embedding(other) for other in kinds])
        parts = (torch.tensor(beams), torch.tensor(scores), torch.tensor(success))
        made.append(Example(embedding(kind), pool, *parts))
    return made


def new_pointer(settings: Demonstrations, seed: int = 0) -> Pointer:
    torch.manual_seed(seed)
    return Pointer(SIZE, settings.pointer).eval()


def judged(values: Iterator[float]) -> Callable[[Pointer], float]:
    return lambda _: next(values)


def run(
    phase: Phase, pointer: Pointer, data: list[Example], settings: Demonstrations, folder: Path, **changes: Any
) -> History:
    """Train; unless told otherwise every epoch is better than the one before."""
    rising = (number / 1000 for number in range(1000))
    changes = {"validate": judged(rising), "seed": 7} | changes
    reference = changes.pop("reference", copy.deepcopy(pointer) if phase == "grpo" else None)
    return train(phase, pointer, data, settings, changes["seed"], changes["validate"], reference, folder)


def likelihood(pointer: Pointer, data: list[Example], beam: int) -> float:
    """Mean log-probability of one of each example's beams."""
    with torch.no_grad():
        total = 0.0
        for example in data:
            mask = torch.ones(1, len(example.pool), dtype=torch.bool)
            chosen = example.beams[None, beam : beam + 1]
            steps = pointer.sequence_log_probs(example.query[None], example.pool[None], mask, chosen)
            total += float(steps.gather(-1, chosen[..., None]).sum())
    return total / len(data)


def right_share(pointer: Pointer, data: list[Example]) -> float:
    """Share of queries for which the first example that is chosen is of the query's kind."""
    hits = 0
    for example in data:
        mask = torch.ones(1, len(example.pool), dtype=torch.bool)
        place = int(pointer.greedy(example.query[None], example.pool[None], mask, 1))
        hits += int(example.pool[place, :KINDS].argmax()) == int(example.query[:KINDS].argmax())
    return hits / len(data)


def weights(pointer: Pointer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in pointer.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_imitation_finds_what_helps_where_the_cosine_does_not(options: Make, tmp_path: Path) -> None:
    settings = options(sft={"epochs": 8})
    pointer, unseen = new_pointer(settings), examples(60, seed=1)
    before = right_share(pointer, unseen)
    run("sft", pointer, examples(60), settings, tmp_path)
    assert right_share(pointer, unseen) > before + 0.3


@pytest.mark.parametrize("phase", ["rce", "grpo"])
def test_the_better_beam_gains_on_the_worse(options: Make, tmp_path: Path, phase: Phase) -> None:
    settings, data = options(), examples(24)
    pointer = new_pointer(settings)
    before = likelihood(pointer, data, 0) - likelihood(pointer, data, 2)
    run(phase, pointer, data, settings, tmp_path)
    assert likelihood(pointer, data, 0) - likelihood(pointer, data, 2) > before + 0.05


@pytest.mark.parametrize("phase", ["sft", "rce", "grpo"])
@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_an_interrupted_run_ends_as_if_it_had_not_been(options: Make, tmp_path: Path, phase: Phase, epoch: int) -> None:
    settings, data = options(), examples(10)
    straight = new_pointer(settings)
    expected = run(phase, straight, data, settings, tmp_path / "a", validate=lambda _: 0.5)

    def interrupted(_: Pointer) -> float:
        nonlocal calls
        calls += 1
        if calls == epoch + (phase != "sft"):
            raise KeyboardInterrupt
        torch.rand(calls)  # what a measure draws must not change the training
        return 0.5

    calls, pointer = 0, new_pointer(settings)
    reference = copy.deepcopy(pointer) if phase == "grpo" else None
    with pytest.raises(KeyboardInterrupt):
        run(phase, pointer, data, settings, tmp_path / "b", validate=interrupted, reference=reference)
    pointer = new_pointer(settings)  # as a new process would make it
    history = run(phase, pointer, data, settings, tmp_path / "b", validate=lambda _: 0.5, reference=reference)
    assert history == expected
    assert same(weights(pointer), weights(straight))


def test_a_checkpoint_of_other_inputs_is_not_taken_up(options: Make, tmp_path: Path) -> None:
    settings, pointer = options(), new_pointer(options())
    run("sft", pointer, examples(10), settings, tmp_path)
    for data, seed in ((examples(10, seed=1), 7), (examples(10), 8)):
        fresh, again = new_pointer(settings), new_pointer(settings)
        run("sft", fresh, data, settings, tmp_path / f"{seed}", seed=seed)
        run("sft", again, data, settings, tmp_path, seed=seed)
        assert same(weights(fresh), weights(again))
        assert not same(weights(fresh), weights(pointer))


def test_the_best_epoch_is_kept_and_training_stops_without_a_better_one(options: Make, tmp_path: Path) -> None:
    settings = options(sft={"epochs": 9, "patience": 2})
    seen: list[dict[str, torch.Tensor]] = []
    values = chain([0.1, 0.4, 0.4, 0.3], repeat(0.9))

    def validate(pointer: Pointer) -> float:
        assert not pointer.training
        seen.append(weights(pointer))
        return next(values)

    pointer = new_pointer(settings)
    history = run("sft", pointer, examples(8), settings, tmp_path, validate=validate)
    assert [row["epoch"] for row in history.epochs] == [1, 2, 3, 4]
    assert [row["kept"] for row in history.epochs] == [False, True, False, False]
    assert same(weights(pointer), seen[1])
    assert history.summary()["best_epoch"] == 2
    assert history.summary()["validation_success"] == 0.4


@pytest.mark.parametrize("phase", ["rce", "grpo"])
def test_no_phase_ends_below_what_came_in(options: Make, tmp_path: Path, phase: Phase) -> None:
    settings = options()
    pointer = new_pointer(settings)
    before = weights(pointer)
    history = run(phase, pointer, examples(8), settings, tmp_path, validate=judged(chain([0.5], repeat(0.4))))
    assert history.best == 0
    assert same(weights(pointer), before)


def test_equal_success_is_decided_by_the_kl() -> None:
    def row(success: float, kl: float | None = None) -> dict[str, float]:
        return {"validation_success": success} | ({} if kl is None else {"kl": kl})

    target = (0.01, 0.1)
    assert better(row(0.5, 0.05), row(0.5, 0.0), target)
    assert not better(row(0.5, 0.05), row(0.5, 0.02), target)
    assert not better(row(0.5, 0.2), row(0.5, 0.0), target)
    assert not better(row(0.4, 0.05), row(0.5, 0.0), target)
    assert better(row(0.6, 0.5), row(0.5, 0.05), target)
    assert not better(row(0.5), row(0.5), target)


def test_steps_say_what_happened(options: Make, tmp_path: Path) -> None:
    settings, data = options(), examples(10)
    pointer = new_pointer(settings)
    rce = run("rce", pointer, data, settings, tmp_path / "rce")
    assert [row["step"] for row in rce.steps] == list(range(1, 10))
    assert [rce.steps[place]["temperature"] for place in (0, 4, 8)] == pytest.approx([2.0, 1.25, 0.5])
    grpo = run("grpo", pointer, data, settings, tmp_path / "grpo")
    first, last = grpo.steps[0], grpo.steps[-1]
    assert first["kl"] == pytest.approx(0, abs=1e-6)  # the reference is what came in, and dropout is off
    assert first["beta"] == settings.grpo.beta
    assert grpo.steps[1]["beta"] == pytest.approx(settings.grpo.beta / settings.grpo.beta_factor)
    assert last["kl"] > 0 < last["advantage"]
    assert grpo.epochs[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert all(math.isfinite(value) for row in (*rce.steps, *grpo.steps) for value in row.values())


def test_early_groups_are_the_best_beams(options: Make, tmp_path: Path) -> None:
    """The third and fourth beam alone differ in reward, so that nothing is learnt while the first two are a group."""
    settings = options(grpo={"early_beams": 2, "early_until": 0.5, "reward": "correctness", "epochs": 2})
    data = [example for example in examples(16) if len(example.beams) == 4]
    history = run("grpo", new_pointer(settings), data, settings, tmp_path)
    assert [row["left_out"] for row in history.steps] == [4, 4, 0, 0]
    assert [row["grad_norm"] > 0 for row in history.steps] == [False, False, True, True]


def test_groups_that_teach_nothing_are_left_out(options: Make, tmp_path: Path) -> None:
    settings = options(grpo={"low_score": 0.5, "reward": "combined"})
    one, *rest = examples(5)
    level = Example(one.query, one.pool, one.beams, torch.ones(4), torch.ones(4))
    hopeless = Example(one.query, one.pool, one.beams, one.scores - 9, torch.zeros(4))
    wrong_but_promising = Example(one.query, one.pool, one.beams, one.scores + 9, torch.zeros(4))
    data = [level, hopeless, wrong_but_promising, *rest]
    assert teaching(data, settings.grpo) == [wrong_but_promising, *rest]
    assert run("grpo", new_pointer(settings), data, settings, tmp_path).left_out == 2


def test_without_a_group_that_teaches_the_weights_stay(options: Make, tmp_path: Path) -> None:
    settings = options()
    one = examples(1)[0]
    pointer = new_pointer(settings)
    before = weights(pointer)
    data = [Example(one.query, one.pool, one.beams, torch.ones(4), torch.ones(4))]
    history = run("grpo", pointer, data, settings, tmp_path)
    assert same(weights(pointer), before)
    assert history.summary()["left_out"] == 1
    assert history.summary()["validation_success"] == 0


def test_rewards_weigh_diversity_where_asked(options: Make) -> None:
    pool = torch.tensor([[1.0, 0.0], [0.99, 0.1], [0.0, 1.0], [0.1, 0.9]])
    beams = torch.tensor([[0, 1], [0, 2]])  # the first chooses an example and its nearest neighbour
    data = [Example(pool[0], pool, beams, torch.ones(2), torch.zeros(2))]
    assert teaching(data, options().grpo) == []
    assert teaching(data, options(grpo={"diversity_weight": 1.0, "low_score": 0.0}).grpo) == data


def test_padding_of_groups_is_masked_and_ranks_go_by_score() -> None:
    groups = grouped(examples(2))
    assert groups.mask.tolist() == [[True] * 4, [True] * 3 + [False]]
    assert groups.ranks[0].tolist() == [0, 1, 2, 3]
    one = examples(1)[0]
    turned = Example(one.query, one.pool, one.beams, one.scores.flip(0), one.success)
    assert grouped([turned]).ranks.tolist() == [[3, 2, 1, 0]]


def test_nothing_is_left_of_an_interrupted_write(options: Make, tmp_path: Path) -> None:
    settings = options()
    run("sft", new_pointer(settings), examples(4), settings, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [CHECKPOINT]


def test_a_loss_that_is_no_number_stops_the_run(options: Make, tmp_path: Path) -> None:
    settings = options(sft={"learning_rate": 1e30})
    with pytest.raises(FloatingPointError, match="lower learning_rate"):
        run("sft", new_pointer(settings), examples(16), settings, tmp_path)


def test_what_cannot_be_trained_on_is_refused(options: Make, tmp_path: Path) -> None:
    settings, data = options(), examples(4)
    one = data[0]
    short = Example(one.query, one.pool, one.beams[:, :1], one.scores, one.success)
    unknown = Example(one.query, one.pool, one.beams, one.scores, one.success * math.nan)
    with pytest.raises(ValueError, match="no queries"):
        run("sft", new_pointer(settings), [], settings, tmp_path)
    with pytest.raises(ValueError, match=r"one length, not \[1, 2\]"):
        run("sft", new_pointer(settings), [*data, short], settings, tmp_path)
    with pytest.raises(ValueError, match="success"):
        run("grpo", new_pointer(settings), [unknown], settings, tmp_path)
    with pytest.raises(ValueError, match="frozen reference"):
        run("grpo", new_pointer(settings), data, settings, tmp_path, reference=None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"query": torch.ones(3)}, "must be"),
        ({"scores": torch.ones(3)}, "must be"),
        ({"beams": torch.zeros(2, 0, dtype=torch.long)}, "needs candidates"),
        ({"beams": torch.tensor([[0, 1], [2, 4]])}, "outside its pool of 4"),
        ({"beams": torch.tensor([[0, 1], [2, 2]])}, "twice"),
        ({"scores": torch.tensor([0.1, math.nan])}, "finite"),
    ],
)
def test_a_malformed_example_is_refused(change: dict[str, torch.Tensor], said: str) -> None:
    parts = {
        "query": torch.ones(2),
        "pool": torch.ones(4, 2),
        "beams": torch.tensor([[0, 1], [2, 3]]),
        "scores": torch.tensor([0.2, 0.1]),
        "success": torch.tensor([1.0, math.nan]),
    }
    Example(**parts)
    with pytest.raises(ValueError, match=said):
        Example(**parts | change)


def test_an_example_is_made_of_found_beams() -> None:
    embeddings = {name: torch.tensor([float(number), 1.0]) for number, name in enumerate("abcq")}
    found = QueryBeams("q", ("c", "a", "b"), (Beam(("a", "c"), 0.5, True), Beam(("b", "a"), 0.25)))
    example = Example.of(found, embeddings)
    assert example.query.tolist() == [3, 1]
    assert example.pool[:, 0].tolist() == [2, 0, 1]
    assert example.beams.tolist() == [[0, 1], [1, 2]]  # the shot next to the query first
    assert example.scores.tolist() == [0.5, 0.25]
    assert example.success[0] == 1
    assert math.isnan(example.success[1])
    with pytest.raises(ValueError, match="q: no embedding of c"):
        Example.of(found, {name: vector for name, vector in embeddings.items() if name != "c"})
    with pytest.raises(ValueError, match="q: a beam chose b, which is not in the pool"):
        Example.of(QueryBeams("q", ("c", "a"), found.beams), embeddings)
    with pytest.raises(ValueError, match="q: a beam chooses an example twice"):
        Example.of(QueryBeams("q", ("c", "a"), (Beam(("a", "a"), 0.5),)), embeddings)
