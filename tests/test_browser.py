"""The page in a real browser: quiet, safe, filterable, walkable with the keyboard, on a phone and on a screen.

Needs playwright and axe (the extra `browser`) and Chromium: the environment variable PLANWARD_BROWSER, one on the
PATH, or playwright's own. Skipped, with the reason, where any of them is missing.
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import test_demonstrations_report as selectors
import test_economy_analysis as economy
from conftest import rows as json_lines
from planward.doctor import BROWSERS
from planward.params import Params
from planward.records import Meta, Prediction, Record
from planward.reporting.browser import BUDGET, plan_browser
from planward.reporting.results import Plans
from planward.stages import analyse, report
from test_report import DOMAINS, page, prediction, rewrite, write_everything_else, write_predictions

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'planward[browser]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install 'planward[browser]'")

FOLDERS = ("predictions", "demonstrations/predictions", "economy/predictions")
RUNS = "window.ran = true"  # what a hostile completion would do
HOSTILE = f"</script><script>{RUNS}</script><img src=x onerror='{RUNS}'><style>body {{ display: none }}</style>"
Visit = Callable[..., contextlib.AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def params(shipped: Params) -> Params:
    own = shipped.economy.model_copy(update={"own": shipped.economy.own | {"dataset_sizes": list(economy.SIZES)}})
    few = shipped.compare.model_copy(update={"resamples": 200})
    return shipped.model_copy(update={"compare": few, "economy": own})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """A project with the results of all tasks, where models and verifiers wrote markup; and its page."""
    root = tmp_path_factory.mktemp("browser")
    with contextlib.chdir(root):
        write_predictions(root, (100, 200), DOMAINS, 10, (0, 1, 4))
        selectors.write_track(root)
        selectors.write_training(root)
        economy.write_economy(root, economy.all_runs())
        write_everything_else(root, (100, 200), DOMAINS)
        rewrite(root / "results/predictions/grpo-200-3407.jsonl", lambda rows: [hostile(row) for row in rows])
        analyse.run(params.of("economy"))
        page(root, params)
    return root


def hostile(row: dict[str, Any]) -> dict[str, Any]:
    """The same answer with markup behind every action, and in what the verifier says."""
    text = "\n".join(f"{line} {HOSTILE}" for line in row["completion"].splitlines())
    return row | {"completion": text, "plan": text if row["plan"] else "", "detail": row["detail"] + HOSTILE}


@pytest.fixture(scope="module")
def answers(root: Path) -> list[dict[str, Any]]:
    """Every stored answer, with its task's folder."""
    files = [(folder, path) for folder in FOLDERS for path in (root / "results" / folder).glob("*.jsonl")]
    return [row | {"folder": folder} for folder, path in files for row in json_lines(path)]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = os.environ.get("PLANWARD_BROWSER") or next(
        (found for name in BROWSERS if (found := shutil.which(name))), None
    )
    with playwright.sync_playwright() as started:
        try:
            browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser ({path or 'none on the PATH'}): {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def visit(chromium: Any, root: Path) -> Visit:
    """Opens the page, at an address in it, in a window of its own; fails on any complaint and on any other request."""
    file = (root / "results/report.html").as_uri()

    @contextlib.contextmanager
    def visit(address: str = "", width: int = 1440, script: str = "", **settings: Any) -> Iterator[Any]:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **settings)
        window, complaints, requests = context.new_page(), list[str](), list[str]()
        window.set_default_timeout(10_000)
        window.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        window.on("pageerror", lambda error: complaints.append(str(error)))
        window.on("request", lambda request: requests.append(request.url))
        if script:
            window.add_init_script(script)
        window.goto(file + address)
        if settings.get("java_script_enabled", True) and not script:
            window.wait_for_selector("#browser:not([hidden])")
        yield window
        assert complaints == []
        assert [url.partition("#")[0] for url in requests] == [file]
        context.close()

    return visit


def found(window: Any) -> int:
    """How many answers the page says it has found."""
    return int(re.match(r"None|[\d,]+", window.inner_text("#browser-status"))[0].replace(",", "").replace("None", "0"))  # type: ignore[index]


