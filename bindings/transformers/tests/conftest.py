"""The small model and its golden documents, which lie beside the tree; without them tests skip."""
from __future__ import annotations

import json
import os
import pathlib

import pytest
import torch

MODEL = pathlib.Path(os.environ.get("LATENTKV_TINY_MLA") or
                     pathlib.Path(__file__).parents[4] / "shared/models/tiny-mla")


@pytest.fixture(scope="session")
def load():
    if not (MODEL / "config.json").exists():
        pytest.skip(f"no model at {MODEL}")
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2)
    return lambda dtype, **words: AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=dtype, **words).eval()


@pytest.fixture(scope="session")
def golden(load):
    return {name: json.loads((MODEL / f"golden/{name}.json").read_text())
            for name in ("dev0", "dev1")}
