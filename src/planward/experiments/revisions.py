"""What Git and DVC keep of a revision: its parameters, its stages and the files that they made.

Everything is read where it lies: dvc.yaml, dvc.lock and params.yaml from Git, results from DVC's cache by the hash that
dvc.lock records. Nothing is checked out, and DVC's lock is not taken, so that a run may go on meanwhile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from planward.params import PARAMS_FILE
from planward.reporting.sections.elements import flat

if TYPE_CHECKING:
    from dvc.repo import Repo

WORKSPACE = "workspace"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's, many times faster than the one that DVC reads a long dvc.lock with; floats as in YAML 1.2: 1e-05."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class RevisionError(ValueError):
    """A revision cannot be read; the message says what it lacks, and what brings it."""


@dataclass(frozen=True)
class Stage:
    """A stage that dvc.yaml asks for, with what dvc.lock records of its last run: nothing where it has not run."""

    name: str
    inputs: Mapping[str, str]  # MD5 by path
    params: Mapping[str, Any]  # of params.yaml, by dotted key
    outputs: Mapping[str, str]  # MD5 by path


@dataclass(frozen=True)
class Revision:
    name: str  # as it was asked for
    commit: str | None  # None: the workspace
    experiment: str | None  # its name, where DVC keeps it as one
    params: Mapping[str, Any]  # params.yaml as it stands
    stages: Mapping[str, Stage]
    contents: Callable[[str, str], bytes | None] = field(repr=False)  # of a file by path and MD5; None: not here

    @property
    def title(self) -> str:
        """`HEAD (93dc9ea)`; the workspace and a name that is the commit's own stand by themselves."""
        if self.commit is None or self.commit.startswith(self.name):
            return self.name[:12] if self.commit else self.name
        return f"{self.name} ({self.commit[:7]})"

    @property
    def outputs(self) -> dict[str, str]:
        """MD5 of what every stage made, by path."""
        return {path: md5 for stage in self.stages.values() for path, md5 in stage.outputs.items()}

    def read(self, path: str) -> bytes:
        """A file that a stage made.

        Raises:
            RevisionError: it was never made, or is not in DVC's cache; the message names its MD5.
        """
        md5 = self.outputs.get(path, "")
        found = self.contents(path, md5) if md5 or self.commit is None else None
        if found is not None:
            return found
        if self.commit is None:
            raise RevisionError(
                f"{self.name}: {path} is not there; `dvc checkout {path}` brings it from DVC's cache, `dvc repro` "
                "makes it"
            )
        if not md5:
            raise RevisionError(f"{self.name}: its dvc.lock has no {path}: the stage that makes it did not run there")
        ref = self.experiment or self.commit[:12]
        again = f"dvc exp apply {ref}" if self.experiment else f"git checkout {ref}"
        raise RevisionError(
            f"{self.name}: {path} (MD5 {md5}) is not in DVC's cache. Where a remote has it, `{again}` and "
            f"`dvc pull {path}` bring it; else `{again}` and `dvc repro` make it again"
        )


def lineage(revision: Revision, paths: Iterable[str]) -> dict[str, Stage]:
    """The stages that these files come from, however indirectly, in the order of dvc.yaml."""
    makers: dict[str, set[str]] = defaultdict(set)  # of a path: the stages that make it or something in it
    whole: dict[str, str] = {}
    for stage in revision.stages.values():
        for path in stage.outputs:
            whole[path] = stage.name
            for place in (path, *_parents(path)):
                makers[place].add(stage.name)
    found: set[str] = set()
    waiting = [whole[path] for path in paths if path in whole]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for path in revision.stages[name].inputs:
            waiting += makers.get(path, ())
            waiting += (whole[parent] for parent in _parents(path) if parent in whole)
    return {name: stage for name, stage in revision.stages.items() if name in found}


def disagreements(revision: Revision, stages: Mapping[str, Stage]) -> list[str]:
    """Where what dvc.lock records of these stages is not what params.yaml says, or what a stage before them made.

    Results of such a revision are not those of its parameters: it was changed, and not run again in full.
    """
    others: dict[str, list[str]] = defaultdict(list)
    made = revision.outputs
    for stage in stages.values():
        for key, value in flat(stage.params):
            if (now := value_at(revision.params, key)) != value:
                others[f"{key} was {_short(value)} and is {_short(now)} in params.yaml"].append(stage.name)
        for path, md5 in stage.inputs.items():
            if md5 and made.get(path, md5) != md5:
                others[f"{path} was another than there is now"].append(stage.name)
    return [f"{what} (when {', '.join(names)} ran)" for what, names in others.items()]


