#!/bin/bash
# Fetches the model, by default Gemma 4 E2B, into the hub's cache, and the problems of GSM8K for training.
set -euo pipefail
cd "$(dirname "$0")"
../../.venv/bin/hf download "${1:-google/gemma-4-E2B-it}"
mkdir -p data
curl -fsSL -o data/train.jsonl \
    https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/train.jsonl
