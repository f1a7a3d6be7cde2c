"""The look of drawn graphs in files of their own. On pages of the admin it is `graph.css`, which has the same rules."""

from __future__ import annotations

from statemachine_fields.drawing.tones import themed, tone_css

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'

#: Colours that are not of a state, in light and in dark.
INK = {
    "ink": ("#24292f", "#e6edf3"),
    "canvas": ("#ffffff", "#0d1117"),
    "edge": ("#6b7580", "#8d96a0"),
    "faint": ("#c9ced4", "#474d55"),
    "strong": ("#1f6aa5", "#79b8ff"),
}

RULES = """\
.smf-graph { display: block; max-width: 100%; height: auto; }
.smf-graph text { font-size: 13px; text-anchor: middle; fill: var(--smf-ink); }
.smf-graph .smf-canvas { fill: var(--smf-canvas); }
.smf-graph .smf-title { font-weight: 600; text-anchor: start; }
.smf-graph .smf-box, .smf-graph .smf-inner { fill: var(--smf-fill); stroke: var(--smf-line); stroke-width: 1.5px; }
.smf-graph .smf-inner { fill: none; stroke-width: 1px; }
.smf-graph .smf-state text { fill: var(--smf-text); font-weight: 600; }
.smf-graph .smf-state .smf-note { font-size: 12px; font-weight: 400; font-variant-numeric: tabular-nums; }
.smf-graph .smf-line { fill: none; stroke: var(--smf-edge); }
.smf-graph .smf-head, .smf-graph .smf-dot { fill: var(--smf-edge); stroke: none; }
.smf-graph .smf-label { font-size: 11px; }
.smf-graph .smf-forced .smf-line { stroke-dasharray: 5 4; }
.smf-graph .smf-faded .smf-line { stroke: var(--smf-faint); }
.smf-graph .smf-faded .smf-head { fill: var(--smf-faint); }
.smf-graph .smf-faded .smf-label { fill: var(--smf-edge); }
.smf-graph .smf-faded .smf-box { fill: var(--smf-canvas); stroke-width: 1px; }
.smf-graph .smf-taken .smf-line { stroke: var(--smf-strong); }
.smf-graph .smf-taken .smf-head { fill: var(--smf-strong); }
.smf-graph .smf-taken .smf-label { font-weight: 600; }
.smf-graph .smf-current .smf-box { fill: var(--smf-text); stroke: var(--smf-text); }
.smf-graph .smf-current .smf-inner { stroke: var(--smf-fill); }
.smf-graph .smf-current text { fill: var(--smf-fill); }
.smf-graph .smf-halo { fill: var(--smf-line); fill-opacity: 0.35; }
.smf-graph a { cursor: pointer; text-decoration: none; }
.smf-graph a:hover .smf-box, .smf-graph a:focus-visible .smf-box { stroke-width: 2.5px; stroke: var(--smf-text); }
.smf-graph a:hover .smf-name { text-decoration: underline; }
.smf-graph a:focus { outline: none; }
.smf-graph a:focus-visible { outline: 2px solid var(--smf-strong); outline-offset: 3px; border-radius: 8px; }
"""


def standalone_css() -> str:
    """Return the CSS for a graph in a file of its own, which follows the browser's light or dark."""
    light, dark = ([f"--smf-{name}: {both[place]};" for name, both in INK.items()] for place in (0, 1))
    return tone_css() + themed(light, dark) + f".smf-graph {{ font-family: {FONT}; }}\n" + RULES
