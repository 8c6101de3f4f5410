"""An HTTP server with OpenAI's completions API for prompts of token ids; a real model answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from planward.inference.decoding import generate_greedy
from planward.inference.sampling import generate_samples


@contextmanager
def serve_completions(model: Any, tokenizer: Any, name: str, root: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve a model as `name` with weights at `root`; yields the URL and the bodies of the requests so far."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            self.answer(200, {"data": [{"id": name, "root": root}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body)
            if self.path != "/v1/completions" or body["model"] != name:
                return self.answer(400, {"error": {"message": "only completions of the served model"}})
            if max(map(len, body["prompt"])) + body["max_tokens"] > model.config.max_position_embeddings:
                return self.answer(400, {"error": {"message": "maximum context length exceeded"}})
            if body["temperature"]:
                sampling = (body["n"], body["temperature"], body["max_tokens"], 64, body["seed"])
                rows = generate_samples(model, tokenizer, body["prompt"], *sampling, progress=False)
                texts = [sample.text for row in rows for sample in row]
            else:
                texts = generate_greedy(model, tokenizer, body["prompt"], body["max_tokens"], 64, progress=False)
            choices = [{"index": index, "text": text} for index, text in enumerate(texts)]
            return self.answer(200, {"choices": choices[::-1]})  # the order is in `index`

        def answer(self, status: int, body: dict[str, Any]) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
