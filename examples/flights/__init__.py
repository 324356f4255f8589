"""A year of flights in signed queues: four nodes that begin disconnected, and Spark."""
