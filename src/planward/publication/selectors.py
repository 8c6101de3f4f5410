"""A trained selector of worked examples as a folder, and its choices for new queries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from planward.core import paths
from planward.core.model_folders import check_model_folder
from planward.core.records import Record, read_records
from planward.core.registry import parse_params
from planward.core.runs import Run
from planward.core.tasks import Task
from planward.params import Params, validate_section
from planward.publication.embedders import (
    TERMS_FILE,
    Embedder,
    FileEmbedder,
    ModelEmbedder,
    Scale,
    TfidfEmbedder,
)
from planward.publication.folders import (
    DESCRIPTION_FILE,
    TEMPLATE_FILE,
    copy_files,
    write_description,
    write_folder,
    write_params,
)
from planward.publication.provenance import PublicationError, find_provenance
from planward.publication.selector_card import render_selector_card
from planward.selectors.config import SelectorsConfig
from planward.selectors.dialects import load_track_task
from planward.selectors.embeddings import read_embeddings
from planward.selectors.pointer import Pointer, load_pointer
from planward.selectors.pools import sample_pool
from planward.selectors.selection import select_by_pointer
from planward.tasks.planning.config import PlanningParams

MODEL_FOLDER = "model"  # of the frozen language model, in a selector's folder
MAX_DEVIATION = 1e-3  # of an embedding from the stored one; vectors have a mean length of 1 per layer
MAX_NUMBERS = 2**24  # in the padded pools of a batch of queries


def publish_selector(
    params: PlanningParams,
    config: SelectorsConfig,
    run: Run,
    target: Path,
    *,
    licence: str | None = None,
    copy_model: bool = True,
) -> None:
    """Write a pointer network and all that it needs to choose examples for new problems into `target`.

    Args:
        copy_model: copy the frozen language model that embeds problems; otherwise planward.json names its folder.

    Raises:
        PublicationError: the selector has no weights or tables, or the embeddings are not those it was trained on.
    """
    results = paths.SELECTORS
    weights = results.model(run)
    load_pointer(weights)  # raises where it was not trained
    provenance = find_provenance(weights)
    task = load_track_task(params, config)
    training = list(read_records(results.dialects / "train.jsonl"))
    embedder = _build_embedder(task, params, config, training)
    raw = embedder.embed(training)
    scale = Scale.measure(raw)
    stored_embeddings = read_embeddings(results.embeddings, [record.id for record in training])
    deviation = float((scale.apply(raw) - torch.stack(list(stored_embeddings.values()))).abs().max())
    if deviation > MAX_DEVIATION:
        raise PublicationError(
            f"{results.embeddings}: embeddings differ by up to {deviation:.3g} from those that {config.model} gives; "
            "fix: `dvc repro workflow/selectors/dvc.yaml`"
        )
    needs_model = config.embeddings == "model"
    with write_folder(target) as folder:
        copy_files(weights, folder)
        scale.save(folder)
        if isinstance(embedder, TfidfEmbedder):
            embedder.save(folder)
        if needs_model and copy_model:
            copy_files(config.model, folder / MODEL_FOLDER)
        description = {
            "params": params.model_dump(mode="json", by_alias=True),
            "selectors": config.model_dump(mode="json"),
            "model": MODEL_FOLDER if needs_model and copy_model else str(config.model),
        }
        write_description(folder, params, run.as_dict("selectors"), description)
        write_params(folder, params)
        write_params(folder, config, "selectors.yaml")
        card = render_selector_card(run, target.name, config, provenance, licence)
        card.save(folder / "README.md")


@dataclass(frozen=True)
class Selector:
    """A published selector."""

    params: Params
    config: SelectorsConfig
    task: Task
    pointer: Pointer
    embedder: Embedder
    scale: Scale

    def choose(
        self, queries: Sequence[Record], pool: Sequence[Record], count: int, candidates: int | None
    ) -> Iterator[tuple[str, list[str]]]:
        """Choose `count` worked examples of the pool for each query; yields its id and theirs, in the prompt's order.

        Never the query itself, nor a problem that differs from it only in names and constraints.

        Args:
            candidates: sample so many of the pool for each query, as in training; None: all of it.

        Raises:
            ValueError: a query and another problem of the pool have the same id; or the pool holds fewer examples than
                `count` for a query. The message names it.
        """
        query_by_id = {query.id: query for query in queries}
        for record in pool:
            same = query_by_id.get(record.id, record)
            if same is not record and self.task.core_digest(same) != self.task.core_digest(record):
                raise ValueError(f"{record.id}: the id of a query and of another problem of the pool; fix: unique ids")
        seed, size = str(self.params.seed), len(pool) if candidates is None else candidates
        pools = {query.id: sample_pool(query, pool, self.task.core_digest, size, seed) for query in queries}
        for id, examples in pools.items():
            if len(examples) < count:
                raise ValueError(f"{id}: needs {count} worked examples, but the pool has {len(examples)} for it")
        records_by_id = {record.id: record for records in (queries, *pools.values()) for record in records}
        vectors = self.scale.apply(self.embedder.embed(list(records_by_id.values())))
        embeddings = dict(zip(records_by_id, vectors, strict=True))
        width = max(vectors.shape[1], self.config.pointer.hidden)
        batch = max(1, MAX_NUMBERS // (width * max(map(len, pools.values()))))
        for start in range(0, len(queries), batch):
            choices = select_by_pointer(self.pointer, queries[start : start + batch], pools, embeddings, count)
            for query, examples in choices.items():
                yield query, [example.id for example in reversed(examples)]


def load_selector(folder: Path, *, model: Path | None = None, embeddings: Path | None = None) -> Selector:
    """Load a published selector.

    Args:
        model: the frozen language model's folder, where it is another one than planward.json names.
        embeddings: the file of all problems' vectors, for a selector that was trained on such a file.

    Raises:
        PublicationError: the folder holds no selector, or needs `embeddings`.
        ParamsError: there is no folder of the frozen model.
    """
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        raise PublicationError(
            f"{folder}: has no {DESCRIPTION_FILE}; fix: `planward publish RUN DIR` writes a selector"
        )
    description = json.loads(path.read_text(encoding="utf-8"))
    if "selectors" not in description:
        raise PublicationError(f"{path}: is not of a selector; fix: publish a run of `planward selectors train`")
    params = parse_params(description["params"], str(path))
    if description["template"] is not None:
        prompt = params.prompt.model_copy(update={"template": folder / TEMPLATE_FILE})
        params = params.model_copy(update={"prompt": prompt})
    config = validate_section(SelectorsConfig, description["selectors"], str(path))
    inside = folder / description["model"]
    config = config.model_copy(update={"model": model or (inside if inside.is_dir() else Path(description["model"]))})
    task = load_track_task(params, config)
    if config.embeddings == "model":
        check_model_folder(str(config.model), f"{path}: model (or --model)")
        embedder: Embedder = ModelEmbedder(task, params, config)
    elif config.embeddings == "tfidf":
        embedder = TfidfEmbedder(task, json.loads((folder / TERMS_FILE).read_text(encoding="utf-8")))
    elif embeddings is None:
        raise PublicationError(f"{folder}: was trained on embeddings of a file; fix: name yours with --embeddings")
    else:
        embedder = FileEmbedder(embeddings)
    return Selector(params, config, task, load_pointer(folder), embedder, Scale.load(folder))


def _build_embedder(task: Task, params: Params, config: SelectorsConfig, training: Sequence[Record]) -> Embedder:
    if config.embeddings == "model":
        return ModelEmbedder(task, params, config)
    if config.embeddings == "tfidf":
        return TfidfEmbedder.fit(task, training)
    assert config.embeddings_file is not None
    return FileEmbedder(config.embeddings_file)
