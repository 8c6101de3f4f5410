"""The page in a real browser: no errors or requests, filters, keyboard, accessibility, narrow and wide windows.

Needs playwright and axe (the extra `browser`) and Chromium: the environment variable PLANWARD_BROWSER, one on the
PATH, or playwright's own. Skipped where any of them is missing; a browser that does not start fails the tests.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import gzip
import io
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import test_economy_analysis as economy
import test_selector_report as selectors

from planward.core.records import Meta, Prediction, Record
from planward.core.registry import load_params
from planward.doctor import BROWSERS
from planward.params import Params
from planward.report.browser import MAX_PAYLOAD_BYTES, FirstPredictions, build_plan_browser, rank_prediction
from planward.report.data import TrackPredictions
from planward.stages import analyse, report
from result_trees import (
    DOMAINS,
    build_prediction,
    render_page,
    rewrite_rows,
    write_other_results,
    write_params,
    write_predictions,
)
from result_trees import HOSTILE as HOSTILE_EXAMPLE
from support import read_rows

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'planward[browser]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install 'planward[browser]'")

FOLDERS = ("predictions", "selectors/predictions", "economy/predictions")
SCRIPT = "window.ran = true"  # of a hostile completion
HOSTILE = f"</script><script>{SCRIPT}</script><img src=x onerror='{SCRIPT}'><style>body {{ display: none }}</style>"
Visit = Callable[..., contextlib.AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def params(shipped_params: Params) -> Params:
    return shipped_params.model_copy(update={"compare": shipped_params.compare.model_copy(update={"resamples": 200})})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """A project with the results of all tracks, in which models and verifiers wrote markup; and its page."""
    root = tmp_path_factory.mktemp("browser")
    with contextlib.chdir(root):
        write_params(root, economy={"dataset_sizes": list(economy.SIZES)})
        write_predictions(root, (100, 200), DOMAINS, 10, (0, 1, 4))
        selectors.write_track(root)
        selectors.write_training(root)
        economy.write_results(root, economy.list_runs())
        write_other_results(root, (100, 200), DOMAINS)
        path = root / "results/predictions/grpo-200-3407.jsonl"
        rewrite_rows(path, lambda rows: [add_markup(row) for row in rows])
        analyse.run(load_params("economy"))
        render_page(root, params)
    return root


def add_markup(row: dict[str, Any]) -> dict[str, Any]:
    """The same prediction with markup after every action and in the verdict."""
    text = "\n".join(f"{line} {HOSTILE}" for line in row["completion"].splitlines())
    return row | {"completion": text, "plan": text if row["plan"] else "", "detail": row["detail"] + HOSTILE}


@pytest.fixture(scope="module")
def predictions(root: Path) -> list[dict[str, Any]]:
    """Every stored prediction, with its folder."""
    files = [(folder, path) for folder in FOLDERS for path in (root / "results" / folder).glob("*.jsonl")]
    return [row | {"folder": folder} for folder, path in files for row in read_rows(path)]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = os.environ.get("PLANWARD_BROWSER") or next(
        (executable for name in BROWSERS if (executable := shutil.which(name))), None
    )
    with playwright.sync_playwright() as context:
        try:
            browser = context.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error as error:
            if path or "Executable doesn't exist" not in str(error):
                raise
            pytest.skip("no browser: install Chromium, or name one by PLANWARD_BROWSER")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def visit(chromium: Any, root: Path) -> Visit:
    """Open the page in a new window, at an address in it; fail on any error and on any other request."""
    file = (root / "results/report.html").as_uri()

    @contextlib.contextmanager
    def visit(address: str = "", width: int = 1440, script: str = "", **settings: Any) -> Iterator[Any]:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **settings)
        window, errors, requests = context.new_page(), list[str](), list[str]()
        window.set_default_timeout(10_000)
        window.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))
        window.on("pageerror", lambda error: errors.append(str(error)))
        window.on("request", lambda request: requests.append(request.url))
        if script:
            window.add_init_script(script)
        window.goto(file + address)
        if settings.get("java_script_enabled", True) and not script:
            window.wait_for_selector("#browser:not([hidden])")
        yield window
        assert errors == []
        assert [url.partition("#")[0] for url in requests] == [file]
        context.close()

    return visit


def count_matches(window: Any) -> int:
    """The number of matching completions that the page shows."""
    return int(re.match(r"None|[\d,]+", window.inner_text("#browser-status"))[0].replace(",", "").replace("None", "0"))  # type: ignore[index]


def set_filters(window: Any, **filters: str) -> int:
    """Set filters; returns the number of matches."""
    for name, value in filters.items():
        if name == "text":
            window.fill("#browser [name=text]", value)
        else:
            window.select_option(f"#browser [name={name}]", value)
    return count_matches(window)


def find_focus(window: Any) -> int:
    """The position of the focused row, from 1; 0 if none is focused."""
    return int(window.evaluate("Number(document.activeElement.closest('tbody tr')?.ariaRowIndex ?? 1) - 1"))


def wait_for(window: Any, expression: str) -> None:
    """Wait until a JavaScript expression is true; the page's policy blocks playwright's `wait_for_function`."""
    for _ in range(100):
        if window.evaluate(expression):
            return
        window.wait_for_timeout(50)
    pytest.fail(f"never true: {expression}")


def open_details(window: Any) -> None:
    window.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")


def test_filters_count_what_the_predictions_hold(visit: Visit, predictions: list[dict[str, Any]]) -> None:
    with visit() as window:
        assert count_matches(window) == len(predictions)
        planning = [row for row in predictions if row["folder"] == "predictions"]
        assert set_filters(window, task="planning") == len(planning)
        options = window.locator("#browser [name=label] option:not([disabled])").all_inner_texts()
        labels = Counter(row["label"].replace("_", " ") for row in planning)
        assert sorted(options) == sorted(["any", *(f"{label} ({count})" for label, count in labels.items())])
        ferry = [row for row in planning if row["domain"] == "ferry" and row["bucket"] == "easy"]
        assert set_filters(window, domain="ferry", bucket="easy") == len(ferry)
        grpo = [row for row in ferry if row["method"] == "grpo" and row["dataset_size"] == 100]
        assert set_filters(window, method="grpo", size="100") == len(grpo)
        assert set_filters(window, shots="4") == sum(row["shot_num"] == 4 for row in grpo)
        first = window.locator("#browser-rows tbody tr").first
        assert first.inner_text().split()[1:6] == ["ferry", "easy", "GRPO", "100", "4"]
        window.click("#browser-reset")
        assert count_matches(window) == len(predictions)
        assert set_filters(window, text="FERRY-003") == sum("ferry-003" in row["id"] for row in predictions)
        assert set_filters(window, text="Well, ") == sum("Well, " in row["completion"] for row in predictions)
        assert set_filters(window, text="no such words") == 0
        assert window.inner_text("#browser-rows tbody") == ""


def test_solved_by_one_and_not_by_another(visit: Visit, predictions: list[dict[str, Any]]) -> None:
    runs: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for row in predictions:
        if row["folder"] == "predictions" and row["success"]:
            runs.setdefault((row["method"], row["dataset_size"]), set()).add((row["id"], row["shot_num"]))
    expected = runs["grpo", 100] - runs["sft", 100]
    assert expected
    with visit() as window:
        count = set_filters(window, task="planning", method="grpo", size="100", outcome="solved", differs="sft-100")
        assert count == len(expected)
        cells = window.locator("#browser-rows tbody tr").all_inner_texts()
        assert {(row.split()[0], int(row.split()[5])) for row in cells} == expected


def test_rows_are_navigated_and_opened_with_the_keyboard(visit: Visit, predictions: list[dict[str, Any]]) -> None:
    with visit() as window:
        rows = window.locator("#browser-rows tbody tr")
        assert rows.count() < 100 < len(predictions)  # only the visible ones
        assert window.get_attribute("#browser-rows table", "aria-rowcount") == str(len(predictions) + 1)
        window.focus("#browser-reset")
        window.keyboard.press("Tab")
        assert find_focus(window) == 1
        for key, expected in [
            ("ArrowDown", 2),
            ("ArrowDown", 3),
            ("ArrowUp", 2),
            ("End", len(predictions)),
            ("Home", 1),
        ]:
            window.keyboard.press(key)
            assert find_focus(window) == expected
        window.keyboard.press("PageDown")
        page_down = find_focus(window)
        assert 5 < page_down < 50
        window.keyboard.press("Enter")
        assert window.evaluate("document.activeElement.id") == "browser-title"
        title = window.inner_text("#browser-title")
        window.keyboard.press("ArrowRight")
        assert window.inner_text("#browser-title") != title
        window.keyboard.press("ArrowLeft")
        assert window.inner_text("#browser-title") == title
        window.keyboard.press("ArrowRight")
        window.keyboard.press("Escape")
        assert not window.is_visible("#browser-completion")
        assert find_focus(window) == page_down + 1
        window.keyboard.press("ArrowUp")
        window.evaluate("document.querySelector('#browser-rows').scrollTop = 1e6")  # scroll it out of view, and back
        wait_for(window, "document.activeElement.id === 'browser-rows'")
        window.keyboard.press("ArrowDown")
        assert find_focus(window) == page_down + 1


def test_a_completion_is_shown_with_problem_examples_verdict_and_others(visit: Visit, root: Path) -> None:
    rows = read_rows(root / "results/predictions/sft-100-3407.jsonl")
    failed_row = next(row for row in rows if row["failing_step"] and row["shot_num"] == 0 and row["constrained"])
    selector_row = read_rows(root / "results/selectors/predictions/pointer-rce-200-3407.jsonl")[-1]
    with visit(f"#plans?open=planning/sft-100-3407/0/{failed_row['id']}") as window:
        assert window.inner_text("#browser-title") == "SFT, N = 100, 0 worked examples"
        assert "with safety constraints" in window.inner_text("#browser-subtitle")
        problem, verdict, matrix = (part.inner_text() for part in window.locator(".parts > div").all()[:3])
        assert failed_row["prompt"].strip() in problem
        assert failed_row["label"].replace("_", " ") in verdict
        assert f"Reward {failed_row['reward']:.3f}, 1 of 2 goals, step 2 fails." in verdict
        assert failed_row["detail"] in verdict
        assert window.locator(".parts > div:nth-child(2) li").all_inner_texts() == [
            "(pick-up b1)",
            f"(stack b1 b2) ← {'violates a constraint' if 'safety' in failed_row['label'] else 'fails here'}",
            "(pick-up b3)",
        ]
        assert matrix.count("✓") + matrix.count("✗") == 15  # five runs, three numbers of examples
        window.click(".parts button[aria-label^='base, 4 worked examples']")
        assert window.inner_text("#browser-title") == "base, 4 worked examples"
        assert failed_row["id"] in window.inner_text("#browser-subtitle")
        assert "SFT, N = 100" in window.inner_text(".parts .others")
    with visit(f"#plans?method=pointer-rce&open=selectors/pointer-rce-200-3407/2/{selector_row['id']}") as window:
        assert window.input_value("#browser [name=method]") == "pointer-rce"
        open_details(window)
        prompt = window.inner_text(".parts > div:nth-child(1)")
        assert f"objects of the query {selector_row['id']} plan" in prompt
        for shot in selector_row["shot_ids"]:
            assert f"objects of {shot} {HOSTILE_EXAMPLE} plan (a)" in prompt
        wait_for(window, "location.hash.includes('pointer-rce-200-3407%2F2%2F')")
        window.click("#browser-completion [name=close]")
        wait_for(window, "location.hash === '#plans?method=pointer-rce'")


def test_model_output_stays_text(visit: Visit, root: Path) -> None:
    row = read_rows(root / "results/predictions/grpo-200-3407.jsonl")[0]
    with visit() as window:
        assert set_filters(window, text=HOSTILE) == 60
        window.locator("#browser-rows tbody button").first.click()
        assert window.locator(".parts li").first.inner_text().startswith(f"(pick-up b1) {HOSTILE}")
        open_details(window)
        assert row["id"] in window.inner_text("#browser-subtitle")
        assert window.locator("#browser-completion :is(script, img, style)").count() == 0
        assert (
            window.locator(f"main script, main [onerror], main :text('{SCRIPT}'):is(script)").count() == 2
        )  # those of the plan browser
        assert window.evaluate("window.ran") is None


def test_policy_allows_no_other_script(visit: Visit) -> None:
    with visit() as window:
        policy = window.get_attribute("meta[http-equiv=Content-Security-Policy]", "content")
        assert "default-src 'none'" in policy
        assert re.search(r"script-src 'sha256-[\w+/=]{44}'(;|$)", policy)


@pytest.mark.parametrize("width", [360, 1440])
def test_nothing_is_wider_than_the_window(visit: Visit, width: int) -> None:
    with visit(width=width) as window:
        open_details(window)
        assert window.evaluate("document.scrollingElement.scrollWidth") <= width
        window.locator("#browser-rows tbody button").nth(3).click()
        open_details(window)
        assert window.evaluate("document.scrollingElement.scrollWidth") <= width
        dialog = "document.querySelector('#browser-completion')"
        assert window.evaluate(f"{dialog}.scrollWidth <= {dialog}.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(visit: Visit, scheme: str) -> None:
    rules = {} if scheme == "light" else {"runOnly": ["color-contrast"]}  # nothing but colours changes
    with visit(color_scheme=scheme) as window:
        open_details(window)
        violations = list_violations(window, rules)
        window.locator("#browser-rows tbody button").nth(3).click()
        open_details(window)
        assert violations + list_violations(window, rules, "#browser-completion") == []


def list_violations(window: Any, rules: dict[str, Any], context: str | None = None) -> list[str]:
    options = {"resultTypes": ["violations"], "preload": False} | rules  # the page has nothing to preload
    violations = axe.Axe().run(window, context, options).response["violations"]
    return [
        f"{violation['impact']}: {violation['help']}: {[node['html'][:200] for node in violation['nodes'][:3]]}"
        for violation in violations
        if violation["impact"] in {"serious", "critical"}
    ]


def test_csv_links_have_the_data(visit: Visit, root: Path) -> None:
    with (root / "results/tables/success.csv").open(encoding="utf-8") as lines:
        rates = {float(row["success_rate"]) for row in csv.DictReader(lines) if row["domain"] == "all"}
    with visit() as window:
        links = window.eval_on_selector_all("a[download]", "all => all.map(a => [a.download, a.getAttribute('href')])")
        assert len(links) >= window.locator("figure svg").count() > 0
        data = {
            name: base64.b64decode(address.removeprefix("data:text/csv;base64,")).decode() for name, address in links
        }
        assert all(len(list(csv.reader(io.StringIO(text)))) > 1 for text in data.values())
        [panel] = [text for name, text in data.items() if name == "n-100.csv"]
        points = list(csv.DictReader(io.StringIO(panel)))
        assert {float(row["value"]) for row in points} <= rates
        assert len(points) == 3 * 3  # methods and numbers of worked examples
        with window.expect_download() as download:
            window.locator("a[download]").first.click()
        assert download.value.suggested_filename == links[0][0]


def test_the_page_prints(visit: Visit) -> None:
    with visit() as window:
        pdf = window.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        assert pdf.count(b"/Type /Page\n") >= 3


def test_page_is_readable_without_javascript(visit: Visit) -> None:
    with visit(java_script_enabled=False) as window:
        assert window.locator("main table").first.is_visible()
        assert "requires JavaScript" in window.inner_text("section[aria-labelledby=plans]")
        assert not window.is_visible("#browser")


def test_a_browser_without_decompression_shows_a_message(visit: Visit) -> None:
    with visit(script="delete window.DecompressionStream") as window:
        assert "no DecompressionStream" in window.inner_text("#browser-note")
        assert not window.is_visible("#browser")


def test_whole_problems_are_left_out_where_not_all_fit(root: Path, params: Params) -> None:
    with contextlib.chdir(root):
        tracks = [report._load_track(name, params) for name in ("planning", *params.tracks)]
        predictions = [track_predictions for track in tracks if (track_predictions := report._read_predictions(track))]
    full_browser, cut_browser = (build_plan_browser(predictions, limit) for limit in (MAX_PAYLOAD_BYTES, 5000))
    assert full_browser is not None
    assert cut_browser is not None
    assert full_browser.shown == full_browser.total == cut_browser.total > cut_browser.shown > 0
    assert len(cut_browser.payload) <= 5000 < len(full_browser.payload) <= MAX_PAYLOAD_BYTES
    data = unpack(cut_browser.payload)
    runs = Counter(data["runs"][run]["track"] for run in data["rows"]["run"])
    assert set(runs) == {0, 1, 2}
    shots: dict[tuple[int, str], Counter[int]] = {}
    for completion, shot_num in zip(data["rows"]["completion"], data["rows"]["shots"], strict=True):
        problem = data["completions"]["problem"][completion]
        key = data["problems"]["track"][problem], data["problems"]["id"][problem]
        shots.setdefault(key, Counter())[shot_num] += 1
    assert all(
        counts == {0: 5, 4: 5} for (track, _), counts in shots.items() if track == 0
    )  # all runs, most and fewest


@pytest.mark.parametrize("limit", [1, 40, 10**6])
def test_of_very_many_predictions_those_shown_first_are_kept(root: Path, params: Params, limit: int) -> None:
    with contextlib.chdir(root):
        track = report._read_predictions(report._load_track("planning", params))
    assert track is not None
    shot_nums, rows = range(5), Random(1).sample(track.predictions, len(track.predictions))
    first = FirstPredictions(shot_nums, track.first_seed, limit)
    for row in rows:
        first.add(row)
    first_rows = first.select()
    ranks = {id(row): rank_prediction(row, shot_nums, track.first_seed) for row in rows}
    dropped_ids = {id(row) for row in rows} - {id(row) for row in first_rows}
    assert first_rows == [row for row in rows if id(row) not in dropped_ids]
    assert max(ranks[id(row)] for row in first_rows) < min((ranks[row] for row in dropped_ids), default=(3, ""))
    assert first.total == len(rows)
    assert len(first_rows) == {1: 10, 40: 40, 10**6: len(rows)}[limit]  # ten rows of a problem are kept together
    browser = build_plan_browser([replace(track, predictions=first_rows, total=first.total)])
    assert browser is not None
    assert (browser.shown, browser.total) == (len(first_rows), len(rows))


def test_chat_prompts_are_shown_from_the_records_of_their_problems() -> None:
    def build_record(problem: str, response: str | None) -> Record:
        text = f"Domain:\n(domain)\n\nProblem:\n({problem})\n"
        meta = Meta(scenario="ferry", domain_file="d.pddl", problem_file="p.pddl")
        return Record(id=problem, prompt=text, response=response, meta=meta)

    def build_row(problem: str, shots: list[str]) -> Prediction:
        row = build_prediction("base", 0, "ferry", 1, len(shots))
        return Prediction.model_validate(row | {"id": problem, "shot_ids": shots, "prompt": f"chat of {shots}"})

    rows = [build_row("a", []), build_row("a", ["t"]), build_row("b", ["t"])]
    records = {"a": build_record("a", None), "b": build_record("b", None), "t": build_record("t", "(sail l1 l2)")}
    track = TrackPredictions(
        "planning", "Planning", "results/predictions", rows, records, 3407, has_plans=True, total=3
    )
    browser = build_plan_browser([track])
    assert browser is not None
    data = unpack(browser.payload)
    assert [data["texts"][text] for text in data["problems"]["text"]] == ["chat of []", "(b)"]
    assert [data["texts"][text] for text in data["examples"]["text"]] == ["(t)\n(sail l1 l2)"]


def unpack(payload: str) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(base64.b64decode(payload))))
