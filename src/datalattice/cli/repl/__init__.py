"""REPL: the actions of a node as commands, at a prompt and in scripts."""
