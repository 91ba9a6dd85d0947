"""Environments that come with Moonmill, each in a module of its own; the registry imports them when they are made."""
