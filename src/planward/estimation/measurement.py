"""A model's size, speed and memory, measured on a few steps of prefill, decoding and training."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors import safe_open
from torch.nn.utils.rnn import pad_sequence

from planward.core.model_folders import check_model_folder
from planward.estimation.workload import Sequence_, Workload
from planward.inference import models
from planward.inference.attention import group_queries
from planward.inference.cache import preallocate_rows
from planward.params import ModelConfig, Params, ParamsError
from planward.training.batching import Batching

STEPS = 3  # of each measurement; the median counts
CPU_TOKENS = 2048  # in a measured batch at most: a CPU's speed hardly depends on it
CPU_CACHE_TOKENS = 16384  # in the cache of a measured decoding step at most
IGNORED_LABEL = -100
NF4_BYTES = 0.516  # per number: 4 bits, and doubly quantised scales of blocks of 64 (Dettmers et al., 2023)


@dataclass(frozen=True)
class Measurement:
    """Speeds are tokens per second, padding not counted; sizes are bytes."""

    parameters: int
    trainable: int
    device: str
    weights: int  # in training
    generator_weights: int  # in evaluation
    gradients: int
    optimizer: int
    activations_per_token: float  # kept for the backward pass
    cache_per_token: float  # keys and values of one position
    prefill: float
    decoding: float
    training: float
    training_sequences: int  # in a measured forward and backward pass
    decoding_rows: int
    processor_share: float  # of its threads' time that the process got; below 1, others slowed it down
    peak_generation: int  # measured; of the process on a CPU, of the device on a GPU
    peak_training: int


@dataclass
class _Usage:
    """Of one phase."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak: int = 0  # bytes; on a CPU of the process up to the end of the phase


def count_parameters(folder: Path) -> int:
    """Count the numbers in a folder's weights, and in those of an adapter's base, from the files' headers.

    Raises:
        ParamsError: the folder, or an adapter's base, is missing or has no safetensors.
    """
    check_model_folder(str(folder))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ParamsError(f"{folder}: has no .safetensors; fix: planward fetch-model, or save the model as safetensors")
    count = 0
    for file in files:
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118  not a dictionary
                count += torch.Size(weights.get_slice(name).get_shape()).numel()
    if (folder / "adapter_config.json").exists():
        from peft import PeftConfig

        count += count_parameters(Path(str(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path)))
    return count


def load_network(model: ModelConfig, path: str, *, training: bool) -> tuple[Any, Any]:
    """Load a model as stages do under Transformers, in 16 or 32 bits; for training with its LoRA adapter."""
    plain = model.model_copy(update={"backend": "transformers", "load_in_4bit": False})
    network, tokenizer = models.load_model(plain, path, max_tokens=0, seed=0, training=training)
    lora = models.build_lora_config(plain, network) if training else None
    if lora is not None:
        from peft import get_peft_model

        network = get_peft_model(network, lora)
    if torch.cuda.is_available() and network.device.type == "cpu":
        network.to("cuda")
    return network, tokenizer


def measure(path: str, workload: Workload, params: Params, parameters: int) -> Measurement:
    """Measure a few steps with the weights at `path`, of which there are `parameters` numbers.

    Generation comes first; its network is released before the one for training is loaded, so memory holds only one.
    """
    generator, _ = load_network(params.model, path, training=False)
    generator_weights = _compute_weight_bytes(generator, params.model.load_in_4bit)
    cuda = generator.device.type == "cuda"
    with _measure_usage(cuda) as generation:
        prefill, decoding, rows, cache = _measure_generation(generator, workload, params, cuda)
    del generator
    gc.collect()  # networks may hold references to themselves
    if cuda:
        torch.cuda.empty_cache()
    network, _ = load_network(params.model, path, training=True)
    trained_weights = [weights for weights in network.parameters() if weights.requires_grad]
    gradients = sum(weights.numel() * weights.element_size() for weights in trained_weights)
    with _measure_usage(cuda) as training:
        speed, activations, sequences = _measure_training(network, trained_weights, workload, params, cuda)
    cpu_seconds, seconds = generation.cpu_seconds + training.cpu_seconds, generation.seconds + training.seconds
    return Measurement(
        parameters=parameters,
        trainable=sum(weights.numel() for weights in trained_weights),
        device=torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} thread(s)",
        weights=_compute_weight_bytes(network, params.model.load_in_4bit),
        generator_weights=generator_weights,
        gradients=gradients,
        optimizer=2 * gradients,  # AdamW: two moments of each
        activations_per_token=activations,
        cache_per_token=cache,
        prefill=prefill,
        decoding=decoding,
        training=speed,
        training_sequences=sequences,
        decoding_rows=rows,
        processor_share=cpu_seconds / seconds / torch.get_num_threads(),
        peak_generation=generation.peak,
        peak_training=training.peak,
    )


