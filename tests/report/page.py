#!/usr/bin/env python3
"""A page with every kind of figure in a real browser: it opens without a complaint, plots have marks, dark and narrow work.

Names in it try to be more than names (tests/tools/write_report.cpp): whatever they say is shown and nothing of it runs.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from browser import Browser, find_chromium  # noqa: E402  (the folder above is not a package)
from report import PARE, Report, expect  # noqa: E402

FIGURES = 6
# In an svg of Plotly's: what stands for data, by kind of figure. A heat map is an image of coloured cells.
MARKS = {"lines": ".scatterlayer path.js-line", "scatter": ".scatterlayer path.point", "bars": ".barlayer .point path",
         "heat_map": ".heatmaplayer image", "matrix": ".heatmaplayer image"}
COUNTS = """[...document.querySelectorAll('figure')].map(f => [f.className, f.querySelectorAll('.plot svg.main-svg').length,
  Object.fromEntries(Object.entries(%s).map(([kind, where]) => [kind, f.querySelectorAll(where).length]))])""" % json.dumps(MARKS)
# What sticks out of its page sideways, except inside of what may scroll by itself.
WIDER = """[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 &&
  !e.closest('.scroll, .table, svg, .plot')).map(e => e.tagName + '.' + e.className).slice(0, 5)"""
LUMINANCE = """(colour => { const [r, g, b] = colour.match(/\\d+/g).map(Number); return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255; })"""


def luminance(page, expression):
    return page.evaluate(f"{LUMINANCE}({expression})")


def check_marks(report, page, when):
    problem = []
    for kind, drawings, counts in page.evaluate(COUNTS):
        if not drawings or not counts[kind]:
            problem.append(f"{kind}: {drawings} drawings, {counts[kind]} marks")
    report.check(f"{when}: every plot has marks", "; ".join(problem))


def check_names(report, page):
    report.check("nothing of a hostile name runs", expect(page.evaluate("window.hacked === undefined"), True))
    report.check("and none of it became an element", expect(page.evaluate("document.querySelectorAll('img, svg a, b:not(svg *)').length"), 0))
    report.check("but it is shown as it is", expect(page.evaluate("document.querySelector('h1').textContent.includes('</script><script>window.hacked=1</script>')"), True))
    # Plotly has a markup of its own, with links, and places for values.
    short = "<b>x</b><a href='javascript:0'>y</a> %{y}"
    legend = page.evaluate("[...document.querySelectorAll('#figure-1 .legendtext')].map(t => t.textContent)")
    report.check("in legends too", expect([len(legend), legend[1] if len(legend) > 1 else ""], [3, short]))
    ticks = page.evaluate("[...document.querySelectorAll('figure.bars .ytick text')].map(t => t.textContent).join(' ')")
    report.check("at axes", "" if "<script>window" in ticks else ticks[:300])
    page.evaluate("Plotly.Fx.hover(document.querySelector('#figure-1 .plot'), {xval: 3})")
    page.settle()
    said = page.evaluate("document.querySelector('#figure-1 .hoverlayer').textContent")
    report.check("and where the mouse is", "" if short in said and "layer 3" in said and "34 ± 1.60 directions" in said else said[:400])


def check_numbers(report, page):
    """The table beneath each figure has what its JSON has."""
    rows = page.evaluate("""[...document.querySelectorAll('figure')].map(f => [JSON.parse(f.querySelector('script').textContent),
      [...f.querySelectorAll('tbody tr')].map(r => [...r.querySelectorAll('td')].map(c => c.textContent))])""")
    report.check("every figure has its JSON and its table", expect(len(rows), FIGURES))
    for data, table in rows:
        numbers = [v for panel in data.get("panels", []) for row in panel["values"] for v in row] if "panels" in data else [
            v for series in data["series"] for v in series["y"]]
        cells = " ".join(cell for row in table for cell in row).split()
        shown = [float(cell) for cell in cells if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", cell)]
        missing = [v for v in numbers if v is not None and not any(abs(v - s) <= 1e-3 * abs(v) for s in shown)]
        gaps = sum(v is None for v in numbers)
        report.check(f"table of {data['title']!r}", f"without {missing[:3]}" if missing else "" if cells.count("–") >= gaps else f"{gaps} gaps, {cells.count('–')} dashes")
    report.check("tables are closed until asked for", expect(page.evaluate("document.querySelectorAll('figure details[open]').length"), 0))


def check_hover(report, page):
    page.evaluate("document.querySelector('figure.heat_map .plot').scrollIntoView({block: 'center', behavior: 'instant'})")
    page.settle()
    box = page.evaluate("(() => { const b = document.querySelector('figure.heat_map .heatmaplayer image').getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()")
    page.move_mouse(box[0] + box[2] * 1.5 / 12, box[1] + box[3] * 0.5 / 12)  # row 11 is on top; second column
    page.settle()
    said = page.evaluate("[...document.querySelectorAll('figure.heat_map .hoverlayer text')].map(t => t.textContent).join(' ')")
    report.check("hover says where and how much", "" if re.search(r"layer 11, head 1\s*8\.18\d* degrees", said) else f"said {said!r}")


def check_buttons(report, page):
    """Plotly offers to send a chart to a server unless it is told which buttons to have."""
    titles = page.evaluate("[...new Set([...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title))].sort()")
    report.check("the plots' own buttons", expect(titles, ["Download plot as a PNG", "Reset axes"]))


def check_panels(report, page):
    read = "document.querySelector('figure.matrix .plot').data[0].customdata[0][1]"
    first = page.evaluate(read)
    page.evaluate("(() => { const s = document.querySelector('figure.matrix .chooser input'); s.value = 3; s.dispatchEvent(new Event('input')); })()")
    page.settle()
    report.check("a slider goes through the panels", expect([first, page.evaluate(read)], [45, 18]))
    report.check("and says which", expect(page.evaluate("document.querySelector('figure.matrix output').textContent"), "layer 3"))


def check_theme(report, page):
    """The switch wins over what the system says, and plots follow."""
    tick = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    ground = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for _ in range(4):
        seen.append((page.evaluate("document.getElementById('theme').textContent"), luminance(page, ground) < 0.3, luminance(page, tick) > 0.45))
        page.evaluate("document.getElementById('theme').click()")
        page.settle()
    wanted = [("Colours: auto", False, False), ("Colours: light", False, False), ("Colours: dark", True, True), ("Colours: auto", False, False)]
    report.check("the switch of colours", expect(seen, wanted))


def check_tools(report, page):
    text = page.evaluate("""(async () => { let text; URL.createObjectURL = blob => { text = blob.text(); return 'blob:none'; };
      HTMLAnchorElement.prototype.click = function () { window.saved = this.download; };
      document.querySelector('figure .save').click(); return await text; })()""")
    report.check("its JSON can be saved", expect([json.loads(text)["kind"], page.evaluate("window.saved")], ["lines", "figure-1.json"]))
    copied = page.evaluate("""(async () => { let text; Object.defineProperty(navigator, 'clipboard', {value: {writeText: t => { text = t; return Promise.resolve(); }}});
      document.querySelector('figure .copy').click(); return text; })()""")
    report.check("and copied", expect(json.loads(copied)["title"], "Effective rank of the stream, by layer"))


def check_wide(report, browser, path):
    page = browser.open(path)
    check_marks(report, page, "light")
    report.check("light ground", "" if luminance(page, "getComputedStyle(document.body).backgroundColor") > 0.8 else "dark")
    check_names(report, page)
    check_numbers(report, page)
    check_hover(report, page)
    check_buttons(report, page)
    check_panels(report, page)
    check_theme(report, page)
    check_tools(report, page)
    report.check("light: no complaint, no request", "; ".join(page.problems()))
    page.close()


def check_dark(report, browser, path):
    page = browser.open(path, dark=True)
    check_marks(report, page, "dark")
    report.check("dark ground", "" if luminance(page, "getComputedStyle(document.body).backgroundColor") < 0.2 else "light")
    dim = page.evaluate(f"""[...document.querySelectorAll('h1, h2, h3, p, summary, .verdict .word, .plot .xtick text, .plot .ytick text, .plot .legendtext')]
      .filter(e => e.getClientRects().length && {LUMINANCE}(getComputedStyle(e)[e instanceof SVGElement ? 'fill' : 'color']) < 0.3).map(e => e.textContent).slice(0, 3)""")
    report.check("no dark words on it", expect(dim, []))
    page.set_dark(False)
    page.settle()
    report.check("it follows the system", "" if luminance(page, "getComputedStyle(document.body).backgroundColor") > 0.8 else "still dark")
    report.check("dark: no complaint, no request", "; ".join(page.problems()))
    page.close()


def check_narrow(report, browser, work, path):
    page = browser.open(path, width=400, height=800)
    check_marks(report, page, "400 pixels")
    report.check("400 pixels: nothing to scroll sideways", expect([page.evaluate("document.documentElement.scrollWidth"), page.evaluate(WIDER)], [400, []]))
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.settle()
    report.check("400 pixels, tables open", expect([page.evaluate("document.documentElement.scrollWidth"), page.evaluate(WIDER)], [400, []]))
    report.check("400 pixels: plots are as wide as their cards", expect(page.evaluate("""[...document.querySelectorAll('.plot')].filter(p => {
      const drawn = p.querySelector('svg.main-svg').getBoundingClientRect().width; return drawn > p.clientWidth + 1 || drawn < p.clientWidth - 20; }).length"""), 0))
    report.check("400 pixels: no complaint", "; ".join(page.problems()))
    page.close()
    # In another page's frame, as a notebook or a dashboard has it.
    (work / "frame.html").write_text(f'<!doctype html><iframe id="f" src="{path.name}" style="width:400px;height:800px;border:0"></iframe>')
    page = browser.open(work / "frame.html", ready="true")
    found = page.in_frame("[innerWidth, document.documentElement.scrollWidth, document.querySelectorAll('.plot svg.main-svg').length > 6]")
    report.check("in a frame of 400 pixels", expect(found, [400, 400, True]))
    report.check("in a frame: no complaint", "; ".join(page.problems()))
    page.close()


def check_resize(report, browser, path):
    page = browser.open(path, width=1200)
    page.resize(400, 800)
    page.settle()
    page.settle()
    report.check("a page that becomes narrow", expect([page.evaluate("document.documentElement.scrollWidth"), page.evaluate(WIDER)], [400, []]))
    page.close()


def check_attack(report, browser, work, path):
    """What escaping might miss one day: the page's own rules still let no other script run."""
    text = path.read_text(encoding="utf-8")
    changed = work / "attack.html"
    changed.write_text(text.replace("<main>", "<main><script>window.hacked=4</script><img src='x' onerror='window.hacked=5'>"
                                              "<svg onload='window.hacked=6'></svg><script src='http://127.0.0.1:9/x.js'></script>"), encoding="utf-8")
    page = browser.open(changed)
    report.check("an injected script does not run", expect(page.evaluate("window.hacked === undefined"), True))
    check_marks(report, page, "injected")
    page.close()


