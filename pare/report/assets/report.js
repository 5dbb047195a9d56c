"use strict";
// Draws the figures of a report from the JSON beside each of them. Everything is in the page; nothing is fetched.
(() => {
  const root = document.documentElement;
  const figures = [...document.querySelectorAll("figure")].map((node) => ({
    node,
    plot: node.querySelector(".plot"),
    data: JSON.parse(node.querySelector('script[type="application/json"]').textContent),
    panel: 0,
  }));
  const drawings = figures.filter((figure) => figure.plot);  // what is one number is a sentence

  // Plotly takes some tags in labels as markup, and %{...} as a place for a value. Names come from files: they are text,
  // and must not turn the direction of what stands around them.
  const SAFE = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "%": "&#37;" };
  const plain = (text) => String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd").replace(/[&<>%]/g, (c) => SAFE[c]);
  const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
  const short = (text) => plain(cut(String(text), isNarrow() ? 28 : 48));  // where it has to fit; the table has all of it
  const axisTitle = (axis) => plain(axis.unit ? `${axis.words} (${axis.unit})` : axis.words);
  const withUnit = (axis) => (axis.unit ? ` ${plain(axis.unit)}` : "");
  const wrapped = (text, width) => {
    const lines = [""];
    for (const word of cut(String(text), 4 * width).split(/(?<=[ ._/])/)) {
      if (lines.at(-1).length + word.length > width && lines.at(-1)) lines.push("");
      lines[lines.length - 1] += cut(word, width);
    }
    return lines.map(plain).join("<br>");
  };
  // Categories of one name are one category to Plotly, so names that are alike once cut get their number.
  const unique = (names) => {
    const labels = names.map((name) => plain(cut(String(name), isNarrow() ? 22 : 30)));
    return labels.map((label, i) => (labels.indexOf(label) === i && labels.lastIndexOf(label) === i ? label : `${label} [${i}]`));
  };
  const isNarrow = () => window.matchMedia("(max-width: 640px)").matches;

  // ---- colours

  function theme() {
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue(name).trim();
    return {
      ink: colour("--ink"), soft: colour("--soft"), grid: colour("--grid"), line: colour("--line"), card: colour("--card"),
      series: colour("--series").split(",").map((c) => c.trim()), dark: style.colorScheme === "dark",
    };
  }

  const faded = (hex, share) => {
    const part = (at) => parseInt(hex.slice(at, at + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${share})`;
  };

  // Dark to light on a light page would lose its light end: each page gets the part of viridis that it can show.
  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
  function orderedScale(dark) {
    const colours = dark ? VIRIDIS.slice(2) : VIRIDIS.slice(0, 8);
    return colours.map((colour, i) => [i / (colours.length - 1), colour]);
  }
  function orderedColour(share, dark) {
    const scale = orderedScale(dark);
    const place = share * (scale.length - 1), low = Math.floor(place), high = Math.min(low + 1, scale.length - 1);
    const mix = (at) => Math.round(parseInt(scale[low][1].slice(at, at + 2), 16) * (1 - place + low) + parseInt(scale[high][1].slice(at, at + 2), 16) * (place - low));
    return "#" + [1, 3, 5].map((at) => mix(at).toString(16).padStart(2, "0")).join("");
  }

  // ---- figures

  // A mean may be nearer to the end of what is possible than its deviation is long: no rank is below 0.
  const lowEnd = (y, spread, axis) => Math.max(y - spread, axis.least ?? -Infinity, axis.log ? y / 10 : -Infinity);
  const highEnd = (y, spread, axis) => Math.min(y + spread, axis.most ?? Infinity);

  // One closed shape for each run of points that have a spread.
  function bands(series, axis) {
    const runs = [[]];
    series.y.forEach((y, i) => {
      const spread = series.spread[i];
      if (y === null || spread === null || (axis.log && y <= 0)) runs.push([]);
      else runs.at(-1).push([series.x[i], lowEnd(y, spread, axis), highEnd(y, spread, axis)]);
    });
    return runs.filter((run) => run.length > 1).map((run) => ({
      x: [...run.map((p) => p[0]), ...run.map((p) => p[0]).reverse()],
      y: [...run.map((p) => p[2]), ...run.map((p) => p[1]).reverse()],
    }));
  }

  function seriesColours(data, look) {
    const orders = data.series.map((s) => s.order).filter((order) => order !== undefined);
    if (orders.length < data.series.length || orders.length < 4) {
      return data.series.map((_, i) => look.series[i % look.series.length]);
    }
    const least = Math.min(...orders), most = Math.max(...orders);
    return orders.map((order) => orderedColour((order - least) / (most - least || 1), look.dark));
  }

  // What the colours of many ordered lines mean is said by a scale, not by a legend of many rows.
  const hasScale = (data) => data.series.length > 6 && data.series.every((s) => s.order !== undefined);
  function scaleTrace(data, look) {
    const orders = data.series.map((s) => s.order);
    return {
      x: [null], y: [null], mode: "markers", hoverinfo: "skip", showlegend: false,
      marker: {
        color: [Math.min(...orders)], cmin: Math.min(...orders), cmax: Math.max(...orders), colorscale: orderedScale(look.dark), showscale: true,
        colorbar: { title: { text: plain(data.order_words), side: "right" }, thickness: 10, outlinewidth: 0, nticks: 6 },
      },
    };
  }

  // Few lines are read together, at one place; its name then stands above them.
  const isUnified = (data) => data.kind === "lines" && data.series.length > 1 && data.series.length <= 6;

  function drawnLines(data, look) {
    const colours = seriesColours(data, look), traces = [];
    const many = Math.max(...data.series.map((s) => s.x.length)) > 40;
    data.series.forEach((series, i) => {
      if (series.spread && data.kind === "lines") {
        bands(series, data.y).forEach((band) => traces.push({
          ...band, fill: "toself", fillcolor: faded(colours[i], 0.16), line: { width: 0 }, mode: "lines", hoverinfo: "skip",
          showlegend: false, legendgroup: `g${i}`,
        }));
      }
      traces.push({
        x: series.x, y: series.y, name: short(series.name), legendgroup: `g${i}`,
        mode: data.kind === "scatter" ? "markers" : many ? "lines" : "lines+markers",
        line: { color: colours[i], width: 2 }, marker: { color: colours[i], size: data.kind === "scatter" ? 8 : 5, opacity: data.kind === "scatter" ? 0.8 : 1 },
        customdata: series.y.map((_, k) => [series.spread && series.spread[k] !== null ? ` ± ${series.spread[k].toPrecision(3)}` : "", series.labels ? plain(series.labels[k]) + "<br>" : ""]),
        hovertemplate: `%{customdata[1]}${isUnified(data) ? "" : plain(data.x.words) + " %{x}<br>"}<b>%{y:.4~g}%{customdata[0]}</b>${withUnit(data.y)}<extra>${short(series.name)}</extra>`,
      });
    });
    if (hasScale(data)) traces.push(scaleTrace(data, look));
    return traces;
  }

  // Lying, so that names of tensors and passes can be read; the first one on top.
  function drawnBars(data, look) {
    const bars = data.series.map((series, i) => ({
      type: "bar", orientation: "h", name: short(series.name), x: series.y, y: series.x, marker: { color: look.series[i % look.series.length] },
      error_x: series.spread ? whiskers(series, data.y, look) : undefined,
      customdata: series.x.map((place, k) => [plain(data.x.names[place]), series.labels ? `<br>${plain(series.labels[k])}` : ""]),
      text: series.y.map((y) => (y === null ? "" : bare(y))), textposition: series.spread || barHeight(data) < 13 ? "none" : "auto", textangle: 0, constraintext: "none", textfont: { size: 11.5 }, insidetextfont: { color: look.card }, insidetextanchor: "end", cliponaxis: false,
      hovertemplate: `%{customdata[0]}<br><b>%{x:,.4~g}</b>${withUnit(data.y)}%{customdata[1]}<extra>${short(series.name)}</extra>`,
    }));
    return data.series.length === 1 && data.series[0].spread ? [...bars, beyondWhiskers(data, look)] : bars;
  }
  function whiskers(series, axis, look) {
    const length = (end) => series.y.map((y, i) => (y === null || series.spread[i] === null ? 0 : Math.abs(end(y, series.spread[i], axis) - y)));
    return { type: "data", symmetric: false, array: length(highEnd), arrayminus: length(lowEnd), color: look.soft, thickness: 1.2, width: 3 };
  }
  // The numbers of bars with whiskers stand behind these, which would strike them through.
  function beyondWhiskers(data, look) {
    const [series] = data.series;
    const far = (y, i) => (y === null ? null : series.spread[i] === null ? y : y < 0 ? lowEnd(y, series.spread[i], data.y) : highEnd(y, series.spread[i], data.y));
    return {
      type: "scatter", mode: "text", x: series.y.map(far), y: series.x, text: series.y.map((y) => (y === null ? "" : `  ${bare(y)}  `)),
      textposition: series.y.map((y) => (y < 0 ? "middle left" : "middle right")), textfont: { size: 11.5, color: look.ink }, cliponaxis: false, hoverinfo: "skip", showlegend: false,
    };
  }
  // Many bars are lower, so that a page of a deep model still has an end.
  const barHeight = (data) => Math.max(8, Math.min(23, 1600 / (data.x.names.length * data.series.length)));
  const bare = (value) => (Math.abs(value) >= 1e15 || (value && Math.abs(value) < 1e-3) ? value.toExponential(1) : Number(value.toPrecision(Number.isInteger(value) ? 15 : 3)).toLocaleString("en-US"));

  // Ticks between two logarithms: powers of ten, or also 5 or 2 and 5 times these, or round steps: whatever is the first to
  // have three numbers. Nobody can read a scale by fewer.
  function logTicks(least, most) {
    const inside = (values) => values.filter((v) => Math.log10(v) >= least - 1e-9 && Math.log10(v) <= most + 1e-9);
    const powers = [];
    for (let power = Math.floor(least); power <= Math.ceil(most); power++) powers.push(10 ** power);
    const stride = Math.ceil((most - least) / 8);
    const choices = [powers.filter((_, i) => i % stride === 0), powers.flatMap((p) => [p, 5 * p]), powers.flatMap((p) => [p, 2 * p, 5 * p])];
    const shown = choices.map(inside).find((values) => values.length >= 3);
    return shown ? shown.map((v) => [v, 1]) : roundTicks(10 ** least, 10 ** most);
  }
  // Pairs of a value and how many digits it needs.
  function roundTicks(least, most) {
    if (!(most > least * (1 + 1e-9))) return [[least, 3]];
    const longest = (most - least) / 3, power = 10 ** Math.floor(Math.log10(longest));
    const step = power * [5, 2, 1].find((digit) => digit * power <= longest * (1 + 1e-9));
    const ticks = [];
    for (let k = Math.ceil(least / step - 1e-9); k * step <= most * (1 + 1e-12); k++) ticks.push([k * step, Math.floor(Math.log10(most)) - Math.floor(Math.log10(step)) + 1]);
    return ticks;
  }
  function tickText([value, digits]) {
    const power = Math.floor(Math.log10(value) + 1e-9);
    if (power >= -3 && power <= 4) return Number(value.toPrecision(Math.max(digits, 1))).toLocaleString("en-US", { maximumFractionDigits: 12 });
    const mantissa = Number((value / 10 ** power).toPrecision(Math.max(digits, 1)));
    return `${mantissa === 1 ? "" : mantissa + "·"}10<sup>${power}</sup>`;
  }

  function drawnMap(figure, data, look) {
    const panel = data.panels[figure.panel];
    // One scale for all panels: colours mean the same when the reader goes from one to the next.
    const all = data.panels.flatMap((p) => p.values.flat()).filter((v) => v !== null);
    const shown = (v) => (v === null || (data.value.log && v <= 0) ? null : data.value.log ? Math.log10(v) : v);
    const scaled = all.map(shown).filter((v) => v !== null);
    const least = scaled.reduce((a, b) => Math.min(a, b), Infinity), most = scaled.reduce((a, b) => Math.max(a, b), -Infinity);
    const title = { text: axisTitle(data.value), side: "right", font: { size: 12 } };
    const bar = { title, tickfont: { size: 11.5, color: look.soft }, thickness: 12, outlinewidth: 0 };
    if (isNarrow()) Object.assign(bar, { orientation: "h", y: -0.2, yanchor: "top", yref: "paper", x: 0.5, len: 1, title: { ...title, side: "bottom" } });
    if (data.value.log && scaled.length) {
      const ticks = logTicks(least, most);
      Object.assign(bar, { tickmode: "array", tickvals: ticks.map(([v]) => Math.log10(v)), ticktext: ticks.map((tick) => tickText(tick) + (isNarrow() ? "" : "\u00a0\u00a0")) });
    }
    return [{
      type: "heatmap", z: panel.values.map((row) => row.map(shown)), x: unique(data.x.names), y: unique(data.y.names), customdata: panel.values,
      zmin: scaled.length ? least : 0, zmax: !scaled.length ? 1 : most > least ? most : least + 1, colorscale: look.dark ? "Viridis" : VIRIDIS.map((c, i) => [i / 8, c]), colorbar: bar,
      xgap: data.x.names.length > 40 ? 0 : 1, ygap: data.y.names.length > 40 ? 0 : 1, hoverongaps: false,
      hovertemplate: `${plain(data.y.words)} %{y}, ${plain(data.x.words)} %{x}<br><b>%{customdata:.4~g}</b>${withUnit(data.value)}<extra></extra>`,
    }];
  }

  function axisLayout(axis, look, extra) {
    const base = { title: { text: axisTitle(axis), standoff: 10, font: { size: 12.5 } }, gridcolor: look.grid, linecolor: look.line, zerolinecolor: look.line, tickfont: { size: 11.5, color: look.soft }, automargin: true };
    return Object.assign(base, extra);
  }

  // What lies further down than twelve powers of ten is rounding: it is in the table, and does not squeeze the rest.
  const MOST_DECADES = 12;
  const extent = (values) => [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
  function logAxis(values) {
    const [least, most] = extent(values.filter((v) => v !== null && v > 0).map(Math.log10));
    if (least > most) return { type: "log" };
    const bottom = Math.max(least, most - MOST_DECADES), room = Math.max(0.06 * (most - bottom), 0.01);
    return { type: "log", range: [bottom - room, most + room], ...arrayTicks([bottom - room, most + room]) };
  }
  function arrayTicks([least, most]) {
    const ticks = logTicks(least, most);
    return { tickmode: "array", tickvals: ticks.map(([v]) => v), ticktext: ticks.map(tickText) };
  }
  // All that a figure draws upwards: lines, the ends of bands, and marks.
  function heights(data) {
    const ends = data.series.flatMap((s) => s.y.flatMap((y, i) => (y === null ? [] : !s.spread || s.spread[i] === null ? [y] : [y, lowEnd(y, s.spread[i], data.y), highEnd(y, s.spread[i], data.y)])));
    return [...ends, ...shownMarks(data).map((mark) => mark.value)];
  }
  // Lines that lie far above zero would be one line if the axis began there.
  function fromZero(data) {
    const [least, most] = extent(heights(data));
    return data.kind === "lines" && least >= 0 && least < 0.3 * most;
  }
  // Numbers stand beyond bars that go both ways, and beyond whiskers.
  function roomForNumbers(data, width) {
    const [least, most] = extent([0, ...heights(data)]), room = (70 / Math.max(width - 160, 120)) * (most - least);
    const whiskered = data.series.some((s) => s.spread);
    if (least === 0) return whiskered ? [most + room] : [];
    return [least - (whiskered ? room : 0), most + room];
  }
  // Who looks closer gets the ticks of what is left in view.
  function followZoom(figure) {
    const { plot } = figure, axis = plot.layout.yaxis;
    if (axis.type !== "log" || !axis.range) return;
    const ticks = arrayTicks(axis.range);
    if (JSON.stringify(ticks.tickvals) !== JSON.stringify(axis.tickvals)) Plotly.relayout(plot, { "yaxis.tickvals": ticks.tickvals, "yaxis.ticktext": ticks.ticktext });
  }

  // Few places, such as prefixes of 4, 8, 16 tokens, are labelled themselves: 5 and 2·10 would not be among them.
  function logPlaces(values) {
    const places = [...new Set(values)].sort((a, b) => a - b);
    return places.length > 9 ? { type: "log" } : { type: "log", tickmode: "array", tickvals: places, ticktext: places.map(bare) };
  }

  // Counts of layers have no halves.
  function wholeTicks(data) {
    const xs = data.series.flatMap((s) => s.x);
    const whole = xs.length > 0 && xs.every((x) => Number.isInteger(x));
    const range = Math.max(...xs) - Math.min(...xs);
    return whole && range <= 16 && !data.x.log ? { dtick: 1 } : {};
  }

  const shownMarks = (data) => data.marks.filter((mark) => mark.value !== null && (!data.y.log || mark.value > 0));

  function layoutOf(figure, data, look) {
    const width = figure.plot.clientWidth;
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 52, r: 14, t: 12, b: 44 }, height: 340, showlegend: false,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: look.ink }, hovermode: "closest", modebar: { bgcolor: "rgba(0,0,0,0)", color: look.soft, activecolor: look.ink },
      hoverlabel: { bgcolor: look.card, bordercolor: look.line, font: { color: look.ink } }, dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
    };
    if (data.kind === "heat_map" || data.kind === "matrix") {
      const rows = data.y.names.length, narrow = isNarrow();
      layout.xaxis = axisLayout(data.x, look, { type: "category", showgrid: false, zeroline: false });
      layout.yaxis = axisLayout(data.y, look, { type: "category", showgrid: false, zeroline: false, autorange: data.kind === "matrix" ? "reversed" : true });
      if (data.kind === "matrix") {
        Object.assign(layout.yaxis, { scaleanchor: "x", constrain: "domain" });
        layout.xaxis.constrain = "domain";
        layout.height = narrow ? width + 90 : Math.min(Math.max(width * 0.78, 320), 520);
      } else {
        layout.height = Math.min(Math.max(110 + 24 * rows, 340), 720) + (narrow ? 80 : 0);
      }
      return layout;
    }
    if (data.kind === "bars") {
      const names = data.x.names.map((name) => wrapped(name, isNarrow() ? 17 : 34));
      const rows = names.reduce((total, name) => total + Math.max((barHeight(data) < 13 ? 0 : 17) * name.split("<br>").length, barHeight(data) * data.series.length), 0);
      layout.xaxis = axisLayout(data.y, look, data.y.log ? logAxis(data.series.flatMap((s) => s.y)) : {});
      layout.yaxis = axisLayout({ words: data.x.words }, look, { tickmode: "array", tickvals: names.map((_, i) => i), ticktext: names, autorange: "reversed", showgrid: false, zeroline: false, title: { text: "" } });
      if (!data.y.log) layout.xaxis.autorangeoptions = { include: roomForNumbers(data, width) };
      layout.height = Math.max(150, 74 + rows);
      layout.bargap = 0.28;
    } else {
      layout.xaxis = axisLayout(data.x, look, !data.x.log ? wholeTicks(data) : data.kind === "scatter" ? { type: "log" } : logPlaces(data.series.flatMap((s) => s.x)));
      layout.yaxis = axisLayout(data.y, look, data.y.log ? logAxis(heights(data)) : { rangemode: fromZero(data) ? "tozero" : "normal" });
      if (!data.y.log) layout.yaxis.autorangeoptions = { include: shownMarks(data).map((mark) => mark.value * 1.1) };
      if (isUnified(data)) {
        layout.hovermode = "x unified";
        layout.xaxis.unifiedhovertitle = { text: `${plain(data.x.words)} %{x}` };
      }
    }
    if (data.series.length > 1 && !hasScale(data)) {
      layout.showlegend = true;
      layout.legend = { orientation: "h", x: 0, y: 1, yref: "container", yanchor: "top", font: { size: 12 } };
      layout.height += 22 * Math.ceil(data.series.length / (isNarrow() ? 2 : 3));
    }
    if (data.kind !== "bars") {
      layout.shapes = shownMarks(data).map((mark) => ({
        type: "line", xref: "paper", x0: 0, x1: 1, y0: mark.value, y1: mark.value, line: { color: look.soft, width: 1.3, dash: "dash" },
        label: { text: short(mark.name), textposition: "end", yanchor: "bottom", font: { size: 11.5, color: look.soft } },
      }));
    }
    return layout;
  }

  // Why there is nothing to draw; empty where there is.
  function whyEmpty(data) {
    const axis = data.panels ? data.value : data.y;
    const values = data.panels ? data.panels.flatMap((p) => p.values.flat()) : data.series.flatMap((s) => s.y);
    const known = values.filter((v) => v !== null);
    if (known.length === 0) return "Nothing to draw: none of these numbers is defined for what was measured.";
    return axis.log && !known.some((v) => v > 0) ? "Nothing to draw: all of these numbers are 0, and a logarithmic axis has no 0." : "";
  }

  async function draw(figure) {
    const look = theme(), data = scaled(figure);
    const empty = whyEmpty(data);
    if (empty) {
      figure.plot.textContent = empty;
      return undefined;
    }
    const traces = data.panels ? drawnMap(figure, data, look) : data.kind === "bars" ? drawnBars(data, look) : drawnLines(data, look);
    const plot = await Plotly.react(figure.plot, traces, layoutOf(figure, data, look), {
      responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]],  // Plotly's own list would share data with a server
      toImageButtonOptions: { filename: figure.node.id, scale: 2 },
    });
    plot.removeAllListeners("plotly_relayout");
    plot.on("plotly_relayout", () => followZoom(figure));
    return plot;
  }

  // A figure with the scale that its reader chose.
  const scaled = ({ data, log }) => (log === undefined ? data : { ...data, y: { ...data.y, log } });

  // Losses fall fast and then slowly: both are seen on one scale or the other. Not offered where a logarithm would leave
  // something out.
  function addScaleSwitch(figure) {
    const { data } = figure;
    const known = data.panels || data.kind === "bars" ? [] : data.series.flatMap((s) => s.y).filter((y) => y !== null);
    if (!known.some((y) => y > 0) || known.some((y) => (data.y.log ? y < 0 : y <= 0))) return;
    const row = document.createElement("div"), button = document.createElement("button");
    row.className = "chooser beneath";
    Object.assign(button, { type: "button", className: "scale" });
    const say = () => { button.textContent = `Scale: ${scaled(figure).y.log ? "logarithmic" : "linear"}`; };
    button.addEventListener("click", () => { figure.log = !scaled(figure).y.log; say(); draw(figure); });
    say();
    row.append(button);
    figure.plot.after(row);
  }

  // Of several panels, such as the layers' matrices, one is shown; a slider goes through them.
  function addChooser(figure) {
    const panels = figure.data.panels;
    if (!panels || panels.length < 2) return;
    const row = document.createElement("label"), slider = document.createElement("input"), said = document.createElement("output");
    row.className = "chooser";
    Object.assign(slider, { type: "range", min: 0, max: panels.length - 1, step: 1, value: 0 });
    const say = () => { said.textContent = `${figure.data.panel_words} ${panels[figure.panel].name}`; };
    slider.addEventListener("input", () => { figure.panel = Number(slider.value); say(); draw(figure); });
    say();
    row.append(said, slider);
    figure.plot.before(row);
  }

  // ---- tables

  // What a cell says as a number: of "≥ 1,234" and "12.3 %" that; nothing where it is none.
  function numberIn(cell) {
    const found = /^[≥>\s]*([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)(?:\s*%)?$/.exec(cell.textContent.trim());
    return found ? Number(found[1].replace(/,/g, "")) : null;
  }

  // Long tables sort by a heading: numbers from the largest, words from A; the same heading again turns it around. What is
  // no number stays last.
  const LONG = 8;
  function makeSortable(table) {
    const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
    if (rows.length < LONG) return;
    table.classList.add("sortable");
    heads.forEach((head, column) => {
      const values = rows.map((row) => numberIn(row.cells[column]));
      const counted = values.filter((value) => value !== null).length;
      const numeric = counted > 0 && rows.every((row, i) => values[i] !== null || row.cells[column].textContent.length <= 4);
      if (numeric) [head, ...rows.map((row) => row.cells[column])].forEach((cell) => cell.classList.add("number"));
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      const value = (row) => (numeric ? numberIn(row.cells[column]) : row.cells[column].textContent);
      const less = (a, b) => (numeric ? a - b : a.localeCompare(b));
      button.addEventListener("click", () => {
        const up = head.ariaSort === "descending" || (head.ariaSort !== "ascending" && !numeric) ? 1 : -1;
        heads.forEach((other) => { other.ariaSort = null; });
        head.ariaSort = up > 0 ? "ascending" : "descending";
        const known = rows.filter((row) => value(row) !== null && value(row) !== "").sort((a, b) => up * less(value(a), value(b)));
        body.append(...known, ...rows.filter((row) => !known.includes(row)));
      });
    });
  }

  // ---- the rest of the page

  function addTools(figure) {
    const text = () => JSON.stringify(figure.data, null, 1) + "\n";
    const copy = figure.node.querySelector(".copy"), save = figure.node.querySelector(".save");
    const say = (words) => { copy.textContent = words; setTimeout(() => { copy.textContent = "Copy JSON"; }, 1600); };
    copy.addEventListener("click", () => {
      if (!navigator.clipboard) return say("Not allowed here: save it");
      navigator.clipboard.writeText(text()).then(() => say("Copied"), () => say("Not allowed here: save it"));
    });
    save.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text()], { type: "application/json" }));
      link.download = `${figure.node.id}.json`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    copy.hidden = save.hidden = false;
  }

  let drawn = false;
  const drawAll = () => { if (drawn) drawings.forEach(draw); };
  // From the beginning: Plotly keeps the margins of a scale that has turned from standing to lying.
  const drawAnew = () => { if (drawn) drawings.forEach((figure) => { Plotly.purge(figure.plot); draw(figure); }); };

  function addThemeSwitch() {
    const button = document.getElementById("theme"), choices = ["auto", "light", "dark"];
    const show = (choice) => {
      if (choice === "auto") delete root.dataset.theme;
      else root.dataset.theme = choice;
      button.textContent = `Colours: ${choice}`;
      drawAll();
    };
    button.addEventListener("click", () => show(choices[(choices.indexOf(root.dataset.theme || "auto") + 1) % 3]));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
    window.matchMedia("(max-width: 640px)").addEventListener("change", drawAnew);
    button.hidden = false;
  }

  async function unpackPlotly(packed) {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.src = URL.createObjectURL(new Blob([await new Response(stream).arrayBuffer()], { type: "text/javascript" }));
    await new Promise((done, failed) => {
      script.onload = done;
      script.onerror = () => failed(new Error("the charting library did not load"));
      document.head.append(script);
    });
    URL.revokeObjectURL(script.src);
  }

  function withoutPlots(why) {
    const notice = document.getElementById("no-plots");
    notice.textContent = `Plots cannot be drawn here: ${why}. Every figure's numbers are in its table.`;
    notice.hidden = false;
    drawings.forEach((figure) => { figure.plot.remove(); figure.node.querySelector("details").open = true; });
  }

  // One figure that cannot be drawn takes no other with it.
  function withoutPlot(figure, error) {
    console.error(error);
    figure.plot.textContent = "This figure cannot be drawn: its numbers are in the table.";
    figure.node.querySelector("details").open = true;
  }

  addThemeSwitch();
  document.querySelectorAll("table.words").forEach(makeSortable);
  figures.forEach(addTools);
  const packed = document.getElementById("plotly");
  const finish = () => { root.dataset.ready = "yes"; };
  if (!packed || figures.length === 0) return finish();
  if (!window.DecompressionStream) { withoutPlots("this browser is too old"); return finish(); }
  unpackPlotly(packed.textContent)
    .then(async () => {
      drawn = true;
      drawings.forEach(addChooser);
      drawings.forEach(addScaleSwitch);
      for (const figure of drawings) await draw(figure).catch((error) => withoutPlot(figure, error));
    })
    .catch((error) => { if (!drawn) withoutPlots(error.message); else throw error; })
    .finally(finish);
})();
