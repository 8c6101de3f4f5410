"""The report page: what the stages found, as one self-contained HTML file.

Everything goes through Jinja2 with autoescape: what a model wrote stays text. Only figures drawn here are markup.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from planward.params import Params
from planward.reporting.browser import plan_browser
from planward.reporting.names import ALL
from planward.reporting.results import Results
from planward.reporting.sections.ablations import (
    ablation_findings,
    ablation_panels,
    ablation_shots,
    ablation_table,
)
from planward.reporting.sections.breakdown import (
    at,
    by_kind,
    constraint_tables,
    domain_bucket_table,
    domain_comparisons,
    harm,
    label_panels,
    label_table,
    success_panels,
    success_table,
)
from planward.reporting.sections.curriculum import curriculum, curriculum_panels, difficulty
from planward.reporting.sections.demonstrations import demonstrations
from planward.reporting.sections.economy import economy
from planward.reporting.sections.elements import key_values
from planward.reporting.sections.findings import comparisons, findings, headline, seeds_table, uncertainty_note
from planward.reporting.sections.learning import POINTS, learning, training_table
from planward.reporting.sections.running import checked, facts, stages_table, timing, troubles
from planward.reporting.sections.samples import sample_plans

TEMPLATES = Path(__file__).parent / "templates"
TEXT = 6000  # characters of a problem or completion that the page prints


def render(results: Results, params: Params) -> str:
    """The page as HTML; the same results give the same text."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    last = max(results.paired["dataset_size"], default=0)
    alpha = 1 - params.compare.confidence
    fewest = int(results.shots["shot_num"].min())
    script = (TEMPLATES / "browser.js").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(
        r=results,
        browser=plan_browser(results, params),
        browser_script=Markup(script),
        script_source=_source(script),
        confidence=f"{100 * params.compare.confidence:g}",
        seeds=int(results.shots["seeds"].max()),
        uncertainty=uncertainty_note(results.shots, params.compare.confidence),
        seeds_table=seeds_table(results.seeds),
        n=int(results.shots["n"].iloc[0]),
        last=last,
        fewest=fewest,
        text_limit=TEXT,
        facts=facts(results, params),
        findings=findings(results.paired, results.shots, alpha),
        troubles=troubles(results, params),
        checked=checked(results),
        headline=headline(results.shots),
        comparisons=comparisons(results.paired, alpha),
        by_shots=success_panels(results.success[results.success["domain"] == ALL], "dataset_size", "N = {}"),
        by_domain=success_panels(at(results.success[results.success["domain"] != ALL], last), "domain", "{}"),
        by_bucket=success_panels(at(results.buckets[results.buckets["domain"] == ALL], last), "bucket", "{}"),
        domain_bucket_table=domain_bucket_table(results.buckets, results.shots),
        domain_table=success_table(results.success, "domain", fewest),
        bucket_table=success_table(results.buckets[results.buckets["domain"] == ALL], "bucket", fewest),
        domain_comparisons=domain_comparisons(results.domains, alpha),
        harm=harm(results.domains, alpha),
        ablations=params.ablations,
        ablation_findings=ablation_findings(results.ablations),
        ablation_table=ablation_table(results.ablations, params.ablations),
        ablation_shots=ablation_shots(results.ablations),
        ablation_panels=ablation_panels(results.curves, params.ablations),
        label_panels=label_panels(results.labels),
        label_table=label_table(results.labels),
        constrained=max(results.constraints["n"][results.constraints["constrained"]], default=0),
        constraint_tables=constraint_tables(results.constraints),
        constraint_panels=success_panels(
            by_kind(at(results.constraints, last)), "problems", f"{{}}, N = {last}" if last else "{}"
        ),
        demonstrations=demonstrations(results, params),
        economy=economy(results, params),
        economy_params=params.economy,
        learning=learning(results.curves),
        curve_points=POINTS,
        training_table=training_table(results.metrics),
        difficulty_table=difficulty(results.metrics.get("results/score/metrics.json", {})),
        difficulty_figure=_image(results.difficulty_figure),
        curriculum_panels=curriculum_panels(results, params),
        curriculum_table=curriculum(results, params),
        split_table=key_values("What the split kept", results.metrics.get("results/split/metrics.json", {})),
        samples=sample_plans(results.samples),
        stages_table=stages_table(results.timing),
        timing_table=timing(results.timing),
        package_table=key_values("Versions", results.provenance.packages),
    )


def _image(svg: str | None) -> str | None:
    """A picture as a data address: what is inside can neither run nor load anything."""
    return svg and f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _source(script: str) -> str:
    """What a Content-Security-Policy calls this inline script, so that no other runs."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
