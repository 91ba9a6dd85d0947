"""Advantages and objectives: what turns rollouts into gradients. Each is a pure function with its paper beside it."""
