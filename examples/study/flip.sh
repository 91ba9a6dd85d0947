#!/bin/sh
# What is wanted changes in the middle of training: `python examples/study/recovery.py runs/flip/compare.json` tells how
# many steps each way takes to recover. OUT, SEEDS and more of compare's options may be given.
set -e
exec moonmill compare "$(dirname "$0")/taste.yaml" --out "${OUT:-runs/flip}" --seeds "${SEEDS:-5}" \
    --vary 'sao:algorithm.preset=sao' \
    --vary 'running-mean:algorithm={preset: sao, advantage: {type: running_mean}}' "$@"
