"""Pipeline: Spark reads lattice data where one machine is not enough (needs the extra `spark`)."""
