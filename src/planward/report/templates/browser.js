// The plan browser. report/browser.py packs the data: tables as columns that refer to each other by index.
// What a model wrote enters the document as text nodes only.
"use strict";
{
  const byId = (id) => document.getElementById(id);
  const root = byId("browser"), note = byId("browser-note"), status = byId("browser-status");
  const scroller = byId("browser-rows"), body = scroller.querySelector("tbody"), list = scroller.querySelector("table");
  const dialog = byId("browser-completion"), parts = dialog.querySelector(".parts");
  const selects = [...root.querySelectorAll("select")], search = root.querySelector("input");
  const ADDRESS = "#plans?"; // followed by the filters, and by `open` with the completion shown
  const OVERSCAN_ROWS = 8; // rows rendered above and below the visible ones

  let data, size; // size: number of rows
  let codes; // by filter: the index of its choice for every row; 0 for none
  let rowOfCell; // row by problem, number of examples and run, see `findRow`
  let lowerTexts; // all texts in lower case
  let rivals; // by choice of `differs` and run: the run that it is compared with
  let matches = new Int32Array(), active = 0, opened = -1;
  let rowHeight = 32, rendered = "";

  // ---- Data

  /** Decompress the tables. */
  async function unpack(text) {
    const bytes = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  /** The row of a problem, number of examples and run; -1 where there is none. */
  const findRow = (problem, shots, run) => rowOfCell.get((problem * 1000 + shots) * data.runs.length + run) ?? -1;
  const problemOf = (row) => data.completions.problem[data.rows.completion[row]];
  const runOf = (row) => data.runs[data.rows.run[row]];
  const isSolved = (row) => data.completions.solved[data.rows.completion[row]];

  /** The value of a row that a filter of this name compares. */
  const VALUES = {
    task: (row) => data.tracks[runOf(row).track].key,
    domain: (row) => data.problems.domain[problemOf(row)],
    bucket: (row) => data.problems.bucket[problemOf(row)],
    method: (row) => runOf(row).method,
    size: (row) => String(runOf(row).size),
    seed: (row) => (runOf(row).size ? String(runOf(row).seed) : ""),
    shots: (row) => String(data.rows.shots[row]),
    outcome: (row) => (isSolved(row) ? "solved" : "failed"),
    label: (row) => data.completions.label[data.rows.completion[row]],
  };

  function buildIndex() {
    size = data.rows.run.length;
    rowOfCell = new Map();
    for (let row = 0; row < size; row++) {
      rowOfCell.set((problemOf(row) * 1000 + data.rows.shots[row]) * data.runs.length + data.rows.run[row], row);
    }
    codes = {};
    for (const select of selects.filter((each) => each.name in VALUES)) {
      const places = new Map([...select.options].map((option, i) => [option.value, i]));
      codes[select.name] = Uint16Array.from({ length: size }, (_, row) => places.get(VALUES[select.name](row)) ?? 0);
    }
    lowerTexts = data.texts.map((text) => text.toLowerCase());
    rivals = {};
    for (const value of listChoices("differs")) rivals[value] = data.runs.map((run) => findRival(value, run));
  }

  function listChoices(name) {
    const select = selects.find((each) => each.name === name);
    return select ? [...select.options].map((option) => option.value).filter(Boolean) : [];
  }

  /** The index of the run of a method and N (`grpo-400`) in the track of `run`: with its seed, otherwise the first. */
  function findRival(value, run) {
    const candidates = data.runs.flatMap((other, i) => (`${other.method}-${other.size}` === value && other.track === run.track ? [i] : []));
    return candidates.find((i) => data.runs[i].seed === run.seed) ?? candidates[0] ?? -1;
  }

  // ---- Filters

  /** The rows that pass all filters, and for each filter the number of rows that each choice would leave. */
  function applyFilters() {
    const tests = selects.filter((select) => select.name in codes).map((select) => ({ codes: codes[select.name], choice: select.selectedIndex, counts: new Int32Array(select.options.length) }));
    const rivalRuns = rivals[selects.find((select) => select.name === "differs")?.value];
    const term = search.value.trim().toLowerCase();
    const texts = term && lowerTexts.map((text) => text.includes(term));
    const problems = term && data.problems.id.map((id) => id.toLowerCase().includes(term));
    const rows = [];
    for (let row = 0; row < size; row++) {
      const completion = data.rows.completion[row];
      if (term && !texts[data.completions.text[completion]] && !problems[data.completions.problem[completion]]) continue;
      if (rivalRuns) {
        const other = findRow(data.completions.problem[completion], data.rows.shots[row], rivalRuns[data.rows.run[row]]);
        if (other < 0 || isSolved(other) === isSolved(row)) continue;
      }
      let failed = 0, last = null; // number of filters that exclude the row, and the last of them
      for (const test of tests) {
        if (test.choice && test.codes[row] !== test.choice) {
          failed += 1;
          if (failed > 1) break;
          last = test;
        }
      }
      if (failed === 0) {
        rows.push(row);
        for (const test of tests) test.counts[test.codes[row]] += 1;
      } else if (failed === 1) last.counts[last.codes[row]] += 1;
    }
    return { rows: Int32Array.from(rows), counts: tests.map((test) => test.counts) };
  }

  /** Filter and render again; `keep`: the row to stay at, if it still matches. */
  function refilter(keep = -1) {
    const { rows, counts } = applyFilters();
    matches = rows;
    selects.filter((select) => select.name in codes).forEach((select, i) => showCounts(select, counts[i]));
    active = Math.max(0, matches.indexOf(keep));
    const solved = matches.reduce((sum, row) => sum + isSolved(row), 0);
    status.textContent = matches.length
      ? `${formatNumber(matches.length)} of ${formatNumber(size)} completions; ${formatNumber(solved)} of them (${formatPercent(solved, matches.length)}) solve their problem.`
      : `None of ${formatNumber(size)} completions.`;
    list.setAttribute("aria-rowcount", matches.length + 1);
    rendered = "";
    scroller.scrollTop = Math.max(0, active - 2) * rowHeight;
    renderRows();
  }

  function showCounts(select, counts) {
    for (const option of select.options) {
      if (!option.value) continue;
      option.dataset.title ??= option.textContent;
      const rows = counts[option.index], text = `${option.dataset.title} (${formatNumber(rows)})`;
      if (option.textContent !== text) option.textContent = text;
      option.disabled = rows === 0 && !option.selected;
    }
    select.classList.toggle("set", select.value !== "");
  }

  // ---- The list: only visible rows, and a few around them, are in the document

  function renderRows() {
    const head = list.tHead.offsetHeight;
    const first = Math.max(0, Math.floor(scroller.scrollTop / rowHeight) - OVERSCAN_ROWS);
    const last = Math.min(matches.length, Math.ceil((scroller.scrollTop + scroller.clientHeight - head) / rowHeight) + OVERSCAN_ROWS);
    const state = `${first} ${last} ${active}`;
    if (state === rendered) return;
    rendered = state;
    const focused = body.contains(document.activeElement);
    const tabStop = Math.min(Math.max(active, first), last - 1);
    body.replaceChildren(...Array.from({ length: last - first }, (_, i) => buildRow(first + i, first + i === tabStop)));
    list.style.marginTop = `${first * rowHeight}px`;
    list.style.marginBottom = `${(matches.length - last) * rowHeight}px`;
    if (focused) (findButton(active) ?? scroller).focus({ preventScroll: true });
  }

  function buildRow(position, isTabStop) {
    const row = matches[position], completion = data.rows.completion[row], problem = data.completions.problem[completion], run = runOf(row);
    const button = element("button", { type: "button", tabindex: isTabStop ? 0 : -1 }, data.problems.id[problem]);
    return element(
      "tr",
      { "aria-rowindex": position + 2, "data-position": position, class: position === active ? "active" : null },
      element("th", { scope: "row" }, button),
      element("td", {}, data.problems.domain[problem]),
      element("td", {}, data.problems.bucket[problem]),
      element("td", {}, run.short),
      element("td", {}, run.size ? String(run.size) : ""),
      element("td", {}, String(data.rows.shots[row])),
      element("td", {}, buildOutcome(row)),
      element("td", {}, data.completions.reward[completion].toFixed(2)),
    );
  }

  const findButton = (position) => body.querySelector(`tr[data-position="${position}"] button`);

  /** Move to the nearest valid position in the list and focus it. */
  function moveTo(position) {
    if (!matches.length) return;
    active = Math.min(Math.max(position, 0), matches.length - 1);
    const room = scroller.clientHeight - list.tHead.offsetHeight - rowHeight;
    scroller.scrollTop = Math.min(Math.max(scroller.scrollTop, active * rowHeight - room), active * rowHeight);
    renderRows();
    findButton(active)?.focus({ preventScroll: true });
  }

  function measure() {
    const row = body.querySelector("tr");
    if (row) rowHeight = row.getBoundingClientRect().height || rowHeight;
    rendered = "";
    renderRows();
  }

  // ---- One completion

  function open(row) {
    opened = row;
    const position = matches.indexOf(row);
    const problem = problemOf(row), run = runOf(row);
    byId("browser-title").textContent = `${run.title}, ${formatExamples(data.rows.shots[row])}`;
    const properties = [data.problems.domain[problem], data.problems.bucket[problem], data.problems.constrained[problem] && "with safety constraints"];
    byId("browser-subtitle").textContent = `Problem ${data.problems.id[problem]}: ${properties.filter(Boolean).join(", ")}`;
    parts.replaceChildren(
      element("div", { class: "prompt" }, element("h4", {}, "Problem"), buildText("Problem", data.texts[data.problems.text[problem]]), ...buildExamples(row)),
      element("div", {}, element("h4", {}, "Completion"), ...buildVerdict(row), ...buildCompletion(row)),
      element("div", {}, element("h4", {}, "All completions of this problem"), buildOverview(row)),
      ...buildOthers(row),
    );
    dialog.querySelector("[name=previous]").disabled = position < 1;
    dialog.querySelector("[name=next]").disabled = position < 0 || position === matches.length - 1;
    if (!dialog.open) {
      document.documentElement.classList.add("browsing");
      dialog.showModal();
    }
    dialog.scrollTop = 0;
    byId("browser-title").focus();
    updateAddress();
  }

  function step(by) {
    const position = matches.indexOf(opened);
    if (position >= 0 && matches[position + by] !== undefined) open(matches[position + by]);
  }

  function onClose() {
    document.documentElement.classList.remove("browsing");
    const position = matches.indexOf(opened); // may have changed since the dialog was opened
    opened = -1;
    updateAddress();
    moveTo(position < 0 ? active : position);
  }

  function buildExamples(row) {
    const indices = data.lists[data.rows.list[row]];
    if (!indices.length) return [];
    const items = indices.map((example, i) => {
      const near = i === indices.length - 1 ? ", next to the problem" : "";
      return element("details", {}, element("summary", {}, `Example ${i + 1}${near}: `, element("code", {}, data.examples.id[example])), buildText(`Example ${i + 1}`, data.texts[data.examples.text[example]]));
    });
    return [element("h4", {}, `${indices.length === 1 ? "Worked example" : "Worked examples"} in the prompt`), ...items];
  }

  function buildVerdict(row) {
    const i = data.rows.completion[row], { reward, satisfied, goals, failing, detail } = data.completions;
    const facts = [`Reward ${reward[i].toFixed(3)}`];
    if (satisfied[i] !== null && goals[i] !== null) facts.push(`${satisfied[i]} of ${goals[i]} goals`);
    if (failing[i] !== null) facts.push(`step ${failing[i]} fails`);
    const message = data.texts[detail[i]];
    return [
      element("p", {}, element("strong", {}, buildOutcome(row))),
      element("p", { class: "note" }, `${facts.join(", ")}.`),
      ...(message ? [element("p", { class: "note" }, message)] : []),
    ];
  }

  /** The plan, and the completion where it contains more than the plan. */
  function buildCompletion(row) {
    const i = data.rows.completion[row], text = data.texts[data.completions.text[i]];
    if (!data.tracks[runOf(row).track].plans) return [buildText("Completion", text.trim() || "(empty completion)")];
    const plan = buildPlan(row), containsMore = data.completions.plan[i] !== null;
    return [
      ...(plan ? [plan] : []),
      ...(containsMore ? [element("h4", {}, "Text"), buildText("Completion", text || "(empty completion)")] : []),
    ];
  }

  /** The plan as a numbered list, the failing step marked; null where there is none. */
  function buildPlan(row) {
    const i = data.rows.completion[row];
    const text = data.texts[data.completions.plan[i] ?? data.completions.text[i]].trim();
    if (!text) return null;
    const failing = data.completions.failing[i];
    const remark = data.completions.label[i] === data.safety ? "violates a constraint" : "fails here";
    const steps = text.split("\n").map((action, k) => (k + 1 === failing ? element("li", { class: "failing" }, `${action} ← ${remark}`) : element("li", {}, action)));
    return element("ol", { class: "plan" }, ...steps);
  }

  /** A table of runs by number of worked examples: which solved the problem. Each mark opens its completion. */
  function buildOverview(row) {
    const problem = problemOf(row), track = runOf(row).track;
    const runs = data.runs.flatMap((run, i) => (run.track === track ? [{ run, i }] : []));
    const numbers = [...new Set(data.rows.shots)].sort((a, b) => a - b).filter((k) => runs.some(({ i }) => findRow(problem, k, i) >= 0));
    const buildMark = (other) => {
      if (other < 0) return "";
      const title = `${runOf(other).title}, ${formatExamples(data.rows.shots[other])}: ${formatLabel(VALUES.label(other))}`;
      const attributes = { type: "button", "data-row": other, "aria-label": title, title, class: isSolved(other) ? "solved" : "failed", "aria-current": other === row ? "true" : null };
      return element("button", attributes, isSolved(other) ? "✓" : "✗");
    };
    return element(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "Outcomes of this problem" },
      element(
        "table",
        { "aria-label": "Outcomes of this problem" },
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "worked examples"), ...numbers.map((k) => element("th", { scope: "col" }, String(k))))),
        element("tbody", {}, ...runs.map(({ run, i }) => element("tr", {}, element("th", { scope: "row" }, run.title), ...numbers.map((k) => element("td", {}, buildMark(findRow(problem, k, i))))))),
      ),
    );
  }

  /** The completions of other runs with as many examples; equal ones are shown once. */
  function buildOthers(row) {
    const groups = new Map(), count = data.rows.shots[row];
    data.runs.forEach((_, i) => {
      const other = findRow(problemOf(row), count, i);
      if (other < 0 || other === row) return;
      const completion = data.rows.completion[other];
      groups.set(completion, [...(groups.get(completion) ?? []), other]);
    });
    const articles = [...groups].map(([completion, rows]) => {
      const content = completion === data.rows.completion[row] ? [element("p", { class: "note" }, "The same completion.")] : [...buildVerdict(rows[0]), ...buildCompletion(rows[0])];
      return element("article", { class: "completion" }, element("h5", {}, ...rows.flatMap((other, i) => [i ? "; " : "", element("span", {}, runOf(other).title)])), ...content);
    });
    if (!articles.length) return [];
    return [element("div", { class: "others" }, element("h4", {}, `Completions of other runs, with ${formatExamples(count)}`), element("div", { class: "articles" }, ...articles))];
  }

  const buildOutcome = (row) => element("span", { class: isSolved(row) ? "solved" : "failed" }, `${isSolved(row) ? "✓" : "✗"} ${formatLabel(VALUES.label(row))}`);
  const buildText = (label, text) => element("pre", { tabindex: 0, role: "group", "aria-label": label }, text);

  // ---- The address: filters and the open completion, so that a view can be linked

  const formatRow = (row) => [data.tracks[runOf(row).track].key, runOf(row).name, data.rows.shots[row], data.problems.id[problemOf(row)]].join("/");

  let timer = 0;
  function updateAddress() {
    clearTimeout(timer); // browsers limit the number of changes per second
    timer = setTimeout(() => {
      const state = new URLSearchParams([...selects, search].filter((each) => each.value).map((each) => [each.name, each.value]));
      if (opened >= 0) state.set("open", formatRow(opened));
      const hash = state.size ? ADDRESS + state : "#plans";
      if (state.size || location.hash.startsWith(ADDRESS)) history.replaceState(null, "", hash);
    }, 200);
  }

  /** Set the filters and open the completion in the address. */
  function followAddress() {
    if (!location.hash.startsWith(ADDRESS)) return;
    const state = new URLSearchParams(location.hash.slice(ADDRESS.length));
    for (const each of [...selects, search]) {
      const value = state.get(each.name) ?? "";
      each.value = each === search || [...each.options].some((option) => option.value === value) ? value : "";
    }
    const [track, name, shotNum, id] = (state.get("open") ?? "").split("/");
    let row = -1;
    if (id) {
      const run = data.runs.findIndex((each) => data.tracks[each.track].key === track && each.name === name);
      const problem = data.problems.id.findIndex((each, i) => each === id && data.tracks[data.problems.track[i]].key === track);
      row = run < 0 || problem < 0 ? -1 : findRow(problem, Number(shotNum), run);
    }
    refilter(row);
    root.parentElement.scrollIntoView();
    if (row >= 0) open(row);
    else if (dialog.open) dialog.close();
  }

  // ---- Elements and text

  /** Create an element; strings among the children become text nodes. */
  function element(tag, attributes, ...children) {
    const created = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) created.setAttribute(name, value);
    created.append(...children);
    return created;
  }
  const formatNumber = (value) => value.toLocaleString("en");
  const formatPercent = (part, whole) => `${((100 * part) / whole).toFixed(1)} %`;
  const formatExamples = (count) => `${count} worked example${count === 1 ? "" : "s"}`;
  const formatLabel = (label) => label.replaceAll("_", " ");

  // ---- Events

  function listen() {
    for (const each of [...selects, search]) {
      each.addEventListener("input", () => {
        refilter(matches[active]);
        updateAddress();
      });
    }
    byId("browser-reset").addEventListener("click", () => {
      for (const each of [...selects, search]) each.value = "";
      refilter(matches[active]);
      updateAddress();
    });
    scroller.addEventListener("scroll", renderRows, { passive: true });
    scroller.addEventListener("click", (event) => {
      const row = event.target.closest("tbody tr");
      if (row) open(matches[Number(row.dataset.position)]);
    });
    scroller.addEventListener("focusin", (event) => {
      const row = event.target.closest("tbody tr");
      if (row) active = Number(row.dataset.position);
    });
    scroller.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const page = Math.max(1, Math.floor(scroller.clientHeight / rowHeight) - 2);
      const to = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: matches.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      moveTo(to);
    });
    dialog.addEventListener("close", onClose);
    dialog.addEventListener("click", (event) => {
      const pressed = event.target.closest("button");
      if (event.target === dialog || pressed?.name === "close") dialog.close(); // a click on the backdrop or on Close
      else if (pressed?.name === "previous") step(-1);
      else if (pressed?.name === "next") step(1);
      else if (pressed?.dataset.row) open(Number(pressed.dataset.row));
    });
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") step(-1);
      if (event.key === "ArrowRight") step(1);
    });
    addEventListener("resize", measure);
    addEventListener("hashchange", followAddress);
  }

  async function start() {
    data = await unpack(byId("browser-payload").textContent);
    buildIndex();
    root.hidden = false;
    refilter();
    measure();
    listen();
    followAddress();
    note.hidden = true;
    performance.mark("plan browser ready");
  }

  note.hidden = false;
  if (typeof DecompressionStream === "undefined") {
    note.textContent = "This browser cannot decompress the completions: it has no DecompressionStream. Use a newer one.";
  } else {
    note.textContent = "Decompressing the completions …";
    // Only after the first paint of the page.
    addEventListener("load", () => setTimeout(() => start().catch((error) => {
      note.textContent = `The completions cannot be shown: ${error.message}`;
      console.error(error);
    })));
  }
}
