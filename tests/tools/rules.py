#!/usr/bin/env python3
"""The rules of ops/ without a server. In: the source folder. promtool checks them and runs their unit
tests, one for each alert; the dashboard's panels have titles, targets and places of their own. 77
(skipped) without promtool."""
import json
import os
import re
import shutil
import subprocess
import sys

OPS = os.path.join(sys.argv[1], "ops")


def promtool(*args):
    done = subprocess.run(["promtool", *args], cwd=OPS, text=True, capture_output=True, timeout=120,
                          check=False)
    print(done.stdout + done.stderr)
    return done.returncode == 0


def read(name):
    with open(os.path.join(OPS, name), encoding="utf-8") as f:
        return f.read()


def every_alert_is_tested():
    alerts = set(re.findall(r"- alert: (\w+)", read("prometheus-rules.yml")))
    fired = set(re.findall(r"alertname: (\w+)\n\s+eval_time: \w+\n\s+exp_alerts:\n",
                           read("prometheus-rules.test.yml")))
    print("alerts that no test fires:", sorted(alerts - fired))
    return alerts and alerts == fired


def dashboard_is_whole():
    panels = json.loads(read("grafana-dashboard.json"))["panels"]
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    names = {p["title"] for p in panels}
    ids = {p["id"] for p in panels}
    targets = all(t["expr"] and t["legendFormat"] for p in panels for t in p["targets"])
    print(f"{len(panels)} panels")
    return targets and len(panels) == len(places) == len(names) == len(ids)


def main():
    if not dashboard_is_whole() or not every_alert_is_tested():
        return 1
    if not shutil.which("promtool"):
        print("skipped: promtool is missing (package prometheus)")
        return 77
    return 0 if promtool("check", "rules", "prometheus-rules.yml") and \
        promtool("test", "rules", "prometheus-rules.test.yml") else 1


sys.exit(main())
