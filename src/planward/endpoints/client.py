"""Asks an OpenAI-compatible API for completions, within limits of concurrency, rate and tokens.

The package `openai` retries refused connections, time-outs and the status codes 408, 409, 429 and 5xx with exponential
back-off, and waits as long as `Retry-After` says.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from planward.endpoints.answers import Answer, AnswerFile
from planward.endpoints.requests import CompletionRequest, ResponseError, parse_answer
from planward.inference.models import BackendError
from planward.params import AccessConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MAX_ERROR_CHARS = 500  # of a server's error message
FIRST_DELAY_S, LAST_DELAY_S = 0.5, 8.0  # before a response that holds no completion is asked for again


class EndpointError(ValueError):
    """An endpoint cannot be asked, or does not answer; the message says what is stored, and never holds the key."""


def complete(name: str, access: AccessConfig, requests: Iterable[CompletionRequest], answers: AnswerFile) -> None:
    """Append the answers that are missing in `answers`; each is written as it arrives.

    After an error no further request is made, but those under way are awaited.

    Args:
        name: of the endpoint in `endpoints`, for error messages.

    Raises:
        BackendError: the package `openai` is missing, or the key's environment variable is not set.
        EndpointError: a request failed, retries included, or the next one could exceed the token budget.
    """
    missing = {request.digest: request for request in requests if request.digest not in answers}
    if missing:
        asyncio.run(_Client(name, access, answers).complete(list(missing.values())))


class _Client:
    def __init__(self, name: str, access: AccessConfig, answers: AnswerFile) -> None:
        if find_spec("openai") is None:
            raise BackendError(
                f"endpoints.models.{name} needs openai, which is not installed; fix: install the extra `endpoints`"
            )
        self.access, self.answers, self.section = access, answers, f"endpoints.access.{name}"
        self.name, self.key = name, self._read_key()
        self.reserved, self.released = 0, asyncio.Condition()  # tokens of the requests under way
        self.next_start, self.errors = 0.0, list[EndpointError]()

    async def complete(self, requests: list[CompletionRequest]) -> None:
        from openai import AsyncOpenAI

        self.openai = AsyncOpenAI(
            base_url=requests[0].url,
            api_key=self.key or "none",  # None would stand for OPENAI_API_KEY, which is not for every server
            timeout=self.access.timeout_s,
            max_retries=self.access.max_retries,
        )
        # Taken from OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS, which are not for every server either.
        # No argument leaves the headers out: an empty one gets those of the environment, too.
        self.openai.organization = self.openai.project = None
        self.openai._custom_headers = {}
        queue = iter(requests)
        with tqdm(desc=f"asking {self.name}", total=len(requests), unit="prompt") as progress:
            async with self.openai:
                await asyncio.gather(*(self._work(queue, progress) for _ in range(self.access.concurrency)))
        if self.errors:
            raise self.errors[0]

    async def _work(self, queue: Iterator[CompletionRequest], progress: Any) -> None:
        while not self.errors and (request := next(queue, None)) is not None:
            try:
                async with self._reserve_tokens(request.max_tokens):
                    await self._wait_for_turn()
                    if self.errors:
                        return
                    self.answers.append(await self._ask(request))
            except EndpointError as error:
                self.errors.append(error)
            else:
                progress.update()

    @asynccontextmanager
    async def _reserve_tokens(self, tokens: int) -> AsyncIterator[None]:
        """Wait until requests under way leave enough of the budget; raises EndpointError where it is spent."""
        budget = self.access.token_budget
        async with self.released:
            while budget is not None and self.answers.tokens + self.reserved + tokens > budget:
                if not self.reserved:
                    raise self._fail(
                        f"{self.answers.tokens} tokens were used, and the next request may take {tokens}, more than "
                        f"{self.section}.token_budget, {budget}, leaves; fix: raise it"
                    )
                await self.released.wait()
            self.reserved += tokens
        try:
            yield
        finally:
            async with self.released:
                self.reserved -= tokens
                self.released.notify_all()

    async def _wait_for_turn(self) -> None:
        """Space the requests evenly, as `requests_per_minute` says."""
        if self.access.requests_per_minute is not None:
            now = asyncio.get_running_loop().time()
            start = max(now, self.next_start)
            self.next_start = start + 60 / self.access.requests_per_minute
            await asyncio.sleep(start - now)

    async def _ask(self, request: CompletionRequest) -> Answer:
        retries, delay = self.access.max_retries, FIRST_DELAY_S
        while True:
            text = await self._post(request)
            try:
                return parse_answer(request, text)
            except ResponseError as error:
                if not retries:
                    raise self._fail(f"{request.url}{request.route}: {error}; fix: {self._key('url')}") from None
            await asyncio.sleep(delay)
            retries, delay = retries - 1, min(2 * delay, LAST_DELAY_S)

    async def _post(self, request: CompletionRequest) -> str:
        """Return the text of the response."""
        from openai import APIConnectionError, APIStatusError, APITimeoutError, Omit

        url = f"{request.url}{request.route}"
        headers: dict[str, Any] = {} if self.key else {"Authorization": Omit()}
        try:
            return str(
                await self.openai.post(request.route, body=request.body, options={"headers": headers}, cast_to=str)
            )
        except APITimeoutError:
            raise self._fail(
                f"{url} does not answer within {self.access.timeout_s:g} s; fix: raise {self.section}.timeout_s, or "
                "lower concurrency"
            ) from None
        except APIConnectionError as error:
            raise self._fail(f"{url} does not answer ({error.__cause__ or error}); fix: {self._key('url')}") from None
        except APIStatusError as error:
            text = self._mask(error.response.text)[:MAX_ERROR_CHARS]  # a cut key would not be found any more
            fixes = {401: "key_env", 403: "key_env", 404: "model"}
            fix = f"fix: {self._key(fixes[error.status_code])}" if error.status_code in fixes else ""
            if error.status_code == 429:
                fix = f"fix: lower {self.section}.requests_per_minute or concurrency, or raise max_retries"
            raise self._fail("; ".join(filter(None, [f"{url}: {error.status_code}: {text}", fix]))) from None

    def _key(self, name: str) -> str:
        """The key of params.yaml that is called `name`."""
        return f"{self.section}.key_env" if name == "key_env" else f"endpoints.models.{self.name}.{name}"

    def _read_key(self) -> str | None:
        variable = self.access.key_env
        if variable is None:
            return None
        if not (key := os.environ.get(variable, "").strip()):
            raise BackendError(f"{self.section}.key_env: the environment variable {variable} is not set")
        if not re.fullmatch(r"[!-~]+", key):  # a header could not hold it, and the error would show it
            raise BackendError(
                f"{self.section}.key_env: the environment variable {variable} holds no key: it has spaces, line breaks "
                "or characters beyond ASCII"
            )
        return key

    def _mask(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text

    def _fail(self, message: str) -> EndpointError:
        """An error without the key, which a server may repeat, and with what is stored."""
        note = f"{len(self.answers)} answers are stored in {self.answers.path}, to be continued by the same command"
        return EndpointError(f"{self._mask(message)} ({note})")
