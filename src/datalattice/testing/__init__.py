"""Testing: what the project's own tests use and a user's tests may use as well.

Nothing in the product imports this package. `strategies` needs hypothesis and `spark_kit`
PySpark, which the package does not install by itself.
"""
