"use strict";
// Draws the figures of the page when they come into view, in the colours of its style sheet, and makes long tables
// sortable, searchable and short. Everything shown is text: nothing of a receipt is ever taken for markup.
(() => {
  const SYMBOLS = { dot: "circle", open: "circle-open", square: "square-open", diamond: "diamond-open", cross: "x" };
  const ROWS = 25;
  const SEARCHABLE = 8;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(typeof name === "number" ? `--c${name % 8}` : `--${name}`).trim();
  // plotly takes a few tags for markup in its labels
  const escape = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const reads = (figure) => JSON.parse(figure.querySelector('script[type="application/json"]').textContent);

  // a panel with one series says by its axis what it is; a series of several panels is named once
  function legendOf(data) {
    const shown = new Set();
    for (const panel of data.panels) {
      const named = panel.traces.filter((trace) => !trace.name.startsWith("_") && (trace.group || trace.name) === trace.name);
      if (named.length > 1) named.forEach((trace) => shown.add(trace.name));
    }
    return shown;
  }

  function traceOf(trace, panel, data) {
    const ink = colour(trace.colour);
    const axis = panel === 0 ? "" : String(panel + 1);
    const made = {
      type: trace.mode === "bars" ? "bar" : "scatter",
      x: data.categories ? trace.x.map(escape) : trace.x,
      y: trace.y,
      xaxis: "x",
      yaxis: `y${axis}`,
      name: escape(trace.name.replace(/^_/, "")),
      showlegend: data.legend.delete(trace.name),
      legendgroup: trace.group || undefined,
      connectgaps: false,
    };
    if (trace.mode === "bars") {
      made.marker = { color: ink };
      made.width = 0.6;
    } else {
      made.mode = trace.mode === "markers" ? "markers" : trace.mode === "both" ? "lines+markers" : "lines";
      made.line = { color: ink, width: 2, dash: trace.dashed ? "dot" : "solid", shape: trace.mode === "step" ? "hv" : "linear" };
      made.marker = { color: ink, size: trace.x.length > 300 ? 4 : 8, symbol: SYMBOLS[trace.symbol] };
    }
    if (trace.links) made.customdata = trace.links;
    if (trace.texts) made.text = trace.texts.map(escape);
    // a line through points is not what is pointed at
    if (!trace.texts && data.panels[panel].traces.some((other) => other.texts)) made.hoverinfo = "skip";
    else made.hovertemplate = (trace.texts ? "%{text}<br>" : `${made.name.replace(/[%{}]/g, " ")}<br>`) + "%{x}, %{y}<extra></extra>";
    if (trace.low && trace.high && trace.mode !== "bars") {
      made.error_y = {
        type: "data", symmetric: false, color: ink, thickness: 1, width: 2,
        array: trace.y.map((y, i) => (y == null || trace.high[i] == null ? 0 : trace.high[i] - y)),
        arrayminus: trace.y.map((y, i) => (y == null || trace.low[i] == null ? 0 : y - trace.low[i])),
      };
    }
    return made;
  }

  function layoutOf(data, traces, width) {
    const ink = colour("ink"), grid = colour("grid");
    const entries = traces.filter((trace) => trace.showlegend).length;
    const columns = width < 640 ? 1 : 2;
    const legend = entries ? 20 * Math.ceil(entries / columns) + 10 : 0;
    const axis = { gridcolor: grid, linecolor: grid, zerolinecolor: grid, tickfont: { size: 11 }, automargin: true };
    const count = data.panels.length;
    const layout = {
      height: 95 + legend + (count === 1 ? 300 : 150 * count),
      margin: { l: 55, r: 15, t: 10 + legend, b: 50 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 12, family: "system-ui, sans-serif" },
      barmode: data.stacked ? "stack" : "group",
      showlegend: entries > 0,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("faint"), activecolor: ink },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { size: 11 }, bgcolor: "rgba(0,0,0,0)" },
      hovermode: "closest",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      hoverlabel: { bgcolor: colour("raised"), bordercolor: grid, font: { color: ink, size: 12 }, align: "left" },
      xaxis: { ...axis, title: { text: escape(data.x), font: { size: 12 } }, type: data.categories ? "category" : data.logX ? "log" : "linear", anchor: count > 1 ? `y${count}` : "y" },
      shapes: [],
    };
    data.panels.forEach((panel, index) => {
      const key = index === 0 ? "yaxis" : `yaxis${index + 1}`;
      const slot = 1 / count, gap = count > 1 ? 0.03 : 0;
      layout[key] = {
        ...axis, title: { text: escape(panel.y), font: { size: 11 } }, type: panel.logY ? "log" : "linear",
        domain: [1 - slot * (index + 1) + gap, 1 - slot * index], rangemode: panel.zero ? "tozero" : "normal",
      };
      if (panel.top != null) { layout[key].range = [0, panel.top * 1.02]; }
    });
    for (const [begin, end] of data.bands) {
      layout.shapes.push({
        type: "rect", xref: "x", yref: "paper", x0: begin, x1: end, y0: 0, y1: 1, layer: "below",
        fillcolor: grid, opacity: 0.45, line: { width: begin === end ? 1 : 0, color: colour("faint") },
      });
    }
    return layout;
  }

  function draw(figure) {
    const data = reads(figure);
    const plot = figure.querySelector(".plot");
    data.categories = data.panels.some((panel) => panel.traces.some((trace) => trace.mode === "bars"));
    data.legend = legendOf(data);
    const traces = data.panels.flatMap((panel, index) => panel.traces.map((trace) => traceOf(trace, index, data)));
    const config = {
      responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      displayModeBar: matchMedia("(pointer: coarse)").matches ? false : "hover",
    };
    plot.hidden = false;
    const first = !plot.classList.contains("js-plotly-plot");
    Plotly.react(plot, traces, layoutOf(data, traces, plot.clientWidth), config).then(() => {
      figure.classList.add("drawn");
      if (first) {
        plot.on("plotly_click", (event) => {
          const hit = event.points.find((point) => typeof point.customdata === "string" && point.customdata);
          if (hit) open(hit.customdata, "_blank", "noopener");
        });
      }
    });
  }

  function figures() {
    const all = [...document.querySelectorAll("figure[data-figure]")];
    if (typeof Plotly === "undefined" || !all.length) return;
    const seen = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
        }
      },
      { rootMargin: "400px" },
    );
    all.forEach((figure) => seen.observe(figure));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      all.filter((figure) => figure.classList.contains("drawn")).forEach(draw);
    });
  }

  function number(cell) {
    const value = parseFloat(cell.dataset.sort);
    return Number.isNaN(value) ? null : value;
  }

  function sorted(table, column, head) {
    const body = table.tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows];
    rows.sort((a, b) => {
      const x = number(a.cells[column]), y = number(b.cells[column]);
      if (x === null && y === null) {
        return (up ? 1 : -1) * a.cells[column].textContent.localeCompare(b.cells[column].textContent, undefined, { numeric: true });
      }
      if (x === null || y === null) return x === null ? 1 : -1; // what is missing comes last, whichever way
      return up ? x - y : y - x;
    });
    body.append(...rows);
  }

  function tables() {
    for (const table of document.querySelectorAll("table")) {
      const rows = [...table.tBodies[0].rows];
      if (rows.length < 2) continue;
      const state = { all: rows.length <= ROWS, words: "" };
      const tools = document.createElement("div");
      tools.className = "tools";
      const more = document.createElement("button");
      const show = () => {
        let shown = 0;
        for (const row of table.tBodies[0].rows) {
          const fits = !state.words || row.textContent.toLowerCase().includes(state.words);
          row.classList.toggle("other", !fits);
          row.classList.toggle("later", fits && !state.all && shown >= ROWS);
          if (fits) shown += 1;
        }
        more.hidden = shown <= ROWS;
        more.textContent = state.all ? `Show ${ROWS} only` : `Show all ${shown}`;
      };
      [...table.tHead.rows[0].cells].forEach((head, column) => {
        const button = document.createElement("button");
        button.textContent = head.textContent;
        button.addEventListener("click", () => { sorted(table, column, head); show(); });
        head.replaceChildren(button);
      });
      if (rows.length > SEARCHABLE) {
        const field = document.createElement("input");
        field.type = "search";
        field.placeholder = "filter rows";
        field.setAttribute("aria-label", "filter rows");
        field.addEventListener("input", () => { state.words = field.value.toLowerCase(); show(); });
        tools.append(field, more);
        more.type = "button";
        more.addEventListener("click", () => { state.all = !state.all; show(); });
        table.parentElement.before(tools);
      }
      show();
    }
  }

  function printing() {
    let opened = [];
    addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("details:not([open])")];
      opened.forEach((details) => { details.open = true; });
    });
    addEventListener("afterprint", () => opened.forEach((details) => { details.open = false; }));
  }

  tables();
  printing();
  figures();
})();
