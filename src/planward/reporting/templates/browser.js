// The plan browser. Data comes packed from reporting/browser.py: tables as columns that refer to each other by place.
// Whatever a model wrote reaches the page as text nodes only.
"use strict";
{
  const byId = (id) => document.getElementById(id);
  const root = byId("browser"), note = byId("browser-note"), status = byId("browser-status");
  const scroller = byId("browser-rows"), body = scroller.querySelector("tbody"), list = scroller.querySelector("table");
  const dialog = byId("browser-answer"), parts = dialog.querySelector(".parts");
  const selects = [...root.querySelectorAll("select")], search = root.querySelector("input");
  const ADDRESS = "#plans?"; // and then the filters, and `open` with the answer that is looked at
  const SPARE = 8; // rows that are drawn above and below those in sight

  let data, size; // size: number of answers
  let codes; // of each filter: the place of its choice for every answer; 0 for none
  let same; // answers by problem, number of examples and run, see `cell`
  let lowered; // all texts in lower case
  let counterpart; // of a choice of `differs` and a run: the run that it is compared with
  let matches = new Int32Array(), active = 0, opened = -1;
  let rowHeight = 32, drawn = "";

  // ---- Data

  /** The packed tables as an object. */
  async function unpacked(text) {
    const bytes = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  /** The answer to a row's problem with so many examples of a run, as a row; -1 where there is none. */
  const cell = (problem, shots, run) => same.get((problem * 1000 + shots) * data.runs.length + run) ?? -1;
  const problemOf = (row) => data.answers.problem[data.rows.answer[row]];
  const runOf = (row) => data.runs[data.rows.run[row]];
  const solved = (row) => data.answers.solved[data.rows.answer[row]];

  /** What a filter of this name looks at in a row. */
  const VALUES = {
    task: (row) => data.tasks[runOf(row).task].key,
    domain: (row) => data.problems.domain[problemOf(row)],
    bucket: (row) => data.problems.bucket[problemOf(row)],
    method: (row) => runOf(row).method,
    size: (row) => String(runOf(row).size),
    seed: (row) => (runOf(row).size ? String(runOf(row).seed) : ""),
    shots: (row) => String(data.rows.shots[row]),
    outcome: (row) => (solved(row) ? "solved" : "failed"),
    label: (row) => data.answers.label[data.rows.answer[row]],
  };

  function index() {
    size = data.rows.run.length;
    same = new Map();
    for (let row = 0; row < size; row++) {
      same.set((problemOf(row) * 1000 + data.rows.shots[row]) * data.runs.length + data.rows.run[row], row);
    }
    codes = {};
    for (const select of selects.filter((each) => each.name in VALUES)) {
      const places = new Map([...select.options].map((option, place) => [option.value, place]));
      codes[select.name] = Uint16Array.from({ length: size }, (_, row) => places.get(VALUES[select.name](row)) ?? 0);
    }
    lowered = data.texts.map((text) => text.toLowerCase());
    counterpart = {};
    for (const value of choices("differs")) counterpart[value] = data.runs.map((run) => rival(value, run));
  }

  function choices(name) {
    const select = selects.find((each) => each.name === name);
    return select ? [...select.options].map((option) => option.value).filter(Boolean) : [];
  }

  /** The place of the run of a method and N (`grpo-400`) in another run's task: of its seed, else the first. */
  function rival(value, run) {
    const found = data.runs.flatMap((other, place) => (`${other.method}-${other.size}` === value && other.task === run.task ? [place] : []));
    return found.find((place) => data.runs[place].seed === run.seed) ?? found[0] ?? -1;
  }

  // ---- Filters

  /** Rows that pass all filters, and for each filter how many rows each choice would leave. */
  function filtered() {
    const tests = selects.filter((select) => select.name in codes).map((select) => ({ codes: codes[select.name], wanted: select.selectedIndex, counts: new Int32Array(select.options.length) }));
    const others = counterpart[selects.find((select) => select.name === "differs")?.value];
    const wanted = search.value.trim().toLowerCase();
    const texts = wanted && lowered.map((text) => text.includes(wanted));
    const problems = wanted && data.problems.id.map((id) => id.toLowerCase().includes(wanted));
    const found = [];
    for (let row = 0; row < size; row++) {
      const answer = data.rows.answer[row];
      if (wanted && !texts[data.answers.text[answer]] && !problems[data.answers.problem[answer]]) continue;
      if (others) {
        const other = cell(data.answers.problem[answer], data.rows.shots[row], others[data.rows.run[row]]);
        if (other < 0 || solved(other) === solved(row)) continue;
      }
      let failed = 0, last = null; // how many filters keep the row out, and the last of them
      for (const test of tests) {
        if (test.wanted && test.codes[row] !== test.wanted) {
          failed += 1;
          if (failed > 1) break;
          last = test;
        }
      }
      if (failed === 0) {
        found.push(row);
        for (const test of tests) test.counts[test.codes[row]] += 1;
      } else if (failed === 1) last.counts[last.codes[row]] += 1;
    }
    return { found: Int32Array.from(found), counts: tests.map((test) => test.counts) };
  }

  /** Filter and draw anew; `keep`: a row to stay at, if it still matches. */
  function refilter(keep = -1) {
    const { found, counts } = filtered();
    matches = found;
    selects.filter((select) => select.name in codes).forEach((select, i) => count(select, counts[i]));
    active = Math.max(0, matches.indexOf(keep));
    const good = matches.reduce((sum, row) => sum + solved(row), 0);
    status.textContent = matches.length
      ? `${number(matches.length)} of ${number(size)} answers; ${number(good)} of them (${percent(good, matches.length)}) solve their problem.`
      : `None of ${number(size)} answers.`;
    list.setAttribute("aria-rowcount", matches.length + 1);
    drawn = "";
    scroller.scrollTop = Math.max(0, active - 2) * rowHeight;
    draw();
  }

  function count(select, counts) {
    for (const option of select.options) {
      if (!option.value) continue;
      option.dataset.title ??= option.textContent;
      const rows = counts[option.index], text = `${option.dataset.title} (${number(rows)})`;
      if (option.textContent !== text) option.textContent = text;
      option.disabled = rows === 0 && !option.selected;
    }
    select.classList.toggle("set", select.value !== "");
  }

  // ---- The list: only rows in sight, and a few around them, are in the document

  function draw() {
    const head = list.tHead.offsetHeight;
    const first = Math.max(0, Math.floor(scroller.scrollTop / rowHeight) - SPARE);
    const last = Math.min(matches.length, Math.ceil((scroller.scrollTop + scroller.clientHeight - head) / rowHeight) + SPARE);
    const now = `${first} ${last} ${active}`;
    if (now === drawn) return;
    drawn = now;
    const focused = body.contains(document.activeElement);
    const stop = Math.min(Math.max(active, first), last - 1); // the row that Tab reaches
    body.replaceChildren(...Array.from({ length: last - first }, (_, i) => line(first + i, first + i === stop)));
    list.style.marginTop = `${first * rowHeight}px`;
    list.style.marginBottom = `${(matches.length - last) * rowHeight}px`;
    if (focused) (button(active) ?? scroller).focus({ preventScroll: true });
  }

  function line(place, stop) {
    const row = matches[place], answer = data.rows.answer[row], problem = data.answers.problem[answer], run = runOf(row);
    const open = element("button", { type: "button", tabindex: stop ? 0 : -1 }, data.problems.id[problem]);
    return element(
      "tr",
      { "aria-rowindex": place + 2, "data-place": place, class: place === active ? "active" : null },
      element("th", { scope: "row" }, open),
      element("td", {}, data.problems.domain[problem]),
      element("td", {}, data.problems.bucket[problem]),
      element("td", {}, run.short),
      element("td", {}, run.size ? String(run.size) : ""),
      element("td", {}, String(data.rows.shots[row])),
      element("td", {}, outcome(row)),
      element("td", {}, data.answers.reward[answer].toFixed(2)),
    );
  }

  const button = (place) => body.querySelector(`tr[data-place="${place}"] button`);

  /** Go to a place in the list, as near as there is one, and focus it. */
  function walk(place) {
    if (!matches.length) return;
    active = Math.min(Math.max(place, 0), matches.length - 1);
    const room = scroller.clientHeight - list.tHead.offsetHeight - rowHeight;
    scroller.scrollTop = Math.min(Math.max(scroller.scrollTop, active * rowHeight - room), active * rowHeight);
    draw();
    button(active)?.focus({ preventScroll: true });
  }

  function measure() {
    const row = body.querySelector("tr");
    if (row) rowHeight = row.getBoundingClientRect().height || rowHeight;
    drawn = "";
    draw();
  }

  // ---- One answer

  function open(row) {
    opened = row;
    const place = matches.indexOf(row);
    const problem = problemOf(row), run = runOf(row);
    byId("browser-title").textContent = `${run.title}, ${shots(data.rows.shots[row])}`;
    const kind = [data.problems.domain[problem], data.problems.bucket[problem], data.problems.constrained[problem] && "with safety constraints"];
    byId("browser-subtitle").textContent = `Problem ${data.problems.id[problem]}: ${kind.filter(Boolean).join(", ")}`;
    parts.replaceChildren(
      element("div", { class: "asked" }, element("h4", {}, "Problem"), scrolling("Problem", data.texts[data.problems.text[problem]]), ...examples(row)),
      element("div", {}, element("h4", {}, "Answer"), ...verdict(row), ...written(row)),
      element("div", {}, element("h4", {}, "All answers to this problem"), overview(row)),
      ...others(row),
    );
    dialog.querySelector("[name=previous]").disabled = place < 1;
    dialog.querySelector("[name=next]").disabled = place < 0 || place === matches.length - 1;
    if (!dialog.open) {
      document.documentElement.classList.add("browsing");
      dialog.showModal();
    }
    dialog.scrollTop = 0;
    byId("browser-title").focus();
    address();
  }

  function step(by) {
    const place = matches.indexOf(opened);
    if (place >= 0 && matches[place + by] !== undefined) open(matches[place + by]);
  }

  function closed() {
    document.documentElement.classList.remove("browsing");
    const place = matches.indexOf(opened); // not where the dialog was opened: it may have been left since
    opened = -1;
    address();
    walk(place < 0 ? active : place);
  }

  function examples(row) {
    const shown = data.lists[data.rows.list[row]];
    if (!shown.length) return [];
    const items = shown.map((example, i) => {
      const near = i === shown.length - 1 ? ", next to the problem" : "";
      return element("details", {}, element("summary", {}, `Example ${i + 1}${near}: `, element("code", {}, data.examples.id[example])), scrolling(`Example ${i + 1}`, data.texts[data.examples.text[example]]));
    });
    return [element("h4", {}, `${shown.length === 1 ? "Worked example" : "Worked examples"} in the prompt`), ...items];
  }

  function verdict(row) {
    const answer = data.rows.answer[row], { reward, satisfied, goals, failing, detail } = data.answers;
    const said = [`Reward ${reward[answer].toFixed(3)}`];
    if (satisfied[answer] !== null && goals[answer] !== null) said.push(`${satisfied[answer]} of ${goals[answer]} goals`);
    if (failing[answer] !== null) said.push(`step ${failing[answer]} fails`);
    const why = data.texts[detail[answer]];
    return [
      element("p", {}, element("strong", {}, outcome(row))),
      element("p", { class: "note" }, `${said.join(", ")}.`),
      ...(why ? [element("p", { class: "note" }, why)] : []),
    ];
  }

  /** The plan, and the completion where it says more than the plan. */
  function written(row) {
    const answer = data.rows.answer[row], text = data.texts[data.answers.text[answer]];
    if (data.tasks[runOf(row).task].key === "economy") return [scrolling("Completion", text.trim() || "(empty completion)")];
    const whole = data.answers.plan[answer] !== null;
    return [
      ...(plan(row) ? [plan(row)] : []),
      ...(whole ? [element("h4", {}, "Completion"), scrolling("Completion", text || "(empty completion)")] : []),
    ];
  }

  /** The plan as a numbered list, the failing step marked; null where there is none. */
  function plan(row) {
    const answer = data.rows.answer[row], place = data.answers.plan[answer];
    const text = data.texts[place ?? data.answers.text[answer]].trim();
    if (!text) return null;
    const failing = data.answers.failing[answer];
    const why = data.answers.label[answer] === data.safety ? "breaks a constraint" : "fails here";
    const steps = text.split("\n").map((action, i) => (i + 1 === failing ? element("li", { class: "failing" }, `${action} ← ${why}`) : element("li", {}, action)));
    return element("ol", { class: "plan" }, ...steps);
  }

  /** A table of runs by number of worked examples: who solved the problem; each mark opens its answer. */
  function overview(row) {
    const problem = problemOf(row), task = runOf(row).task;
    const cells = data.runs.flatMap((run, place) => (run.task === task ? [{ run, place }] : []));
    const numbers = [...new Set(data.rows.shots)].sort((a, b) => a - b).filter((k) => cells.some(({ place }) => cell(problem, k, place) >= 0));
    const mark = (other) => {
      if (other < 0) return "";
      const said = `${runOf(other).title}, ${shots(data.rows.shots[other])}: ${words(VALUES.label(other))}`;
      const attributes = { type: "button", "data-row": other, "aria-label": said, title: said, class: solved(other) ? "solved" : "failed", "aria-current": other === row ? "true" : null };
      return element("button", attributes, solved(other) ? "✓" : "✗");
    };
    return element(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "Outcomes of this problem" },
      element(
        "table",
        { "aria-label": "Outcomes of this problem" },
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "worked examples"), ...numbers.map((k) => element("th", { scope: "col" }, String(k))))),
        element("tbody", {}, ...cells.map(({ run, place }) => element("tr", {}, element("th", { scope: "row" }, run.title), ...numbers.map((k) => element("td", {}, mark(cell(problem, k, place))))))),
      ),
    );
  }

  /** The other runs' answers with as many examples, those that are the same together. */
  function others(row) {
    const groups = new Map(), count = data.rows.shots[row];
    data.runs.forEach((_, place) => {
      const other = cell(problemOf(row), count, place);
      if (other < 0 || other === row) return;
      const answer = data.rows.answer[other];
      groups.set(answer, [...(groups.get(answer) ?? []), other]);
    });
    const cards = [...groups].map(([answer, rows]) => {
      const content = answer === data.rows.answer[row] ? [element("p", { class: "note" }, "The same answer.")] : [...verdict(rows[0]), ...written(rows[0])];
      return element("article", { class: "answer" }, element("h5", {}, ...rows.flatMap((other, i) => [i ? "; " : "", element("span", {}, runOf(other).title)])), ...content);
    });
    if (!cards.length) return [];
    return [element("div", { class: "others" }, element("h4", {}, `What the others answered, with ${shots(count)}`), element("div", { class: "cards" }, ...cards))];
  }

  const outcome = (row) => element("span", { class: solved(row) ? "solved" : "failed" }, `${solved(row) ? "✓" : "✗"} ${words(VALUES.label(row))}`);
  const scrolling = (label, text) => element("pre", { tabindex: 0, role: "group", "aria-label": label }, text);

  // ---- The address: filters and the open answer, so that a view can be linked

  const named = (row) => [data.tasks[runOf(row).task].key, runOf(row).name, data.rows.shots[row], data.problems.id[problemOf(row)]].join("/");

  let waiting = 0;
  function address() {
    clearTimeout(waiting); // browsers take a limited number of changes a second
    waiting = setTimeout(() => {
      const state = new URLSearchParams([...selects, search].filter((each) => each.value).map((each) => [each.name, each.value]));
      if (opened >= 0) state.set("open", named(opened));
      const hash = state.size ? ADDRESS + state : "#plans";
      if (state.size || location.hash.startsWith(ADDRESS)) history.replaceState(null, "", hash);
    }, 200);
  }

  /** Set filters, and open an answer, as the address says. */
  function follow() {
    if (!location.hash.startsWith(ADDRESS)) return;
    const state = new URLSearchParams(location.hash.slice(ADDRESS.length));
    for (const each of [...selects, search]) {
      const value = state.get(each.name) ?? "";
      each.value = each === search || [...each.options].some((option) => option.value === value) ? value : "";
    }
    const [task, name, shotNum, id] = (state.get("open") ?? "").split("/");
    let row = -1;
    if (id) {
      const run = data.runs.findIndex((each) => data.tasks[each.task].key === task && each.name === name);
      const problem = data.problems.id.findIndex((each, place) => each === id && data.tasks[data.problems.task[place]].key === task);
      row = run < 0 || problem < 0 ? -1 : cell(problem, Number(shotNum), run);
    }
    refilter(row);
    root.parentElement.scrollIntoView();
    if (row >= 0) open(row);
    else if (dialog.open) dialog.close();
  }

  // ---- Small things

  /** An element; strings among the children become text nodes. */
  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  const number = (value) => value.toLocaleString("en");
  const percent = (part, whole) => `${((100 * part) / whole).toFixed(1)} %`;
  const shots = (count) => `${count} worked example${count === 1 ? "" : "s"}`;
  const words = (label) => label.replaceAll("_", " ");

  // ---- Events

  function listen() {
    for (const each of [...selects, search]) {
      each.addEventListener("input", () => {
        refilter(matches[active]);
        address();
      });
    }
    byId("browser-reset").addEventListener("click", () => {
      for (const each of [...selects, search]) each.value = "";
      refilter(matches[active]);
      address();
    });
    scroller.addEventListener("scroll", draw, { passive: true });
    scroller.addEventListener("click", (event) => {
      const row = event.target.closest("tbody tr");
      if (row) open(matches[Number(row.dataset.place)]);
    });
    scroller.addEventListener("focusin", (event) => {
      const row = event.target.closest("tbody tr");
      if (row) active = Number(row.dataset.place);
    });
    scroller.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const page = Math.max(1, Math.floor(scroller.clientHeight / rowHeight) - 2);
      const to = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: matches.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      walk(to);
    });
    dialog.addEventListener("close", closed);
    dialog.addEventListener("click", (event) => {
      const pressed = event.target.closest("button");
      if (event.target === dialog || pressed?.name === "close") dialog.close(); // outside of it, or its button
      else if (pressed?.name === "previous") step(-1);
      else if (pressed?.name === "next") step(1);
      else if (pressed?.dataset.row) open(Number(pressed.dataset.row));
    });
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") step(-1);
      if (event.key === "ArrowRight") step(1);
    });
    addEventListener("resize", measure);
    addEventListener("hashchange", follow);
  }

  async function start() {
    data = await unpacked(byId("browser-payload").textContent);
    index();
    root.hidden = false;
    refilter();
    measure();
    listen();
    follow();
    note.hidden = true;
    performance.mark("plan browser ready");
  }

  note.hidden = false;
  if (typeof DecompressionStream === "undefined") {
    note.textContent = "This browser cannot unpack the answers (it has no DecompressionStream): a newer one can.";
  } else {
    note.textContent = "Unpacking the answers …";
    // After the first picture of the page, not before.
    addEventListener("load", () => setTimeout(() => start().catch((error) => {
      note.textContent = `The answers cannot be shown: ${error.message}`;
      console.error(error);
    })));
  }
}
