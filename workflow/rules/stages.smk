"""One rule for each family of stages; its action is `dvc repro` of one stage."""

import os
import shutil
import subprocess
import sys

from snakemake.exceptions import WorkflowError

DEFAULT_RATE = (100, 1)  # jobs, seconds: of --max-jobs-per-timespan


def read_gpu_switch():
    """Whether stages request a GPU: PLANWARD_GPU (1 or 0), else whether nvidia-smi is here.

    The main process decides and passes it on, so that a job requests on its node what was submitted for it.
    """
    value = os.environ.setdefault("PLANWARD_GPU", "1" if shutil.which("nvidia-smi") else "0")
    if value not in ("0", "1"):
        raise WorkflowError(f"PLANWARD_GPU is {value!r}; fix: 1 where stages are to request a GPU, else 0")
    return value == "1"


HAS_GPU = read_gpu_switch()


def declare(family):
    resources_ = {name: n for name, n in family.settings.get("resources", {}).items() if name != "gpu" or HAS_GPU}
    key = "-".join(f"{{{name}}}" for name in family.constraints)

    rule:
        name:
            family.rule
        input:
            family.inputs,
        output:
            [path if Path(path).suffix else directory(path) for path in family.outputs],
        log:
            f"logs/{family.rule}/{key}.log" if key else f"logs/{family.rule}.log",
        wildcard_constraints:
            **family.constraints,
        priority: family.longest_path
        threads: family.settings.get("threads", 1)
        resources:
            **resources_,
        params:
            stage=lambda wildcards: family.stage(wildcards).addressing,
            force=lambda wildcards: "--force" if family.stage(wildcards) in find_forced() else "",
        shell:
            "PLANWARD_THREADS={threads} exec python workflow/rules/run_stage.py {params.force} {params.stage} > {log} 2>&1"


def check_jobs():
    """Stop before the first job where a later one lacks a key, a package, a folder or memory."""
    if not workflow.is_main_process or workflow.touch:
        return
    stages = [job.params.stage for job in workflow.dag.needrun_jobs() if "stage" in job.params.keys()]
    options = [] if workflow.local_exec else ["--elsewhere"]
    process = subprocess.run(["planward", "preflight", *options, *stages], capture_output=True, text=True)
    if process.returncode:
        raise WorkflowError(f"{process.stderr.strip()}\n(snakemake --no-hooks leaves these checks to each job)")
    print(process.stderr, file=sys.stderr, end="")


def stop_polling():
    """Look for jobs to start where one has ended, not also once a second.

    Snakemake does so for --max-jobs-per-timespan, with one more timer for every job that has ended: after 60 jobs, its
    timers took most of a processor. Who sets another rate than the default keeps it.
    """
    if workflow.is_main_process and workflow.scheduler.job_rate_limiter:
        limit = workflow.scheduling_settings.max_jobs_per_timespan
        if (limit.max_jobs, limit.timespan) == DEFAULT_RATE:
            workflow.scheduler.job_rate_limiter = None


onstart:
    record_run()
    check_jobs()
    stop_polling()


for family in families:
    declare(family)
