"""Whether a folder holds a complete model, and how large it is, from its files' headers: no weights are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from planward.core.model_folders import check_model_folder
from planward.core.prompt_templates import PromptTemplate, read_template
from planward.params import ParamsError, PromptConfig

ADAPTER, INDEX = "adapter_config.json", "model.safetensors.index.json"
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
LENGTH_BYTES = 8  # of the header's length, with which a safetensors file begins
AGAIN = "fetch or make the model again"


@dataclass(frozen=True)
class ModelFiles:
    """What the files of a model say.

    Attributes:
        parameters: the numbers in the weights, without an adapter's own; 0 where no file can be read.
        faults: lines.
    """

    parameters: int
    faults: list[str]


def inspect_model(path: str, source: str) -> ModelFiles:
    """Check that a folder holds configuration, whole safetensors and a tokenizer; an adapter's base, too.

    Args:
        source: file and key that name the folder, for messages.
    """
    try:
        check_model_folder(path, source)
    except ParamsError as error:
        return ModelFiles(0, [str(error)])
    folder, faults = Path(path), _inspect_tokenizer(Path(path))
    config = _read_json(folder / "config.json", faults) if not (folder / ADAPTER).exists() else {"model_type": ""}
    if config is not None and "model_type" not in config:
        faults.append(f"{folder / 'config.json'}: names no model_type; fix: {AGAIN}")
    weights = _inspect_weights(folder)
    return ModelFiles(weights.parameters, faults + weights.faults)


def list_template_faults(prompt: PromptConfig) -> list[str]:
    """Return what is wrong with the prompt template, which only `prompt.style: full` uses."""
    if prompt.style != "full" or prompt.template is None:
        return []
    try:
        PromptTemplate(prompt.template)
    except ParamsError as error:
        return [str(error) if "; fix: " in str(error) else f"{error}; fix: correct the template"]
    return []


def list_chat_faults(path: str, prompt: PromptConfig) -> list[str]:
    """Return why the model in a folder has no chat template for the turns of a prompt."""
    if prompt.style != "full" or not Path(path).is_dir():
        return []
    folder = Path(path)
    config = _read_json(folder / "tokenizer_config.json", []) or {}
    file = folder / "chat_template.jinja"
    text = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(text, list):  # several, by name
        text = next((each["template"] for each in text if each["name"] == "default"), None)
    if not isinstance(text, str):
        fix = "set prompt.style: compact, or choose an instruction-tuned model"
        return [f"{folder}: the tokenizer has no chat template; fix: {fix}"]
    roles = ["system", "user"] if prompt.system_turn and _has_system_text(prompt.template) else ["user"]
    try:
        _render_chat(text, roles, config, prompt.chat_template_options)
    except TemplateSyntaxError as error:
        return [f"{folder}: the chat template is faulty: line {error.lineno}: {error.message}; fix: {AGAIN}"]
    except _Refusal as error:
        fix = "prompt.system_turn: false" if "system" in roles else "choose another model"
        return [f"{folder}: the chat template refuses the turns {', '.join(roles)}: {error}; fix: {fix}"]
    except Exception:  # it needs what only the tokenizer can tell
        return []
    return []


class _Refusal(TemplateError):
    """What a chat template raises by `raise_exception`."""


class _Generation(Extension):
    """The tag with which a chat template encloses what the model says."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


def _render_chat(text: str, roles: list[str], config: dict[str, Any], options: dict[str, Any]) -> None:
    """Render turns of these roles as Transformers does."""

    def refuse(message: str) -> None:
        raise _Refusal(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda _: ""}
    special = {name: config.get(name) or "" for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    tokens = {name: each["content"] if isinstance(each, dict) else each for name, each in special.items()}
    messages = [{"role": role, "content": "text"} for role in roles]
    values = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
    environment.from_string(text).render(**tokens, **values, **options)


def _has_system_text(template: Path | None) -> bool:
    """Whether a prompt template always has a system turn: its block `system` has words outside of conditions."""
    if template is None or not template.is_file():
        return False
    try:
        tree = ImmutableSandboxedEnvironment().parse(read_template(template))
    except TemplateSyntaxError:  # which list_template_faults names
        return False
    outputs = (
        part
        for block in tree.find_all(nodes.Block)
        if block.name == "system"
        for output in block.body
        if isinstance(output, nodes.Output)
        for part in output.nodes
    )
    return any(isinstance(part, nodes.TemplateData) and part.data.strip() for part in outputs)


def _inspect_tokenizer(folder: Path) -> list[str]:
    if not any((folder / name).is_file() for name in VOCABULARIES):
        return [f"{folder}: has no tokenizer (tokenizer.json); fix: {AGAIN}"]
    faults = list[str]()
    if (folder / "tokenizer_config.json").exists():
        _read_json(folder / "tokenizer_config.json", faults)
    file = folder / "tokenizer.json"
    if file.exists():
        from tokenizers import Tokenizer

        try:
            Tokenizer.from_file(str(file))
        except Exception as error:  # the package has no class of its own for it
            faults.append(f"{file}: no tokenizer: {error}; fix: {AGAIN}")
    return faults


def _inspect_weights(folder: Path) -> ModelFiles:
    faults = list[str]()
    if (folder / ADAPTER).exists():
        config = _read_json(folder / ADAPTER, faults) or {}
        _count_parameters(folder / "adapter_model.safetensors", faults)
        base = config.get("base_model_name_or_path")
        if not base or not isinstance(base, str):
            return ModelFiles(0, [*faults, f"{folder / ADAPTER}: names no base_model_name_or_path; fix: {AGAIN}"])
        try:
            check_model_folder(base, f"{folder / ADAPTER}: base_model_name_or_path")
        except ParamsError as error:
            return ModelFiles(0, [*faults, str(error)])
        below = _inspect_weights(Path(base))
        return ModelFiles(below.parameters, faults + below.faults)
    names = ["model.safetensors"]
    if (folder / INDEX).exists():
        index = _read_json(folder / INDEX, faults) or {}
        weight_map = index.get("weight_map")
        if not weight_map or not isinstance(weight_map, dict):
            return ModelFiles(0, [*faults, f"{folder / INDEX}: names no weights; fix: {AGAIN}"])
        names = sorted(set(map(str, weight_map.values())))
    counts = [_count_parameters(folder / name, faults) for name in names]
    return ModelFiles(sum(counts), faults)


def _count_parameters(file: Path, faults: list[str]) -> int:
    """Count the numbers in a safetensors file; a file that is missing or cut off is a fault, and has none."""
    if not file.is_file():
        faults.append(f"{file}: missing; fix: {AGAIN} (weights must be safetensors)")
        return 0
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
            if length > size:
                raise ValueError
            header = json.loads(stream.read(length))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        if LENGTH_BYTES + length + max(tensor["data_offsets"][1] for tensor in tensors) != size:
            raise ValueError
        return sum(prod(tensor["shape"]) for tensor in tensors)
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        faults.append(f"{file}: cut off, or no safetensors file; fix: {AGAIN}")
        return 0


def _read_json(file: Path, faults: list[str]) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        faults.append(f"{file}: missing; fix: {AGAIN}")
    except (OSError, ValueError) as error:
        faults.append(f"{file}: not JSON: {error}; fix: {AGAIN}")
    else:
        if isinstance(content, dict):
            return content
        faults.append(f"{file}: holds no object; fix: {AGAIN}")
    return None