def choose(window: Any, **filters: str) -> int:
    for name, value in filters.items():
        if name == "text":
            window.fill("#browser [name=text]", value)
        else:
            window.select_option(f"#browser [name={name}]", value)
    return found(window)


def place(window: Any) -> int:
    """The place in the list of the row that has the focus, from 1; 0 if none has."""
    return int(window.evaluate("Number(document.activeElement.closest('tbody tr')?.ariaRowIndex ?? 1) - 1"))


def until(window: Any, expression: str) -> None:
    """Wait for what JavaScript says; playwright's own way is stopped by the page's policy."""
    for _ in range(100):
        if window.evaluate(expression):
            return
        window.wait_for_timeout(50)
    pytest.fail(f"never so: {expression}")


def opened_details(window: Any) -> None:
    window.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")


def test_filters_count_what_the_predictions_hold(visit: Visit, answers: list[dict[str, Any]]) -> None:
    with visit() as window:
        assert found(window) == len(answers)
        planning = [row for row in answers if row["folder"] == "predictions"]
        assert choose(window, task="planning") == len(planning)
        options = window.locator("#browser [name=label] option:not([disabled])").all_inner_texts()
        labels = Counter(row["label"].replace("_", " ") for row in planning)
        assert sorted(options) == sorted(["any", *(f"{label} ({count})" for label, count in labels.items())])
        ferry = [row for row in planning if row["domain"] == "ferry" and row["bucket"] == "easy"]
        assert choose(window, domain="ferry", bucket="easy") == len(ferry)
        grpo = [row for row in ferry if row["method"] == "grpo" and row["dataset_size"] == 100]
        assert choose(window, method="grpo", size="100") == len(grpo)
        assert choose(window, shots="4") == sum(row["shot_num"] == 4 for row in grpo)
        first = window.locator("#browser-rows tbody tr").first
        assert first.inner_text().split()[1:6] == ["ferry", "easy", "GRPO", "100", "4"]
        window.click("#browser-reset")
        assert found(window) == len(answers)
        assert choose(window, text="FERRY-003") == sum("ferry-003" in row["id"] for row in answers)
        assert choose(window, text="Well, ") == sum("Well, " in row["completion"] for row in answers)
        assert choose(window, text="no such words") == 0
        assert window.inner_text("#browser-rows tbody") == ""


def test_solved_by_one_and_not_by_another(visit: Visit, answers: list[dict[str, Any]]) -> None:
    runs: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for row in answers:
        if row["folder"] == "predictions" and row["success"]:
            runs.setdefault((row["method"], row["dataset_size"]), set()).add((row["id"], row["shot_num"]))
    expected = runs["grpo", 100] - runs["sft", 100]
    assert expected
    with visit() as window:
        shown = choose(window, task="planning", method="grpo", size="100", outcome="solved", differs="sft-100")
        assert shown == len(expected)
        cells = window.locator("#browser-rows tbody tr").all_inner_texts()
        assert {(row.split()[0], int(row.split()[5])) for row in cells} == expected


def test_rows_are_reached_walked_and_opened_with_the_keyboard(visit: Visit, answers: list[dict[str, Any]]) -> None:
    with visit() as window:
        rows = window.locator("#browser-rows tbody tr")
        assert rows.count() < 100 < len(answers)  # only those in sight
        assert window.get_attribute("#browser-rows table", "aria-rowcount") == str(len(answers) + 1)
        window.focus("#browser-reset")
        window.keyboard.press("Tab")
        assert place(window) == 1
        for key, expected in [("ArrowDown", 2), ("ArrowDown", 3), ("ArrowUp", 2), ("End", len(answers)), ("Home", 1)]:
            window.keyboard.press(key)
            assert place(window) == expected
        window.keyboard.press("PageDown")
        page_down = place(window)
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
        assert not window.is_visible("#browser-answer")
        assert place(window) == page_down + 1
        window.keyboard.press("ArrowUp")
        window.evaluate("document.querySelector('#browser-rows').scrollTop = 1e6")  # out of sight, and back
        until(window, "document.activeElement.id === 'browser-rows'")
        window.keyboard.press("ArrowDown")
        assert place(window) == page_down + 1


