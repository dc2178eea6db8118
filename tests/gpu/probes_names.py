"""The probes of probes.py, known without importing PyTorch."""

import pathlib
import re

_SOURCE = pathlib.Path(__file__).with_name("probes.py").read_text(encoding="utf-8")

NAMES = re.findall(r"^def probe_(\w+)", _SOURCE, re.MULTILINE)

# Settings that a probe's process gets beside those of all.
ENVIRONMENT = {"expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
               "async_pool": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}}
