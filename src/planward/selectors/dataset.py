"""Training data of the pointer as tensors: a query's beams, and batches of them padded to one shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from planward.selectors.beams import QueryBeams
from planward.selectors.pointer import pad_pools


@dataclass(frozen=True)
class BeamGroup:
    """A query with its candidates and the beams found for it.

    Attributes:
        query: embedding [D].
        pool: embeddings of the candidates [P, D].
        beams: indices into the pool [B, K]; the example next to the query first, which is a selector's order.
        scores: info scores [B].
        success: 1 where the model solved the query with the beam's examples, else 0 [B]; NaN where unknown, which only
            GRPO does not accept.
        pool_scores: info score of each candidate by itself [P], -inf where its prompt is too long; None where unknown.

    Raises:
        ValueError: shapes or indices do not match, a beam repeats an example, a score or an embedding is not finite.
    """

    query: torch.Tensor
    pool: torch.Tensor
    beams: torch.Tensor
    scores: torch.Tensor
    success: torch.Tensor
    pool_scores: torch.Tensor | None = None

    def __post_init__(self) -> None:
        shapes = [tuple(tensor.shape) for tensor in (self.query, self.pool, self.beams, self.scores, self.success)]
        query, pool, beams, scores, success = shapes
        if (
            [len(shape) for shape in shapes] != [1, 2, 2, 1, 1]
            or query != pool[1:]
            or not beams[:1] == scores == success
        ):
            raise ValueError(f"query, pool, beams, scores, success must be [D], [P, D], [B, K], [B], [B], not {shapes}")
        if self.pool_scores is not None and tuple(self.pool_scores.shape) != pool[:1]:
            raise ValueError(f"{len(self.pool_scores)} pool scores for {pool[0]} candidates")
        if 0 in (*pool, *beams):
            raise ValueError(f"a query needs candidates and beams, but has {pool[0]} and {beams[0]}")
        if int(self.beams.min()) < 0 or int(self.beams.max()) >= len(self.pool):
            raise ValueError(f"a beam has an index outside its pool of {len(self.pool)}")
        if any(len(set(beam)) < len(beam) for beam in self.beams.tolist()):
            raise ValueError("a beam repeats an example")
        if not all(bool(tensor.isfinite().all()) for tensor in (self.query, self.pool, self.scores)):
            raise ValueError("scores and embeddings must be finite numbers")

    @classmethod
    def from_beams(cls, row: QueryBeams, embeddings: Mapping[str, torch.Tensor]) -> BeamGroup:
        """Build the tensors of a query's beams from embeddings [D] by problem id.

        Raises:
            ValueError: an embedding is missing, a beam has an example that the pool lacks, or as for the class.
        """
        indices = {candidate: i for i, candidate in enumerate(row.pool)}
        if missing := [problem for problem in (row.query, *row.pool) if problem not in embeddings]:
            raise ValueError(f"{row.query}: no embedding of {missing[0]}; fix: run `planward selectors embed` again")
        if unknown := [example for beam in row.beams for example in beam.examples if example not in indices]:
            raise ValueError(f"{row.query}: a beam has {unknown[0]}, which is not in the pool; fix: build beams again")
        try:
            return cls(
                query=embeddings[row.query],
                pool=torch.stack([embeddings[candidate] for candidate in row.pool]),
                beams=torch.tensor([[indices[example] for example in reversed(beam.examples)] for beam in row.beams]),
                scores=torch.tensor([beam.score for beam in row.beams], dtype=torch.float64),
                success=torch.tensor(
                    [float("nan") if beam.success is None else float(beam.success) for beam in row.beams]
                ),
                pool_scores=None
                if row.pool_scores is None
                else torch.tensor([-torch.inf if score is None else score for score in row.pool_scores]),
            )
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{row.query}: {error}") from error


@dataclass(frozen=True)
class BeamBatch:
    """The beams of N queries, padded to the largest number per query. Padding repeats a query's first beam."""

    beams: torch.Tensor  # [N, B, K]
    mask: torch.Tensor  # [N, B]
    scores: torch.Tensor  # [N, B], in double precision like success
    success: torch.Tensor  # [N, B]

    def select(self, indices: Sequence[int], device: torch.device) -> BeamBatch:
        rows = torch.tensor(indices, dtype=torch.long)
        return BeamBatch(*(part[rows].to(device) for part in (self.beams, self.mask, self.scores, self.success)))

    @property
    def ranks(self) -> torch.Tensor:
        """Each beam's rank by score within its query [N, B]; the best has 0."""
        scores = self.scores.masked_fill(~self.mask, -torch.inf)
        return scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def stack_beams(groups: Sequence[BeamGroup]) -> BeamBatch:
    """Stack the beams of groups.

    Raises:
        ValueError: beams differ in length.
    """
    lengths = {group.beams.shape[1] for group in groups}
    if len(lengths) != 1:
        raise ValueError(
            f"beams have different lengths {sorted(lengths)}; fix: give those of every query equally many examples; "
            "for those of `planward selectors beams`, raise prompt.max_tokens or lower shot_num and run it again"
        )
    size = max(len(group.beams) for group in groups)
    counts = torch.tensor([len(group.beams) for group in groups])
    mask = torch.arange(size) < counts[:, None]
    rows = torch.arange(size) * mask  # 0 for padding
    return BeamBatch(
        beams=torch.stack([group.beams[row] for group, row in zip(groups, rows, strict=True)]),
        mask=mask,
        scores=torch.stack([group.scores.double()[row] for group, row in zip(groups, rows, strict=True)]),
        success=torch.stack([group.success.double()[row] for group, row in zip(groups, rows, strict=True)]),
    )


def pad_candidates(
    groups: Sequence[BeamGroup], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad pools to the largest: queries [Q, D], pools [Q, P, D], and the mask of candidates [Q, P]."""
    pool, mask = pad_pools([group.pool for group in groups])
    query = torch.stack([group.query for group in groups])
    return query.to(device), pool.to(device), mask.to(device)


def pad_pool_scores(groups: Sequence[BeamGroup], size: int) -> torch.Tensor:
    """Pad the candidates' own scores with -inf [Q, size]; all NaN where a query's are unknown."""
    padded_scores = torch.full((len(groups), size), -torch.inf)
    for row, group in zip(padded_scores, groups, strict=True):
        row[: len(group.pool)] = torch.nan if group.pool_scores is None else group.pool_scores
    return padded_scores


def compute_moments(groups: Sequence[BeamGroup]) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute mean [D] and covariance [D, D] of all embeddings, each weighted by how often it occurs."""
    total, count = torch.zeros_like(groups[0].query, dtype=torch.float64), 0
    for group in groups:
        total, count = total + group.query + group.pool.sum(0, dtype=torch.float64), count + 1 + len(group.pool)
    mean, products = total / count, torch.zeros(len(total), len(total), dtype=torch.float64)
    for group in groups:
        centred_embeddings = torch.cat([group.query[None], group.pool]).double() - mean
        products.addmm_(centred_embeddings.T, centred_embeddings)
    return mean, products / count
