"""In: settings. Out: vLLM's OpenAI-compatible server as its own process, asked over HTTP."""
from __future__ import annotations

import concurrent.futures
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

from conftest import MODEL

WAIT_SECONDS = 420


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Server:
    """with Server(log, "int8", dtype="float32") as server: ...

    format None: vLLM's own backend. flags: further words of the command line. ranks: of tensor
    parallelism."""

    def __init__(self, log, format, *, dtype="float32", cache_mib=256, flags=(), ranks=1,
                 **settings):
        self.port, self.log = _free_port(), log
        self.command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL),
            "--port", str(self.port), "--host", "127.0.0.1", "--served-model-name", "tiny",
            "--dtype", dtype, "--enforce-eager", "--max-model-len", "4608", "--max-num-seqs", "64",
            "--kv-cache-memory-bytes", str(cache_mib << 20), "--shutdown-timeout", "60",
            "--tensor-parallel-size", str(ranks), *flags]
        if format is None:
            self.command += ["--compilation-config", '{"custom_ops": ["-rotary_embedding"]}']
        else:
            chosen = {"latentkv": {"format": format, "checked": True, **settings}}
            self.command += ["--attention-backend", "CUSTOM", "--additional-config",
                             json.dumps(chosen)]

    @classmethod
    def by_command(cls, log, words):
        """A command as a user would type it; MODEL is the small model."""
        made = cls(log, None)
        made.command = [sys.executable, *words[1:], "--port", str(made.port), "--host", "127.0.0.1",
                        "--served-model-name", "tiny"]
        made.command = [str(MODEL) if word == "MODEL" else word for word in made.command]
        return made

    def __enter__(self):
        env = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", **os.environ}
        self._out = open(self.log, "wb")
        self.process = subprocess.Popen(self.command, stdout=self._out, stderr=subprocess.STDOUT,
                                        env=env, start_new_session=True)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self):
        for _ in range(WAIT_SECONDS):
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended; {self.log} has:\n{self.text()[-3000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except OSError:
                time.sleep(1)
        raise RuntimeError(f"no server after {WAIT_SECONDS} s:\n{self.text()[-3000:]}")

    def __exit__(self, *_exception):
        self.process.terminate()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._out.close()

    def text(self):
        return self.log.read_text(errors="replace")

    def errors(self):
        """Lines of the log that say that something went wrong."""
        return [line for line in self.text().splitlines()
                if re.search(r" ERROR |Traceback|faults in a layer", line)]

    def post(self, **body):
        body = {"model": "tiny", "temperature": 0, "ignore_eos": True, "return_token_ids": True,
                **body}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)["choices"][0]

    def complete(self, prompt, tokens, **body):
        return self.post(prompt=prompt, max_tokens=tokens, **body)["token_ids"]

    def complete_all(self, prompts, tokens, **body):
        """All at once; the answers in the prompts' order."""
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.post(prompt=prompt, max_tokens=tokens, **body),
                                 prompts))

    def prompt_nlls(self, prompt):
        """Negative log likelihoods of tokens 1.. of a prompt."""
        found = self.post(prompt=prompt, max_tokens=1, prompt_logprobs=0)["prompt_logprobs"]
        return [-one[str(token)]["logprob"] for one, token in zip(found[1:], prompt[1:])]

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines
                   if re.match(rf"{re.escape(name)}(_total)?\{{", line))

    def cache_tokens(self):
        return int(re.search(r"KV cache size: ([\d,]+) tokens", self.text())[1].replace(",", ""))
