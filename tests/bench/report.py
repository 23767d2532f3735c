"""The results as a table, as JSON and as a picture."""

import json
import math
import statistics


class Row:
    """kvfs against one rival. pairs: (kvfs, rival) of each round; less: a smaller value is better."""

    def __init__(self, name, unit, rival, pairs, goal=None, less=False):
        self.name, self.unit, self.rival, self.goal = name, unit, rival, goal
        self.ratios = [(r / k if less else k / r) for k, r in pairs]
        self.kvfs = statistics.median(k for k, _ in pairs)
        self.value = statistics.median(r for _, r in pairs)
        self.ratio = statistics.median(self.ratios)

    def met(self):
        return self.goal is None or self.ratio >= self.goal

    def as_json(self):
        return {
            "name": self.name, "kvfs": self.kvfs, "unit": self.unit, "rival": self.rival,
            "rival_value": self.value, "ratio": self.ratio, "runs": len(self.ratios),
            "ratio_min": min(self.ratios), "ratio_max": max(self.ratios), "goal": self.goal,
        }


class Table:
    """Figures without a rival: columns, and rows of words and numbers."""

    def __init__(self, title, columns):
        self.title, self.columns, self.rows = title, columns, []

    def add(self, *row):
        self.rows.append(row)

    def as_json(self):
        return [dict(zip(self.columns, row)) for row in self.rows]

    def __str__(self):
        return aligned([self.columns] + [tuple(c if isinstance(c, str) else f"{c:.2f}"
                                               if isinstance(c, float) else str(c) for c in row)
                                         for row in self.rows],
                       [j for j, c in enumerate(self.rows[0]) if isinstance(c, str)])


def aligned(cells, left, same=1):
    """Lines of columns; where the first is that of the line before, so many are left out."""
    width = [max(len(c[i]) for c in cells) for i in range(len(cells[0]))]
    lines = []
    for i, c in enumerate(cells):
        if i and c[0] == cells[i - 1][0]:
            c = ("",) * same + c[same:]
        lines.append("  ".join(
            c[j].ljust(width[j]) if j in left else c[j].rjust(width[j]) for j in range(len(c))
        ).rstrip())
    lines.insert(1, "  ".join("-" * w for w in width))
    return "\n".join(lines)


def number(x):
    return f"{x:.3g}" if x < 100 else f"{x:.0f}"


def table(rows):
    head = ("name", "kvfs", "unit", "rival", "value", "ratio", "rounds", "goal", "met")
    cells = [head]
    for r in rows:
        spread = f"{min(r.ratios):.2f}-{max(r.ratios):.2f}"
        goal = ("", "") if r.goal is None else (f"{r.goal:.2f}", "yes" if r.met() else "NO")
        cells.append((r.name, number(r.kvfs), r.unit, r.rival, number(r.value), f"{r.ratio:.2f}",
                      spread, *goal))
    return aligned(cells, (0, 2, 3), same=3)


def verdict(rows):
    goals = [r for r in rows if r.goal is not None]
    short = [r for r in goals if not r.met()]
    lines = [f"{r.name} falls short: {r.ratio:.2f} of {r.rival}, the goal is {r.goal:.2f}"
             for r in short]
    lines.append(f"{len(goals) - len(short)} of {len(goals)} goals met")
    return "\n".join(lines)


def write_json(path, machine, rows, tables):
    with open(path, "w") as f:
        json.dump({"machine": machine, "results": [r.as_json() for r in rows],
                   "tables": {name: t.as_json() for name, t in tables.items()}}, f, indent=1)
        f.write("\n")


# ---- The picture: one bar a row, on a logarithmic scale, drawn as SVG so that nothing is needed ----

BAR, LEFT, WIDTH, RIGHT, TOP = 16, 240, 560, 90, 56
COLOURS = {True: "#3a7d44", False: "#b3392f", None: "#5b7c99"}


def write_svg(path, rows, machine):
    low = min([0.1] + [r.ratio for r in rows])
    high = max([2.0] + [r.ratio for r in rows])
    lo, hi = math.floor(math.log10(low) * 2) / 2, math.ceil(math.log10(high) * 2) / 2

    def x(ratio):
        return LEFT + WIDTH * (math.log10(ratio) - lo) / (hi - lo)

    height = TOP + (BAR + 6) * len(rows) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + RIGHT}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="10" y="20" font-size="15">kvfs against its rivals: ratio of rates, more is better'
        '</text>',
        f'<text x="10" y="38" fill="#666">{escape(machine["cpu"])}, {machine["cores"]} cores, Linux '
        f'{escape(machine["kernel"])}; thick line: equal; black tick: goal</text>',
    ]
    for tick in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100):
        if lo <= math.log10(tick) <= hi:
            out.append(f'<line x1="{x(tick):.1f}" y1="{TOP - 6}" x2="{x(tick):.1f}" '
                       f'y2="{height - 24}" stroke="#ccc" stroke-width="{3 if tick == 1 else 1}"/>')
            out.append(f'<text x="{x(tick):.1f}" y="{height - 8}" text-anchor="middle">{tick:g}'
                       '</text>')
    for i, r in enumerate(rows):
        out += bar(r, TOP + i * (BAR + 6), x)
    out.append("</svg>\n")
    with open(path, "w") as f:
        f.write("\n".join(out))


