"""Requests a second of the endpoint client against those of plain httpx on the same server.

    python benchmarks/endpoint.py URL MODEL [REQUESTS] [CONCURRENCY] [REPEATS]

URL is an OpenAI-compatible API with chat, such as `transformers serve`'s http://127.0.0.1:8000/v1. Both ask the same
questions in turns, each time new ones; prints minimum, median and maximum of requests a second, and the ratio.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from planward.endpoints.answers import AnswerFile
from planward.endpoints.client import complete
from planward.endpoints.requests import CompletionRequest, build_request
from planward.params import AccessConfig, EndpointConfig

MAX_TOKENS, TIMEOUT_S = 16, 600


def main(url: str, model: str, count: int = 64, concurrency: int = 8, repeats: int = 5) -> None:
    config = EndpointConfig(url=url, model=model)
    rates: dict[str, list[float]] = {"planward": [], "httpx": []}
    ask_plainly(build_requests(config, "warm-up", concurrency), concurrency)
    for repeat in range(repeats):
        for name, values in rates.items():
            requests = build_requests(config, f"{name} {repeat}", count)
            start = time.perf_counter()
            (ask_with_client if name == "planward" else ask_plainly)(requests, concurrency)
            values.append(count / (time.perf_counter() - start))
    for name, values in rates.items():
        print(f"{name}: {min(values):.1f} / {statistics.median(values):.1f} / {max(values):.1f} requests a second")
    print(f"ratio: {statistics.median(rates['planward']) / statistics.median(rates['httpx']):.2f}")


def build_requests(config: EndpointConfig, name: str, count: int) -> list[CompletionRequest]:
    prompts = [[{"role": "user", "content": f"Count from {i} ({name})."}] for i in range(count)]
    return [build_request(config, prompt, 32, MAX_TOKENS) for prompt in prompts]


def ask_with_client(requests: list[CompletionRequest], concurrency: int) -> None:
    with tempfile.TemporaryDirectory() as folder, AnswerFile(Path(folder) / "answers.jsonl") as answers:
        complete("benchmark", AccessConfig(concurrency=concurrency), requests, answers)


def ask_plainly(requests: list[CompletionRequest], concurrency: int) -> None:
    async def ask() -> None:
        queue = iter(requests)
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:

            async def work() -> None:
                for request in queue:
                    (await client.post(f"{request.url}{request.route}", json=request.body)).raise_for_status().json()

            await asyncio.gather(*(work() for _ in range(concurrency)))

    asyncio.run(ask())


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
