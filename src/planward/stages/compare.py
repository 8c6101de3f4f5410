"""Stage `compare`: every table of results, from the stored predictions."""

from __future__ import annotations

from planward.analysis import formats, tables
from planward.analysis.cells import Uncertainty
from planward.analysis.difficulty import compute_difficulty_table, read_reference_lengths
from planward.analysis.outcomes import COLUMNS, read_outcomes
from planward.analysis.pass_at_k import compute_pass_at_k_table, read_samples
from planward.analysis.success_arrays import SuccessArrays
from planward.core import paths
from planward.core.files import open_atomic, write_json
from planward.core.tables import write_table
from planward.params import Params


def run(params: Params) -> None:
    """Write tables/ from predictions/, samples/ and, for the lengths of reference plans, score/difficulty.csv.

    Raises:
        PredictionsError: there are no predictions, a file is empty or of another run, rows are duplicated, files do
            not answer the same problems, or methods were not trained with the same seeds.
        SamplesError: the files of sampled completions do not hold the same problems.
    """
    results = paths.results(params.task)
    columns = [column for column in COLUMNS if column != "shot_ids"]
    outcomes = read_outcomes(results.predictions, params, params.methods, columns)
    by = Uncertainty(params.compare.confidence, params.compare.resamples, params.seed)
    method_outcomes = outcomes[outcomes["method"].isin(params.methods)]
    answers = SuccessArrays.from_outcomes(method_outcomes)
    cells = tables.compute_headline_table(answers, by)
    reference_lengths = read_reference_lengths(results.score / "difficulty.csv")
    variants = [name for name in params.ablations.run if name in set(outcomes["method"])]
    by_name = {
        "success": tables.compute_success_table(answers, by),
        "buckets": tables.compute_success_table(answers, by, extra=["bucket"]),
        "constrained-buckets": tables.compute_success_table(answers, by, extra=["constrained", "bucket"]),
        "difficulty": compute_difficulty_table(answers, reference_lengths, by),
        "seeds": tables.compute_seeds_table(method_outcomes, by.confidence),
        "shots": cells,
        "paired": tables.compute_paired_table(answers, by),
        "domains": tables.compute_domains_table(answers, by),
        "labels": tables.compute_labels_table(method_outcomes, by.confidence),
        "constraints": tables.compute_constraints_table(method_outcomes, answers, by),
        "ablations": tables.compute_ablations_table(
            SuccessArrays.from_outcomes(outcomes), by, variants, params.ablations.dataset_size
        ),
    }
    if results.samples.exists():
        by_name["pass-at-k"] = compute_pass_at_k_table(
            read_samples(results.samples, params), params.evaluate.samples.ks, by
        )
    for name, table in by_name.items():
        write_table(results.tables / f"{name}.csv", table)
    for name, text in {
        "shots.md": formats.render_markdown(cells),
        "shots.tex": formats.render_latex(cells, by.confidence),
    }.items():
        with open_atomic(results.tables / name) as file:
            file.write(text)
    write_json(results.tables / "metrics.json", tables.compute_metrics(cells))