def _compute_weight_bytes(network: Any, load_in_4bit: bool) -> int:
    """The size of the weights; with `load_in_4bit`, of all linear layers but the last one in 4 bits."""
    sizes = {id(weights): weights.numel() * weights.element_size() for weights in network.parameters()}
    if load_in_4bit:
        last = network.get_output_embeddings()
        for module in network.modules():
            if isinstance(module, torch.nn.Linear) and module is not last and not module.weight.requires_grad:
                sizes[id(module.weight)] = int(module.weight.numel() * NF4_BYTES)
    return sum(sizes.values())


@torch.no_grad()
def _measure_generation(
    network: Any, workload: Workload, params: Params, cuda: bool
) -> tuple[float, float, int, float]:
    """Return prefill and decoding speeds, the rows of a decoding step, and the cache's bytes per position."""
    network.eval()
    prompts = [prompt for prompt, _ in workload.sequences]
    batch = _fill_batch(prompts, params.evaluate.batch_size, CPU_TOKENS, cuda)
    ids, mask = _pad(batch, network)
    output: Any = None

    def prefill() -> None:
        nonlocal output
        output = network(input_ids=ids, attention_mask=mask, use_cache=True, logits_to_keep=1)

    prefill_speed = int(mask.sum()) / _time(prefill, cuda)
    length = ids.shape[1]
    cache, rows = output.past_key_values, params.evaluate.batch_size
    size = sum(
        states.numel() * states.element_size() for layer in cache.layers for states in (layer.keys, layer.values)
    )
    if not cuda:
        rows = max(1, min(rows, CPU_CACHE_TOKENS // length))
    row = mask.sum(1).argmax().repeat(rows)  # the longest prompt
    cache = preallocate_rows(cache, row, STEPS)
    tokens, mask = ids[row, -1:], mask[row]

    def decode() -> None:
        nonlocal mask
        mask = torch.cat([mask, mask.new_ones(rows, 1)], dim=1)
        with group_queries(network):
            network(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=mask.sum(1, keepdim=True) - 1,
                past_key_values=cache,
                use_cache=True,
            )

    return prefill_speed, rows / _time(decode, cuda), rows, size / ids.numel()


def _measure_training(
    network: Any, trained_weights: Sequence[torch.Tensor], workload: Workload, params: Params, cuda: bool
) -> tuple[float, float, int]:
    """Return the training speed, bytes that the forward pass keeps per token, and the sequences in a pass."""
    sft = params.sft
    micro_batch = Batching.compute("sft.batch_size", sft.batch_size, 1, sft.micro_batch_size, 1).micro_batch
    sequences = _fill_batch(workload.sequences, micro_batch, CPU_TOKENS, cuda)
    ids, mask = _pad([prompt + completion for prompt, completion in sequences], network)
    labels = ids.masked_fill(mask == 0, IGNORED_LABEL)
    for row, (prompt, _) in enumerate(sequences):
        labels[row, : len(prompt)] = IGNORED_LABEL
    if params.model.gradient_checkpointing and params.model.lora is not None:
        network.enable_input_require_grads()
    if params.model.gradient_checkpointing:
        network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    network.train()
    optimizer = torch.optim.AdamW(trained_weights, lr=0.0)
    storage_sizes: dict[int, int] = {}
    weight_pointers = {weights.untyped_storage().data_ptr() for weights in network.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weight_pointers:
            storage_sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def step() -> None:
        storage_sizes.clear()
        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with (
            hooks,
            torch.autocast(network.device.type, torch.bfloat16, enabled=models.uses_bfloat16(params.model)),
        ):
            loss = network(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds = _time(step, cuda)
    return int(mask.sum()) / seconds, sum(storage_sizes.values()) / ids.numel(), len(sequences)


def _fill_batch(items: Sequence[Any], size: int, limit: int, cuda: bool) -> list[Any]:
    """Return `size` items, repeated where there are fewer; on a CPU, as many as have `limit` tokens with padding."""
    batch, longest = list[Any](), 0
    for item in islice(cycle(items), size):
        longest = max(longest, _count_tokens(item))
        if batch and not cuda and longest * (len(batch) + 1) > limit:
            break
        batch.append(item)
    return batch


def _count_tokens(item: Sequence_ | list[int]) -> int:
    return len(item[0]) + len(item[1]) if isinstance(item, tuple) else len(item)


def _pad(sequences: Sequence[list[int]], network: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad on the right; returns token ids and mask [B, T]."""
    ids = pad_sequence(list(map(torch.tensor, sequences)), batch_first=True)
    mask = pad_sequence([torch.ones(len(each), dtype=torch.long) for each in sequences], batch_first=True)
    return ids.to(network.device), mask.to(network.device)


def _time(step: Callable[[], None], cuda: bool) -> float:
    """Return the median seconds of `STEPS` calls."""
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


@contextmanager
def _measure_usage(cuda: bool) -> Iterator[_Usage]:
    """Measure time and memory of the block; the values are set when it ends."""
    usage = _Usage()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    start, cpu_start = time.perf_counter(), time.process_time()
    yield usage
    usage.seconds, usage.cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    unit = 1 if sys.platform == "darwin" else 1024
    usage.peak = (
        torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    )