def test_an_answer_shows_its_problem_examples_verdict_and_rivals(visit: Visit, root: Path) -> None:
    rows = json_lines(root / "results/predictions/sft-100-3407.jsonl")
    failed = next(row for row in rows if row["failing_step"] and row["shot_num"] == 0 and row["constrained"])
    chosen = json_lines(root / "results/demonstrations/predictions/pointer-rce-200-3407.jsonl")[-1]
    with visit(f"#plans?open=planning/sft-100-3407/0/{failed['id']}") as window:
        assert window.inner_text("#browser-title") == "SFT, N = 100, 0 worked examples"
        assert "with safety constraints" in window.inner_text("#browser-subtitle")
        problem, verdict, matrix = (part.inner_text() for part in window.locator(".parts > div").all()[:3])
        assert failed["prompt"].strip() in problem
        assert failed["label"].replace("_", " ") in verdict
        assert f"Reward {failed['reward']:.3f}, 1 of 2 goals, step 2 fails." in verdict
        assert failed["detail"] in verdict
        assert window.locator(".parts > div:nth-child(2) li").all_inner_texts() == [
            "(pick-up b1)",
            f"(stack b1 b2) ← {'breaks a constraint' if 'safety' in failed['label'] else 'fails here'}",
            "(pick-up b3)",
        ]
        assert matrix.count("✓") + matrix.count("✗") == 15  # five runs, three numbers of examples
        window.click(".parts button[aria-label^='base, 4 worked examples']")
        assert window.inner_text("#browser-title") == "base, 4 worked examples"
        assert failed["id"] in window.inner_text("#browser-subtitle")
        assert "SFT, N = 100" in window.inner_text(".parts .others")
    with visit(f"#plans?method=pointer-rce&open=demonstrations/pointer-rce-200-3407/2/{chosen['id']}") as window:
        assert window.input_value("#browser [name=method]") == "pointer-rce"
        opened_details(window)
        asked = window.inner_text(".parts > div:nth-child(1)")
        assert f"objects of the query {chosen['id']} plan" in asked
        for shot in chosen["shot_ids"]:
            assert f"objects of {shot} {selectors.HOSTILE} plan (a)" in asked
        until(window, "location.hash.includes('pointer-rce-200-3407%2F2%2F')")
        window.click("#browser-answer [name=close]")
        until(window, "location.hash === '#plans?method=pointer-rce'")


def test_what_a_model_wrote_stays_text(visit: Visit, root: Path) -> None:
    chosen = json_lines(root / "results/predictions/grpo-200-3407.jsonl")[0]
    with visit() as window:
        assert choose(window, text=HOSTILE) == 60
        window.locator("#browser-rows tbody button").first.click()
        assert window.locator(".parts li").first.inner_text().startswith(f"(pick-up b1) {HOSTILE}")
        opened_details(window)
        assert chosen["id"] in window.inner_text("#browser-subtitle")
        assert window.locator("#browser-answer :is(script, img, style)").count() == 0
        assert (
            window.locator(f"main script, main [onerror], main :text('{RUNS}'):is(script)").count() == 2
        )  # the browser's
        assert window.evaluate("window.ran") is None


def test_no_other_script_may_run(visit: Visit) -> None:
    with visit() as window:
        policy = window.get_attribute("meta[http-equiv=Content-Security-Policy]", "content")
        assert "default-src 'none'" in policy
        assert re.search(r"script-src 'sha256-[\w+/=]{44}'(;|$)", policy)


