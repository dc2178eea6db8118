"""Models of transformers with random weights: training, generation with a static cache, half
precision. See cycles.py for what the command line says."""

import os
import pathlib
import sys

import cycles

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import torch_parts as shared  # noqa: E402  Before torch.
import torch  # noqa: E402
import transformers  # noqa: E402
from torch_job import DEVICE, part, to_host, PARTS  # noqa: E402

PARTS.clear()
SMALL = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)


def trained(model, **inputs):
    model = model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        losses = []
        for _ in range(3):
            loss = model(**inputs).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [torch.stack(losses), *(one.detach() for one in model.parameters())]
    return step


def tokens(count=256):
    return torch.randint(0, count, (4, 32), device=DEVICE)


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=256, num_key_value_heads=2, max_position_embeddings=256, **SMALL))


@part
def llama_training():
    words = tokens()
    return trained(llama(), input_ids=words, labels=words)


@part
def bert_training():
    words = tokens()
    return trained(transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=256, hidden_dropout_prob=0.1, **SMALL)), input_ids=words, labels=words)


@part
def vit_training():
    return trained(transformers.ViTForImageClassification(transformers.ViTConfig(
        image_size=64, patch_size=16, num_labels=10, **SMALL)),
        pixel_values=torch.randn(4, 3, 64, 64, device=DEVICE),
        labels=torch.randint(0, 10, (4,), device=DEVICE))


def generated(model, **settings):
    model = model.to(DEVICE).eval()
    words = tokens()[:2, :8]

    def step():
        with torch.no_grad():
            return [model.generate(words, attention_mask=torch.ones_like(words), max_new_tokens=24,
                                   pad_token_id=0, eos_token_id=None, **settings)]
    return step


@part
def llama_generation():
    return generated(llama(), do_sample=True, top_k=20)


@part
def llama_static_cache():
    return generated(llama().to(torch.bfloat16), do_sample=False, cache_implementation="static",
                     disable_compile=True)


@part
def llama_compiled():
    torch._dynamo.reset()
    return generated(llama().to(torch.bfloat16), do_sample=False, cache_implementation="static")


if __name__ == "__main__":
    shared.be_deterministic()
    torch.use_deterministic_algorithms(True, warn_only=True)  # Sums that have no other way: told.
    shared.compile_deterministically()
    cycles.main(PARTS, to_host)
