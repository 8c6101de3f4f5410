"""Size of the page, its loading time, the speed of its plan browser, and accessibility faults found by axe.

    python benchmarks/page.py [PAGE] [--screenshots FOLDER]

In headless Chromium: the one that PLANWARD_BROWSER names, one on the PATH, or playwright's own. PAGE is by default
results/report.html. Each time is compared with a reference in the same run: the first render with an empty page, a
filter with a plain HTML table of 3,000 rows that are shown and hidden. Screenshots: desktop, phone and dark, of the
first screen, the plan browser and an opened completion.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from planward.doctor import BROWSERS

LOADS, FILTERS, ROWS, TIMEOUT_S = 5, 20, 3000, 30
PARTS = {  # of the page, in the order of the search; text that matches one is not counted again
    "packed answers": r'<script type="text/plain"[^>]*>.*?</script>',
    "script": r"<script>.*?</script>",
    "style": r"<style>.*?</style>",
    "CSV": r'href="data:text/csv[^"]*"',
    "figures": r'<svg.*?</svg>|src="data:image[^"]*"',
}
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
READY = "performance.getEntriesByName('plan browser ready')[0]?.startTime"
# Milliseconds from the change of a filter until two frames later, when the rows are painted.
FILTER_SCRIPT = """(value) => new Promise((done) => {
  const select = document.querySelector('#browser [name=NAME]'), start = performance.now();
  select.value = value;
  select.dispatchEvent(new Event('input', { bubbles: true }));
  const worked = performance.now() - start;
  requestAnimationFrame(() => requestAnimationFrame(() => done([performance.now() - start, worked])));
})"""
TABLE_FILTER_SCRIPT = """(value) => new Promise((done) => {
  const start = performance.now();
  for (const row of document.querySelectorAll('tbody tr')) {
    row.style.display = row.dataset.label === value ? '' : 'none';
  }
  document.body.offsetHeight;
  const worked = performance.now() - start;
  requestAnimationFrame(() => requestAnimationFrame(() => done([performance.now() - start, worked])));
})"""
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
WINDOWS: dict[str, tuple[int, int, Scheme]] = {
    "desktop": (1440, 900, "light"),
    "phone": (360, 780, "light"),
    "dark": (1440, 900, "dark"),
}


def measure_parts(html: str) -> dict[str, int]:
    """Bytes of each of the `PARTS`, and of the rest."""
    sizes, total = {}, len(html.encode())
    for name, pattern in PARTS.items():
        matches = re.findall(pattern, html, flags=re.DOTALL)
        sizes[name] = sum(len(match.encode()) for match in matches)
        html = re.sub(pattern, "", html, flags=re.DOTALL)
    return sizes | {"text and tables": total - sum(sizes.values())}


def measure_loads(browser: Browser, file: Path, script: str) -> list[float]:
    """Load a page in new windows; returns the milliseconds, from the start of the load, that the script reports."""
    times = []
    for _ in range(LOADS):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(file.as_uri())
        end = time.monotonic() + TIMEOUT_S
        while (value := page.evaluate(script)) is None:
            if time.monotonic() > end:
                sys.exit(f"{file}: nothing after {TIMEOUT_S} s: {script}")
            time.sleep(0.05)
        times.append(float(value))
        context.close()
    return times


def write_plain_table(folder: Path) -> Path:
    """Write a page with a plain table of `ROWS` rows, as wide as the plan browser's."""
    labels = ["success_plans", "goal_not_satisfied", "precondition_violation"]
    rows = "".join(
        f'<tr data-label="{labels[i % 3]}"><th>{i:016x}</th>' + f"<td>{labels[i % 3]}</td>" * 7 + "</tr>"
        for i in range(ROWS)
    )
    file = folder / "table.html"
    file.write_text(f"<!doctype html><title>table</title><table><tbody>{rows}</tbody></table>", encoding="utf-8")
    return file