@pytest.mark.parametrize("width", [360, 1440])
def test_nothing_is_wider_than_the_window(visit: Visit, width: int) -> None:
    with visit(width=width) as window:
        opened_details(window)
        assert window.evaluate("document.scrollingElement.scrollWidth") <= width
        window.locator("#browser-rows tbody button").nth(3).click()
        opened_details(window)
        assert window.evaluate("document.scrollingElement.scrollWidth") <= width
        dialog = "document.querySelector('#browser-answer')"
        assert window.evaluate(f"{dialog}.scrollWidth <= {dialog}.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(visit: Visit, scheme: str) -> None:
    rules = {} if scheme == "light" else {"runOnly": ["color-contrast"]}  # nothing but colours changes
    with visit(color_scheme=scheme) as window:
        opened_details(window)
        faults = serious(window, rules)
        window.locator("#browser-rows tbody button").nth(3).click()
        opened_details(window)
        assert faults + serious(window, rules, "#browser-answer") == []


def serious(window: Any, rules: dict[str, Any], context: str | None = None) -> list[str]:
    options = {"resultTypes": ["violations"], "preload": False} | rules  # preload: only for what the page has none of
    violations = axe.Axe().run(window, context, options).response["violations"]
    return [
        f"{fault['impact']}: {fault['help']}: {[node['html'][:200] for node in fault['nodes'][:3]]}"
        for fault in violations
        if fault["impact"] in {"serious", "critical"}
    ]


def test_csv_links_hold_the_data(visit: Visit, root: Path) -> None:
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
        drawn = list(csv.DictReader(io.StringIO(panel)))
        assert {float(row["value"]) for row in drawn} <= rates
        assert len(drawn) == 3 * 3  # methods and numbers of worked examples
        with window.expect_download() as download:
            window.locator("a[download]").first.click()
        assert download.value.suggested_filename == links[0][0]


def test_the_page_prints(visit: Visit) -> None:
    with visit() as window:
        pdf = window.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        assert pdf.count(b"/Type /Page\n") >= 3


def test_without_javascript_the_page_is_read_all_the_same(visit: Visit) -> None:
    with visit(java_script_enabled=False) as window:
        assert window.locator("main table").first.is_visible()
        assert "takes JavaScript" in window.inner_text("section[aria-labelledby=plans]")
        assert not window.is_visible("#browser")


def test_a_browser_that_cannot_unpack_says_so(visit: Visit) -> None:
    with visit(script="delete window.DecompressionStream") as window:
        assert "no DecompressionStream" in window.inner_text("#browser-note")
        assert not window.is_visible("#browser")


def test_what_does_not_fit_is_left_out_whole_problems_at_a_time(root: Path, params: Params) -> None:
    with contextlib.chdir(root):
        results: Any = SimpleNamespace(plans=report._plans(params))
    whole, cut = (plan_browser(results, params, budget) for budget in (BUDGET, 5000))
    assert whole is not None
    assert cut is not None
    assert whole.shown == whole.total == cut.total > cut.shown > 0
    assert len(cut.payload) <= 5000 < len(whole.payload) <= BUDGET
    data = unpacked(cut.payload)
    runs = Counter(data["runs"][run]["task"] for run in data["rows"]["run"])
    assert set(runs) == {0, 1, 2}
    shots: dict[tuple[int, str], Counter[int]] = {}
    for answer, shot_num in zip(data["rows"]["answer"], data["rows"]["shots"], strict=True):
        problem = data["answers"]["problem"][answer]
        key = data["problems"]["task"][problem], data["problems"]["id"][problem]
        shots.setdefault(key, Counter())[shot_num] += 1
    assert all(counts == {0: 5, 4: 5} for (task, _), counts in shots.items() if task == 0)  # all runs, most and fewest


def test_a_chat_prompt_is_told_from_what_is_known_of_its_problems(params: Params) -> None:
    def record(problem: str, response: str | None) -> Record:
        text = f"Domain:\n(domain)\n\nProblem:\n({problem})\n"
        meta = Meta(scenario="ferry", domain_file="d.pddl", problem_file="p.pddl")
        return Record(id=problem, prompt=text, response=response, meta=meta)

    def answer(problem: str, shots: list[str]) -> Prediction:
        row = prediction("base", 0, "ferry", 1, len(shots))
        return Prediction.model_validate(row | {"id": problem, "shot_ids": shots, "prompt": f"chat of {shots}"})

    answers = [answer("a", []), answer("a", ["t"]), answer("b", ["t"])]
    records = {"a": record("a", None), "b": record("b", None), "t": record("t", "(sail l1 l2)")}
    results: Any = SimpleNamespace(plans=[Plans("planning", "results/predictions", answers, records)])
    browser = plan_browser(results, params)
    assert browser is not None
    data = unpacked(browser.payload)
    assert [data["texts"][text] for text in data["problems"]["text"]] == ["chat of []", "(b)"]
    assert [data["texts"][text] for text in data["examples"]["text"]] == ["(t)\n(sail l1 l2)"]


def unpacked(payload: str) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(base64.b64decode(payload))))
