"""Charts as SVG text. Pure functions: numbers in, markup out; what is no number is left out.

Colours are classes of the style sheet, so that light, dark and print have their own. Every chart of its own
has a title and a description that say in words what it shows; one that repeats the numbers beside it is
hidden from screen readers instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup, escape

from temper.report.words import is_number, number, size

Point = tuple[float, float]
#: The style sheet has so many series; more begin again.
SERIES = 8
BINS = 24


@dataclass(frozen=True)
class Marks:
    """Lines across a chart: the floor, what is published, and the fleet's median, where they are known."""

    floor: float | None = None
    published: float | None = None
    median: float | None = None

    def all(self) -> list[tuple[str, float]]:
        """Return those that are there, by their class."""
        found = (("floor", self.floor), ("published", self.published), ("median", self.median))
        return [(name, value) for name, value in found if value is not None and is_number(value)]


def chart(width: int, height: int, title: str, description: str, body: str, kind: str = "chart") -> Markup:
    """Return an SVG image with its words."""
    # Named by a label and not by the ids of title and desc: ids would have to differ all over a page.
    named = escape(f"{title}. {description}")
    stretched = "preserveAspectRatio=none " if kind.endswith("parts") else ""
    return Markup(  # noqa: S704 - all text is escaped
        f'<svg class="{kind}" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'{stretched}aria-label="{named}"><title>{escape(title)}</title>'
        f"<desc>{escape(description)}</desc>{body}</svg>"
    )


def bar(value: float, spread: float, marks: Marks, most: float) -> Markup:
    """Return a number as a bar up to `most`, with its spread and what it stands beside.

    The row has it in words.
    """
    if not is_number(value) or not is_number(most) or most <= 0:
        return Markup("")

    def x(at: float) -> str:
        return f"{min(max(at / most, 0.0), 1.0) * 150:.1f}"

    low = marks.floor is not None and value < marks.floor
    parts = [f'<rect class="{"low" if low else "bar"}" y="3" height="8" width="{x(value)}"/>']
    if is_number(spread) and spread > 0:
        first, last = x(value * (1 - spread / 2)), x(value * (1 + spread / 2))
        parts.append(f'<path class="spread" d="M{first} 7H{last}"/>')
    parts += [f'<path class="{name}" d="M{x(at)} 0V14"/>' for name, at in marks.all()]
    return _mini(150, 14, 'aria-hidden="true"', "".join(parts))


def sparkline(past: Sequence[float], now: float, floor: float | None = None) -> Markup:
    """Earlier numbers as a line that ends in the one of now."""
    values = [value for value in (*past, now) if is_number(value)]
    if len(values) < 2:
        return Markup("")
    within = [*values, floor] if floor is not None and is_number(floor) else values
    low, high = min(within), max(within)
    # A line that fills its height would make noise of 0.1 % look like a fall.
    room = max(high - low, 0.05 * abs(high), 1e-12)
    low = (low + high - room) / 2

    def y(value: float) -> str:
        return f"{21 - 18 * (value - low) / room:.1f}"

    step = 96 / (len(values) - 1)
    points = " ".join(f"{2 + place * step:.1f},{y(value)}" for place, value in enumerate(values))
    earlier = values[:-1]
    words = f"{len(earlier)} earlier, {number(min(earlier))} to {number(max(earlier))}; now {number(now)}"
    line = f'<path class="floor" d="M0 {y(floor)}H100"/>' if floor in within and floor is not None else ""
    line += f'<polyline class="line s0" points="{points}"/>'
    line += f'<circle class="dot" cx="98" cy="{y(values[-1])}" r="2.5"/>'
    return _mini(100, 24, f'role="img" aria-label="{words}"', line)


