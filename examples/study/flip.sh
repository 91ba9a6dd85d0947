#!/bin/sh
# The answer wanted changes in the middle of training. OUT and SEEDS may be given; `recovery.py OUT/compare.json` tells how
# many steps each way takes to recover.
set -e
cd "$(dirname "$0")"
exec moonmill compare trail.yaml --out "${OUT:-runs/flip}" --seeds "${SEEDS:-3}" \
    --set train.steps=192 --set env.args.flip_at=3200 \
    --vary 'sao:algorithm.preset=sao' \
    --vary 'running-mean:algorithm={preset: sao, advantage: {type: running_mean}, updates: 2, minibatches: 2}'
