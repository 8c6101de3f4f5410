"""What Git and DVC keep of a revision: its parameters, its stages and the files that they made.

Pipelines and parameters are read from Git, results from DVC's cache by the hashes in dvc.lock; what the cache lacks can
be pulled from the default remote. Nothing is checked out, and DVC's lock is not taken, so a run may go on meanwhile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import yaml

from planward.core.paths import WORKFLOW
from planward.params import PARAMS_FILE
from planward.report.sections.elements import flatten

if TYPE_CHECKING:
    from dvc.repo import Repo

WORKSPACE = "workspace"
REMOTE_FIX = "check `dvc remote list` and that `dvc pull` works"
MAX_VALUE_LENGTH = 60  # characters of a parameter's value in a note


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's C loader, many times faster on a long dvc.lock than DVC's; floats as in YAML 1.2: 1e-05."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class RevisionError(ValueError):
    """A revision cannot be read; the message says what is missing and the fix."""


@dataclass(frozen=True)
class Stage:
    """A stage of a dvc.yaml, with what dvc.lock records of its last run: nothing where it has not run."""

    name: str  # `sft@100-3407`; of workflow/selectors/dvc.yaml, `selectors:sft@100-3407`
    inputs: Mapping[str, str]  # MD5 by path
    params: Mapping[str, Mapping[str, Any]]  # values by parameter file and dotted key
    outputs: Mapping[str, str]  # MD5 by path

    @property
    def family(self) -> str:
        """The name without the run: `selectors:sft`."""
        return self.name.partition("@")[0]


@dataclass(frozen=True)
class Revision:
    """A commit, an experiment or the workspace, with all its pipelines. Paths are relative to the project's root."""

    name: str  # as the user wrote it
    commit: str | None  # None: the workspace
    experiment: str | None  # its name, where DVC keeps it as one
    params: Mapping[str, Mapping[str, Any]]  # content of each parameter file
    stages: Mapping[str, Stage]
    read_contents: Callable[[str, str], bytes | None] = field(repr=False)  # of a file by path and MD5; None: not here

    @property
    def title(self) -> str:
        """`HEAD (93dc9ea)`; only the name for the workspace and for the commit's own hash."""
        if self.commit is None or self.commit.startswith(self.name):
            return self.name[:12] if self.commit else self.name
        return f"{self.name} ({self.commit[:7]})"

    @property
    def flat_params(self) -> dict[str, Any]:
        """Values of all parameter files by `format_param_key`."""
        return {
            format_param_key(file, key): value
            for file, content in self.params.items()
            for key, value in flatten(content)
        }

    @property
    def outputs(self) -> dict[str, str]:
        """MD5 of the outputs of all stages, by path."""
        return {path: md5 for stage in self.stages.values() for path, md5 in stage.outputs.items()}

    def read(self, path: str) -> bytes:
        """Read a file that a stage made.

        Raises:
            RevisionError: it was never made, or is not in DVC's cache; the message names its MD5.
        """
        md5 = self.outputs.get(path, "")
        data = self.read_contents(path, md5) if md5 or self.commit is None else None
        if data is not None:
            return data
        if self.commit is None:
            raise RevisionError(
                f"{self.name}: {path} is missing; fix: `dvc checkout {path}` takes it from DVC's cache, "
                f"`dvc pull {path}` from the remote, `dvc repro` makes it"
            )
        if not md5:
            raise RevisionError(f"{self.name}: no dvc.lock has {path}: the stage that makes it did not run there")
        ref = self.experiment or self.commit[:12]
        restore = f"dvc exp apply {ref}" if self.experiment else f"git checkout {ref}"
        raise RevisionError(
            f"{self.name}: {path} (MD5 {md5}) is not in DVC's cache; fix: `planward diff --pull` fetches it where the "
            f"remote has it; else `{restore}`, then `dvc repro`"
        )


