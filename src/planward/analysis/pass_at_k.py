"""Success when up to k sampled completions of a problem are judged and the first valid one is taken: pass@k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from planward.analysis.cells import Uncertainty
from planward.analysis.names import ALL, sort_rows
from planward.analysis.statistics import bootstrap_intervals, compute_wilson_interval
from planward.analysis.success_arrays import RUN
from planward.core.records import SampledAnswer, read_sampled_answers
from planward.core.runs import iter_run_files
from planward.params import Params

COLUMNS = [*RUN, "shot_num", "domain", "k", "seeds", "n", "samples", "pass_at_k", "ci_low", "ci_high", "tokens"]


class SamplesError(ValueError):
    """The files of stage `sample` cannot be compared; the message names the file and the fault."""


def compute_pass_at_k(answers: Sequence[SampledAnswer], k: int) -> NDArray[np.float64]:
    """Estimate the probability [problems] that at least one of k samples succeeds.

    1 - C(n - c, k) / C(n, k) for c successes in n samples, which is unbiased
    (Chen et al., arXiv 2107.03374, formula 1).

    Raises:
        ValueError: a problem has fewer than k samples.
    """
    return np.array([1 - _share_all_fail(answer, k) for answer in answers])


def compute_tokens_at_k(answers: Sequence[SampledAnswer], k: int) -> NDArray[np.float64]:
    """Estimate the expected number of tokens [problems] that are sampled until one of k samples succeeds, or all fail.

    The mean over all orders of the n samples. The (j + 1)-th is sampled if the j before it failed: a success is there
    in a share C(n - c, j) / C(n - 1, j) / n of the orders, a failure in C(n - c - 1, j) / C(n - 1, j) / n.

    Raises:
        ValueError: a problem has fewer than k samples.
    """
    return np.array([_count_expected_tokens(answer, k) for answer in answers])


def read_samples(folder: Path, params: Params) -> dict[tuple[str, int], list[list[SampledAnswer]]]:
    """Read the rows of each run that params.yaml asks for, by method and N, a list for each seed; [] without a file.

    Raises:
        SamplesError: two files do not hold the same problems with as many samples.
    """
    settings = params.evaluate.samples
    runs: dict[tuple[str, int], list[list[SampledAnswer]]] = {}
    expected: list[tuple[str, int]] = []
    for run, path in iter_run_files(folder, "*.json", params):
        if run.method == "base" or (run.method in settings.methods and run.size == settings.dataset_size):
            rows = list(read_sampled_answers(path.with_suffix(".jsonl")))
            cells = [(row.id, len(row.labels)) for row in rows]
            expected = expected or cells
            if cells != expected:
                raise SamplesError(f"{path}: other problems or numbers of samples than the files before it")
            if rows:
                runs.setdefault((run.method, run.size), []).append(rows)
    return runs


def compute_pass_at_k_table(
    runs: Mapping[tuple[str, int], Sequence[Sequence[SampledAnswer]]], ks: Sequence[int], uncertainty: Uncertainty
) -> pd.DataFrame:
    """pass@k with its interval by run, domain (`all` included) and k, and `tokens`: their expected number.

    The interval is bootstrapped over seeds and problems; it is Wilson's where all problems have 0 or all have 1.
    """
    rows = []
    for (method, size), seeds in runs.items():
        domains = np.array([answer.domain for answer in seeds[0]])
        passes = np.stack([[compute_pass_at_k(answers, k) for answers in seeds] for k in ks])  # [ks, seeds, problems]
        tokens = np.stack([[compute_tokens_at_k(answers, k) for answers in seeds] for k in ks])
        for domain in (ALL, *sorted(set(domains.tolist()))):
            mask = np.ones(len(domains), dtype=bool) if domain == ALL else domains == domain
            intervals = bootstrap_intervals(
                passes[:, :, mask],
                domains[mask].tolist(),
                uncertainty.confidence,
                uncertainty.resamples,
                uncertainty.seed,
            )
            for index, k in enumerate(ks):
                first, rate, n = seeds[0][0], float(passes[index][:, mask].mean()), int(mask.sum())
                low, high = (
                    intervals[index]
                    if 0 < rate < 1
                    else compute_wilson_interval(round(rate) * n, n, uncertainty.confidence)
                )
                rows.append(
                    {"method": method, "dataset_size": size, "shot_num": first.shot_num, "domain": domain, "k": k}
                    | {"seeds": len(seeds), "n": n, "samples": len(first.labels)}
                    | {"pass_at_k": rate, "ci_low": low, "ci_high": high}
                    | {"tokens": float(tokens[index][:, mask].mean())}
                )
    return sort_rows(pd.DataFrame(rows, columns=COLUMNS), ["domain", *RUN, "k"])


def _share_all_fail(answer: SampledAnswer, k: int) -> float:
    """The share of the sets of k samples in which all fail."""
    n = len(answer.successes)
    if not 1 <= k <= n:
        raise ValueError(f"problem {answer.id}: pass@{k} needs at least {k} samples (there are {n})")
    return comb(n - sum(answer.successes), k) / comb(n, k)


def _count_expected_tokens(answer: SampledAnswer, k: int) -> float:
    n, failures = len(answer.successes), len(answer.successes) - sum(answer.successes)
    if not 1 <= k <= n:
        raise ValueError(f"problem {answer.id}: {k} samples are needed (there are {n})")
    orders = [comb(n - 1, j) * n for j in range(k)]
    of_success = sum(comb(failures, j) / total for j, total in enumerate(orders))
    of_failure = sum(comb(failures - 1, j) / total for j, total in enumerate(orders)) if failures else 0.0
    pairs = zip(answer.tokens, answer.successes, strict=True)
    return sum(count * (of_success if success else of_failure) for count, success in pairs)
