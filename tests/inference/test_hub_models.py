"""Models of a hub: downloaded by huggingface_hub from a server that speaks the hub's protocol."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pytest

from letters import write_base
from planward.core.model_folders import check_model_folder
from planward.inference.models import load_model
from planward.params import Params, ParamsError

COMMIT, NAME = "0123456789abcdef0123456789abcdef01234567", "Org/Tiny-1.0-Instruct"
OTHERS = ("consolidated.safetensors", "pytorch_model.bin.index.json", "onnx/model.safetensors", "model.pth")


class Hub(BaseHTTPRequestHandler):
    """One model with one branch and one commit, and one without safetensors; notes what is downloaded."""

    files: ClassVar[dict[str, bytes]] = {}
    broken_files: ClassVar[set[str]] = set()  # files that the hub fails to send
    sent_files: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(rf"/api/models/{NAME}(?:/revision/(.+))?", path):
            if match[1] not in (None, "main", COMMIT):
                self.refuse("RevisionNotFound")
            else:
                siblings = [{"rfilename": name} for name in self.files]
                self.answer({"id": NAME, "sha": COMMIT, "siblings": siblings})
        elif path == "/api/models/Org/Pickled":
            self.answer({"id": "Org/Pickled", "sha": COMMIT, "siblings": [{"rfilename": "model.pth"}]})
        elif path == f"/api/models/{NAME}/tree/{COMMIT}":
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": sha1(data).hexdigest()}
                for name, data in self.files.items()
            ]
            self.answer(entries)
        elif path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
            self.send_file(path.removeprefix(f"/{NAME}/resolve/{COMMIT}/"))
        else:
            self.refuse("RepoNotFound")

    do_HEAD = do_GET  # noqa: N815  the server's own name

    def send_file(self, name: str) -> None:
        data = self.files[name]
        if self.command == "GET":
            if name in self.broken_files:
                self.send_error(403)
                return
            self.sent_files.append(name)
        start = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[start:])

    def answer(self, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *values: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a hub whose model holds what is wanted and what is not."""
    folder = tmp_path_factory.mktemp("hub")
    write_base(folder)
    Hub.files = {file.name: file.read_bytes() for file in folder.iterdir()}
    Hub.files |= {"README.md": b"---\nlicense: mit\n---\n# Tiny\n", "chat_template.jinja": b"{{ messages }}"}
    Hub.files |= dict.fromkeys(OTHERS, b"other")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(hub: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: huggingface_hub reads the hub's address when it is imported."""
    environment = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(Path("hf").absolute())}
    command = [sys.executable, "-m", "planward", "fetch-model", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_fetched_model_is_a_folder_to_train_from(hub: str, project: Path, shipped_params: Params) -> None:
    (project / "models").mkdir()
    process = fetch(hub, NAME)
    assert process.returncode == 0, process.stderr
    assert f"models/tiny-1.0-instruct: {NAME} at {COMMIT}; set model.path to it" in process.stdout
    folder = project / "models/tiny-1.0-instruct"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert {path.name for path in folder.iterdir()} == Hub.files.keys() - {*OTHERS}
    assert (folder / "model.safetensors").read_bytes() == Hub.files["model.safetensors"]
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlicense: mit")
    assert f"commit `{COMMIT}`" in card
    network, _ = load_model(shipped_params.model, str(folder.relative_to(project)), max_tokens=8, seed=0)
    assert network.num_parameters() > 0

    process = fetch(hub, NAME)
    assert process.returncode == 2
    assert "not empty; fix: remove it" in process.stderr


def test_an_interrupted_download_is_continued(hub: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "broken_files", {"model.safetensors"})
    process = fetch(hub, NAME)
    assert process.returncode == 2
    assert f"{NAME}: no answer from" in process.stderr
    assert not (project / "models/tiny-1.0-instruct").exists()
    monkeypatch.setattr(Hub, "broken_files", set())
    Hub.sent_files.clear()
    assert fetch(hub, NAME).returncode == 0
    assert Hub.sent_files == ["model.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Org/Missing"], "has no such model, or does not show it to you; fix: correct the name"),
        ([NAME, "--revision", "v9"], f"{NAME} at revision v9: http://127.0.0.1:"),
        (["Org/Pickled"], "Org/Pickled: has no safetensors"),
    ],
)
def test_what_the_hub_has_not_is_an_error(hub: str, project: Path, arguments: list[str], message: str) -> None:
    process = fetch(hub, *arguments)
    assert process.returncode == 2
    assert message in process.stderr
    assert not (project / "models").exists()


def test_without_a_network_the_error_says_what_else_there_is(project: Path) -> None:
    process = fetch("http://127.0.0.1:9", NAME)
    assert process.returncode == 2
    assert f"{NAME}: no answer from http://127.0.0.1:9 (ConnectError" in process.stderr
    assert not (project / "models").exists()


def test_a_hub_name_is_no_model_path(project: Path, shipped_params: Params) -> None:  # noqa: ARG001
    with pytest.raises(ParamsError, match=f"no folder {NAME}; fix: planward fetch-model {NAME}, and set it to models/"):
        load_model(shipped_params.model, NAME, max_tokens=8, seed=0)
    with pytest.raises(ParamsError, match=r"params\.yaml: model\.path: no folder models/gone; fix: correct it"):
        check_model_folder("models/gone", "params.yaml: model.path")
