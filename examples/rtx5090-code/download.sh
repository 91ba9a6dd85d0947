#!/bin/bash
# Fetches the model, by default Gemma 4 E2B, into the hub's cache; tasks are generated.
set -euo pipefail
exec "$(dirname "$0")/../../.venv/bin/hf" download "${1:-google/gemma-4-E2B-it}"
