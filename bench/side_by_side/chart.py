"""A bar chart as SVG, written by hand: how many times better or worse, on a logarithmic scale around 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

ROW_HEIGHT = 22
LETTER_WIDTH = 6.6
PLOT_WIDTH = 420
MARGIN = 16
TITLE_HEIGHT = 44
LARGEST_RATIO = 32.0
AHEAD, BEHIND, INK, FAINT = "#2a7f62", "#b3442f", "#222222", "#cccccc"
TICKS = (1 / 16, 1 / 4, 1, 4, 16)


def draw(bars: Sequence[tuple[str, float]], title: str) -> str:
    """`bars` are labels and ratios; above 1 is ahead and points right."""
    height = TITLE_HEIGHT + ROW_HEIGHT * len(bars) + 2 * MARGIN
    labels_width = round(max((len(label) for label, _ in bars), default=0) * LETTER_WIDTH) + MARGIN
    width = labels_width + PLOT_WIDTH + 70
    middle = labels_width + PLOT_WIDTH / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="20" font-size="14" font-weight="bold" fill="{INK}">{escape(title)}</text>',
    ]
    bottom = TITLE_HEIGHT + ROW_HEIGHT * len(bars)
    for tick in TICKS:
        x = middle + _offset(tick)
        label = f"{tick:g}×" if tick >= 1 else f"1/{1 / tick:g}"
        parts.append(f'<line x1="{x:.1f}" y1="{TITLE_HEIGHT - 4}" x2="{x:.1f}" y2="{bottom}" stroke="{FAINT}"/>')
        parts.append(f'<text x="{x:.1f}" y="{TITLE_HEIGHT - 8}" text-anchor="middle" fill="{INK}">{label}</text>')
    for index, (label, ratio) in enumerate(bars):
        top = TITLE_HEIGHT + index * ROW_HEIGHT
        reach = _offset(ratio)
        colour = AHEAD if ratio >= 1 else BEHIND
        baseline = top + 15
        parts.append(
            f'<text x="{labels_width - 8}" y="{baseline}" text-anchor="end" fill="{INK}">{escape(label)}</text>'
        )
        parts.append(
            f'<rect x="{min(middle, middle + reach):.1f}" y="{top + 4}" width="{max(abs(reach), 1):.1f}" '
            f'height="{ROW_HEIGHT - 8}" fill="{colour}"/>'
        )
        anchor, gap = ("start", 4) if ratio >= 1 else ("end", -4)
        tip = middle + reach + gap
        parts.append(f'<text x="{tip:.1f}" y="{baseline}" text-anchor="{anchor}" fill="{INK}">{ratio:.2g}×</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _offset(ratio: float) -> float:
    bounded = min(max(ratio, 1 / LARGEST_RATIO), LARGEST_RATIO)
    return math.log(bounded) / math.log(LARGEST_RATIO) * PLOT_WIDTH / 2
