"""Spark itself: Java, sessions, Python workers, and the progress and errors of tasks."""
