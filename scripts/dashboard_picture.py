#!/usr/bin/env python3
"""Draws the panels of ops/grafana-dashboard.json from a real run. In: lkv, an SVG file to write, the
seconds of rate(), and options of lkv serve-metrics behind --. A replay is served, a Prometheus
scrapes it every second, its answers are drawn; nothing in the picture is made up. Needs prometheus
and python3-matplotlib.

    scripts/dashboard_picture.py build/release/lkv docs/moe-dashboard.svg 20 -- --moe 8 ..."""
import json
import math
import os
import re
import sys
import tempfile

import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/tools"))
import metrics_world as world  # noqa: E402

SCRAPE_MS, POINTS, COLUMNS, LONGEST_S = 1000, 90, 3, 3600


def label_of(legend, labels):
    for name in ("expert", "kind", "state"):
        legend = legend.replace("{{%s}}" % name, labels.get(name, ""))
    return legend


def draw_bands(axes, defaults):
    steps = [s["value"] for s in defaults["thresholds"]["steps"] if s["value"] is not None]
    if len(steps) == 2:
        axes.axhspan(*steps, color="tab:green", alpha=0.12, lw=0)
    for value in steps if len(steps) == 1 else []:
        axes.axhline(value, color="tab:red", lw=0.8, ls="--")


def draw_panel(axes, panel, lines, begin):
    defaults = panel["fieldConfig"]["defaults"]
    percent = 100 if defaults["unit"] == "percentunit" else 1
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    draw_bands(axes, {"thresholds": {"steps": [
        {"value": s["value"] and s["value"] * percent} for s in defaults["thresholds"]["steps"]]}})
    if stacked:
        axes.stackplot([t - begin for t, _ in lines[0][1]], [[v for _, v in p] for _, p in lines],
                       labels=[name for name, _ in lines], lw=0)
    for name, points in [] if stacked else lines:
        points = [(t - begin, percent * v) for t, v in points if math.isfinite(v)]
        axes.plot([t for t, _ in points], [v for _, v in points], label=name, lw=1)
    unit = {"percentunit": " (%)", "ops": " (1/s)"}.get(defaults["unit"], "")
    axes.set_title(panel["title"] + unit, fontsize=8, loc="left")
    axes.set_ylim(bottom=0) if defaults.get("min") == 0 else None
    axes.tick_params(labelsize=6)
    axes.grid(alpha=0.3, lw=0.4)
    axes.legend(fontsize=5.5, ncol=4, frameon=False, loc="best")


def read_panels(prometheus, window_s, begin, end):
    path = os.path.join(ROOT, "ops/grafana-dashboard.json")
    lines = {}
    for title, legend, expr in world.dashboard_queries(path, f"{window_s}s"):
        for labels, points in prometheus.query_range(expr, begin, end, (end - begin) / POINTS):
            lines.setdefault(title, []).append((label_of(legend, labels), points))
    with open(path, encoding="utf-8") as f:
        return [(p, lines.get(p["title"], [])) for p in json.load(f)["panels"]]


def shorten(path):
    """Paths to a tenth of a point, each style once as a class: a third of the bytes."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    def rounded(d):
        numbers = re.sub(r"\d+\.\d+", lambda n: f"{float(n[0]):.1f}".removesuffix(".0"), d[0])
        return " " + " ".join(numbers.split())
    classes = {}

    def named(style):
        name = classes.setdefault(style[1], f"c{len(classes)}")
        return f' class="{name}"'
    text = re.sub(r' d="[^"]*"', rounded, text)
    text = re.sub(r' style="([^"]*)"', named, text)
    rules = "".join(f".{name}{{{style}}}\n" for style, name in classes.items())
    text = text.replace("</style>", rules + "</style>", 1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(re.sub(r"\s*\n\s*", "\n", text))


def draw(panels, begin, path):
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "latentkv", "path.simplify": True})
    rows = (len(panels) + COLUMNS - 1) // COLUMNS
    figure, grid = plt.subplots(rows, COLUMNS, figsize=(12, 2.2 * rows), layout="constrained")
    for axes, (panel, lines) in zip(grid.flat, panels):
        draw_panel(axes, panel, lines, begin)
    for axes in grid[-1]:
        axes.set_xlabel("seconds", fontsize=7)
    figure.savefig(path, metadata={"Date": None})
    shorten(path)


def main():
    lkv, path, window_s, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[5:]
    with tempfile.TemporaryDirectory() as folder, world.Replay(
            lkv, folder, [*options, "--linger", "600", "--every-ms", "300"]) as replay:
        rules = os.path.join(ROOT, "ops/prometheus-rules.yml")
        with world.Prometheus(folder, replay.address, rules, SCRAPE_MS) as prometheus:
            replay.result(LONGEST_S)
            (_, values), = prometheus.query(f"latentkv_pool_capacity_blocks[{LONGEST_S}s]")
            begin, end = float(values[0][0]), float(values[-1][0])
            draw(read_panels(prometheus, window_s, begin, end), begin, path)
    print(f"{path}: {os.path.getsize(path)} bytes, {end - begin:.0f} s")


if __name__ == "__main__":
    main()