def check_empty(report, browser, work, path):
    """Figures with nothing to draw say why: no number is defined, or all are zeros on a logarithmic axis."""
    for value, words in ((None, "none of these numbers is defined"), (0, "all of these numbers are 0, and a logarithmic axis has no 0")):
        def emptied(data):
            for series in data.get("series", []):
                series["y"] = [value for _ in series["y"]]
                data["y"]["log"] = True

        changed = changed_page(work, path, "empty.html", emptied)
        page = browser.open(changed)
        said = page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.textContent).filter(t => t.startsWith('Nothing to draw'))")
        report.check(f"figures of {value}", "" if said and all(words in text for text in said) else f"{said}")
        report.check(f"figures of {value}: no complaint", "; ".join(page.problems()))
        page.close()


def changed_page(work, path, name, change):
    """The same page with other numbers: what `change` makes of the data of each figure."""
    def changed(match):
        data = json.loads(match[2])
        change(data)
        return match[1] + json.dumps(data).replace("<", "\\u003c") + match[3]

    page = work / name
    page.write_text(re.sub(r'(<script type="application/json">)(.*?)(</script>)', changed, path.read_text(encoding="utf-8"), flags=re.S), encoding="utf-8")
    return page


COLOURS = "[...document.querySelectorAll('figure.heat_map .cbaxis text')].map(t => t.textContent.trim())"
HEIGHTS = "[...document.querySelectorAll('#figure-1 .ytick text')].map(t => t.textContent)"


