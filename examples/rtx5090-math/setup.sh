#!/bin/bash
# Installs Moonmill into .venv of the clone, and vLLM in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
make install
.venv/bin/moonmill engine install vllm
.venv/bin/moonmill doctor
