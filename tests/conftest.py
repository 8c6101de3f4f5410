"""Fixtures that several test files share: the shipped parameters, and an empty folder to run stages in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from planward.core.registry import load_params
from planward.selectors.config import SelectorsConfig
from planward.tasks.economy.environment.config import EconomyParams
from planward.tasks.planning.config import PlanningParams
from support import ROOT, merge_values

# Not the user's own, and no process of DVC's that contacts its makers for each command in a test's folder.
os.environ["DVC_GLOBAL_CONFIG_DIR"] = str(Path(__file__).with_name("dvc_config"))

settings.register_profile("planward", deadline=None)  # time is no matter of right or wrong
settings.load_profile("planward")

LONGEST = (
    "test_pipeline.py",
    "test_verl.py",
    "test_docs.py",
    "test_training.py",
    "test_browser.py",
    "test_ray.py",
    "test_crashes.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: processes share out whole files, and none should begin when the others have ended."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def shipped_params() -> PlanningParams:
    """params.yaml as it is."""
    params = load_params(root=ROOT)
    assert isinstance(params, PlanningParams)
    return params


@pytest.fixture(scope="session")
def shipped_economy() -> EconomyParams:
    """workflow/economy/params.yaml as it is."""
    params = load_params("economy", ROOT)
    assert isinstance(params, EconomyParams)
    return params


@pytest.fixture(scope="session")
def shipped_selectors() -> SelectorsConfig:
    """workflow/selectors/params.yaml as it is."""
    from planward.selectors.config import load_selectors_config

    return load_selectors_config(ROOT)


@pytest.fixture(scope="session")
def small(shipped_params: PlanningParams) -> Callable[..., PlanningParams]:
    """The shipped parameters with a few small problems; keyword arguments are laid over them."""

    def small(**sections: Any) -> PlanningParams:
        few: dict[str, Any] = {
            "dataset_sizes": [4, 8],
            "problems": {
                "generated": {
                    "blocksworld": {"count": 12, "blocks": [3, 4]},
                    "ferry": {"count": 12, "locations": [3, 4], "cars": [1, 2]},
                }
            },
            "split": {"validation": 0.1, "test": 0.3, "held_out_domains": []},
            "prompt": {"template": None},  # the built-in one: the working directory is another
            "evaluate": {"samples": {"methods": []}},
            "transfer": {"methods": [], "renamed": 0, "unseen": 0, "larger": {}},
            "grpo": {"steps": 10, "batch_size": 4},
            "ablations": {"run": []},
        }
        raw = merge_values(shipped_params.model_dump(mode="json"), few)
        return PlanningParams.model_validate(merge_values(raw, sections))

    return small


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that stages read and write in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
