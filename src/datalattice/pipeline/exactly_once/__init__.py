"""Exactly-once writing: tasks stage data in files, the driver commits all of it in one edit.

    job = Job.begin(write_target_option(options, streaming=False), streaming=False)  # at planning

    with job.stage() as stage:                    # in a task
        stage.parcels.put(...)
        return stage.done(records)

    job.commit(messages, batch, join)             # on the driver

A task writes its output to a file of its own (`task_files`) and reports the file's checksum. Staged
data becomes visible only when the driver appends all tasks' output, in task order, in one edit of
the node's folder. The same edit stores a `Mark`: the number of the batch under the name of the
query. So after a crash at any point either the complete batch is there with its mark, or neither
is. A batch that Spark runs again is skipped if its mark is there.

Staging folders are `<staging>/<query>/<batch>/<task>-<attempt>-<random>`. With the random part, two
attempts of one task never share a folder, and neither do two drivers of one query. A commit removes
the folders of its own and all earlier batches; folders that a crash left are removed by age.

Source: docs/spark-writing.md "Exactly once", "Staging".
"""