def histogram(values: Iterable[float], marks: Marks, title: str, unit: str) -> Markup:
    """Return how many numbers lie where, with the floor, what is published, and the median."""
    found = sorted(value for value in values if is_number(value))
    if not found:
        return Markup("")
    shown = [*found, *(at for _, at in marks.all())]
    low, high = min(shown), max(shown)
    # A fleet that is all alike is one thin column, not one that fills the chart.
    if high - low < 0.06 * abs(high):
        low, high = high - 0.06 * abs(high), high + 0.02 * abs(high)
    room = high - low or 1.0
    counts = [0] * BINS
    for value in found:
        counts[min(BINS - 1, int((value - low) / room * BINS))] += 1
    most, width = max(counts), 240 / BINS

    def x(at: float) -> float:
        return 4 + 240 * (at - low) / room

    body = [
        f'<rect class="bar" x="{4 + place * width + 0.5:.1f}" y="{44 - max(2.0, 40 * count / most):.1f}" '
        f'width="{width - 1:.1f}" height="{max(2.0, 40 * count / most):.1f}"/>'
        for place, count in enumerate(counts)
        if count
    ]
    body.append('<path class="axis" d="M2 44.5H246"/>')
    body += [f'<path class="{name}" d="M{x(at):.1f} 0V48"/>' for name, at in marks.all()]
    body += [_text(4, 58, number(low)), _text(244, 58, f"{number(high)} {unit}".rstrip(), "end")]
    words = f"{len(found)} numbers from {number(found[0])} to {number(found[-1])} {unit}"
    words += "".join(f", {name} {number(at)}" for name, at in marks.all())
    return chart(248, 62, title, words, "".join(body), "chart histogram")


@dataclass(frozen=True)
class Line:
    """A series of a chart."""

    name: str
    points: tuple[Point, ...]

    @cached_property
    def drawn(self) -> list[Point]:
        """The points that are numbers."""
        return [(x, y) for x, y in self.points if is_number(x) and is_number(y)]


@dataclass(frozen=True)
class Axis:
    """What an axis shows. With `powers`, equal steps are equal factors, for message sizes."""

    label: str
    powers: bool = False
    text: Callable[[float], str] = number
    from_zero: bool = False


#: An axis of message sizes.
SIZES = Axis("message size", powers=True, text=lambda bytes_: size(int(bytes_)))


