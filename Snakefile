"""Runs the pipeline that dvc.yaml defines: `snakemake --cores 8` builds results/report.html.

DVC says what a stage is and whether it is out of date, and records what came out; Snakemake says when and where it
runs. See docs/decisions/engines.md.
"""

from snakemake.utils import min_version

min_version("9.27")


rule all:
    input:
        "results/report.html",


include: "workflow/rules/locks.smk"
include: "workflow/rules/graph.smk"
include: "workflow/rules/stages.smk"