def check_scales(report, browser, work, path):
    """Every scale has three numbers or more, however little or much it spans; also when a reader looks closer."""
    for least, most in ((1.02, 1.66), (6e-8, 6e-6), (1e-9, 1)):
        def between(data):
            for panel in data.get("panels", []):
                data["value"]["log"] = True
                panel["values"] = [[None if v is None else least * (most / least) ** (v / 90) for v in row] for row in panel["values"]]
            for series in data["series"] if data["kind"] == "lines" else []:
                data["y"]["log"], data["marks"], series["spread"] = True, [], [0 for _ in series["y"]]
                series["y"] = [least * (most / least) ** (i / (len(series["y"]) - 1)) for i in range(len(series["y"]))]

        page = browser.open(changed_page(work, path, "scales.html", between))
        for name, ticks in (("colours", page.evaluate(COLOURS)), ("an axis", page.evaluate(HEIGHTS))):
            report.check(f"{name} from {least:g} to {most:g}: numbers", "" if 3 <= len(set(ticks)) == len(ticks) <= 9 else f"{ticks}")
        page.evaluate("Plotly.relayout(document.querySelector('#figure-1 .plot'), {'yaxis.range': [Math.log10(%r), Math.log10(%r)]}).then(() => 0)" % (least * 1.01, least * 1.03))
        page.settle()
        report.check(f"a closer look at {least:g}: numbers", "" if len(page.evaluate(HEIGHTS)) >= 3 else f"{page.evaluate(HEIGHTS)}")
        report.check(f"from {least:g} to {most:g}: no complaint", "; ".join(page.problems()))
        page.close()

    def deep(data):
        for series in data["series"] if data["kind"] == "lines" else []:
            data["y"]["log"], data["marks"] = True, []
            series["y"] = [10.0 ** (-2 * i) for i in range(len(series["y"]))]

    page = browser.open(changed_page(work, path, "deep.html", deep))
    bottom, top = page.evaluate("document.querySelector('#figure-1 .plot').layout.yaxis.range")
    report.check("what is rounding squeezes nothing", "" if 12 < top - bottom < 14 else f"{bottom} to {top}")
    page.close()