def lines(series: Sequence[Line], x: Axis, y: Axis, title: str, floors: Sequence[Point] = ()) -> Markup:
    """Several series over one axis, told apart by colour, dashes and a legend; floors where they hold."""
    if x.powers:
        # A logarithmic axis has no place for 0 and what is below.
        series = [Line(line.name, tuple(one for one in line.drawn if one[0] > 0)) for line in series]
        floors = [one for one in floors if one[0] > 0]
    drawn = [(place, line) for place, line in enumerate(series) if line.drawn]
    if not drawn:
        return Markup("")
    all_x = [math.log2(at) if x.powers else at for _, line in drawn for at, _ in line.drawn]
    all_y = [at for _, line in drawn for _, at in line.drawn] + [at for _, at in floors]
    left, right, low, high = min(all_x), max(all_x), min(all_y), max(all_y)
    # Steps of a few MHz are no drama.
    low = 0.0 if y.from_zero else min(low, high - 0.15 * abs(high))
    ticks = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    plot_x, plot_y, plot_w, plot_h = 52, 10, 500, 160

    def at_x(value: float) -> float:
        found = math.log2(value) if x.powers else value
        return plot_x + plot_w * ((found - left) / (right - left) if right > left else 0.5)

    def at_y(value: float) -> float:
        return plot_y + plot_h * (1 - (value - low) / (high - low or 1.0))

    floor_words = f"; floor {', '.join(y.text(value) for _, value in floors)}" if floors else ""
    body = []
    for tick in ticks:
        place = at_y(tick)
        body.append(f'<path class="grid" d="M{plot_x} {place:.1f}h{plot_w}"/>')
        body.append(
            f'<text x="{plot_x - 6}" y="{place + 4:.1f}" text-anchor="end">{escape(y.text(tick))}</text>'
        )
    moments = sorted({at for _, line in drawn for at, _ in line.drawn})
    for tick in _steps(moments, x.powers):
        body.append(_text(at_x(tick), plot_y + plot_h + 16, x.text(tick), "middle"))
    body.append(f'<path class="axis" d="M{plot_x} {plot_y + plot_h}h{plot_w}"/>')
    body.append(_text(plot_x, plot_y + plot_h + 32, f"{y.label} over {x.label}{floor_words}"))
    for at, value in floors:
        body.append(f'<path class="floor" d="M{at_x(at) - 14:.1f} {at_y(value):.1f}h28"/>')
    # Series share moments and often values: each is placed once.
    across = {at: f"{at_x(at):.1f}" for at in moments}
    down = {at: f"{at_y(at):.1f}" for at in set(all_y)}
    for place, line in drawn:
        found = [(across[one], down[two]) for one, two in line.drawn]
        kind = f"s{place % SERIES}"
        points = " ".join(map(",".join, found))
        body.append(f'<polyline class="line {kind}" points="{points}"/>')
        if len(found) <= 16:
            body += [f'<circle class="dot {kind}" cx="{one}" cy="{two}" r="2.5"/>' for one, two in found]
    rows = (len(series) + 3) // 4
    for order, (place, line) in enumerate(drawn):
        one, two = plot_x + 128 * (order % 4), plot_y + plot_h + 50 + 16 * (order // 4)
        body.append(f'<path class="line s{place % SERIES}" d="M{one} {two - 4}h22"/>')
        body.append(f'<text x="{one + 28}" y="{two}">{escape(_short(line.name))}</text>')
    words = "; ".join(
        f"{line.name}: {y.text(min(v for _, v in line.drawn))} to {y.text(max(v for _, v in line.drawn))}"
        for _, line in drawn
    )
    said = f"{y.label} over {x.label}{floor_words}. {words}."
    return chart(570, plot_y + plot_h + 44 + 16 * rows, title, said, "".join(body))


def shares(found: Sequence[tuple[str, str, float]], title: str) -> Markup:
    """Parts of a time that may overlap, each as a bar of its own: a class, a name, and the part (0 to 1)."""
    shown = [(kind, name, part) for kind, name, part in found if is_number(part)]
    body = [
        f'<rect class="track" y="{12 * place}" width="160" height="8"/>'
        f'<rect class="part {escape(kind)}" y="{12 * place}" width="{160 * _within(part):.1f}" height="8"/>'
        f"{_text(166, 12 * place + 8, name)}"
        for place, (kind, name, part) in enumerate(shown)
    ]
    words = ", ".join(f"{name} {100 * part:.3g} %" for _, name, part in shown)
    return chart(250, 12 * len(shown), title, words, "".join(body), "chart shares") if shown else Markup("")


def _mini(width: int, height: int, named: str, body: str) -> Markup:
    """Return a chart in a row of a table."""
    size_ = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return Markup(f'<svg class="mini" {named} {size_}>{body}</svg>')  # noqa: S704 - numbers only


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _within(part: float) -> float:
    return min(max(part, 0.0), 1.0)


def _ticks(low: float, high: float) -> list[float]:
    """About four round numbers that reach from below `low` to above `high`."""
    # Less room is none: it has no logarithm.
    room = max(high - low or abs(high) or 1.0, 1e-12)
    step = 10 ** math.floor(math.log10(room / 4))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if room / (step * factor) <= 4.5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [place * step for place in range(first, max(last, first + 1) + 1)]


def _steps(values: list[float], powers: bool) -> list[float]:
    """Return which of the values on the horizontal axis are written."""
    if len(values) <= 8:
        return values
    if powers:
        return values[:: -(-len(values) // 8)]
    return [round(tick, 6) for tick in _ticks(values[0], values[-1]) if values[0] <= tick <= values[-1]]


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
