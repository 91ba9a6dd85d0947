#!/bin/sh
# The study: nine ways to train on the trail of pages, five seeds each, one after the other. Hours on two cores; the same
# command goes on where it was stopped. OUT, SEEDS and more of compare's options may be given.
set -e
exec moonmill compare "$(dirname "$0")/trail.yaml" --out "${OUT:-runs/study}" --seeds "${SEEDS:-5}" \
    --vary 'sao:algorithm.preset=sao' \
    --vary 'no-mask:algorithm.objective={type: dis, low: 0.999999, high: 1.0e9}' \
    --vary 'k1:algorithm.critic.updates=1' \
    --vary 'full-critic:algorithm.critic.freeze_attention=false' \
    --vary 'no-skip:algorithm.advantage={type: gae, skip_observations: false}' \
    --vary 'running-mean:algorithm={preset: sao, advantage: {type: running_mean}, updates: 2, minibatches: 2}' \
    --vary 'grpo:algorithm={preset: grpo, updates: 2, minibatches: 2}' \
    --vary 'grpo-dis:algorithm={preset: grpo, objective: {type: dis}, updates: 2, minibatches: 2}' \
    --vary 'grpo-sync:algorithm={preset: grpo, updates: 2, minibatches: 2},async.mode=sync' "$@"
