"""latentkv in Hugging Face transformers: generate() over a quantised latent KV cache.

    model = DeepseekV3ForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    latentkv_hf.attach(model)                                   # attention by liblatentkv
    cache = latentkv_hf.LatentCache(model, format="int8", max_tokens=8192)
    model.generate(ids, past_key_values=cache, max_new_tokens=64)

CPU and CUDA; batches with padding, beams and crop() included. A cache is for one generate() or,
after reset(), for the next. Models of the DeepSeek-V3 class (MLA) only."""
from .attention import attach
from .cache import LatentCache

__version__ = "0.1.0"
__all__ = ["LatentCache", "attach"]
