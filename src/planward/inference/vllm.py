"""Completions from vLLM: an engine in this process, or a server with OpenAI's completions API.

The package is imported where an engine is built; asking a server does not need it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from planward.inference.models import BackendError, list_end_tokens
from planward.params import ModelConfig

REQUEST_TIMEOUT_S = 3600  # for the completions of a batch
WHOLE_DISTRIBUTION = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}  # against a model's own
MAX_ERROR_CHARS = 500  # of a server's error message


@dataclass(frozen=True)
class EngineArguments:
    """Arguments of `vllm.LLM`."""

    model: str
    max_model_len: int  # tokens of prompt and completion
    gpu_memory_utilization: float
    tensor_parallel_size: int
    seed: int
    dtype: str = "bfloat16"
    generation_config: str = "vllm"  # no sampling settings but those of `SamplingArguments`
    trust_remote_code: bool = False


@dataclass(frozen=True)
class SamplingArguments:
    """Arguments of `vllm.SamplingParams`, for the completions that Planward has from a network."""

    max_tokens: int
    stop_token_ids: list[int]
    repetition_penalty: float  # of greedy completions: the model's own setting
    temperature: float = 0.0
    n: int = 1
    seed: int | None = None


class VllmEngine:
    """vLLM in this process.

    Raises:
        BackendError: vLLM is not installed.
    """

    def __init__(self, arguments: EngineArguments, tokenizer: Any) -> None:
        require_vllm()
        from vllm import LLM

        self.path, self.tokenizer = arguments.model, tokenizer
        self.engine = LLM(**asdict(arguments))

    def complete(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, batch_size: int, *, progress: bool
    ) -> list[str]:
        """Return the greedy completions of prompts (token ids); vLLM chooses the batches itself."""
        del batch_size
        sampling = build_sampling_arguments(self.path, self.tokenizer, max_new_tokens)
        return [text for (text,) in self._generate(prompts, sampling, progress=progress)]

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        num_samples: int,
        temperature: float,
        seed: int,
        *,
        progress: bool,
    ) -> list[list[str]]:
        """Return sampled completions of each prompt (token ids)."""
        sampling = build_sampling_arguments(self.path, self.tokenizer, max_new_tokens)
        sampling = replace(sampling, repetition_penalty=1.0, temperature=temperature, n=num_samples, seed=seed)
        return self._generate(prompts, sampling, progress=progress)

    def _generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingArguments, *, progress: bool
    ) -> list[list[str]]:
        from vllm import SamplingParams

        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = self.engine.generate(inputs, sampling_params=SamplingParams(**asdict(sampling)), use_tqdm=progress)
        tokens = [[completion.token_ids for completion in output.outputs] for output in outputs]
        return [self.tokenizer.batch_decode(row, skip_special_tokens=True) for row in tokens]


class VllmServer:
    """A server that answers OpenAI's completions API for prompts of token ids, such as `vllm serve`.

    Args:
        url: of the server, without `/v1`.
        path: the weights that it must serve.

    Raises:
        BackendError: it does not answer, or serves other weights.
    """

    def __init__(self, url: str, path: str) -> None:
        self.url = url.rstrip("/")
        cards = self._request("/v1/models")["data"]
        paths = {path, str(Path(path).resolve())}
        names = [card["id"] for card in cards if paths & {card["id"], card.get("root")}]
        if not names:
            names = [card["id"] for card in cards]
            raise BackendError(f"model.vllm.url: {url} serves {', '.join(names)}; fix: vllm serve {path}")
        self.model = names[0]

    def complete(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, batch_size: int, *, progress: bool
    ) -> list[str]:
        """Return the greedy completions of prompts (token ids), `batch_size` a request.

        Raises:
            BackendError: the server refuses a request or fails.
        """
        completions: list[str] = []
        for start in tqdm(range(0, len(prompts), batch_size), desc="generating", unit="batch", disable=not progress):
            batch = [list(prompt) for prompt in prompts[start : start + batch_size]]
            completions += self._complete(batch, len(batch), {"max_tokens": max_new_tokens, "temperature": 0})
        return completions

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        num_samples: int,
        temperature: float,
        seed: int,
        *,
        progress: bool,
    ) -> list[list[str]]:
        """Return sampled completions of each prompt (token ids), which is a request of its own.

        Raises:
            BackendError: the server refuses a request or fails.
        """
        body = {"max_tokens": max_new_tokens, "temperature": temperature, "n": num_samples, "seed": seed}
        body |= WHOLE_DISTRIBUTION
        return [
            self._complete([list(prompt)], num_samples, body)
            for prompt in tqdm(prompts, desc="generating", unit="prompt", disable=not progress)
        ]

    def _complete(self, prompts: list[list[int]], count: int, sampling: dict[str, Any]) -> list[str]:
        """Return the `count` completions of a request, in the order of its prompts."""
        choices = self._request("/v1/completions", {"model": self.model, "prompt": prompts} | sampling)["choices"]
        if len(choices) != count:
            raise BackendError(f"{self.url} returned {len(choices)} completions instead of {count}")
        return [choice["text"] for choice in sorted(choices, key=lambda choice: choice["index"])]

    def _request(self, route: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}{route}", data, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
                return json.load(response)
        except HTTPError as error:
            text = error.read().decode(errors="replace")[:MAX_ERROR_CHARS]
            raise BackendError(f"{self.url}{route}: {error.code} {error.reason}: {text}") from None
        except (URLError, TimeoutError, ConnectionError) as error:
            raise BackendError(
                f"model.vllm.url: {self.url} does not answer ({error}); fix: start `vllm serve`"
            ) from None


def load_vllm(model: ModelConfig, path: str, max_tokens: int, seed: int) -> tuple[VllmEngine | VllmServer, Any]:
    """Return vLLM with the weights at `path`, for `generate_greedy`, and the tokenizer.

    Args:
        max_tokens: of prompt and completion together.

    Raises:
        BackendError: vLLM cannot be used here with these parameters or weights.
    """
    from transformers import AutoTokenizer

    check_vllm(model, path)
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    if model.vllm.mode == "server":
        return VllmServer(model.vllm.url, path), tokenizer
    return VllmEngine(build_engine_arguments(model, path, max_tokens, seed), tokenizer), tokenizer


def build_engine_arguments(model: ModelConfig, path: str, max_tokens: int, seed: int) -> EngineArguments:
    vllm, dtype = model.vllm, "float32" if model.precision == "float32" else "bfloat16"
    return EngineArguments(path, max_tokens, vllm.gpu_memory_utilization, vllm.tensor_parallel_size, seed, dtype)


def build_sampling_arguments(path: str, tokenizer: Any, max_new_tokens: int) -> SamplingArguments:
    """Return arguments for greedy completions with the generation settings at `path`, as Transformers applies them."""
    from transformers import GenerationConfig

    try:
        config = GenerationConfig.from_pretrained(path)
    except OSError:  # no generation_config.json
        config = GenerationConfig()
    ends = list_end_tokens(tokenizer.eos_token_id, config.eos_token_id)
    penalty = config.repetition_penalty
    return SamplingArguments(max_new_tokens, ends, 1.0 if penalty is None else penalty)


def check_vllm(model: ModelConfig, path: str) -> None:
    """Raise BackendError where vLLM cannot generate with the weights at `path`; the message names the key."""
    if model.backend == "unsloth":
        raise BackendError("model.generation: vllm needs model.backend: transformers (got unsloth)")
    if model.load_in_4bit:
        raise BackendError(
            "model.generation: vllm needs model.load_in_4bit: false; TRL cannot give vLLM weights that are in 4 bits"
        )
    if (Path(path) / "adapter_config.json").exists():
        raise BackendError(
            f"{path}: a LoRA adapter, but model.generation: vllm needs full weights; fix: model.lora.merge: true, or "
            f"planward merge {path} OUT"
        )


def require_vllm() -> None:
    """Raise BackendError where vLLM is not installed."""
    if find_spec("vllm") is None:
        raise BackendError("model.generation is vllm, which is not installed; fix: install the extra `vllm`")
