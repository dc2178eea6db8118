"""Plots of the benchmark's table as plain SVG."""

import html

NATIVE, GANTRY, MISSED, GRID, TEXT = "#9aa5b1", "#2f6f9f", "#c0392b", "#d9dee3", "#1c2733"
ROW, LEFT, WIDTH, RIGHT = 34, 350, 460, 230


class Drawing:
    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>']
        self.text(12, 22, title, size=15)

    def text(self, x, y, words, size=12, anchor="start", colour=TEXT):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
                          f'text-anchor="{anchor}">{html.escape(str(words))}</text>')

    def box(self, x, y, width, height, colour, opacity=1.0):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" '
                          f'height="{height:.1f}" fill="{colour}" fill-opacity="{opacity}"/>')

    def line(self, x1, y1, x2, y2, colour=GRID, width=1.0, dashes=None):
        extra = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                          f'stroke="{colour}" stroke-width="{width}"{extra}/>')

    def path(self, points, colour):
        dots = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{dots}" fill="none" stroke="{colour}"/>')

    def done(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def figure(value):
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def bars(title, rows):
    """A pair of bars for each row that has a native figure, as long as each is to the larger one;
    None when there is no such row."""
    rows = [row for row in rows if "native" in row]
    if not rows:
        return None
    drawing = Drawing(LEFT + WIDTH + RIGHT, 60 + ROW * len(rows), title)
    drawing.box(LEFT, 34, 10, 10, GANTRY)
    drawing.text(LEFT + 14, 43, "Gantry")
    drawing.box(LEFT + 80, 34, 10, 10, NATIVE)
    drawing.text(LEFT + 94, 43, " / ".join(dict.fromkeys(row["beside"] for row in rows)))
    for number, row in enumerate(rows):
        top = 54 + ROW * number
        longest = max(row["value"], row["native"]) or 1
        drawing.text(LEFT - 8, top + 17, row["name"], anchor="end")
        drawing.box(LEFT, top + 2, WIDTH * row["value"] / longest, 11, GANTRY)
        drawing.box(LEFT, top + 14, WIDTH * row["native"] / longest, 11, NATIVE)
        drawing.text(LEFT + WIDTH + 6, top + 12, f"{figure(row['value'])} {row['unit']}")
        drawing.text(LEFT + WIDTH + 6, top + 25,
                     f"{figure(row['native'])} {row['unit']} {row['beside']}", colour="#66717c")
        drawing.text(LEFT + WIDTH + RIGHT - 8, top + 18, f"x {row['ratio']:.3f}", anchor="end",
                     colour=TEXT if row["kept"] else MISSED)
    return drawing.done()


def timeline(title, points, spans, unit="ms"):
    """Values over seconds: `points` as (second, value), `spans` as (from, to, name)."""
    if not points:
        return None
    left, top, width, height = 60, 40, 860, 260
    drawing = Drawing(left + width + 30, top + height + 50, title)
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1e-6)
    most = max(value for _, value in points) * 1.05 or 1

    def at(second, value):
        return (left + width * (second - first) / (last - first),
                top + height * (1 - value / most))

    for begin, end, name in spans:
        x, until = (at(min(max(one, first), last), 0)[0] for one in (begin, end))
        drawing.box(x, top, until - x, height, "#f3d9a4", 0.6)
        drawing.text(x + 2, top + 12, name)
    for fifth in range(6):
        x, y = at(first + (last - first) * fifth / 5, most * fifth / 5)
        drawing.line(left, y, left + width, y)
        drawing.text(left - 6, y + 4, figure(most * fifth / 5), anchor="end")
        drawing.text(x, top + height + 18, f"{(last - first) * fifth / 5:.1f} s", anchor="middle")
    drawing.text(left - 48, top - 6, unit)
    drawing.path([at(*point) for point in points], GANTRY)
    return drawing.done()
