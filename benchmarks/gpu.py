"""Unsloth and TRL side by side at the shape of Qwen2.5-7B: tokens per second and peak memory by phase.

    python benchmarks/gpu.py [--json] [--engines TRL Unsloth ...] [--phases grpo ...] [--processes 2] [--folder PATH]
    python benchmarks/gpu.py --shape tiny     a network of two layers, which tries the program on a CPU

Needs no hub: weights are random, the tokenizer has a token for each byte. They are written to a temporary folder (in
--folder), 15 GB for the 7B shape. Every engine has LoRA r 16 on all linear layers and the settings of the recipe
qwen2.5-7b. TRL has 4-bit weights where bitsandbytes is installed, otherwise bfloat16; Unsloth 4-bit; Planward (its
decoding and its loss with shared prompts, without gradient checkpointing) as TRL; vLLM bfloat16.

Phases: prefill of a GRPO step's prompts; a training step on two sequences; decoding of all completions of a GRPO step;
a GRPO step, with the rate of its completions' tokens. The first pass of each is not timed. Each measurement has a
process of its own, and its row says what stopped it: memory, a missing package, an error. With two visible GPUs, TRL's
GRPO step runs on two processes as well; the memory is that of the first. On a CPU, memory is all that of the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

PHASES = ("prefill", "training", "decoding", "grpo")
ENGINES = {"TRL": PHASES, "Unsloth": PHASES, "Planward": ("decoding", "grpo"), "vLLM": ("decoding", "grpo")}
PACKAGES = {"Unsloth": "unsloth", "vLLM": "vllm"}  # that an engine needs besides TRL
LORA_R, LORA_ALPHA = 16, 32
TRAINING_BATCH = 2  # sequences
TIMED_PASSES = 3
VLLM_MEMORY_SHARE = 0.3  # beside the network that is trained; 0.9 where vLLM is alone
MAX_ERROR_CHARS = 90
OUT_OF_MEMORY = ("out of memory", "can't allocate memory")  # in an error of torch on a GPU, on a CPU
REPORTED_PACKAGES = ("torch", "transformers", "trl", "peft", "unsloth", "bitsandbytes", "vllm")


@dataclass(frozen=True)
class Shape:
    """A Qwen2 network, and what a GRPO step generates and trains on."""

    network: dict[str, int | float]
    prompts: int = 8
    generations: int = 8
    prompt_tokens: int = 1576
    completion_tokens: int = 512
    micro_batch: int = 4

    @property
    def completions(self) -> int:
        return self.prompts * self.generations

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


SHAPES = {
    "qwen2.5-7b": Shape(
        {
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
        }
    ),
    "tiny": Shape(
        {
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
        },
        prompts=2,
        generations=2,
        prompt_tokens=40,
        completion_tokens=16,
        micro_batch=2,
    ),
}


class NotMeasured(Exception):
    """A phase cannot run here; the message says why."""


# In a process of its own.


def write_weights(folder: Path, shape: Shape) -> dict[str, Any]:
    """Write a random network and its tokenizer to `folder`; return its size, the machine and the packages."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

    alphabet = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    config = Qwen2Config(
        **shape.network, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, dtype=get_dtype(),
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config, dtype=get_dtype())  # on the CPU: a GPU may be too small for it
    network.save_pretrained(folder)
    cuda = torch.cuda.is_available()
    return {
        "parameters": network.num_parameters(),
        "device": torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} thread(s)",
        "gpus": torch.cuda.device_count() if cuda else 0,
        "packages": {name: get_version(name) for name in REPORTED_PACKAGES},
    }


