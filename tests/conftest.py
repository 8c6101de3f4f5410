"""What several test files share: the shipped parameters, made small, and a project folder to run stages in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from planward.params import Params, load_params

settings.register_profile("planward", deadline=None)  # how long an example takes is no matter of right or wrong
settings.load_profile("planward")

ROOT = Path(__file__).parent.parent
SIZES = {
    name: tuple(size for size in sizes if size != "count")
    for name, sizes in load_params(ROOT / "params.yaml").problems.generated.items()
}


LONGEST = ("test_pipeline.py", "test_verl.py", "test_docs.py", "test_training.py", "test_browser.py", "test_ray.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Several processes share out whole files: long ones go first, so that none begins when the others have ended."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def laid_over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `changes`; sections are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict) and key not in {"generated", "difficulty"}
        merged[key] = laid_over(merged[key], value) if both else value
    return merged


@pytest.fixture(scope="session")
def shipped() -> Params:
    """params.yaml as it is."""
    return load_params(ROOT / "params.yaml")


@pytest.fixture(scope="session")
def small(shipped: Params) -> Callable[..., Params]:
    """The shipped parameters with a few small problems; keyword arguments are laid over them."""

    def small(**sections: Any) -> Params:
        few: dict[str, Any] = {
            "dataset_sizes": [4, 8],
            "problems": {
                "generated": {
                    "blocksworld": {"count": 12, "blocks": [3, 4]},
                    "ferry": {"count": 12, "locations": [3, 4], "cars": [1, 2]},
                }
            },
            "split": {"validation": 0.1, "test": 0.3},
            "grpo": {"steps": 10, "batch_size": 4},
            "ablations": {"run": []},
        }
        raw = laid_over(shipped.model_dump(mode="json"), few)
        return Params.model_validate(laid_over(raw, sections))

    return small


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that stages read and write in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, lines: Iterable[dict[str, Any] | bytes]) -> None:
    """Write JSON lines; bytes are written as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in raw))