SHADES = ["#b8c4ce", "#5b7c99", "#1f3d5a"]


def write_codecs_svg(path, table, machine):
    """Ratios of the codecs by element, a bar each, from 1 on."""
    most = max(row[2] for row in table.rows)

    def x(ratio):
        return LEFT + WIDTH * (ratio - 1) / max(most - 1, 0.1)

    height = TOP + (BAR + 2) * len(table.rows) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + RIGHT}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{escape(table.title)}: raw bytes to stored bytes</text>',
        f'<text x="10" y="38" fill="#666">{escape(machine["cpu"])}; decode in GB/s behind each</text>',
    ]
    names = list(dict.fromkeys(row[1] for row in table.rows))
    for i, (element, codec, ratio, _, decode) in enumerate(table.rows):
        y = TOP + i * (BAR + 2)
        if not i or table.rows[i - 1][0] != element:
            out.append(f'<text x="{LEFT - 60}" y="{y + BAR - 4}" text-anchor="end">{escape(element)}</text>')
        out.append(f'<text x="{LEFT - 8}" y="{y + BAR - 4}" text-anchor="end" fill="#666">{escape(codec)}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{max(x(ratio) - LEFT, 1):.1f}" height="{BAR}" '
                   f'fill="{SHADES[names.index(codec) % len(SHADES)]}"/>')
        out.append(f'<text x="{max(x(ratio), LEFT) + 6:.1f}" y="{y + BAR - 4}">{ratio:.2f}, {decode:.1f}</text>')
    out.append("</svg>\n")
    with open(path, "w") as f:
        f.write("\n".join(out))


LINES = ["#b3392f", "#1f3d5a", "#5b7c99", "#3a7d44"]


def write_crossover_svg(path, table, machine):
    """Lines over the rate of raw reads, both scales the same: above the diagonal a codec saves time."""
    most = max(max(row[1:5]) for row in table.rows) * 1.1
    side, left = 400, 60

    def xy(raw, value):
        return f"{left + side * raw / most:.1f},{TOP + side - side * value / most:.1f}"

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + side + 130}" height="{TOP + side + 50}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{escape(table.title)}</text>',
        f'<text x="10" y="38" fill="#666">{escape(machine["cpu"])}, {machine["cores"]} cores</text>',
        f'<rect x="{left}" y="{TOP}" width="{side}" height="{side}" fill="none" stroke="#ccc"/>',
        f'<text x="{left + side / 2}" y="{TOP + side + 36}" text-anchor="middle">raw O_DIRECT reads of the '
        'device, GB/s</text>',
    ]
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if most / s <= 8)
    for k in range(1, int(most / step) + 1):
        at = xy(k * step, k * step).split(",")
        out.append(f'<text x="{at[0]}" y="{TOP + side + 16}" text-anchor="middle">{k * step:g}</text>')
        out.append(f'<text x="{left - 8}" y="{at[1]}" text-anchor="end">{k * step:g}</text>')
    for i, name in enumerate(("raw", "fast", "dense", "auto")):
        points = [xy(row[1], row[1 + i]) for row in table.rows]
        x, y = points[-1].split(",")
        out.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{LINES[i]}" stroke-width="2" '
                   f'stroke-dasharray="{"4 3" if name == "auto" else "none"}"/>')
        out.append(f'<text x="{float(x) + 6:.1f}" y="{float(y) + 12 * (name == "auto"):.1f}" '
                   f'fill="{LINES[i]}">{name}</text>')
    out.append("</svg>\n")
    with open(path, "w") as f:
        f.write("\n".join(out))


def bar(row, y, x):
    start, end = sorted((x(1), x(row.ratio)))
    colour = COLOURS[None if row.goal is None else row.met()]
    base = y + BAR - 4
    parts = [
        f'<text x="{LEFT - 8}" y="{base}" text-anchor="end">{escape(row.name)} / '
        f'{escape(row.rival)}</text>',
        f'<rect x="{start:.1f}" y="{y}" width="{max(end - start, 1):.1f}" height="{BAR}" '
        f'fill="{colour}"/>',
        f'<text x="{max(end, x(1)) + 6:.1f}" y="{base}">{row.ratio:.2f}</text>',
    ]
    if row.goal is not None:
        parts.append(f'<line x1="{x(row.goal):.1f}" y1="{y - 2}" x2="{x(row.goal):.1f}" '
                     f'y2="{y + BAR + 2}" stroke="black" stroke-width="2"/>')
    return parts


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")
