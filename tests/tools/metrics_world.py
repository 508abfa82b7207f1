"""A replay that serves its metrics, a Prometheus that scrapes it, and the queries of the dashboard. For
tests/tools/metrics.py and scripts/dashboard_picture.py. Everything started here is ended here."""
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request

SAMPLE = re.compile(r'^(\w+)(?:\{(.*)\})? (\S+)$')


def wait_for(what, found, seconds):
    """Polls until found() is true, and returns that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds} s")


def fetch(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def samples_of(text):
    """{name, or name{labels}: value} of Prometheus text."""
    found = {}
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match:
            name, labels, value = match.groups()
            found[f"{name}{{{labels}}}" if labels else name] = float(value)
    return found


class Replay:
    """lkv serve-metrics with the options of a replay; ends when the with block does."""

    def __init__(self, lkv, folder, options):
        self.json = os.path.join(folder, "replay.json")
        self.process = subprocess.Popen(
            [lkv, "serve-metrics", "--port", "0", "--json", self.json, *options], text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        line = self.process.stderr.readline()
        match = re.search(r"http://(\S+)/metrics", line)
        self.built_without = "without libmicrohttpd" in line
        self.address = match and match.group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        self.process.stderr.close()

    def text(self):
        return fetch(f"http://{self.address}/metrics")

    def result(self, seconds):
        """The JSON object, when the trace has run."""
        def read():
            if self.process.poll() not in (None, 0):
                raise AssertionError(f"serve-metrics: exit code {self.process.returncode}")
            try:
                with open(self.json, encoding="utf-8") as f:
                    return json.load(f)
            except (FileNotFoundError, ValueError):
                return None
        return wait_for("the replay", read, seconds)


class Prometheus:
    """A server with its own folder and port that scrapes one address."""

    def __init__(self, folder, address, rules, scrape_ms):
        self.at = None  # the time that queries are for; None: now
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as f:
            f.write(f"global: {{scrape_interval: {scrape_ms}ms, scrape_timeout: {scrape_ms}ms, "
                    f"evaluation_interval: {scrape_ms}ms}}\n"
                    f"rule_files: ['{rules}']\n"
                    "scrape_configs:\n  - job_name: latentkv\n    static_configs:\n"
                    f"      - targets: ['{address}']\n")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--web.listen-address=127.0.0.1:{self.port}",
             f"--storage.tsdb.path={os.path.join(folder, 'data')}", "--log.level=error"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        wait_for("prometheus", self.is_ready, 60)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def is_ready(self):
        assert self.process.poll() is None, "prometheus ended"
        try:
            return "Ready" in fetch(f"http://127.0.0.1:{self.port}/-/ready")
        except OSError:
            return False

    def ask(self, path, **parameters):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            answer = json.loads(fetch(url))
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{parameters}: {e.read().decode()}") from None
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expr):
        """Instant vector: [(labels, value)], or of a range [(labels, [[time, value], ...])]."""
        when = {} if self.at is None else {"time": self.at}
        result = self.ask("query", query=expr, **when)["result"]
        return [(r["metric"], r["values"] if "values" in r else float(r["value"][1]))
                for r in result]

    def query_range(self, expr, start, end, step):
        result = self.ask("query_range", query=expr, start=start, end=end, step=step)["result"]
        return [(r["metric"], [(float(t), float(v)) for t, v in r["values"]]) for r in result]


def dashboard_queries(path, window):
    """(title, legend, expression) of each target, the dashboard's variables filled in."""
    with open(path, encoding="utf-8") as f:
        dashboard = json.load(f)
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", window).replace("$instance", ".*")
            assert "$" not in expr, f"{panel['title']}: unknown variable in {expr}"
            yield panel["title"], target["legendFormat"], expr


def have_prometheus():
    return bool(shutil.which("prometheus") and shutil.which("promtool"))