def measure(engine: str, phase: str, folder: Path, shape: Shape) -> dict[str, Any]:
    """Return precision, tokens per second, seconds and peak memory of a phase."""
    package = PACKAGES.get(engine)
    if package and find_spec(package) is None:
        raise NotMeasured(f"{package} is not installed")
    import torch

    if package and not torch.cuda.is_available():
        raise NotMeasured("needs CUDA")
    if engine == "Unsloth":
        import unsloth  # noqa: F401  patches TRL
    torch.manual_seed(0)
    functions = {"prefill": time_prefill, "training": time_training, "decoding": time_decoding, "grpo": time_grpo}
    if engine == "vLLM" and phase == "decoding":
        precision, seconds = "bfloat16", time_vllm_decoding(folder, shape)
    else:
        network, precision = load_network(engine, folder, shape)
        seconds = functions[phase](engine, network, folder, shape)
    tokens = {
        "prefill": shape.prompts * shape.prompt_tokens,
        "training": TRAINING_BATCH * shape.tokens,
        "decoding": shape.completions * shape.completion_tokens,
        "grpo": shape.completions * shape.completion_tokens,
    }[phase]
    memory = measure_memory(everything=engine == "vLLM")
    return {"precision": precision, "tokens_per_s": tokens / seconds, "seconds": seconds, "peak_gb": memory}


