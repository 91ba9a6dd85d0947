#!/bin/bash
# Trains, in this folder or in one that links here: run.sh sao|grpo gemma4|qwen3 [--set KEY=VALUE]...
set -euo pipefail
cd "$(dirname "$0")"
case "${1-} ${2-}" in
sao\ gemma4 | sao\ qwen3 | grpo\ gemma4 | grpo\ qwen3) algorithm=$1 model=$2 ;;
*) echo "usage: run.sh sao|grpo gemma4|qwen3 [--set KEY=VALUE]..." >&2 && exit 2 ;;
esac
shift 2
[ "$model" = gemma4 ] || set -- --set model.path=Qwen/Qwen3-1.7B --set "model.renderer=$model" "$@"
if grep -q data/train.jsonl "$algorithm.yaml" && [ ! -e data/train.jsonl ]; then
    echo "run.sh: there is no $PWD/data/train.jsonl: ./download.sh fetches it" >&2
fi
exec ../../.venv/bin/moonmill train "$algorithm.yaml" --set "name=${PWD##*-}-$algorithm-$model" "$@"
