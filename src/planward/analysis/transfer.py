"""Success on problems that are unlike those of training, with paired differences where they have originals."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from planward.analysis.cells import RATE_COLUMNS, Uncertainty, compute_differences
from planward.analysis.names import ALL
from planward.analysis.statistics import adjust_p_values
from planward.analysis.success_arrays import Mask, SuccessArrays
from planward.analysis.tables import CELL, Row, compute_rate_rows
from planward.core.records import TRANSFER_KINDS

PAIRED_COLUMNS = ["original_success_rate", "both", "only_original", "only_renamed"]
PAIRED_COLUMNS += ["difference", "difference_low", "difference_high", "p", "p_holm", "test", "result"]
EQUIVALENT, UNDECIDED, LOWER, HIGHER = "equivalent", "undecided", "lower", "higher"  # results, by the interval
COLUMNS = ["kind", "domain", "known_to_base", *CELL, *RATE_COLUMNS, *PAIRED_COLUMNS, "detectable_difference"]


def compute_transfer_table(
    problems: pd.DataFrame, outcomes: pd.DataFrame, originals: pd.DataFrame, uncertainty: Uncertainty, margin: float
) -> pd.DataFrame:
    """Success rate with its interval by kind, domain (`all` included), run and shot_num.

    Renamed problems are compared with their originals, answered by the same runs with as many worked examples:
    `difference` is success on the renamed minus success on the original problems, in points. `p_holm` is adjusted over
    the rows of all domains, and over those of single ones.

    Args:
        problems: the columns id, kind and known_to_base; a renamed problem has the id of its original.
        outcomes: predictions on them, one a row.
        originals: predictions on test problems, among them the originals.
        margin: of `classify_difference`.
    """
    rows: list[Row] = []
    for kind in (kind for kind in TRANSFER_KINDS if kind in set(problems["kind"])):
        known_to_base = problems[problems["kind"] == kind].set_index("id")["known_to_base"]
        success = SuccessArrays.from_outcomes(outcomes[outcomes["id"].isin(known_to_base.index)])
        references = _select_originals(originals, success) if kind == "renamed" else None
        for domain in (ALL, *sorted(success.problems["domain"].unique())):
            mask = success.build_mask(domain=domain)
            is_known = bool(known_to_base[success.problems["id"][mask]].all())
            group = {"kind": kind, "domain": domain, "known_to_base": is_known}
            rates = compute_rate_rows(success, mask, uncertainty, group)
            if references:
                rates = _add_differences(rates, success, references, mask, uncertainty)
            rows += rates
    for row in rows:
        if "difference" in row:
            row["result"] = classify_difference(row["difference_low"], row["difference_high"], margin)
    _adjust_p_values([row for row in rows if row["domain"] == ALL and "p" in row])
    _adjust_p_values([row for row in rows if row["domain"] != ALL and "p" in row])
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def classify_difference(low: float, high: float, margin: float) -> str:
    """The result of a comparison by the interval of its difference, in points.

    Equivalent if it lies within ± `margin`, lower or higher if it lies outside 0, undecided otherwise.
    """
    if -margin < low and high < margin:
        return EQUIVALENT
    return LOWER if high < 0 else HIGHER if low > 0 else UNDECIDED


def _select_originals(originals: pd.DataFrame, success: SuccessArrays) -> SuccessArrays:
    """Success on the originals of renamed problems, in arrays of the same shape."""
    is_original = originals["id"].isin(success.problems["id"]) & originals["shot_num"].isin(success.shot_nums)
    return SuccessArrays.from_outcomes(originals[is_original])


def _add_differences(
    rows: Sequence[Row], success: SuccessArrays, references: SuccessArrays, mask: Mask, uncertainty: Uncertainty
) -> list[Row]:
    cells = [((row["method"], row["dataset_size"]), row["shot_num"]) for row in rows]
    pairs = [(references.select(*cell, mask), success.select(*cell, mask)) for cell in cells]
    differences = compute_differences(pairs, success.list_strata(mask), uncertainty)
    return [
        row
        | {"original_success_rate": float(pair[0].mean()), "both": gap["both"]}
        | {"only_original": gap["only_a"], "only_renamed": gap["only_b"]}
        | {"difference": gap["difference"], "difference_low": gap["ci_low"], "difference_high": gap["ci_high"]}
        | {"p": gap["p"], "test": gap["test"], "detectable_difference": gap["detectable_difference"]}
        for row, gap, pair in zip(rows, differences, pairs, strict=True)
    ]


def _adjust_p_values(rows: Sequence[Row]) -> None:
    """Add `p_holm` to the rows, adjusted over all of them."""
    if rows:
        for row, p in zip(rows, adjust_p_values([row["p"] for row in rows]), strict=True):
            row["p_holm"] = p
