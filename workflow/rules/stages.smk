"""One rule for each family of stages; its action is `dvc repro` of one stage."""

import shutil

HAS_GPU = shutil.which("nvidia-smi") is not None


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
            "PLANWARD_THREADS={threads} dvc --wait-for-lock repro --single-item {params.force} {params.stage} > {log} 2>&1"


for family in families:
    declare(family)
