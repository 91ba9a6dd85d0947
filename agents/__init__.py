"""Agents: the episode runner, the renderer, the inference client and the embedded engine."""
