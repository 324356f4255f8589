"""Notebooks show queues, topics and databases."""

from __future__ import annotations

from datalattice.apps.kv import Database
from datalattice.apps.queue import Queue, Topics


def test_a_queue_shows_its_last_records() -> None:
    queue = Queue.create()
    assert "Queue, offsets 0 to 0, the last 0" in queue._repr_html_()
    queue.offer_many([f"<v{n}>" for n in range(25)])
    queue.truncate(3)
    text = queue._repr_html_()
    assert "Queue, offsets 3 to 25, the last 10" in text
    assert "<code>24</code>" in text
    assert "&lt;v15&gt;" in text
    assert "v14" not in text


def test_a_topic_shows_its_partitions() -> None:
    broker = Topics.create()
    for partition in range(3):
        broker.partition("t", partition).offer_many(range(partition + 1))
    text = broker.topic("t")._repr_html_()
    assert "Topic, partitions: 3" in text
    assert text.count("<tr>") == 4


def test_a_database_shows_its_first_keys() -> None:
    database = Database.create("prices")
    database["<a>"] = 1.5
    database.hset("h", "field", "value")
    database.incr("n")
    text = database._repr_html_()
    assert "<caption>Database &#x27;prices&#x27;</caption>" in text
    for words in ("&lt;a&gt;", "1.5", "hash", "field", "counter"):
        assert words in text
    for n in range(40):
        database[f"k{n:02}"] = n
    assert "and more" in database._repr_html_()


def test_a_long_structure_is_not_read_whole() -> None:
    database = Database.create()
    for n in range(1_001):
        database.sadd("s", str(n))
    assert "and 981 more" in database._repr_html_()
