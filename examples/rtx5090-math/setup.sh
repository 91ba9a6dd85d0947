#!/bin/bash
# Installs Moonmill into .venv of the clone, bitsandbytes for the learner's 4 bits, and vLLM in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
make install
.venv/bin/pip install --quiet bitsandbytes
.venv/bin/moonmill engine install vllm
.venv/bin/moonmill doctor
