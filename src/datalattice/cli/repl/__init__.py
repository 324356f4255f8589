"""REPL: the actions of a node by name, at a prompt and in scripts."""
