#!/usr/bin/env python3
"""Draws the first table of a page as dots: PAGE.md becomes PAGE.svg beside it.

tools/plot.py PAGE.md ...: a line for each row, a colour for each column of numbers. A column ± is the interval of the one before
it, and a number without one has a hollow dot; "4 to 6 %" is drawn as a range. Columns named in SKIPPED are no measurements.
`tests/cli/reproduce.py` draws every such page again and compares.
"""

import pathlib
import re
import sys
from xml.sax.saxutils import escape

SKIPPED = {"pairs", "1 - cos"}
COLOURS = ["#1f5fa8", "#c2571a", "#3a7d34"]
LABELS, WIDTH, ROW, TOP, BOTTOM = 250, 470, 22, 34, 42  # pixels


def table_of(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    length = next((i for i, row in enumerate(cells) if len(row) != len(cells[0])), len(cells))
    return cells[0], cells[2:length]


def numbers_of(cell):
    return [float(number) for number in re.findall(r"[-+]?[0-9.]*[0-9]", cell)]


def series_of(head, rows):
    """For each column of measurements its name and, for each row, the least, the middle and the most."""
    found = []
    for i, name in enumerate(head):
        if i == 0 or name in SKIPPED or name == "±":
            continue
        points = []
        for row in rows:
            numbers = numbers_of(row[i])
            half = numbers_of(row[i + 1])[0] if i + 1 < len(head) and head[i + 1] == "±" and row[i + 1] else 0
            middle = sum(numbers) / len(numbers) if numbers else None
            points.append(None if middle is None else (min(numbers) - half, middle, max(numbers) + half))
        found.append((name, points))
    return found


def ticks_of(least, most):
    span = most - least
    step = next(s for power in range(-6, 6) for s in (10**power, 2 * 10**power, 5 * 10**power) if span / s <= 8)
    first = int(least // step)
    return [round(n * step, 10) for n in range(first, int(most // step) + 2)]


def drawn(title, head, rows):
    series = series_of(head, rows)
    values = [value for _, points in series for point in points if point for value in point] + [0]
    ticks = ticks_of(min(values), max(values))
    height = TOP + ROW * len(rows) + BOTTOM

    def place(value):
        return LABELS + WIDTH * (value - ticks[0]) / (ticks[-1] - ticks[0])

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LABELS + WIDTH + 20} {height}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{LABELS + WIDTH + 20}" height="{height}" fill="#fff"/>',
    ]
    for tick in ticks:
        colour = "#555" if tick == 0 else "#ddd"
        svg.append(f'<line x1="{place(tick):.1f}" x2="{place(tick):.1f}" y1="{TOP}" y2="{height - BOTTOM}" stroke="{colour}"/>')
        svg.append(f'<text x="{place(tick):.1f}" y="{height - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    for n, row in enumerate(rows):
        y = TOP + ROW * (n + 0.5)
        svg.append(f'<text x="{LABELS - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(row[0])}</text>')
        for (_, points), colour in zip(series, COLOURS):
            if points[n]:
                least, middle, most = map(place, points[n])
                svg.append(f'<line x1="{least:.1f}" x2="{most:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="2"/>')
                fill = "#fff" if "±" in head and least == most else colour
                svg.append(f'<circle cx="{middle:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}"/>')
    for n, ((name, _), colour) in enumerate(zip(series, COLOURS)):
        svg.append(f'<circle cx="{LABELS + 6 + 190 * n}" cy="16" r="4" fill="{colour}"/>')
        svg.append(f'<text x="{LABELS + 16 + 190 * n}" y="20">{escape(name)}</text>')
    return "\n".join([*svg, "</svg>"]) + "\n"


def main():
    for name in sys.argv[1:]:
        page = pathlib.Path(name)
        text = page.read_text()
        title = text.splitlines()[0].lstrip("# ")
        page.with_suffix(".svg").write_text(drawn(title, *table_of(text)))


if __name__ == "__main__":
    main()