def value_at(params: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none. A number picks from a list."""
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
def opened_repository() -> Iterator[Repo]:
    """The DVC repository around the current folder.

    Raises:
        RevisionError: there is none, or it is not in a Git repository.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        repo = Repo()
    except DvcException as error:
        raise RevisionError(f"no DVC project here: {error}; run from the project's root") from None
    with repo:
        if not hasattr(repo.scm, "resolve_rev"):
            raise RevisionError(f"{repo.root_dir}: no Git repository, so there are no revisions to compare")
        yield repo


def read_revision(repo: Repo, name: str) -> Revision:
    """A commit, branch, tag, DVC experiment or `workspace`.

    Raises:
        RevisionError: Git and DVC know no such revision, or it has no dvc.yaml and dvc.lock that can be read; the
            message says which experiments there are.
    """
    from dvc.dvcfile import load_file
    from dvc.exceptions import DvcException
    from dvc.repo.experiments.utils import exp_refs_by_rev
    from dvc.scm import SCMError, resolve_rev

    commit = experiment = None
    if name != WORKSPACE:
        try:
            commit = str(resolve_rev(repo.scm, name or "?"))
        except (SCMError, DvcException, ValueError):
            raise RevisionError(f"{name}: no such commit, branch, tag or experiment; {_known(repo)}") from None
        heads = (info for info in exp_refs_by_rev(repo.scm, commit) if repo.scm.get_ref(str(info)) == commit)
        experiment = next((str(info.name) for info in heads), None)
    try:
        with repo.switch(commit or WORKSPACE):
            fs, root = repo.fs, repo.root_dir
            params, lock = _mapping(fs, root, str(PARAMS_FILE)), _mapping(fs, root, "dvc.lock")
            names = list(load_file(repo, fs.join(root, "dvc.yaml")).resolver.get_keys()) if lock else []
    except (DvcException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RevisionError(f"{name}: its DVC files cannot be read: {error}") from None
    if not lock:
        raise RevisionError(f"{name}: has no dvc.lock, so no stage has run there; `dvc exp run` runs them")
    ran = lock.get("stages", {})

    def contents(path: str, md5: str) -> bytes | None:
        place = Path(repo.cache.local.oid_to_path(md5)) if commit else Path(root, path)
        if place.is_file():
            return place.read_bytes()
        return None if commit is None else _bytes(fs, root, path)  # Git keeps what DVC does not cache

    return Revision(name, commit, experiment, params, {key: _stage(key, ran.get(key, {})) for key in names}, contents)


def _stage(name: str, record: Mapping[str, Any]) -> Stage:
    inputs, outputs = (
        {str(one["path"]): str(one.get("md5", "")) for one in record.get(kind, ())} for kind in ("deps", "outs")
    )
    return Stage(name, inputs, record.get("params", {}).get(str(PARAMS_FILE), {}), outputs)


def _known(repo: Repo) -> str:
    from dvc.repo.experiments.utils import exp_refs

    names = sorted({str(info.name) for info in exp_refs(repo.scm)})
    return f"experiments are {', '.join(names)}" if names else "there are no experiments (`dvc exp list --all-commits`)"


def _bytes(fs: Any, root: str, path: str) -> bytes | None:
    place = fs.join(root, path)
    if not fs.isfile(place):
        return None
    with fs.open(place, "rb") as file:
        return bytes(file.read())


def _mapping(fs: Any, root: str, path: str) -> dict[str, Any]:
    """What a YAML file holds by key; nothing where there is no such file."""
    found = yaml.load((_bytes(fs, root, path) or b"").decode("utf-8"), _Loader) or {}
    if not isinstance(found, dict):
        raise yaml.YAMLError(f"{path} holds no keys and values")
    return found


def _parents(path: str) -> list[str]:
    return [str(parent) for parent in Path(path).parents][:-1]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
