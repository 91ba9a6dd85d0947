#!/bin/sh
# What is wanted changes in the middle of training. OUT and SEEDS may be given; `recovery.py OUT/compare.json` tells how many
# steps each way takes to recover.
set -e
cd "$(dirname "$0")"
exec moonmill compare taste.yaml --out "${OUT:-runs/flip}" --seeds "${SEEDS:-5}" \
    --vary 'sao:algorithm.preset=sao' \
    --vary 'running-mean:algorithm={preset: sao, advantage: {type: running_mean}}'