def find_lineage(revision: Revision, paths: Iterable[str]) -> dict[str, Stage]:
    """Find the stages that these files depend on, directly or not, in the order of the pipelines."""
    producers: dict[str, set[str]] = defaultdict(set)  # of a path: the stages that make it or something in it
    output_stages: dict[str, str] = {}
    for stage in revision.stages.values():
        for path in stage.outputs:
            output_stages[path] = stage.name
            for folder in (path, *_list_parents(path)):
                producers[folder].add(stage.name)
    lineage: set[str] = set()
    waiting = [output_stages[path] for path in paths if path in output_stages]
    while waiting:
        name = waiting.pop()
        if name in lineage:
            continue
        lineage.add(name)
        for path in revision.stages[name].inputs:
            waiting += producers.get(path, ())
            waiting += (output_stages[parent] for parent in _list_parents(path) if parent in output_stages)
    return {name: stage for name, stage in revision.stages.items() if name in lineage}


def find_disagreements(revision: Revision, stages: Mapping[str, Stage]) -> list[str]:
    """Describe where dvc.lock differs, for these stages, from the parameter files or from what other stages made.

    Results of such a revision are not those of its parameters: it was changed, and not run again in full.
    """
    notes: dict[str, list[str]] = defaultdict(list)
    outputs = revision.outputs
    for stage in stages.values():
        for file, params in stage.params.items():
            for key, value in flatten(params) if file in revision.params else ():
                if (present := get_param(revision.params[file], key)) != value:
                    note = f"{key} was {_format_value(value)} and is {_format_value(present)} in {file}"
                    notes[note].append(stage.name)
        for path, md5 in stage.inputs.items():
            if md5 and outputs.get(path, md5) != md5:
                notes[f"{path} has changed since"].append(stage.name)
    return [f"{note} (when {', '.join(names)} ran)" for note, names in notes.items()]


def format_param_key(file: str, key: str) -> str:
    """`grpo.beta` of params.yaml, `workflow/selectors/params.yaml:grpo.beta` of another file."""
    return key if file == str(PARAMS_FILE) else f"{file}:{key}"


