"""Requests to an OpenAI-compatible API, and what their responses must hold."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from planward.core.tasks import Messages
from planward.endpoints.answers import Answer
from planward.params import LIMIT_FIELDS, EndpointConfig


class ResponseError(ValueError):
    """A response is not what the API promises."""


@dataclass(frozen=True)
class CompletionRequest:
    """A request for one completion."""

    url: str
    route: str  # below `url`
    body: dict[str, Any]
    prompt_tokens: int  # counted with the tokenizer of `model.path`
    max_completion_tokens: int  # the body's limit; where its options remove that, the configured one

    @property
    def digest(self) -> str:
        """The identity of the request: whatever else there is, an equal one has the same answer."""
        identity = {"url": self.url, "route": self.route, "body": self.body}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    @property
    def max_tokens(self) -> int:
        """The most that the request can take of a token budget."""
        return self.prompt_tokens + self.max_completion_tokens


def build_request(
    config: EndpointConfig, prompt: str | Messages, prompt_tokens: int, max_completion_tokens: int
) -> CompletionRequest:
    """Return the request for the greedy completion of a prompt: chat messages, or plain text for `completions`.

    `config.options` are laid over the request; a field that they set to null is left out.

    Args:
        max_completion_tokens: where `config` has none.
    """
    limit = config.max_completion_tokens or max_completion_tokens
    route, field = ("/chat/completions", "messages") if config.api == "chat" else ("/completions", "prompt")
    body = {"model": config.model, field: prompt, "temperature": 0, "max_tokens": limit} | config.options
    body = {key: value for key, value in body.items() if value is not None}
    limits = [body[key] for key in LIMIT_FIELDS if key in body]
    return CompletionRequest(config.url.rstrip("/"), route, body, prompt_tokens, max(limits, default=limit))


def parse_answer(request: CompletionRequest, text: str) -> Answer:
    """Return the answer in a response's text; raises ResponseError where there is none."""
    try:
        response = _Response.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])) or "the whole"
        raise ResponseError(f"no completion in the response ({where}: {fault['msg']})") from None
    if not response.choices:
        raise ResponseError("no completion in the response (choices: empty)")
    choice, usage = response.choices[0], response.usage or _Usage()
    is_chat = request.route == "/chat/completions"
    if (choice.message if is_chat else choice.text) is None:
        raise ResponseError(f"no completion in the response (choices.0.{'message' if is_chat else 'text'}: missing)")
    return Answer(
        digest=request.digest,
        completion=(choice.message.content if choice.message else choice.text) or "",
        finish_reason=choice.finish_reason,
        prompt_tokens=request.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
        completion_tokens=(
            request.max_completion_tokens if usage.completion_tokens is None else usage.completion_tokens
        ),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


class _Message(BaseModel):
    content: str | None = None  # null: it refused, or its thoughts took all tokens


class _Choice(BaseModel):
    message: _Message | None = None  # of a chat
    text: str | None = None  # of a completion
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Response(BaseModel):
    choices: list[_Choice]
    usage: _Usage | None = None