def check_bounds(report, browser, work, path):
    """A band or a whisker ends where its quantity does: no rank is below 0 or above what is possible."""
    def bounded(data):
        if data["kind"] in ("lines", "bars"):
            data["y"] |= {"least": 0, "most": 10, "log": False}
            data["marks"] = []
            data["series"] = data["series"][:1]
            for series in data["series"]:
                series["y"] = [(0.5, 9.5, 5)[i % 3] for i in range(len(series["y"]))]
                series["spread"] = [2 for _ in series["y"]]

    page = browser.open(changed_page(work, path, "bounds.html", bounded))
    band = page.evaluate("document.querySelector('#figure-1 .plot').data.find(t => t.fill === 'toself').y")
    report.check("a band within its bounds", expect([min(band), max(band), 3 in band, 7 in band], [0, 10, True, True]))
    whiskers = page.evaluate("(e => [e.arrayminus, e.array])(document.querySelector('figure.bars .plot').data[0].error_x)")
    report.check("whiskers within theirs", expect(whiskers, [[0.5, 2, 2], [2, 0.5, 2]]))
    numbers = page.evaluate("(t => t && [t.x, t.text.map(w => w.trim())])(document.querySelector('figure.bars .plot').data.find(t => t.mode === 'text'))")
    report.check("no whisker through a number", expect(numbers, [[2.5, 10, 7], ["0.5", "9.5", "5"]]))
    report.check("a figure is as high as it is drawn", expect(page.evaluate("(p => p.clientHeight - p.querySelector('svg').clientHeight)(document.querySelector('figure.bars .plot'))"), 0))
    report.check("bounds: no complaint", "; ".join(page.problems()))
    page.close()


