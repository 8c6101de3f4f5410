"""How large the page is, how soon it shows, how fast its plan browser filters, and what axe finds.

    python benchmarks/page.py [PAGE] [--screenshots FOLDER]

In headless Chromium: the one that PLANWARD_BROWSER names, one on the PATH, or playwright's own. PAGE is
results/report.html. Each time stands beside that of a peer in the same run: for the first render an empty page, for
a filter of 3,000 rows a plain HTML table of as many whose rows are shown and hidden. If PAGE has fewer than 3,000
answers, its browser is measured on all that it has. Screenshots: desktop, phone and dark, of the first screen, the
plan browser and an opened answer.
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

LOADS, FILTERS, ROWS, PATIENCE = 5, 20, 3000, 30
PARTS = {  # of the page, in the order in which they are looked for; what matches one is not counted again
    "packed answers": r'<script type="text/plain"[^>]*>.*?</script>',
    "script": r"<script>.*?</script>",
    "style": r"<style>.*?</style>",
    "CSV": r'href="data:text/csv[^"]*"',
    "figures": r'<svg.*?</svg>|src="data:image[^"]*"',
}
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
READY = "performance.getEntriesByName('plan browser ready')[0]?.startTime"
# Milliseconds from the change of a filter until two frames later, when the rows have been painted.
CHANGE = """(value) => new Promise((done) => {
  const select = document.querySelector('#browser [name=NAME]'), start = performance.now();
  select.value = value;
  select.dispatchEvent(new Event('input', { bubbles: true }));
  const worked = performance.now() - start;
  requestAnimationFrame(() => requestAnimationFrame(() => done([performance.now() - start, worked])));
})"""
TABLE_CHANGE = """(value) => new Promise((done) => {
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


def part_sizes(html: str) -> dict[str, int]:
    """Bytes of each of the `PARTS`, and of the rest."""
    sizes, whole = {}, len(html.encode())
    for name, pattern in PARTS.items():
        matches = re.findall(pattern, html, flags=re.DOTALL)
        sizes[name] = sum(len(match.encode()) for match in matches)
        html = re.sub(pattern, "", html, flags=re.DOTALL)
    return sizes | {"text and tables": whole - sum(sizes.values())}


def loads(browser: Browser, file: Path, told: str) -> list[float]:
    """What `told` says in fresh windows: when something came about, in milliseconds from the start of the load."""
    found = []
    for _ in range(LOADS):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(file.as_uri())
        end = time.monotonic() + PATIENCE
        while (moment := page.evaluate(told)) is None:
            if time.monotonic() > end:
                sys.exit(f"{file}: nothing after {PATIENCE} s: {told}")
            time.sleep(0.05)
        found.append(float(moment))
        context.close()
    return found


def plain_table(folder: Path) -> Path:
    """A page with a plain table of `ROWS` rows, as wide as the plan browser's."""
    labels = ["success_plans", "goal_not_satisfied", "precondition_violation"]
    rows = "".join(
        f'<tr data-label="{labels[i % 3]}"><th>{i:016x}</th>' + f"<td>{labels[i % 3]}</td>" * 7 + "</tr>"
        for i in range(ROWS)
    )
    file = folder / "table.html"
    file.write_text(f"<!doctype html><title>table</title><table><tbody>{rows}</tbody></table>", encoding="utf-8")
    return file


def filter_times(page: Page) -> tuple[int, list[list[float]]]:
    """Answers in the page, and milliseconds to filter them by label: until painted, and of work alone."""
    values = page.eval_on_selector_all("#browser [name=label] option", "all => all.map(each => each.value)")
    rows = int(page.evaluate("Number(document.querySelector('#browser-rows table').ariaRowCount) - 1"))
    change = CHANGE.replace("NAME", "label")
    return rows, [page.evaluate(change, values[i % len(values)]) for i in range(FILTERS)]


def faults(page: Page) -> Counter[str]:
    """Faults by impact, all details opened."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    options = {"resultTypes": ["violations"], "preload": False}
    return Counter(fault["impact"] for fault in Axe().run(page, None, options).response["violations"])


def screenshots(browser: Browser, file: Path, folder: Path) -> None:
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


def line(name: str, value: str, peer: str = "") -> None:
    sys.stdout.write(f"{name:58} {value:>22}   {peer}\n")


def milliseconds(values: list[float]) -> str:
    return f"{median(values):.0f} (worst {max(values):.0f}) ms"


def beside(values: list[float], peers: list[float], name: str) -> str:
    return f"{median(values) / median(peers):.2f} x {name}, {milliseconds(peers)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", type=Path, default=Path("results/report.html"))
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    file, html = asked.page.resolve(), asked.page.read_text(encoding="utf-8")
    line("size", f"{len(html.encode()):,} bytes")
    for name, size in part_sizes(html).items():
        line(f"  {name}", f"{size:,} bytes")
    found = os.environ.get("PLANWARD_BROWSER") or next(
        (path for name in BROWSERS if (path := shutil.which(name))), None
    )
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        empty = Path(folder, "empty.html")
        empty.write_text("<!doctype html><title>empty</title><p>empty", encoding="utf-8")
        peers = loads(browser, empty, PAINT)
        painted = loads(browser, file, PAINT)
        line("first contentful paint", milliseconds(painted), beside(painted, peers, "an empty page"))
        ready = loads(browser, file, READY)
        line("plan browser ready", milliseconds(ready), beside(ready, painted, "the first paint"))
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(plain_table(Path(folder)).as_uri())
        labels = ["success_plans", "goal_not_satisfied", "precondition_violation"]
        plain = [page.evaluate(TABLE_CHANGE, labels[i % 3]) for i in range(FILTERS)]
        page.goto(file.as_uri())
        page.wait_for_selector("#browser:not([hidden])")
        rows, times = filter_times(page)
        for place, what in enumerate(("until painted, two frames later", "work alone")):
            values, others = [spent[place] for spent in times], [spent[place] for spent in plain]
            peer = beside(values, others, f"{ROWS:,} plain rows")
            line(f"filter of {rows:,} answers, {what}", milliseconds(values), peer)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            found_faults = ", ".join(f"{count} {impact}" for impact, count in faults(page).items())
            line(f"faults that axe finds, {scheme}", found_faults or "none")
        if asked.screenshots:
            screenshots(browser, file, asked.screenshots)
        line(
            "browser",
            f"Chromium {browser.version}",
            f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        )
        browser.close()


if __name__ == "__main__":
    main()