def get_param(params: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none. A number is an index into a list."""
    value: Any = params
    for part in key.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


@contextmanager
def open_repository() -> Iterator[Repo]:
    """Open the DVC repository around the current folder.

    Raises:
        RevisionError: there is none, or it is not in a Git repository.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        repo = Repo()
    except DvcException as error:
        fix = "run from the root of a checkout of Planward (git clone)"
        raise RevisionError(f"no DVC project here: {error}; fix: {fix}") from None
    with repo:
        if not hasattr(repo.scm, "resolve_rev"):
            raise RevisionError(f"{repo.root_dir}: no Git repository, so there are no revisions to compare")
        yield repo


def read_revision(repo: Repo, name: str) -> Revision:
    """Read a commit, branch, tag, DVC experiment or `workspace`.

    Raises:
        RevisionError: Git and DVC know no such revision, or it has no dvc.yaml and dvc.lock that can be read; the
            message lists the experiments.
    """
    from dvc.api import DVCFileSystem
    from dvc.dvcfile import load_file
    from dvc.exceptions import DvcException

    try:
        files = DVCFileSystem(repo.root_dir, rev=None if name == WORKSPACE else name or "?")
        commit = None if name == WORKSPACE else str(files.repo.get_rev())
    except (DvcException, ValueError):
        raise RevisionError(f"{name}: no such commit, branch, tag or experiment; {_list_experiments(repo)}") from None
    tree, root = files.repo.fs, files.repo.root_dir  # what Git keeps, or the workspace
    params, stages, has_run = {}, {}, False
    try:
        for folder in _list_pipelines(tree, root):
            if content := _read_yaml(tree, root, str(folder / PARAMS_FILE)):
                params[str(folder / PARAMS_FILE)] = content
            if lock := _read_yaml(tree, root, str(folder / "dvc.lock")).get("stages"):
                has_run = True
            # dvc.api does not list stages; the resolver expands foreach and matrix without building DVC's whole index
            for key in load_file(files.repo, tree.join(root, *folder.parts, "dvc.yaml")).resolver.get_keys():
                stage = _build_stage(folder, key, (lock or {}).get(key, {}))
                stages[stage.name] = stage
    except (DvcException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RevisionError(f"{name}: its DVC files cannot be read: {error}") from None
    if not has_run:
        raise RevisionError(f"{name}: has no dvc.lock, so no stage has run there; fix: `dvc exp run`")

    def read_contents(path: str, md5: str) -> bytes | None:
        # DVCFileSystem could read outputs too, but indexes the revision first (1 s) and downloads what the cache lacks
        file = Path(repo.cache.local.oid_to_path(md5)) if commit else Path(root, path)
        if file.is_file():
            return file.read_bytes()
        return None if commit is None else _read_bytes(tree, root, path)  # Git keeps outputs that DVC does not cache

    return Revision(name, commit, _find_experiment(repo, commit), params, stages, read_contents)


def pull_files(repo: Repo, revision: Revision, paths: Iterable[str]) -> None:
    """Fetch from the default remote what DVC's cache lacks of files that a commit's stages made.

    DVC warns of what the remote lacks too. The workspace's own files are left as they are.

    Raises:
        RevisionError: there is no remote, or a file that it has cannot be fetched.
    """
    from dvc_data.hashfile.hash_info import HashInfo

    outputs = revision.outputs if revision.commit else {}
    digests = {path: outputs[path] for path in paths if outputs.get(path)}
    missing = {HashInfo("md5", md5) for path, md5 in digests.items() if revision.read_contents(path, md5) is None}
    if not missing:
        return
    try:
        failures = repo.cloud.pull(
            missing
        ).failed  # unlike `Repo.fetch`, without DVC's lock and its index of the revision
    except Exception as error:  # the client of each kind of store has exceptions of its own
        raise RevisionError(f"{revision.name}: cannot pull from DVC's remote: {error}; fix: {REMOTE_FIX}") from error
    if failures:
        raise RevisionError(
            f"{revision.name}: {len(failures)} of {len(missing)} files could not be fetched; fix: {REMOTE_FIX}"
        )


def _list_pipelines(tree: Any, root: str) -> list[PurePosixPath]:
    """Folders with a dvc.yaml, relative to the root: the root, then those in workflow/.

    Their stages run in the root (`wdir: ../..`), so the paths in their dvc.lock are relative to it.
    """
    workflow = tree.join(root, str(WORKFLOW))
    folders = sorted(tree.parts(path)[-1] for path in tree.ls(workflow, detail=False)) if tree.isdir(workflow) else []
    return [
        PurePosixPath(),
        *(PurePosixPath(WORKFLOW, name) for name in folders if tree.isfile(tree.join(workflow, name, "dvc.yaml"))),
    ]


def _build_stage(folder: PurePosixPath, key: str, record: Mapping[str, Any]) -> Stage:
    inputs, outputs = (
        {str(entry["path"]): str(entry.get("md5", "")) for entry in record.get(section, ())}
        for section in ("deps", "outs")
    )
    return Stage(f"{folder.name}:{key}" if folder.name else key, inputs, record.get("params", {}), outputs)


def _find_experiment(repo: Repo, commit: str | None) -> str | None:
    """The name of the experiment whose head a commit is. `dvc.api.exp_show` would read the metrics of all of them."""
    from dvc.repo.experiments.utils import exp_refs_by_rev

    if commit is None:
        return None
    heads = (info for info in exp_refs_by_rev(repo.scm, commit) if repo.scm.get_ref(str(info)) == commit)
    return next((str(info.name) for info in heads), None)


def _list_experiments(repo: Repo) -> str:
    from dvc.repo.experiments.utils import exp_refs

    names = sorted({str(info.name) for info in exp_refs(repo.scm)})
    return f"experiments are {', '.join(names)}" if names else "there are no experiments (`dvc exp list --all-commits`)"


def _read_bytes(tree: Any, root: str, path: str) -> bytes | None:
    file = tree.join(root, path)
    if not tree.isfile(file):
        return None
    with tree.open(file, "rb") as stream:
        return bytes(stream.read())


def _read_yaml(tree: Any, root: str, path: str) -> dict[str, Any]:
    """The content of a YAML file; empty where there is no such file."""
    content = yaml.load((_read_bytes(tree, root, path) or b"").decode("utf-8"), _Loader) or {}
    if not isinstance(content, dict):
        raise yaml.YAMLError(f"{path} holds no keys and values")
    return content


def _list_parents(path: str) -> list[str]:
    return [str(parent) for parent in Path(path).parents][:-1]


def _format_value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 3]}..."
