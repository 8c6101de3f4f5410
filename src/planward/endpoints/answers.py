"""The stored answers of an endpoint: a file of JSON lines that only grows, so that no request is made twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from planward.core.files import name_write_errors


class Answer(BaseModel):
    """An endpoint's answer to one request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str  # of the request
    completion: str
    finish_reason: str | None
    prompt_tokens: int  # as the endpoint counts; if it does not, as many as the request could take
    completion_tokens: int
    time: str  # of arrival, UTC

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class AnswerFile:
    """The answers in a file by the digests of their requests, and their tokens; `append` writes through to the file.

    A last line without its end, of a process that was killed, is removed.

    Raises:
        ValueError: a line is no answer; the message names it.
        CannotWriteError: the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.tokens, self._answers = path, 0, dict[str, Answer]()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with name_write_errors(self.path):
            self._file.close()

    def __contains__(self, digest: str) -> bool:
        return digest in self._answers

    def __getitem__(self, digest: str) -> Answer:
        return self._answers[digest]

    def __len__(self) -> int:
        return len(self._answers)

    def append(self, answer: Answer) -> None:
        with name_write_errors(self.path):
            self._file.write(answer.model_dump_json().encode() + b"\n")
            self._file.flush()
        self._add(answer)

    def _add(self, answer: Answer) -> None:
        self._answers[answer.digest] = answer
        self.tokens += answer.tokens

    def _read(self) -> None:
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                self._add(Answer.model_validate_json(line))
            except ValidationError:
                raise ValueError(f"{self.path}: line {number} is no answer; fix: delete the line") from None
            end += len(line)
        self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)
