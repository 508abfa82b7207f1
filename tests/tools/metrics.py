#!/usr/bin/env python3
"""lkv serve-metrics end to end. In: lkv's path and the source folder. A replay is served, checked by
promtool, scraped by a real Prometheus; then every query of the dashboard and every recording rule
must give what the replay's snapshot says. 77 (skipped) without prometheus or libmicrohttpd."""
import json
import math
import os
import subprocess
import sys
import tempfile

import metrics_world as world

LKV, SOURCE = sys.argv[1], sys.argv[2]
OPTIONS = ["--limit", "160", "--blocks", "330", "--headroom", "0.3", "--moe", "8", "--router", "trace",
           "--payload", "41984", "--gate-window", "400", "--eager", "--pace", "24", "--every-ms",
           "100", "--linger", "300"]
WINDOW_S, SCRAPE_MS = 120, 250
EXACT, RATE = 1e-8, 0.02  # the JSON has 9 digits; rate() extrapolates by up to half a scrape


def promtool(*args, text=None):
    done = subprocess.run(["promtool", *args], input=text, text=True, capture_output=True,
                          timeout=60, check=False)
    assert done.returncode == 0, f"promtool {args}: {done.stdout}{done.stderr}"


def close(found, wanted, tolerance, what):
    off = abs(found - wanted) / max(abs(wanted), 1e-300) if wanted else abs(found)
    print(f"  {what}: {found:.10g}, snapshot {wanted:.10g}")
    assert off <= tolerance, f"{what}: found {found!r}, want {wanted!r}"


def entropy(counts):
    total = sum(counts)
    return -sum(n / total * math.log(n / total) for n in counts if n)


class Snapshot:
    """What the replay says of itself, and the growth of each counter while it was scraped."""

    def __init__(self, prometheus, result, text):
        self.signals = result["moe"]["signals"]
        self.samples = world.samples_of(text)
        self.grown = {}
        for labels, values in prometheus.query(f'{{job="latentkv", __name__=~".*_total"}}[{WINDOW_S}s]'):
            own = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())
                           if k not in ("__name__", "job", "instance"))
            name = labels["__name__"] + (f"{{{own}}}" if own else "")
            self.grown[name] = float(values[-1][1]) - float(values[0][1])

    def of(self, name):
        return self.samples[name]

    def ratio(self, part, whole):
        return self.grown[part] / sum(v for k, v in self.grown.items() if k.split("{")[0] == whole)

    def experts(self):
        return [self.grown[f'latentkv_moe_expert_tokens_total{{expert="{e}"}}'] for e in range(8)]


def labelled(name, label):
    return lambda s, labels: s.of(f'{name}{{{label}="{labels[label]}"}}')


def per_second(name, label=None):
    return lambda s, labels: s.grown[name + (f'{{{label}="{labels[label]}"}}' if label else "")] / WINDOW_S


# (title, legend): (tolerance, what the snapshot says). Of signals: the struct lkv_moe_stats.
WANTED = {
    ("Utilisation entropy", "over the interval"): (RATE, lambda s, _: entropy(s.experts())),
    ("Utilisation entropy", "since the start"): (EXACT, lambda s, _: s.signals["utilisation_nats"]),
    ("Trigger rate", "over the interval"):
        (RATE, lambda s, _: s.ratio("latentkv_moe_gate_triggered_total", "latentkv_moe_gate_tokens_total")),
    ("Trigger rate", "since the start"): (EXACT, lambda s, _: s.signals["trigger_rate"]),
    ("Load of each expert over the mean", "{{expert}}"):
        (RATE, lambda s, labels: 8 * s.experts()[int(labels["expert"])] / sum(s.experts())),
    ("Threshold of the gate", "threshold"): (EXACT, lambda s, _: s.signals["threshold"]),
    ("Slot lookups that hit", "hits"):
        (RATE, lambda s, _: s.ratio('latentkv_moe_slot_lookups_total{kind="hit"}',
                                    "latentkv_moe_slot_lookups_total")),
    ("Headroom", "blocks lent"):
        (EXACT, lambda s, _: s.signals["lent_blocks"] / s.signals["headroom_blocks"]),
    ("Headroom", "slots filled"):
        (EXACT, lambda s, _: s.signals["slots_ready"] / s.signals["slots_total"]),
    ("Payloads that ended or found no room", "{{kind}}"):
        (0.15, per_second("latentkv_moe_slot_ends_total", "kind")),
    ("Payloads that ended or found no room", "refused"):
        (0.15, per_second("latentkv_moe_slot_refused_total")),
    ("Payloads saved by sharing", "saved now"): (EXACT, lambda s, _: s.signals["dedup_ratio"]),
    ("Signals outside their band", "bits"): (EXACT, lambda s, _: s.signals["outside"]),
    ("Blocks by state", "{{state}}"): (EXACT, labelled("latentkv_pool_blocks", "state")),
    ("Prompt tokens found in the prefix cache", "over the interval"):
        (RATE, lambda s, _: s.ratio("latentkv_pool_hit_tokens_total", "latentkv_pool_prompt_tokens_total")),
    ("Sequences and evictions", "sequences"): (EXACT, lambda s, _: s.of("latentkv_pool_sequences")),
    ("Sequences and evictions", "evictions"): (0.15, per_second("latentkv_pool_evicted_blocks_total")),
}
MANY = {"{{expert}}": 8, "{{kind}}": 2, "{{state}}": 5}


