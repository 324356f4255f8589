"""Sim: clusters in one process and one thread, from a seed - faults, hostile peers and checkers."""
