"""HTTP servers for tests of endpoints: one with scripted faults, and a proxy that counts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen


@dataclass(frozen=True)
class Reply:
    """What the server sends; by default an answer whose text is the last line of the prompt."""

    status: int = 200
    body: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


@dataclass
class Server:
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of the requests so far
    headers: list[dict[str, str]] = field(default_factory=list)  # names in small letters
    times: list[float] = field(default_factory=list)  # of their arrival, in seconds
    most_at_once: int = 0


def build_answer(body: dict[str, Any]) -> str:
    """An answer to a request, with its usage: a token a word."""
    is_chat = "messages" in body
    text = body["messages"][-1]["content"] if is_chat else body["prompt"]
    last = text.splitlines()[-1]
    choice = {"index": 0, "finish_reason": "stop"} | ({"message": {"content": last}} if is_chat else {"text": last})
    usage = {"prompt_tokens": len(text.split()), "completion_tokens": len(last.split())}
    return json.dumps({"choices": [choice], "usage": usage})


@contextmanager
def serve_replies(*script: Reply, default: Reply = Reply()) -> Iterator[Server]:
    """Serve the replies of a script in their order, then the default."""
    replies = iter(script)

    def reply(_: str, body: dict[str, Any]) -> Reply:
        next_reply = next(replies, default)
        return replace(next_reply, body=build_answer(body)) if next_reply.body is None else next_reply

    with _serve(reply) as server:
        yield server


@contextmanager
def forward_requests(url: str) -> Iterator[Server]:
    """Forward requests to the server at `url`, without `/v1`."""

    def forward(path: str, body: dict[str, Any]) -> Reply:
        request = Request(f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as response:
            return Reply(200, response.read().decode())

    with _serve(forward) as server:
        yield server


@contextmanager
def _serve(reply: Callable[[str, dict[str, Any]], Reply]) -> Iterator[Server]:
    server, active = Server(), 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal active
            active += 1
            server.most_at_once = max(server.most_at_once, active)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.bodies.append(body)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            server.times.append(time.monotonic())
            response = reply(self.path, body)
            time.sleep(response.delay_s)
            active -= 1
            try:
                self.send_response(response.status)
                for name, value in response.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write((response.body or "").encode())
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client was killed, or did not wait

        def log_message(self, *_: Any) -> None:
            """Stay silent."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = Thread(target=http.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
