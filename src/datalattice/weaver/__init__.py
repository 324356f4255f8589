"""Weaver: signed operations, a log of them on every node, and state machines that fold it."""