def load_network(engine: str, folder: Path, shape: Shape) -> tuple[Any, str]:
    """Return the network with a LoRA adapter, and its precision."""
    import torch

    cuda = torch.cuda.is_available()
    if engine == "Unsloth":
        from unsloth import FastLanguageModel

        network, _ = FastLanguageModel.from_pretrained(
            str(folder), max_seq_length=shape.tokens, load_in_4bit=cuda, dtype=get_dtype()
        )
        checkpointing = "unsloth" if cuda else True
        network = FastLanguageModel.get_peft_model(
            network,
            r=LORA_R,
            lora_alpha=LORA_ALPHA,
            target_modules="all-linear",
            use_gradient_checkpointing=checkpointing,
        )
        return network, "4-bit" if cuda else name_dtype()
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    four_bit = engine != "vLLM" and find_spec("bitsandbytes") is not None
    options: dict[str, Any] = {"dtype": get_dtype(), "device_map": {"": get_device()}}
    if four_bit:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=get_dtype()
        )
    network = AutoModelForCausalLM.from_pretrained(folder, **options)
    config = LoraConfig(r=LORA_R, lora_alpha=LORA_ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(network, config), "4-bit" if four_bit else name_dtype()


def time_prefill(engine: str, network: Any, _folder: Path, shape: Shape) -> float:
    import torch

    ids = draw_ids(shape, shape.prompts, shape.prompt_tokens)
    prepare_inference(engine, network)

    @torch.no_grad()
    def forward() -> None:
        network(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True, logits_to_keep=1)

    return time_passes(forward)


def time_training(engine: str, network: Any, _folder: Path, shape: Shape) -> float:
    import torch

    ids = draw_ids(shape, TRAINING_BATCH, shape.tokens)
    if engine != "Unsloth":
        network.enable_input_require_grads()
        network.gradient_checkpointing_enable({"use_reentrant": False})
    network.train()
    optimizer = torch.optim.AdamW([weight for weight in network.parameters() if weight.requires_grad], lr=1e-5)

    def step() -> None:
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            loss = network(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return time_passes(step)


def time_decoding(engine: str, network: Any, _folder: Path, shape: Shape) -> float:
    import torch
    from transformers import GenerationConfig

    from planward.inference.decoding import decode

    ids = draw_ids(shape, shape.prompts, shape.prompt_tokens).repeat_interleave(shape.generations, 0)
    mask, length = torch.ones_like(ids), shape.completion_tokens
    prepare_inference(engine, network)
    config = GenerationConfig(max_new_tokens=length, min_new_tokens=length, pad_token_id=0, do_sample=False)

    def generate() -> None:
        if engine == "Planward":
            tokens = decode(network, ids, mask, config, lambda logits, *_: logits.argmax(-1))
        else:
            tokens = network.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        assert tokens.shape == (shape.completions, shape.tokens)

    return time_passes(generate, 1)


def time_vllm_decoding(folder: Path, shape: Shape) -> float:
    from transformers import AutoTokenizer

    from planward.inference.vllm import EngineArguments, VllmEngine

    engine = VllmEngine(EngineArguments(str(folder), shape.tokens, 0.9, 1, 0), AutoTokenizer.from_pretrained(folder))
    prompts = draw_ids(shape, shape.prompts, shape.prompt_tokens).repeat_interleave(shape.generations, 0).tolist()
    return time_passes(lambda: engine.complete(prompts, shape.completion_tokens, len(prompts), progress=False), 1)


def time_grpo(engine: str, network: Any, folder: Path, shape: Shape) -> float:
    """Return the seconds of the second optimizer step."""
    import torch
    from accelerate import PartialState
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from planward.training.shared_prefixes import SharedPrefixTrainer

    cuda, processes, seconds, rng = torch.cuda.is_available(), PartialState().num_processes, list[float](), Random(0)
    length = {"min_tokens" if engine == "vLLM" else "min_new_tokens": shape.completion_tokens}
    vllm = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": VLLM_MEMORY_SHARE,
        "vllm_max_model_length": shape.tokens,
    }
    arguments = GRPOConfig(
        output_dir=str(folder / "trainer"),
        max_steps=2,
        per_device_train_batch_size=shape.micro_batch,
        gradient_accumulation_steps=shape.completions // (shape.micro_batch * processes),
        num_generations=shape.generations,
        max_completion_length=shape.completion_tokens,
        generation_kwargs=length,
        learning_rate=1e-5,
        beta=0.02,
        temperature=0.8,
        top_p=0.9,
        top_k=50,
        gradient_checkpointing=engine != "Planward",
        gradient_checkpointing_kwargs={"use_reentrant": False},
        bf16=cuda,
        use_cpu=not cuda,
        ddp_find_unused_parameters=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **(vllm if engine == "vLLM" else {}),
    )

    class StepTimer(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            synchronize()
            seconds.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            synchronize()
            seconds[-1] = time.perf_counter() - seconds[-1]

    def draw_rewards(completions: list[str], **_: Any) -> list[float]:
        return [rng.random() for _ in completions]

    letters = "abcdefghijklmnopqrstuvwxyz ()"  # each one token
    prompts = ["".join(rng.choices(letters, k=shape.prompt_tokens)) for _ in range(2 * shape.prompts)]
    trainer = (SharedPrefixTrainer if engine == "Planward" else GRPOTrainer)(
        model=network,
        reward_funcs=draw_rewards,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        callbacks=[StepTimer()],
    )
    trainer.train()
    return seconds[-1]


def prepare_inference(engine: str, network: Any) -> None:
    network.eval()
    if engine == "Unsloth":
        from unsloth import FastLanguageModel

        FastLanguageModel.for_inference(network)


def time_passes(function: Callable[[], object], passes: int = TIMED_PASSES) -> float:
    """Return the mean seconds of a call, after one that is not timed."""
    function()
    synchronize()
    start = time.perf_counter()
    for _ in range(passes):
        function()
    synchronize()
    return (time.perf_counter() - start) / passes


def draw_ids(shape: Shape, rows: int, length: int) -> Any:
    import torch

    return torch.randint(2, int(shape.network["vocab_size"]), (rows, length)).to(get_device())


def measure_memory(*, everything: bool) -> float:
    """Return peak memory in GB: of this process's tensors on the GPU, or `everything` on it now; on a CPU, resident."""
    import resource

    import torch

    if not torch.cuda.is_available():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    free, total = torch.cuda.mem_get_info()
    return float(total - free if everything else torch.cuda.max_memory_allocated()) / 1e9


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def get_device() -> str:
    import os

    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def get_dtype() -> Any:
    import torch

    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


def name_dtype() -> str:
    return str(get_dtype()).removeprefix("torch.")


def get_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# In the first process, which leaves the GPU alone.


def run_child(shape: str, folder: Path, *arguments: str, processes: int = 1) -> dict[str, Any]:
    """Run this file in a process of its own; return what it measured, or `error`."""
    launcher = ["-m", "accelerate.commands.launch", "--num_processes", str(processes), "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command = [*(launcher if processes > 1 else []), __file__, "--shape", shape, "--child", str(folder), *arguments]
    child = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    for line in reversed(child.stdout.splitlines()):
        if line.startswith('{"measured": '):
            return dict(json.loads(line)["measured"])
    if child.returncode == -9 or any(text in child.stderr for text in OUT_OF_MEMORY):
        return {"error": "out of memory"}
    lines = (
        [line.strip() for line in child.stderr.splitlines() if "Error" in line] or child.stderr.splitlines() or ["?"]
    )
    return {"error": lines[-1][:MAX_ERROR_CHARS]}


def run_as_child(options: argparse.Namespace, shape: Shape) -> None:
    """Measure what the command line names and print it as a line of JSON."""
    folder, *names = options.child
    try:
        measurement = measure(*names, Path(folder), shape) if names else write_weights(Path(folder), shape)
    except NotMeasured as error:
        measurement = {"error": str(error)}
    from accelerate import PartialState

    if PartialState().is_main_process:
        print(json.dumps({"measured": measurement}), flush=True)


def list_measurements(options: argparse.Namespace, gpus: int) -> list[tuple[str, str, int]]:
    """Return the engine, the phase and the number of processes of each measurement."""
    measurements = [
        (engine, phase, 1) for engine in options.engines for phase in ENGINES[engine] if phase in options.phases
    ]
    processes = options.processes or min(gpus, 2)
    if processes > 1 and ("TRL", "grpo", 1) in measurements:
        measurements.append(("TRL", "grpo", processes))
    return measurements


def format_header(name: str, shape: Shape, machine: dict[str, Any]) -> str:
    packages = ", ".join(f"{package} {number or '(missing)'}" for package, number in machine["packages"].items())
    completions = f"{shape.generations} completions of {shape.completion_tokens}"
    return "\n".join(
        [
            f"{name}: {machine['parameters']:,} random weights; {machine['device']}",
            packages,
            f"GRPO step: {shape.prompts} prompts of {shape.prompt_tokens} tokens x {completions}",
            f"{'engine':28} {'phase':9} {'tokens/s':>10} {'seconds':>9} {'peak GB':>8}",
        ]
    )


def format_row(row: dict[str, Any]) -> str:
    engine = row["engine"] + (f", {row['precision']}" if "precision" in row else "")
    engine += f", {row['processes']} processes" if row["processes"] > 1 else ""
    if "error" in row:
        return f"{engine:28} {row['phase']:9} {row['error']}"
    return f"{engine:28} {row['phase']:9} {row['tokens_per_s']:10.0f} {row['seconds']:9.2f} {row['peak_gb']:8.1f}"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-7b")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--processes", type=int, help="of TRL's second GRPO step (default: 2 with two GPUs)")
    parser.add_argument("--folder", type=Path, help="where the temporary folder with the weights is made")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    shape = SHAPES[options.shape]
    if options.child:
        run_as_child(options, shape)
        return
    with TemporaryDirectory(dir=options.folder) as name:
        machine = run_child(options.shape, Path(name))
        if "error" in machine:
            sys.exit(f"the weights could not be written: {machine['error']}")
        if not options.json:
            print(format_header(options.shape, shape, machine), flush=True)
        rows = []
        for engine, phase, processes in list_measurements(options, machine["gpus"]):
            measurement = run_child(options.shape, Path(name), engine, phase, processes=processes)
            rows.append({"engine": engine, "phase": phase, "processes": processes} | measurement)
            if not options.json:
                print(format_row(rows[-1]), flush=True)
    if options.json:
        print(json.dumps({"shape": asdict(shape), "machine": machine, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