def check_dashboard(prometheus, snapshot):
    path = os.path.join(SOURCE, "ops/grafana-dashboard.json")
    seen = set()
    for title, legend, expr in world.dashboard_queries(path, f"{WINDOW_S}s"):
        tolerance, wanted = WANTED[title, legend]
        found = prometheus.query(expr)
        assert len(found) == MANY.get(legend, 1), f"{title}, {legend}: {len(found)} series of {expr}"
        for labels, value in found:
            own = ", ".join(f"{k} {v}" for k, v in labels.items() if k in ("expert", "kind", "state"))
            close(value, wanted(snapshot, labels), tolerance, f"{title}, {own or legend}")
        seen.add((title, legend))
    assert seen == set(WANTED), f"not on the dashboard: {set(WANTED) - seen}"


def check_rules(prometheus, snapshot):
    """As recorded while it ran: over 5 minutes, which is all of it."""
    for record, wanted in (
            ("latentkv:moe_utilisation_nats:rate5m", entropy(snapshot.experts())),
            ("latentkv:moe_trigger_ratio:rate5m",
             snapshot.ratio("latentkv_moe_gate_triggered_total", "latentkv_moe_gate_tokens_total")),
            ("max(latentkv:moe_expert_load_ratio:rate5m)",
             8 * max(snapshot.experts()) / sum(snapshot.experts()))):
        (_, value), = prometheus.query(record)
        close(value, wanted, RATE, record)
    rules = [r for g in prometheus.ask("rules")["groups"] for r in g["rules"]]
    assert len(rules) == 11, len(rules)
    for rule in rules:
        assert rule["health"] == "ok", rule


def check_text(text):
    """promtool's lint, and each name once with its type."""
    promtool("check", "metrics", text=text)
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types)) and len(types) > 40, types


def settle(prometheus, replay):
    """The last snapshot has been scraped a few times, so that rules have seen it; queries are for the
    time of the last of these scrapes (on a busy machine a later one may fail)."""
    name = "latentkv_moe_gate_tokens_total"
    last = world.samples_of(replay.text())[name]

    def scrapes():
        found = prometheus.query(f"{name}[{WINDOW_S}s]")
        times = [t for t, value in found[0][1] if float(value) == last] if found else []
        return times if len(times) > 4 else None
    prometheus.at = world.wait_for("scrapes of the last snapshot", scrapes, 60)[-1]


def main():
    if not world.have_prometheus():
        print("skipped: prometheus and promtool are missing (package prometheus)")
        return 77
    with tempfile.TemporaryDirectory() as folder, world.Replay(LKV, folder, OPTIONS) as replay:
        if replay.built_without:
            print("skipped: this lkv was built without libmicrohttpd")
            return 77
        rules = os.path.abspath(os.path.join(SOURCE, "ops/prometheus-rules.yml"))
        with world.Prometheus(folder, replay.address, rules, SCRAPE_MS) as prometheus:
            check_text(world.wait_for("metrics", replay.text, 20))
            result = replay.result(240)
            check_text(replay.text())
            settle(prometheus, replay)
            snapshot = Snapshot(prometheus, result, replay.text())
            assert snapshot.signals["slot_evicted"] and snapshot.signals["gate_windows"], "too short"
            check_dashboard(prometheus, snapshot)
            check_rules(prometheus, snapshot)
            print(json.dumps({"scrapes": prometheus.query(f"count_over_time(up[{WINDOW_S}s])")[0][1]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
