"""Doors: how a service is reached from outside; each turns bytes into requests and results back."""