def check_scale_switch(report, browser, work, path):
    """Lines above zero can be seen on either scale; where a logarithm would leave numbers out, there is no switch."""
    def falling(data):
        if data["kind"] == "lines":
            data["marks"] = []
            for s, series in enumerate(data["series"]):
                series["spread"] = [0 for _ in series["y"]]
                series["y"] = [5 * 0.7 ** i + 3 - (10 if data["y"]["log"] and s == 1 else 0) for i in range(len(series["y"]))]

    page = browser.open(changed_page(work, path, "switch.html", falling))
    report.check("only where it can be", expect(page.evaluate("[...document.querySelectorAll('figure')].map((f, i) => f.querySelector('.scale') && f.id).filter(f => f)"), ["figure-1", "figure-5"]))
    look = "[document.querySelector('#figure-1 .plot').layout.yaxis.type || 'linear', document.querySelector('#figure-1 .scale')?.textContent, document.querySelector('#figure-1 .plot').layout.yaxis.range[0] > 0]"
    seen = []
    for _ in range(3):
        seen.append(page.evaluate(look))
        page.evaluate("document.querySelector('#figure-1 .scale')?.click()")
        page.settle()
    report.check("a switch of the scale", expect([s[:2] for s in seen], [["linear", "Scale: linear"], ["log", "Scale: logarithmic"], ["linear", "Scale: linear"]]))
    report.check("its data stays what it was", expect(page.evaluate("JSON.parse(document.querySelector('#figure-1 script').textContent).y.log"), False))
    report.check("curves that end far above zero are not squeezed by it", expect(seen[0][2], True))
    report.check("switch: no complaint", "; ".join(page.problems()))
    page.close()


def check_print(report, browser, path):
    page = browser.open(path)
    page.send("Emulation.setEmulatedMedia", media="print")
    page.settle()
    shown = page.evaluate("[...document.querySelectorAll('nav, button, .chooser')].filter(e => getComputedStyle(e).display !== 'none').length")
    report.check("nothing to press on paper", expect(shown, 0))
    page.close()


def check_without_plots(report, browser, work, path):
    """As a build without plotly writes it, and in a browser that cannot unpack it."""
    text = path.read_text(encoding="utf-8")
    changed = work / "broken.html"
    changed.write_text(re.sub(r'(<script type="text/plain" id="plotly">)[^<]*', r"\1H4sIAAAAAAAA", text), encoding="utf-8")
    page = browser.open(changed)
    report.check("a library that cannot be unpacked is said", "" if "cannot be drawn" in page.evaluate("document.getElementById('no-plots').innerText") else "nothing said")
    report.check("and every table is open", expect(page.evaluate("document.querySelectorAll('figure details[open]').length"), FIGURES))
    page.close()


def main():
    report = Report("page")
    writer = PARE.parent / "write_report"
    program = find_chromium()
    if not program:
        report.skip("all", "no Chromium: apt-get install chromium, or make test as root, which does")
        report.finish()
    with tempfile.TemporaryDirectory() as folder, Browser(program) as browser:
        work = pathlib.Path(folder)
        path = work / "page.html"
        subprocess.run([writer, path], check=True)
        text = path.read_text(encoding="utf-8")
        report.check("one file that asks for no other", expect(re.findall(r"""(?:src|href)=["'](?!#)[^"']*["']|url\(|@import""", re.sub(r"<script.*?</script>|&[a-z#0-9]+;", "", text, flags=re.S)), []))
        if 'id="plotly"' not in text:
            report.skip("plots", "this build has no plotly: tools/setup.sh fetches it where there is a network")
            page = browser.open(path)
            report.check("tables instead of plots", expect(page.evaluate("document.querySelectorAll('figure details[open]').length"), FIGURES))
            report.check("and it is said", "" if "left out" in page.evaluate("document.getElementById('no-plots').innerText") else "nothing said")
            report.check("no complaint", "; ".join(page.problems()))
            report.finish()
        check_wide(report, browser, path)
        check_dark(report, browser, path)
        check_narrow(report, browser, work, path)
        check_resize(report, browser, path)
        check_attack(report, browser, work, path)
        check_empty(report, browser, work, path)
        check_scales(report, browser, work, path)
        check_bounds(report, browser, work, path)
        check_scale_switch(report, browser, work, path)
        check_print(report, browser, path)
        check_without_plots(report, browser, work, path)
    report.finish()


if __name__ == "__main__":
    main()
