"""A year of flights in signed queues: four nodes that are apart at first, and Spark."""
