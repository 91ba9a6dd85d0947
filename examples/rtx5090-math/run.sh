#!/bin/bash
# Trains, in this folder or in one that links here: run.sh sao|grpo gemma4|qwen3 [--set KEY=VALUE]...
set -euo pipefail
cd "$(dirname "$0")"
algorithm=${1:?run.sh sao|grpo gemma4|qwen3} model=${2:?run.sh sao|grpo gemma4|qwen3}
shift 2
[ "$model" = gemma4 ] || set -- --set model.path=Qwen/Qwen3-1.7B --set "model.renderer=$model" "$@"
exec ../../.venv/bin/moonmill train "$algorithm.yaml" --set "name=${PWD##*-}-$algorithm-$model" "$@"