def measure_filters(page: Page) -> tuple[int, list[list[float]]]:
    """The number of completions in the page, and milliseconds to filter them by label: until painted, script only."""
    values = page.eval_on_selector_all("#browser [name=label] option", "options => options.map(option => option.value)")
    rows = int(page.evaluate("Number(document.querySelector('#browser-rows table').ariaRowCount) - 1"))
    script = FILTER_SCRIPT.replace("NAME", "label")
    return rows, [page.evaluate(script, values[i % len(values)]) for i in range(FILTERS)]


def count_faults(page: Page) -> Counter[str]:
    """Accessibility faults by impact, with all details open."""
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    options = {"resultTypes": ["violations"], "preload": False}
    return Counter(fault["impact"] for fault in Axe().run(page, None, options).response["violations"])


def take_screenshots(browser: Browser, file: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (width, height, scheme) in WINDOWS.items():
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(file.as_uri())
        page.wait_for_selector("#browser:not([hidden])")
        page.screenshot(path=folder / f"{name}.png")
        page.evaluate("document.querySelector('#plans').scrollIntoView({ behavior: 'instant' })")
        page.wait_for_timeout(200)
        page.screenshot(path=folder / f"{name}-browser.png")
        page.locator("#browser-rows tbody button").first.click()
        page.wait_for_timeout(200)
        page.screenshot(path=folder / f"{name}-answer.png")
        page.close()


def print_line(name: str, value: str, reference: str = "") -> None:
    sys.stdout.write(f"{name:58} {value:>22}   {reference}\n")


def format_times(values: list[float]) -> str:
    return f"{median(values):.0f} (worst {max(values):.0f}) ms"


def format_ratio(values: list[float], reference: list[float], name: str) -> str:
    return f"{median(values) / median(reference):.2f} x {name}, {format_times(reference)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", type=Path, default=Path("results/report.html"))
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    file, html = options.page.resolve(), options.page.read_text(encoding="utf-8")
    print_line("size", f"{len(html.encode()):,} bytes")
    for name, size in measure_parts(html).items():
        print_line(f"  {name}", f"{size:,} bytes")
    program = os.environ.get("PLANWARD_BROWSER") or next(
        (path for name in BROWSERS if (path := shutil.which(name))), None
    )
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        empty = Path(folder, "empty.html")
        empty.write_text("<!doctype html><title>empty</title><p>empty", encoding="utf-8")
        empty_times = measure_loads(browser, empty, PAINT)
        paint_times = measure_loads(browser, file, PAINT)
        print_line(
            "first contentful paint", format_times(paint_times), format_ratio(paint_times, empty_times, "an empty page")
        )
        ready = measure_loads(browser, file, READY)
        print_line("plan browser ready", format_times(ready), format_ratio(ready, paint_times, "the first paint"))
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(write_plain_table(Path(folder)).as_uri())
        labels = ["success_plans", "goal_not_satisfied", "precondition_violation"]
        plain = [page.evaluate(TABLE_FILTER_SCRIPT, labels[i % 3]) for i in range(FILTERS)]
        page.goto(file.as_uri())
        page.wait_for_selector("#browser:not([hidden])")
        rows, times = measure_filters(page)
        for i, quantity in enumerate(("until painted, two frames later", "script only")):
            values, plain_values = [pair[i] for pair in times], [pair[i] for pair in plain]
            ratio = format_ratio(values, plain_values, f"{ROWS:,} plain rows")
            print_line(f"filter of {rows:,} completions, {quantity}", format_times(values), ratio)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            faults = ", ".join(f"{count} {impact}" for impact, count in count_faults(page).items())
            print_line(f"accessibility faults, {scheme}", faults or "none")
        if options.screenshots:
            take_screenshots(browser, file, options.screenshots)
        print_line(
            "browser",
            f"Chromium {browser.version}",
            f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        )
        browser.close()


if __name__ == "__main__":
    main()
