"""The report page: the results of every stage as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from markupsafe import Markup

from planward.analysis.names import ALL
from planward.params import Params
from planward.report.browser import build_plan_browser
from planward.report.data import PageData
from planward.report.markup import TEXT_LIMIT, build_environment
from planward.report.sections.ablations import (
    build_ablation_examples_table,
    build_ablation_table,
    draw_ablation_panels,
    list_ablation_findings,
)
from planward.report.sections.breakdown import (
    add_constraint_kind,
    build_constraint_tables,
    build_domain_bucket_table,
    build_domain_comparisons,
    build_label_table,
    build_success_table,
    draw_label_panels,
    draw_success_panels,
    format_harm_finding,
    select_size,
)
from planward.report.sections.curriculum import build_curriculum_table, build_difficulty_table, draw_curriculum_panels
from planward.report.sections.difficulty import (
    build_constrained_buckets_table,
    build_correlation_table,
    build_kinds_table,
    build_length_table,
    list_difficulty_findings,
)
from planward.report.sections.elements import build_key_value_table
from planward.report.sections.findings import (
    build_comparisons_table,
    build_headline_table,
    build_seeds_table,
    format_uncertainty_note,
    list_findings,
)
from planward.report.sections.learning import MAX_POINTS, build_learning_panels, build_training_table
from planward.report.sections.pass_at_k import build_pass_at_k_section
from planward.report.sections.run_summary import (
    build_cost_table,
    build_timing_table,
    describe_checks,
    find_failures,
    list_facts,
)
from planward.report.sections.samples import build_sample_plans
from planward.report.sections.selectors import build_selectors_section
from planward.report.sections.transfer import build_transfer_section

SECTIONS_BEFORE_TRACKS = [
    ("results", "Results"),
    ("failures", "Unexplained failures"),
    ("methods", "Methods compared"),
    ("learning", "Learning"),
    ("where", "Domains and buckets"),
    ("labels", "What went wrong"),
    ("constraints", "Safety constraints"),
    ("pass-at-k", "Best of several samples"),
    ("transfer", "Transfer"),
    ("curriculum", "Curriculum"),
    ("ablations", "Ablations"),
]  # id and title
SECTIONS_AFTER_TRACKS = [
    ("samples", "Sample plans"),
    ("plans", "Plan browser"),
    ("cost", "Time and memory"),
    ("provenance", "Provenance"),
]


def render_page(data: PageData, params: Params) -> str:
    """Render the page as HTML; the same results give the same text."""
    size = max(data.paired["dataset_size"], default=0)
    alpha = 1 - params.compare.confidence
    fewest = int(data.shots["shot_num"].min())
    script = (files("planward.report") / "templates/browser.js").read_text(encoding="utf-8")
    all_domains = data.success["domain"] == ALL
    all_buckets = data.buckets[data.buckets["domain"] == ALL]
    constraints = add_constraint_kind(select_size(data.constraints, size))
    return (
        build_environment()
        .get_template("page.html.j2")
        .render(
            data=data,
            contents=[*SECTIONS_BEFORE_TRACKS, *data.tracks.items(), *SECTIONS_AFTER_TRACKS],
            browser=build_plan_browser(data.predictions),
            browser_script=Markup(script),
            script_source=_hash_script(script),
            confidence=f"{100 * params.compare.confidence:g}",
            margin=params.compare.margin,
            seeds=int(data.shots["seeds"].max()),
            uncertainty=format_uncertainty_note(data.shots, params.compare.confidence),
            seeds_table=build_seeds_table(data.seeds),
            n=int(data.shots["n"].iloc[0]),
            size=size,
            fewest=fewest,
            text_limit=TEXT_LIMIT,
            facts=list_facts(data, params),
            findings=list_findings(data.paired, data.shots, alpha),
            failures=find_failures(data, params),
            checks=describe_checks(data),
            headline=build_headline_table(data.shots),
            comparisons=build_comparisons_table(data.paired, alpha),
            by_shots=draw_success_panels(data.success[all_domains], "dataset_size", "N = {}"),
            by_domain=draw_success_panels(select_size(data.success[~all_domains], size), "domain", "{}"),
            by_bucket=draw_success_panels(select_size(all_buckets, size), "bucket", "{}"),
            domain_bucket_table=build_domain_bucket_table(data.buckets, data.shots),
            domain_table=build_success_table(data.success, "domain", fewest),
            bucket_table=build_success_table(all_buckets, "bucket", fewest),
            difficulty_findings=list_difficulty_findings(data.difficulty, fewest),
            correlation_table=build_correlation_table(data.difficulty, fewest),
            kinds_table=build_kinds_table(data.difficulty, fewest),
            constrained_buckets_table=build_constrained_buckets_table(data.constrained_buckets, fewest),
            domain_comparisons=build_domain_comparisons(data.domains, alpha),
            harm=format_harm_finding(data.domains, alpha),
            ablations=params.ablations,
            ablation_findings=list_ablation_findings(data.ablations),
            ablation_table=build_ablation_table(data.ablations, params.ablations),
            ablation_examples=build_ablation_examples_table(data.ablations),
            ablation_panels=draw_ablation_panels(data.curves, params.ablations),
            label_panels=draw_label_panels(data.labels),
            label_table=build_label_table(data.labels),
            constrained=max(data.constraints["n"][data.constraints["constrained"]], default=0),
            constraint_tables=build_constraint_tables(data.constraints),
            constraint_panels=draw_success_panels(constraints, "problems", f"{{}}, N = {size}" if size else "{}"),
            pass_at_k=build_pass_at_k_section(data.pass_at_k),
            transfer=build_transfer_section(data.transfer, params.compare.margin),
            selectors=build_selectors_section(data.selectors, params) if data.selectors else None,
            learning=build_learning_panels(data.curves),
            curve_points=MAX_POINTS,
            training_table=build_training_table(data.training),
            difficulty_table=build_difficulty_table(data.score),
            length_table=build_length_table(data.score),
            difficulty_figure=_build_image_address(data.difficulty_figure),
            curriculum_panels=draw_curriculum_panels(data, params),
            curriculum_table=build_curriculum_table(data, params),
            split_table=build_key_value_table("The split in numbers", data.split),
            samples=build_sample_plans(data.samples),
            cost_table=build_cost_table(data.timing),
            timing_table=build_timing_table(data.timing),
            package_table=build_key_value_table("Versions", data.provenance.packages),
        )
    )


def _build_image_address(svg: str | None) -> str | None:
    """An image as a data address, where its content can neither run scripts nor load anything."""
    return svg and f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _hash_script(script: str) -> str:
    """The source expression of an inline script in the Content-Security-Policy, so that no other runs."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
