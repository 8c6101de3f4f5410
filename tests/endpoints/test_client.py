"""The client of OpenAI-compatible APIs against a real HTTP server that fails in scripted ways."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openai", reason="needs the extra `endpoints`")

from endpoint_server import Reply, Server, serve_replies
from planward.core.files import CannotWriteError
from planward.endpoints.answers import Answer, AnswerFile
from planward.endpoints.client import MAX_ERROR_CHARS, EndpointError, complete
from planward.endpoints.requests import CompletionRequest, build_request
from planward.inference.models import BackendError
from planward.params import AccessConfig, EndpointConfig
from support import mount

KEY = "sk-never-shown-4711"


def build_requests(server: Server, count: int = 4, **options: object) -> list[CompletionRequest]:
    config = EndpointConfig(url=server.url, model="m", options=options)
    messages = [[{"role": "user", "content": f"question {i}\nanswer {i}"}] for i in range(count)]
    return [build_request(config, turns, prompt_tokens=10, max_completion_tokens=5) for turns in messages]


def ask(path: Path, requests: list[CompletionRequest], **access: object) -> list[str]:
    with AnswerFile(path) as answers:
        complete("gpt-x", AccessConfig.model_validate({"timeout_s": 5, "max_retries": 2} | access), requests, answers)
        return [answers[request.digest].completion for request in requests]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def test_answers_are_stored_and_asked_for_once(path: Path) -> None:
    with serve_replies() as server:
        first = ask(path, build_requests(server, 3))
        assert first == ["answer 0", "answer 1", "answer 2"]
        assert ask(path, build_requests(server, 5))[:3] == first
        assert len(server.bodies) == 5
        fields = {"model", "messages", "temperature", "max_tokens"}
        assert {tuple(sorted(body)) for body in server.bodies} == {tuple(sorted(fields))}
        assert {body["temperature"] for body in server.bodies} == {0}
        ask(path, build_requests(server, 1, temperature=None, max_tokens=None, max_completion_tokens=9))
        assert set(server.bodies[-1]) == {"model", "messages", "max_completion_tokens"}


def test_torn_last_line_is_asked_for_again(path: Path) -> None:
    with serve_replies() as server:
        ask(path, build_requests(server), concurrency=1)
        content = path.read_bytes()
        path.write_bytes(content[:-20])
        assert ask(path, build_requests(server))[-1] == "answer 3"
        assert len(server.bodies) == 5
    assert len(path.read_bytes().splitlines()) == 4
    path.write_text("no answer\n")
    with pytest.raises(ValueError, match=r"answers\.jsonl: line 1 is no answer"):
        AnswerFile(path)


def test_an_answer_that_does_not_fit_is_named_and_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = Answer(
        digest="", completion="x" * 3000, finish_reason="stop", prompt_tokens=1, completion_tokens=1, time=""
    )

    def append_answers(path: Path, count: int) -> None:
        with AnswerFile(path) as answers:
            for number in range(count):
                answers.append(answer.model_copy(update={"digest": str(number)}))

    with mount("answers", "size=8k"):
        path = Path("answers/here.jsonl")
        with pytest.raises(CannotWriteError, match=f"cannot write {path}: No space left on device"):
            append_answers(path, 9)
        subprocess.run(["mount", "-o", "remount,size=64k", "answers"], check=True)
        with AnswerFile(path) as answers:
            assert len(answers) == 2
            assert "1" in answers
            answers.append(answer)
        with AnswerFile(path) as answers:
            assert len(answers) == 3


@pytest.mark.parametrize(
    "fault",
    [
        Reply(429, "{}", {"Retry-After": "0.2"}),
        Reply(500, "broken"),
        Reply(200, "<html>"),
        Reply(200, '{"choices": []}'),
        Reply(200, '{"choices": [{"text": "not of a chat"}]}'),
        Reply(delay_s=1.5),
    ],
    ids=["rate", "error", "no-json", "no-choices", "no-message", "slow"],
)
def test_faults_that_pass_are_retried(path: Path, fault: Reply) -> None:
    with serve_replies(fault) as server:
        assert ask(path, build_requests(server, 1), timeout_s=1) == ["answer 0"]
        assert len(server.bodies) == 2
    assert len(path.read_text().splitlines()) == 1


def test_retry_after_is_waited_for(path: Path) -> None:
    with serve_replies(Reply(429, "{}", {"Retry-After": "1"})) as server:
        ask(path, build_requests(server, 1))
    assert server.times[1] - server.times[0] >= 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Reply(429, "slow down", {"Retry-After": "0.1"}), "429: slow down; fix: lower endpoints.access.gpt-x.requests"),
        (Reply(400, "too long"), "400: too long"),
        (Reply(404, "no such model"), "404: no such model; fix: endpoints.models.gpt-x.model"),
        (Reply(200, "<html>"), "no completion in the response"),
        (Reply(delay_s=1.5), "raise endpoints.access.gpt-x.timeout_s"),
    ],
)
def test_faults_that_stay_stop_the_run_and_lose_nothing(path: Path, fault: Reply, message: str) -> None:
    with serve_replies(Reply(), Reply(), default=fault) as server:
        with pytest.raises(EndpointError, match=message) as error:
            ask(path, build_requests(server), concurrency=1, max_retries=1, timeout_s=1)
        assert "2 answers are stored" in str(error.value)
    assert [json.loads(line)["completion"] for line in path.read_text().splitlines()] == ["answer 0", "answer 1"]


def test_token_budget_is_never_exceeded(path: Path) -> None:
    with serve_replies(default=Reply(delay_s=0.05)) as server:
        requests = build_requests(server, 8)  # of each 15 tokens at most, 6 in truth
        with pytest.raises(EndpointError, match=r"gpt-x\.token_budget, 30, leaves; fix: raise it \(3 answers"):
            ask(path, requests, token_budget=30)
        assert len(server.bodies) == 3  # 18 tokens; another might take 15
        assert server.most_at_once <= 2
        ask(path, requests, token_budget=100)
        assert len(server.bodies) == 8


@pytest.mark.parametrize(
    "options", [{"max_tokens": 40}, {"max_tokens": None, "max_completion_tokens": 40}, {"max_completion_tokens": 40}]
)
def test_token_budget_counts_the_limit_that_options_set(path: Path, options: dict[str, int | None]) -> None:
    with serve_replies() as server:
        with pytest.raises(EndpointError, match="the next request may take 50, more than"):
            ask(path, build_requests(server, 1, **options), token_budget=49)
        assert not server.bodies
        ask(path, build_requests(server, 1, **options), token_budget=50)


def test_tokens_that_the_server_does_not_count_are_the_most_possible(path: Path) -> None:
    with serve_replies(default=Reply(200, '{"choices": [{"message": {"content": null}}]}')) as server:
        with pytest.raises(EndpointError, match="30 tokens were used"):
            ask(path, build_requests(server), token_budget=40)
        assert len(server.bodies) == 2


def test_concurrency_and_rate_are_limited(path: Path) -> None:
    with serve_replies(default=Reply(delay_s=0.1)) as server:
        ask(path, build_requests(server, 9), concurrency=3)
        assert server.most_at_once == 3
    with serve_replies() as server:
        ask(path, build_requests(server, 4), requests_per_minute=300)
        assert all(later - earlier > 0.15 for earlier, later in itertools.pairwise(sorted(server.times)))


def test_key_is_sent_and_never_shown(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
    with serve_replies(Reply(), Reply(), Reply(401, f"bad key {KEY}")) as server:
        ask(path, build_requests(server, 1))
        assert "authorization" not in server.headers[0]  # none is set for this endpoint
        with pytest.raises(BackendError, match=r"endpoints\.access\.gpt-x\.key_env: .* PLANWARD_TEST_KEY is not set"):
            ask(path, build_requests(server, 2), key_env="PLANWARD_TEST_KEY")
        monkeypatch.setenv("PLANWARD_TEST_KEY", KEY)
        with pytest.raises(
            EndpointError, match=r"401: bad key \*\*\*; fix: endpoints\.access\.gpt-x\.key_env"
        ) as error:
            ask(path, build_requests(server, 4), key_env="PLANWARD_TEST_KEY", concurrency=1)
        assert server.headers[1]["authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{error.value!r} {path.read_text()} {''.join(capfd.readouterr())}"


@pytest.mark.parametrize("access", [{}, {"key_env": "PLANWARD_TEST_KEY"}], ids=["no-key", "key"])
def test_headers_of_openais_environment_are_not_sent(
    path: Path, monkeypatch: pytest.MonkeyPatch, access: dict[str, str]
) -> None:
    monkeypatch.setenv("PLANWARD_TEST_KEY", KEY)
    for variable in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(variable, "of-another-server")
    custom_headers = "Authorization: Bearer of-another-server\nX-Secret: of-another-server"
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", custom_headers)
    with serve_replies() as server:
        ask(path, build_requests(server, 1), **access)
    (headers,) = server.headers
    assert headers.get("authorization") == (f"Bearer {KEY}" if access else None)
    assert not {"openai-organization", "openai-project", "x-secret"} & set(headers)
    assert "of-another-server" not in str(headers)


@pytest.mark.parametrize("key", [f"{KEY}\n{KEY}", f"{KEY}é"], ids=["line-break", "beyond-ascii"])
def test_key_that_no_header_holds_is_refused_by_its_variable(
    path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("PLANWARD_TEST_KEY", key)
    with serve_replies() as server:
        with pytest.raises(BackendError, match="the environment variable PLANWARD_TEST_KEY holds no key") as error:
            ask(path, build_requests(server, 1), key_env="PLANWARD_TEST_KEY")
        assert not server.bodies
    assert KEY not in str(error.value)


def test_key_is_masked_where_a_long_error_is_cut(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANWARD_TEST_KEY", KEY)
    text = "x" * (MAX_ERROR_CHARS - len(KEY) // 2) + KEY
    with serve_replies(default=Reply(400, text)) as server, pytest.raises(EndpointError) as error:
        ask(path, build_requests(server, 1), key_env="PLANWARD_TEST_KEY")
    assert KEY[:4] not in str(error.value)


def test_missing_package_is_named_with_its_extra(tmp_path: Path) -> None:
    script = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "openai" else find(name, *rest)
from pathlib import Path
from planward.endpoints.answers import AnswerFile
from planward.endpoints.client import complete
from planward.endpoints.requests import build_request
from planward.params import AccessConfig, EndpointConfig
request = build_request(EndpointConfig(url="http://127.0.0.1:9", model="m"), "text", 1, 1)
complete("gpt-x", AccessConfig(), [request], AnswerFile(Path("answers.jsonl")))
"""
    process = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert "install the extra `endpoints`" in process.stderr
