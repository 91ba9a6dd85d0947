"""Environments of verifiers, played and trained on here, and ours for verifiers."""

from moonmill.envs.adapters.verifiers.environment import VerifiersEnv

__all__ = ["VerifiersEnv"]
