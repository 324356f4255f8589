"""Put faults into a copy of the product, one at a time, and check that tests notice each.

    mutations.py [WORD ...] [--jobs 2] [--check]

A mutation replaces a piece of a module that occurs in it exactly once. Then the tests run that are
named with it, and every one of them must fail; where the mutation is `simulated`, the simulation
must fail as well, within a few seeds. Words choose the mutations whose titles contain one of them;
`--check` only checks that all pieces and tests exist.

Everything runs without a fault first, since a test that always fails notices nothing. Exit code 0
when all mutations were noticed, else 1. The checkout is not touched.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "src" / "datalattice"
TEST_TIMEOUT_S: Final = 30
RUN_TIMEOUT_S: Final = 240
"""Longest run of the tests of one mutation: a test that a fault makes hang counts as failed."""

SEEDS: Final = 24
"""Seeds within which the simulation must notice a `simulated` mutation."""

FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+?::\w+)", re.MULTILINE)

SIMULATE: Final = f"""
import sys
from datalattice.testing.sim import scenario
for seed in range({SEEDS}):
    violation = scenario(seed).run().violation
    if violation is not None:
        print(violation.rule, "at seed", seed)
        sys.exit(1)
"""


@dataclass(frozen=True)
class Mutation:
    """A fault: in `module` the text `old` becomes `new`, and all of `tests` fail.

    simulated: whether the simulation must notice it, too.
    """

    title: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]
    simulated: bool = False


UNIT: Final = "tests/unit/"
LAWS: Final = "tests/laws/"
ATTACKS: Final = "tests/sim/test_attacks.py"
COUNTERS: Final = "tests/sim/test_counters.py::"
FENCING: Final = "tests/integration/test_fencing.py::"
VENUE: Final = "tests/unit/service/venue/"

MUTATIONS: Final = (
    # --- durability -------------------------------------------------------------------------------
    Mutation(
        "a node without room takes ever more",
        "node/operations.py",
        "            self._is_behind = True\n",
        "            self._is_behind = False\n",
        (
            UNIT + "client/test_offers.py::"
            "test_on_a_full_disk_one_offer_is_kept_and_later_ones_are_refused",
        ),
    ),
    Mutation(
        "offers pass an edit that was in vain",
        "node/operations.py",
        "        self._clear_the_way(is_clear=done)\n",
        "        self._clear_the_way(is_clear=True)\n",
        (UNIT + "client/test_offers.py::test_offers_wait_for_an_edit_that_was_in_vain",),
    ),
    Mutation(
        "offers trust that all cells are there",
        "node/operations.py",
        "            if cells:\n",
        "            if cells and not values:\n",
        (UNIT + "client/test_offers.py::test_the_node_refuses_what_is_no_offer",),
    ),
    Mutation(
        "a connection is used after a time-out",
        "client/control.py",
        "            self.close()  # a late answer",
        "            # a late answer",
        (UNIT + "client/test_offers.py::test_after_a_time_out_the_connection_is_of_no_more_use",),
    ),
    Mutation(
        "a close without room for the index fails",
        "store/cellstore.py",
        "            return  # nothing is lost: the next opening reads the log",
        "            raise  # nothing is lost: the next opening reads the log",
        (
            UNIT + "store/test_real_full_disk.py::"
            "test_a_store_whose_index_finds_no_room_at_the_end_closes_and_loses_nothing",
        ),
    ),
    Mutation(
        "the reserve has no room for the index",
        "store/log/freespace.py",
        "self._entries * ENTRY_BYTES",
        "0",
        ("tests/sim/test_full_disk.py::test_the_reserve_has_room_for_the_index_of_one_segment",),
    ),
    Mutation(
        "a start on a full disk keeps the reserve",
        "store/log/freespace.py",
        "        if self.ask() < SPARE_BYTES_MIN:\n",
        "        if self.ask() < 0:\n",
        (
            "tests/sim/test_full_disk.py::test_a_start_with_nearly_nothing_free_gives_the_reserve_up",
        ),
    ),
    Mutation(
        "a record of the end that is gone proves that nothing is lost",
        "store/log/opening.py",
        "unknown_loss(folder) if loss is None else None",
        "None",
        (
            UNIT + "store/test_logend.py::"
            "test_a_store_without_its_record_says_that_a_loss_cannot_be_excluded",
        ),
    ),
    Mutation(
        "a stop keeps silent about what it loses",
        "node/server.py",
        "lost = [] if failure is None else await asyncio.to_thread(self._unwritten)",
        "lost: list[str] = []",
        (
            UNIT + "node/test_daemon.py::"
            "test_an_end_with_records_that_were_never_stored_says_which_are_lost",
        ),
    ),
    Mutation(
        "acknowledge before the file is synced",
        "store/log/committer.py",
        "            if file is not None:\n                file.sync()\n",
        "            pass\n",
        ("tests/sim/test_store_crash.py::test_a_crash_at_any_step_loses_nothing_acknowledged",),
        simulated=True,
    ),
    Mutation(
        "take a failed sync for a good one",
        "store/log/committer.py",
        "            if failure is not None:\n",
        "            if failure is not None and self.epoch < 0:\n",
        (UNIT + "store/test_resume.py::test_each_operation_that_fails_is_survived",),
    ),
    Mutation(
        "announce a value before it is durable",
        "sync/lattice/latticestate.py",
        "        self.store.commit(value, contains=contains, announced=[",
        "        self.root = value\n        self.views.announce(announced, value)\n"
        "        self.store.commit(value, contains=contains, announced=[",
        (UNIT + "node/test_node.py::test_a_failing_store_is_the_writer_s_error_and_shows",),
    ),
    Mutation(
        "swallow a full disk",
        "node/lanes.py",
        "            self._failed(error)\n            raise\n",
        "            self._failed(error)\n",
        (
            UNIT + "node/test_lanes.py"
            "::test_a_failed_publication_is_raised_where_it_was_asked_for_and_reported",
        ),
    ),
    Mutation(
        "fetch what policy refuses",
        "sync/lattice/intake.py",
        "            value = self._hosting.cut(value, self._state.root, peer, work)\n"
        "            if path",
        "            if path",
        (
            UNIT + "sync/test_hosting.py"
            "::test_cells_of_a_refused_owner_are_not_fetched_when_a_root_is_stated_alone",
        ),
    ),
    Mutation(
        "fetch on beyond a quota",
        "sync/lattice/intake.py",
        "                self._stop_slot(slot, size, outcome)\n",
        "                pass\n",
        (UNIT + "sync/test_hosting.py::test_a_first_fetch_ends_at_the_quota_and_a_request_window",),
    ),
    Mutation(
        "take slots beyond their quota",
        "sync/lattice/quotas.py",
        "        count = usage.after(slot, mine, theirs, limit.room + before.size_bytes, work)\n",
        "        count = usage.after(slot, mine, theirs, 2**60, work)\n",
        (ATTACKS + "::test_what_has_no_room_is_not_hosted_and_honest_data_converges",),
    ),
    Mutation(
        "let a merge go on when its account is empty",
        "cells/work.py",
        "        if self._left < 0:\n            self._exceeded = True\n",
        "        if self._spent < 0:\n            self._exceeded = True\n",
        (
            UNIT + "cells/test_work.py"
            "::test_an_account_pays_until_it_is_empty_and_a_cell_earns_once",
            ATTACKS + "::test_bombs_are_dropped_and_counted_and_honest_data_converges",
        ),
    ),
    Mutation(
        "commit on a disk that is nearly full",
        "store/cellstore.py",
        "        self.space.check()\n        parts = novelty(value, self)\n",
        "        parts = novelty(value, self)\n",
        ("tests/sim/test_full_disk.py::test_collections_make_room_for_commits_again",),
    ),
    Mutation(
        "commit with a missing cell",
        "sync/lattice/incomplete.py",
        "            if outside.keys() <= lengths.keys():\n",
        "            if True:\n",
        (UNIT + "sync/test_incomplete.py::test_cells_may_come_in_any_order_and_portions",),
        simulated=True,
    ),
    Mutation(
        "wait for the first cell below another alone",
        "sync/lattice/incomplete.py",
        "_Cell(encoding, references(encoding), sender)",
        "_Cell(encoding, references(encoding)[:1], sender)",
        (UNIT + "sync/test_incomplete.py::test_cells_may_come_in_any_order_and_portions",),
        simulated=True,
    ),
    Mutation(
        "write on after a write that failed",
        "store/log/committer.py",
        "        self._failure = error\n        return error\n",
        "        return error\n",
        ("tests/sim/test_store_crash.py::test_after_a_failed_sync_every_write_is_refused",),
    ),
    Mutation(
        "heal with cells that have another hash",
        "store/base.py",
        "        if digest != hash:\n            raise BadFormat",
        "        if not hash:\n            raise BadFormat",
        (UNIT + "node/test_durability.py::test_wrong_cells_of_peers_change_nothing",),
    ),
    # --- soundness --------------------------------------------------------------------------------
    Mutation(
        "store cells without checking that they are sound",
        "sync/lattice/incomplete.py",
        "            sound = learn_cells(cells, self._facts)\n",
        "            sound = len(cells)\n",
        (
            UNIT + "sync/test_holes.py"
            "::test_a_foreign_value_is_sound_or_has_holes_and_nothing_else_is_stored",
            UNIT + "sync/test_unsound_values.py"
            "::test_a_malformed_slot_does_not_keep_honest_data_of_two_nodes_apart",
            ATTACKS + "::test_malformed_trees_are_dropped_and_counted_and_honest_data_converges",
        ),
    ),
    Mutation(
        "store cells above unsound ones",
        "sync/lattice/incomplete.py",
        "        if spoiled:\n            below",
        "        if False:\n            below",
        (
            UNIT + "sync/test_holes.py"
            "::test_a_claim_above_an_unsound_cell_completes_and_neither_it_nor_a_cell_above_is_stored",
        ),
    ),
    Mutation(
        "let one bad slot refuse the root",
        "lattice/isolation.py",
        "    if context.is_signed:\n",
        "    if True:\n",
        (
            UNIT + "lattice/test_isolation.py::test_a_malformed_slot_among_fifty_costs_that_slot",
            UNIT + "sync/test_unsound_values.py"
            "::test_one_malformed_slot_among_fifty_costs_that_slot",
        ),
    ),
    Mutation(
        "count a dropped slot as taken",
        "sync/lattice/intake.py",
        "        if not holes:\n            held",
        "        if True:\n            held",
        (
            UNIT + "sync/test_unsound_values.py"
            "::test_one_malformed_slot_among_fifty_costs_that_slot",
        ),
    ),
    Mutation(
        "commit what a merge made of holes",
        "sync/lattice/latticestate.py",
        "        if holes.is_planted(merged):  ",
        "        if False:  ",
        (UNIT + "sync/test_unsound_values.py::test_no_merge_can_plant_a_hole",),
    ),
    # --- authority --------------------------------------------------------------------------------
    Mutation(
        "believe the signature of a relayed value",
        "lattice/owned.py",
        "        if not isinstance(other, Signed) or not other.verify():\n",
        "        if not isinstance(other, Signed):\n",
        (
            UNIT + "lattice/test_owned.py::test_attacks_on_an_owner_leave_own_and_are_reported",
            UNIT + "node/test_hostile_peers.py"
            "::test_nothing_forged_is_accepted_and_what_is_right_is",
        ),
        simulated=True,
    ),
    Mutation(
        "let anybody sign for an owner that is no key",
        "lattice/context.py",
        "        return True if verifier is None else verifier(owner, signer)\n",
        "        return True\n",
        (
            UNIT + "lattice/test_owned.py::test_other_owners_are_judged_by_the_verifier",
            UNIT + "lattice/test_identity.py"
            "::test_the_verifier_admits_the_key_in_the_name_and_no_other",
        ),
    ),
    Mutation(
        "take the key of a challenge's answer whatever key is wanted",
        "wire/identity.py",
        "    if wanted is not None and signed.public_key != wanted:\n",
        "    if wanted is not None and not signed.public_key:\n",
        (UNIT + "wire/test_identity.py::test_an_answer_to_something_else_proves_nothing",),
    ),
    Mutation(
        "take an answer to another challenge",
        "wire/identity.py",
        "    if not same(Vector.of(terms), Vector.of((token, asker, *context))):\n",
        "    if not same(terms[1], asker):\n",
        (UNIT + "wire/test_identity.py::test_an_answer_to_something_else_proves_nothing",),
    ),
    Mutation(
        "take an answer to a challenge of somebody else",
        "wire/identity.py",
        "    if not same(Vector.of(terms), Vector.of((token, asker, *context))):\n",
        "    if not same(terms[0], token):\n",
        (UNIT + "wire/test_identity.py::test_an_answer_to_something_else_proves_nothing",),
    ),
    Mutation(
        "take an answer to a challenge that nobody signed",
        "wire/identity.py",
        '    if not signed.verify():\n        raise BadSignature("the answer',
        '    if signed is None:\n        raise BadSignature("the answer',
        (UNIT + "wire/test_identity.py::test_a_forged_answer_proves_nothing",),
    ),
    Mutation(
        "ignore a pinned key that the transport did not prove",
        "sync/lattice/conversation.py",
        "        return self._pinned is not None and self.peer.public_key != self._pinned\n",
        "        return False\n",
        (
            UNIT + "sync/test_handshake.py"
            "::test_a_wanted_key_is_proved_before_anything_else_is_said",
        ),
    ),
    Mutation(
        "ignore the pinned key of a peer behind TLS",
        "client/network/tls.py",
        "    if expected is not None and found != expected:\n",
        "    if expected is not None and not found:\n",
        (UNIT + "node/transport/test_tls.py::test_a_wrong_key_is_named_and_does_not_learn_ours",),
    ),
    Mutation(
        "let a peer open many streams over iroh",
        "node/transport/iroh.py",
        "        for opened in (connection.accept_bi, connection.accept_uni):\n",
        "        for opened in ():\n",
        (UNIT + "node/transport/test_iroh.py::test_a_peer_that_opens_a_second_stream_is_cut",),
    ),
    Mutation(
        "bind iroh to all interfaces",
        "node/transport/iroh.py",
        "            if not is_wildcard and _is_local(other):\n",
        "            if is_wildcard and _is_local(other):\n",
        (UNIT + "node/transport/test_iroh.py::test_only_the_given_address_is_bound",),
    ),
    Mutation(
        "let a crowd on the network keep the peers of stores out",
        "node/peers.py",
        "                self.is_expected(public_key) and self._has_room(is_expected=True)\n",
        "                self.is_expected(public_key) and not is_expected\n",
        (UNIT + "node/test_peers.py::test_a_crowd_keeps_no_peer_of_a_replica_out",),
    ),
    Mutation(
        "let everybody in that has a key",
        "node/network.py",
        "        elif self._allowed and key not in self._allowed:\n",
        "        elif self._allowed and key is None:\n",
        ("tests/integration/test_identity.py::test_only_those_who_are_allowed_come_in",),
    ),
    # --- convergence ------------------------------------------------------------------------------
    Mutation(
        "push to a peer that is not admitted",
        "sync/replicator.py",
        "        partner.is_refused = not self._admits(partner)\n",
        "        partner.is_refused = False\n",
        (
            UNIT + "sync/test_replicator.py"
            "::test_to_a_refused_peer_nothing_is_said_and_nothing_of_it_counts",
            COUNTERS
            + "test_a_peer_gets_nothing_before_it_is_admitted_and_nothing_after_it_is_removed",
        ),
    ),
    Mutation(
        "keep awake for news that a peer may not have",
        "sync/partner.py",
        "self.has_news and not self.is_refused",
        "self.has_news",
        (UNIT + "sync/test_replicator.py::test_what_a_refused_peer_is_not_told_wakes_nobody",),
    ),
    Mutation(
        "forget what is written within the broadcast window",
        "sync/replicator.py",
        " or now_ms < partner.push_after_ms or not partner.may_push:\n            return\n",
        " or not partner.may_push:\n            return\n"
        "        if now_ms < partner.push_after_ms:\n"
        "            partner.has_news = False\n            return\n",
        (
            UNIT + "sync/test_replicator.py"
            "::test_writes_in_the_window_are_one_push_at_its_end_and_the_last_is_not_lost",
        ),
        simulated=True,
    ),
    Mutation(
        "wake for what a refused peer is not told",
        "sync/partner.py",
        "        is_news = self.has_news and not self.is_refused\n",
        "        is_news = self.has_news\n",
        (UNIT + "sync/test_replicator.py::test_what_a_refused_peer_is_not_told_wakes_nobody",),
    ),
    Mutation(
        "do not note that what a peer said may change when it is due",
        "sync/replicator.py",
        "        self._touched.add(partner.id)\n        # A message may",
        "        # A message may",
        (UNIT + "sync/test_replicator.py::test_the_deadline_is_that_of_whoever_is_due_first",),
    ),
    Mutation(
        "tell a plain peer a root alone",
        "sync/lattice/conversation.py",
        "        self._learn(known | ALIKE if reads_patches else known)\n",
        "        self._learn(known | ALIKE)\n",
        (UNIT + "sync/test_plain_peers.py::test_it_is_never_told_a_root_alone",),
    ),
    Mutation(
        "ask a plain peer for its root but once",
        "sync/lattice/replica.py",
        "meeting.plain.open and why in (Why.DUE, Why.DIRTY):\n",
        "meeting.plain.is_asked and why in (Why.DUE, Why.DIRTY):\n",
        (UNIT + "sync/test_plain_peers.py::test_what_it_has_is_asked_at_every_root_sync",),
    ),
    Mutation(
        "ask for gaps where nobody answers",
        "sync/replicator.py",
        "            self._absorb(home, offer, now_ms)\n",
        "            self._absorb(partner, offer, now_ms)\n",
        (
            UNIT + "sync/test_plain_peers.py"
            "::test_its_broadcasts_are_taken_and_gaps_asked_where_it_answers",
        ),
    ),
    Mutation(
        "never state the root again",
        "sync/replicator.py",
        "                    self._compare(partner, Why.DIRTY if partner.is_dirty else "
        "Why.DUE, now_ms)\n",
        "                    pass\n",
        (
            UNIT + "sync/test_replicator.py::test_the_states_are_compared_every_thirty_seconds",
            UNIT + "sync/test_replicator.py::test_lost_frames_are_made_good_by_the_next_root_sync",
        ),
        simulated=True,
    ),
    Mutation(
        "ask nobody else for what a lost peer was to deliver",
        "sync/replicator.py",
        "        self._wants.remove_peer(id, now_ms)\n",
        "",
        (
            UNIT + "sync/test_replicator.py"
            "::test_what_a_peer_that_leaves_was_asked_for_is_asked_of_another",
        ),
    ),
    Mutation(
        "wait for a silent stranger alone",
        "sync/wants.py",
        "want.in_flight is None or want.in_flight not in self._prompt\n",
        "want.in_flight is None\n",
        (
            UNIT + "sync/test_wants.py"
            "::test_what_is_asked_of_a_peer_that_never_delivered_is_asked_of_the_next_that_states_it",
        ),
    ),
    Mutation(
        "believe that who lacked a part lacks it for ever",
        "sync/wants.py",
        "                want.asked = tuple([peer for peer in want.asked if peer != source])\n",
        "                pass\n",
        (
            UNIT + "sync/test_wants.py"
            "::test_who_states_it_is_asked_although_it_did_not_have_it_before",
        ),
    ),
    Mutation(
        "ask only a stranger for what it left open",
        "sync/lattice/incomplete.py",
        "        progress.missing += self._open_below(held)\n",
        "",
        (
            UNIT + "sync/test_incomplete.py"
            "::test_whoever_states_what_another_left_open_is_asked_for_it_too",
        ),
    ),
    Mutation(
        "fetch the upper cells of a value again and again",
        "sync/lattice/approach.py",
        "        self._stop(claim)\n        look",
        "        self.forget(claim)\n        look",
        (
            UNIT + "sync/test_approach.py"
            "::test_a_value_that_wants_further_upper_cells_keeps_those_that_came",
        ),
    ),
    Mutation(
        "run timers by the wall clock",
        "node/lanes.py",
        "        return time.monotonic_ns() // 1_000_000\n",
        "        return time.time_ns() // 1_000_000\n",
        (UNIT + "node/test_lanes.py::test_timers_do_not_notice_that_the_wall_clock_is_set",),
    ),
    Mutation(
        "let a back-off grow without end",
        "node/peers.py",
        "    full_ms = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(attempt, 16))\n",
        "    full_ms = BACKOFF_MS_MIN << min(attempt, 16)\n",
        (UNIT + "node/test_peers.py::test_the_pause_doubles_up_to_its_limit",),
    ),
    Mutation(
        "let a writer starve the peers",
        "node/lanes.py",
        "(lane._is_held or lane._line or ",
        "(lane._is_held or ",
        (UNIT + "node/test_lanes.py::test_a_publication_does_not_overtake_what_peers_said",),
    ),
    Mutation(
        "take every stream that a peer opens",
        "node/hosts.py",
        "            host.ledger.introduce(who)\n            if host.admits(peer):\n",
        "            host.ledger.introduce(who)\n            if True:\n",
        (
            UNIT + "node/test_hosts.py"
            "::test_only_members_are_spoken_to_from_their_admission_to_their_removal",
        ),
    ),
    Mutation(
        "give all streams of a connection one name",
        "node/hosts.py",
        '    return connection if stream == MAIN_STREAM else f"{connection}.{stream}"\n',
        "    return connection\n",
        (
            UNIT + "node/test_hosts.py"
            "::test_what_was_said_for_a_stream_is_not_sent_on_the_next_one_of_the_same_replica",
        ),
    ),
    Mutation(
        "refuse a stream after this side has opened its own",
        "node/hosts.py",
        "            if name == (host.protocol, host.store_id):\n",
        "            if False:\n",
        (
            UNIT + "node/test_hosts.py"
            "::test_a_replica_added_before_the_refusal_of_its_stream_has_left_finds_its_like",
        ),
    ),
    Mutation(
        "forget the replicas for which no stream was left",
        "node/hosts.py",
        "            if talk.unopened:\n",
        "            if False:\n",
        (
            UNIT + "node/test_hosts.py"
            "::test_replicas_beyond_the_most_streams_are_offered_when_others_were_refused",
        ),
    ),
    Mutation(
        "forget a frame whose turn came while its peer was not read",
        "node/connection.py",
        "                continue  # a frame may have been handled meanwhile, which makes room for",
        "                pass  # a frame may have been handled meanwhile, which makes room for",
        (
            UNIT + "node/test_connection.py"
            "::test_a_frame_whose_turn_comes_while_its_peer_is_not_read_is_not_forgotten",
        ),
    ),
    Mutation(
        "cut a connection for one offended replica",
        "node/hosts.py",
        "        if talk.faulty >= FAULTY_MAX:\n",
        "        if talk.faulty >= 1:\n",
        (
            UNIT + "node/test_hosts.py"
            "::test_who_offends_a_replica_loses_its_stream_and_who_offends_three_the_connection",
        ),
    ),
    Mutation(
        "make a whole answer at once",
        "sync/partner.py",
        "bool(self.answers) and self.unsent_count < ANSWERED_MAX and",
        "bool(self.answers) and",
        (
            UNIT + "sync/test_replicator.py"
            "::test_what_follows_of_an_answer_is_made_as_the_peer_reads",
        ),
    ),
    Mutation(
        "never let the collector run",
        "cursors/collector.py",
        "            if not self._depth or self._overlaps >= OVERLAPS_MAX:\n",
        "            if not self._depth:\n",
        (
            UNIT + "cursors/test_collector.py"
            "::test_it_has_its_turn_although_somebody_is_always_inside",
        ),
    ),
    Mutation(
        "take a folder for unmoved by its inode alone",
        "store/disk.py",
        '        return f"{_machine()} {system} {found.st_ino} {birth_time(path)}"\n',
        '        return f"{_machine()} {system} {found.st_ino}"\n',
        (
            UNIT + "store/test_place.py"
            "::test_a_folder_made_in_the_place_of_another_is_elsewhere_even_under_its_inode",
        ),
    ),
    Mutation(
        "let two threads work on one lane",
        "node/lanes.py",
        "        if lane._is_held or not lane._is_begun or ",
        "        if not lane._is_begun or ",
        (UNIT + "node/test_lanes.py::test_under_the_hammer_nothing_is_lost_and_order_is_kept",),
    ),
    Mutation(
        "let lanes of strangers wait for all others",
        "node/lanes.py",
        "        is_due = self._passed >= STRANGERS_TURN - 1 and not self._lead_ms\n",
        "        is_due = False\n",
        (
            UNIT + "node/test_lanes.py"
            "::test_lanes_of_strangers_have_one_turn_in_four_while_others_wait",
        ),
    ),
    Mutation(
        "leave deadlines alone while a lane works",
        "node/lanes.py",
        "                if len(self._lanes) > 1:\n                    self._staff()  # this",
        "                if False:\n                    self._staff()  # this",
        (UNIT + "node/test_lanes.py::test_a_deadline_is_kept_while_other_lanes_work",),
    ),
    Mutation(
        "leave the collector off after an error",
        "cursors/collector.py",
        "                if self._is_paused and self._was_enabled:\n",
        "                if self._is_paused and self._was_enabled and exc[0] is None:\n",
        (UNIT + "cursors/test_collector.py::test_an_error_does_not_leave_it_off",),
    ),
    Mutation(
        "hold the own work against peers that wait",
        "node/lanes.py",
        "        if busy_ms >= BUSY_MS_MIN:\n",
        "        if busy_ms < 0:\n",
        (UNIT + "node/test_lanes.py::test_the_time_a_node_was_busy_is_not_held_against_its_peers",),
    ),
    # --- what is believed of peers ----------------------------------------------------------------
    Mutation(
        "take cells that were not asked for",
        "sync/lattice/conversation.py",
        "            if cell is not None and value_hash(cell) != hash:\n",
        "            if cell is not None and not hash:\n",
        (
            UNIT + "sync/test_lattice_conversation.py"
            "::test_an_answer_of_another_form_or_with_other_cells_is_refused",
            UNIT + "sync/test_lattice_conversation.py"
            "::test_who_sends_other_cells_is_blamed_and_others_are_asked",
        ),
    ),
    Mutation(
        "take what a patch makes whatever its hash",
        "sync/lattice/incoming.py",
        "        if hash != message.hash:\n            return Offer(top)\n",
        "",
        (
            UNIT + "sync/test_lattice_conversation.py"
            "::test_a_patch_that_makes_something_else_counts_as_its_hash_alone",
        ),
    ),
    Mutation(
        "serve cells that no committed root reaches",
        "sync/lattice/peerviews.py",
        "[hash for hash in want if self._store.announced(hash)]",
        "list(want)",
        (
            UNIT + "sync/test_announced.py"
            "::test_cells_of_a_value_that_is_incomplete_are_given_to_nobody",
            UNIT + "sync/test_announced.py"
            "::test_cells_of_an_incomplete_value_stay_unserved_in_the_next_process",
        ),
    ),
    Mutation(
        "give cells of :local by their hash",
        "sync/lattice/latticestate.py",
        "announced=[announced, *branches])\n",
        "announced=[value, *branches])\n",
        (UNIT + "sync/test_private.py::test_private_cells_are_not_given",),
        simulated=True,
    ),
    Mutation(
        "send :local",
        "sync/lattice/latticestate.py",
        "        return replicable(root) if isinstance(self.lattice, KeyedLattice) else root\n",
        "        return root\n",
        (UNIT + "sync/test_private.py::test_private_cells_are_not_given",),
        simulated=True,
    ),
    Mutation(
        "take :local of others",
        "sync/lattice/peerviews.py",
        " - {name_bytes(LOCAL_KEY)}\n",
        "\n",
        ("tests/sim/test_clusters.py::test_what_is_local_is_not_accepted",),
    ),
    Mutation(
        "take what is not replicated with a peer",
        "sync/lattice/peerviews.py",
        "            value = select(value, paths)\n",
        "",
        (UNIT + "sync/test_partial_replication.py::test_only_the_named_paths_are_exchanged",),
    ),
    # --- bounds -----------------------------------------------------------------------------------
    Mutation(
        "take frames of any length",
        "wire/framing.py",
        "            if value > self._limit:\n",
        "            if value > self._limit << 40:\n",
        (UNIT + "wire/test_framing.py::test_the_limit_counts_payload_bytes",),
        simulated=True,
    ),
    Mutation(
        "let a patch stand for any number of bytes",
        "sync/lattice/patch.py",
        "        if self._room < 0:\n",
        "        if self._room < -(1 << 60):\n",
        (UNIT + "sync/test_patch.py::test_the_bytes_a_patch_stands_for_are_limited",),
    ),
    Mutation(
        "let a peer send more than its share",
        "node/connection.py",
        "        if wait_s > REST_S_MIN:\n",
        "        if wait_s > 1e9:\n",
        (
            UNIT + "node/test_bounds.py"
            "::test_a_peer_that_sends_more_than_its_share_is_read_later_and_loses_nothing",
        ),
    ),
    Mutation(
        "hold what a peer does not read",
        "node/connection.py",
        "        if held > self._held_bytes_max:\n",
        "        if held > self._held_bytes_max << 40:\n",
        (UNIT + "node/test_bounds.py::test_a_peer_for_whom_too_much_waits_is_cut",),
    ),
    Mutation(
        "give the credit of a stream back before its frames are handled",
        "wire/mux.py",
        "        kept = 0 if is_under_way else stream.buffer.buffered_bytes + waiting\n",
        "        kept = 0\n",
        (
            UNIT + "wire/test_mux.py"
            "::test_bytes_that_wait_behind_a_handled_frame_are_not_given_back_with_it",
        ),
    ),
    Mutation(
        "give no credit back for a long frame that is under way",
        "wire/mux.py",
        "        is_under_way = stream.large and not stream.is_large_complete\n",
        "        is_under_way = False\n",
        (UNIT + "wire/test_mux.py::test_one_large_frame_is_admitted_whatever_the_limit",),
    ),
    Mutation(
        "admit any number of long frames at once",
        "wire/mux.py",
        "self._large_bytes + length > self._large_bytes_max",
        "False",
        (
            "tests/laws/test_mux_laws.py::test_a_peer_with_many_large_frames_makes_us_hold_one_of_them",
        ),
    ),
    Mutation(
        "take more on a stream than there is credit for",
        "wire/mux.py",
        "            if stream.uncredited > WINDOW_BYTES:\n",
        "            if stream.uncredited > WINDOW_BYTES << 40:\n",
        (UNIT + "wire/test_mux.py::test_a_side_sends_no_more_than_a_window_ahead",),
    ),
    Mutation(
        "let a peer open any number of streams",
        "wire/mux.py",
        "        if self._peer_count >= STREAMS_MAX:\n",
        "        if self._peer_count >= STREAMS_MAX << 20:\n",
        (UNIT + "wire/test_mux.py::test_so_many_streams_of_each_side_are_open_at_once",),
    ),
    Mutation(
        "send one stream to its end before the next",
        "wire/mux.py",
        "            self._sending.append(stream)\n",
        "            self._sending.appendleft(stream)\n",
        (UNIT + "wire/test_mux.py::test_streams_take_turns",),
    ),
    Mutation(
        "leave the reader asleep when a waiting frame has room",
        "node/connection.py",
        "        self._stirred.set()\n        if self._streams.has_output:",
        "        if self._streams.has_output:",
        (
            UNIT + "node/test_connection.py"
            "::test_a_slow_handler_stops_its_own_stream_only_and_goes_on_when_it_can",
        ),
    ),
    Mutation(
        "wait for a frame that comes in drops",
        "node/bounds.py",
        "min(self._end_s, self._mark_s + PROGRESS_S) - now_s",
        "self._end_s - now_s",
        (UNIT + "node/test_bounds.py::test_a_frame_has_to_come_along",),
    ),
    Mutation(
        "let any number of connections come from one address",
        "node/bounds.py",
        "        if any(self._counts.get(name, 0) >= limit for name, limit in limits):\n"
        "            return False\n",
        "",
        (UNIT + "node/test_bounds.py::test_so_many_connections_come_from_one_address",),
    ),
    Mutation(
        "take a peer for equal that was only sent everything",
        "sync/replicator.py",
        "only the peer's own statement counts.\n"
        "        stated = partner.received if partner.is_settled else None\n",
        "only the peer's own statement counts.\n        stated = partner.sent\n",
        (
            UNIT + "node/test_standing.py"
            "::test_a_peer_is_equal_when_it_says_so_and_not_when_it_was_sent_everything",
            UNIT + "node/test_standing.py"
            "::test_who_takes_what_it_is_sent_and_states_nothing_is_not_equal",
        ),
    ),
    Mutation(
        "let strangers take the room of wanted peers",
        "node/admission.py",
        "len(strangers) < self._strangers_max",
        "len(strangers) < self._max",
        (
            UNIT + "node/test_admission.py::test_a_part_of_the_room_is_reserved_for_wanted_keys",
            UNIT + "node/test_admission.py"
            "::test_wanted_peers_get_in_at_once_among_a_thousand_strangers",
        ),
    ),
    Mutation(
        "keep slow monitors for a quick one",
        "node/http.py",
        "        if not slow:\n            return False\n",
        "        return False\n",
        (
            UNIT + "node/test_http.py"
            "::test_slow_clients_of_this_machine_do_not_keep_a_quick_one_out",
        ),
    ),
    Mutation(
        "let a peer want any number of cells",
        "sync/replicator.py",
        "        if self._wants.count(partner.id) > WANTS_MAX:\n",
        "        if self._wants.count(partner.id) < 0:\n",
        (UNIT + "sync/test_replicator.py::test_a_peer_whose_values_lack_too_many_parts_is_cut",),
    ),
    Mutation(
        "speak to a peer that is refused",
        "sync/replicator.py",
        "        return self._replica.regard(partner.peer) is not Regard.REFUSED\n",
        "        return self._replica.regard(partner.peer) is not None\n",
        (
            UNIT + "sync/test_replicator.py"
            "::test_to_a_refused_peer_nothing_is_said_and_nothing_of_it_counts",
            UNIT + "sync/test_replicator.py"
            "::test_parts_that_come_when_a_peer_is_refused_are_asked_of_another",
        ),
    ),
    Mutation(
        "bear with a peer that speaks nonsense",
        "sync/conduct.py",
        "        self._counts[kind] += 1\n",
        "",
        (
            UNIT + "sync/test_conduct.py::test_each_kind_is_bounded_in_a_row",
            UNIT + "sync/test_replicator.py::test_eight_malformed_frames_end_a_connection",
        ),
    ),
    # --- forks ------------------------------------------------------------------------------------
    Mutation(
        "keep own on a fork",
        "lattice/owned.py",
        "        high, low = (own, other) if own_greater else (other, own)\n",
        "        own_greater = True\n        high, low = own, other\n",
        (
            UNIT + "sync/test_evidence.py"
            "::test_third_parties_choose_alike_and_keep_the_other_branch",
            LAWS + "test_exchange_laws.py"
            "::test_third_parties_come_to_the_same_cell_in_any_order_of_exchanges",
        ),
    ),
    Mutation(
        "trust the writer's own signature",
        "lattice/context.py",
        "            return owner == signer\n        verifier = self.verifier\n        return True",
        "            return True\n        verifier = self.verifier\n        return True",
        (
            UNIT + "lattice/test_owned.py::test_attacks_on_an_owner_leave_own_and_are_reported",
            UNIT + "lattice/test_owned.py"
            "::test_first_contact_without_any_own_value_is_verified_too",
        ),
    ),
    Mutation(
        "covering before order",
        "lattice/owned.py",
        "        if inner.has_order():\n",
        "        if False:\n",
        (
            LAWS + "test_exchange_laws.py"
            "::test_a_ring_in_step_settles_and_a_stranger_cannot_keep_it_going",
            LAWS + "test_exchange_laws.py"
            "::test_three_states_that_a_rule_of_containment_and_hashes_goes_round_in_settle",
        ),
    ),
    Mutation(
        "sign merge(own, other)",
        "lattice/owned.py",
        "        value = self._inner.merge(high.value, low.value, self._below)\n",
        "        value = self._inner.merge(own.value, other.value, self._below)\n",
        (
            UNIT + "lattice/test_owned.py"
            "::test_the_owner_signs_the_same_join_whichever_side_was_own_and_whatever_is_malformed",
        ),
    ),
    Mutation(
        "skip the guard: sign a join that is not the greater",
        "lattice/owned.py",
        "        return cell if context.owner is None or self._is_greater(cell, high) else high\n",
        "        return cell\n",
        (UNIT + "lattice/test_owned.py::test_a_join_is_signed_only_when_it_is_greater_than_both",),
    ),
    Mutation(
        "keep no evidence",
        "sync/lattice/evidence.py",
        "            if not (self.can_keep and self._may_examine(fork)):\n",
        "            if self.can_keep or not self._may_examine(fork):\n",
        (
            UNIT + "sync/test_evidence.py"
            "::test_third_parties_choose_alike_and_keep_the_other_branch",
            UNIT + "sync/test_evidence.py"
            "::test_a_crash_at_any_write_leaves_the_slot_and_its_evidence_together",
            UNIT + "sync/test_handover.py"
            "::test_a_branch_in_evidence_alone_is_joined_by_the_owners_next_device",
        ),
    ),
    Mutation(
        "let a branch that a peer keeps take the place of what the peer has",
        "sync/lattice/incoming.py",
        "        path = (FORKS_KEY, *self.path) if self.is_branch else self.path\n",
        "        path = self.path\n",
        (
            UNIT + "sync/test_handover.py"
            "::test_a_branch_takes_not_the_place_of_what_its_peer_has_in_the_slot",
        ),
    ),
    Mutation(
        "skip forks of one's own beyond the rate",
        "sync/lattice/evidence.py",
        "        if self.is_mine(fork.owner):\n            return True\n        minute",
        "        minute",
        (
            UNIT + "sync/test_evidence.py"
            "::test_a_clone_that_forks_many_times_a_minute_loses_no_record_of_ones_own",
        ),
    ),
    Mutation(
        "drop the evidence of a log when the slot covers it",
        "sync/lattice/evidence.py",
        "(now.branch == LOG_BRANCH and _all_appended(slot.value, now))",
        "now.branch == LOG_BRANCH",
        (
            UNIT + "sync/test_evidence.py"
            "::test_the_owners_join_removes_it_and_a_log_leaves_the_records_that_lost",
        ),
    ),
    Mutation(
        "let the newest branches of a slot go first",
        "sync/lattice/evidence.py",
        "            if self._branches.is_less(one, least):\n",
        "            if self._branches.is_less(least, one):\n",
        (
            UNIT + "sync/test_evidence.py"
            "::test_ten_thousand_growing_branches_keep_the_first_two_and_the_newest_that_fit",
        ),
    ),
    Mutation(
        "let branches of owners with the fewest bytes go first",
        "sync/lattice/evidence.py",
        "            most = max(one.size for one in strangers)\n",
        "            most = min(one.size for one in strangers)\n",
        (
            UNIT + "sync/test_evidence.py"
            "::test_many_forked_owners_are_bounded_in_room_and_cost_the_slots_that_change",
        ),
    ),
    Mutation(
        "let a patch bring the bytes of all cells that it stands for",
        "sync/lattice/incoming.py",
        "        if self.sent is not None:\n",
        "        if False:\n",
        (
            UNIT + "sync/test_lattice_conversation.py"
            "::test_a_patch_brings_the_bytes_of_its_message_and_none_that_it_stands_for",
        ),
    ),
    Mutation(
        "look at whose data a value has without an account",
        "sync/lattice/hosting.py",
        "                found = list(arriving_names(own, theirs, work))\n",
        "                found = list(arriving_names(own, theirs))\n",
        (
            UNIT + "sync/test_hosting.py"
            "::test_to_state_what_is_here_as_content_is_paid_for_and_ends",
        ),
    ),
    Mutation(
        "take a kept branch for less than its slot whenever the slot rises",
        "sync/lattice/evidence.py",
        "        if change is not None and value_hash(change.before) not in lost_to:\n",
        "        if False:\n",
        (
            UNIT + "sync/test_evidence.py"
            "::test_a_branch_above_a_slot_that_a_program_made_less_is_not_taken_for_a_lesser_one",
        ),
    ),
    Mutation(
        "compare every record with its slot at every commit",
        "sync/lattice/evidence.py",
        "            for path, before, _ in slot_changes(former, root):\n",
        "            found = dict(self.records)\n"
        "            for path, before, _ in slot_changes(former, root):\n",
        (
            UNIT + "sync/test_evidence.py"
            "::test_many_forked_owners_are_bounded_in_room_and_cost_the_slots_that_change",
        ),
    ),
    Mutation(
        "write without a fence",
        "node/fencing.py",
        "        if self.is_passable:\n            return\n",
        "        return\n",
        (
            FENCING + "test_a_copied_folder_refuses_to_write_until_a_peer_was_asked",
            FENCING
            + "test_two_live_nodes_with_one_identity_refuse_to_write_until_one_gets_another",
        ),
    ),
    Mutation(
        "a fence that does not wait for the cursor",
        "sync/replicator.py",
        "                self._pulls.wait((partner.id, exchange), offer.probe.key)\n",
        "                pass\n",
        (FENCING + "test_a_restored_node_appends_behind_what_its_peer_has",),
    ),
    Mutation(
        "let commands write without asking",
        "client/opening.py",
        "    if fenced:\n        ask_first(folder, store, keys)\n",
        "",
        (
            UNIT + "cli/test_command_fence.py"
            "::test_a_restored_folder_appends_behind_what_a_peer_has",
            UNIT + "cli/test_command_fence.py"
            "::test_without_a_peer_a_restored_folder_is_written_to_only_offline",
        ),
    ),
    Mutation(
        "tell a node of a connection that may be its own former one",
        "sync/replicator.py",
        "            self._say(twin, talk.TellTwin(start, partner.id), now_ms)\n",
        "            self._say(twin, talk.TellTwin(start), now_ms)\n"
        "            self._say(partner, talk.TellTwin(twin.start), now_ms)\n",
        (
            UNIT + "sync/test_starts.py"
            "::test_both_of_two_live_nodes_are_told_what_the_other_has_signed_the_older_one_first",
        ),
    ),
    Mutation(
        "begin a venue before the fence",
        "service/venue/runner.py",
        "        await self._off_loop(self._storage.begin)\n",
        "",
        (VENUE + "test_recovery.py::test_calls_wait_for_the_fence_and_then_have_its_error",),
    ),
    Mutation(
        "fire again what a copied schedule has",
        "service/venue/recovery.py",
        "        if records.get(job_of_call(handle)) is not None:  # the call has become a job\n",
        "        if False:\n",
        (
            VENUE + "test_recovery.py::"
            "test_a_scheduled_call_that_has_fired_since_does_not_fire_again",
        ),
    ),
    Mutation(
        "begin a child of a copied parent again",
        "service/venue/live.py",
        "        if known is not None or is_older:\n",
        "        if known is not None:\n",
        (
            VENUE + "test_recovery.py::"
            "test_a_restored_parent_finds_the_children_that_have_ended_since",
        ),
    ),
    Mutation(
        "write secrets in plain text",
        "service/venue/sealing.py",
        "        if part.get(SECRET) is not True:\n",
        "        if part is not None:\n",
        (VENUE + "test_sealing.py::test_a_secret_is_in_no_file_and_no_log",),
    ),
    Mutation(
        "follow no job of another venue after three restarts",
        "service/venue/recovery.py",
        "    if found.is_delegated:\n",
        "    if found.is_delegated and found.attempt < attempts_max:\n",
        (VENUE + "test_grid.py::test_the_job_there_is_followed_after_a_restart",),
    ),
    Mutation(
        "ask another venue again with another id",
        "service/venue/adapters/grid.py",
        "request_id=job.effect_key().hex()\n",
        "request_id=job.effect_key(str(id(request))).hex()\n",
        (VENUE + "test_grid.py::test_a_cancel_before_the_answer_cancels_there",),
    ),
    Mutation(
        "show a caller the jobs of others at another venue",
        "service/venue/adapters/grid.py",
        "not await self._jobs().is_delegated(job.caller, str(door), call.id.hex())",
        "False",
        (VENUE + "test_grid.py::test_invoke_returns_the_record_and_others_ask_for_it",),
    ),
    Mutation(
        "run a definition that has another hash",
        "service/venue/definitions.py",
        "            if asset_id(text) != asset:\n",
        "            if False:\n",
        (VENUE + "test_definitions.py::test_a_definition_with_another_hash_is_refused",),
    ),
    Mutation(
        "pin a content that has another hash",
        "service/venue/adapters/assets.py",
        "            if hashlib.sha256(content).digest() != declared:\n",
        "            if False:\n",
        (VENUE + "test_assets.py::test_what_has_another_hash_is_refused_and_nothing_is_kept",),
    ),
    # --- streams and consumers --------------------------------------------------------------------
    Mutation(
        "keep a position whose batch failed",
        "apps/queue/consumer.py",
        "        self._is_stale = True\n",
        "        self._is_stale = False\n",
        (UNIT + "apps/test_queue_consumers.py::test_a_batch_that_fails_puts_the_consumer_back",),
    ),
    Mutation(
        "count an entry that was left as done",
        "cursors/stream.py",
        "            self._consumer.rewind()\n",
        "            self._consumer.finish()\n",
        (
            UNIT + "apps/test_queue_consumers.py"
            "::test_a_block_of_taken_entries_is_done_when_it_ends_well",
        ),
    ),
    Mutation(
        "read on over a fork",
        "apps/queue/following.py",
        "            elif reader.has_forked(state):\n",
        "            elif not reader.cursor:\n",
        (
            UNIT + "apps/test_queue_consumers.py"
            "::test_a_log_that_forked_below_the_position_is_a_loss",
        ),
    ),
    # --- databases, drives, grids -----------------------------------------------------------------
    Mutation(
        "replica name from the owner key",
        "apps/kv/database.py",
        "    identity = context.key_pair\n    if identity is None:",
        "    identity = next(iter(context.keys), context.key_pair)\n    if identity is None:",
        (UNIT + "apps/test_kv.py::test_devices_of_one_owner_count_in_a_column_each",),
    ),
    Mutation(
        "share no memo",
        "apps/dlfs/merging.py",
        "    held = work.memo(_MEMO)\n",
        "    held: dict[bytes, object] = {}\n",
        (
            UNIT + "apps/test_merge_work.py"
            "::test_what_a_merge_of_directories_did_is_shared_by_all_drives_of_a_message",
        ),
    ),
    Mutation(
        "let own win a tie of two values",
        "apps/kv/joining.py",
        "            a_wins = value_hash(a.cell) > value_hash(b.cell)\n",
        "            a_wins = True\n",
        (UNIT + "apps/test_kv.py::test_of_two_values_written_at_one_time_the_greater_hash_stays",),
    ),
    Mutation(
        "keep what is older than the value it was written over",
        "apps/kv/joining.py",
        "    at = max(winner.base, past if loser.rank > winner.rank else past - 1)\n",
        "    at = winner.base\n",
        (
            LAWS + "test_kv_laws.py::test_entries_join_in_any_grouping",
            LAWS + "test_kv_laws.py::test_a_merge_is_what_the_rules_say_letter_by_letter",
        ),
    ),
    Mutation(
        "forget how far back the other side was cleared",
        "apps/kv/joining.py",
        "    base = max(a.base, b.base)\n",
        "    base = a.base\n",
        (LAWS + "test_kv_laws.py::test_entries_of_any_kind_join_in_any_order",),
    ),
    Mutation(
        "leave a directory uncut when the other one was cleared",
        "apps/dlfs/merging.py",
        "        if a.base < base:\n            left = self._cut(own, base, OWN, path, depth)\n",
        "",
        (LAWS + "test_dlfs_laws.py::test_either_side_joins_to_the_same",),
    ),
    Mutation(
        "keep own's metadata of a directory",
        "apps/dlfs/merging.py",
        "        top = x if _rank(x) >= _rank(y) else y\n",
        "        top = x\n",
        (LAWS + "test_dlfs_laws.py::test_either_side_joins_to_the_same",),
    ),
    Mutation(
        "take assets, jobs and content unchecked",
        "apps/grid/lattice.py",
        "        if self._collection.check(key, value, context.work):\n            return True\n",
        "        return True\n",
        (LAWS + "test_grid_laws.py::test_a_bad_entry_never_gets_in_and_never_puts_anything_out",),
    ),
    # --- who asks a service -----------------------------------------------------------------------
    Mutation(
        "a caller's token may name any algorithm",
        "service/access/reading.py",
        'if header.get("alg") not in ALGORITHMS:',
        'if "alg" not in header:',
        (UNIT + "service/test_authenticating.py::test_a_bad_token_is_refused_with_one_text",),
    ),
    Mutation(
        "a caller's token is for any service",
        "service/access/authenticating.py",
        "if self._audiences.isdisjoint(named):",
        "if not named:",
        (UNIT + "service/test_authenticating.py::test_a_bad_token_is_refused_with_one_text",),
    ),
    Mutation(
        "a caller speaks for another DID",
        "service/access/authenticating.py",
        "or (subject != issuer and issuer != self.did)",
        "or subject is None",
        (UNIT + "service/test_authenticating.py::test_a_bad_token_is_refused_with_one_text",),
    ),
    Mutation(
        "a caller's token lives for ever",
        "service/access/authenticating.py",
        "if now_ms >= ends_ms + skew_ms:",
        "if now_ms < 0:",
        (UNIT + "service/test_authenticating.py::test_a_bad_token_is_refused_with_one_text",),
    ),
    Mutation(
        "a caller's token has an extension that must be understood",
        "service/access/reading.py",
        'if "crit" in header:',
        'if "crit" in issuer:',
        (UNIT + "service/test_authenticating.py::test_a_bad_token_is_refused_with_one_text",),
    ),
    Mutation(
        "a caller's token that was revoked is still known",
        "service/access/authenticating.py",
        "        self._tokens.forget(did, token_id)\n",
        "",
        (
            UNIT + "service/test_authenticating.py::"
            "test_a_revoked_token_is_refused_whether_known_or_not",
        ),
    ),
    Mutation(
        "a caller's known token does not end",
        "service/access/authenticating.py",
        "if not known.begins_ms <= now_ms < known.ends_ms:",
        "if not known.begins_ms <= now_ms:",
        (UNIT + "service/test_authenticating.py::test_a_known_token_ends_when_it_ends",),
    ),
    Mutation(
        "a caller's request to another service is taken",
        "service/access/authenticating.py",
        "if _origin(credentials.url) not in self._origins:",
        "if not credentials.url:",
        (
            UNIT
            + "service/test_authenticating.py::test_a_bad_signed_request_is_refused_with_one_text",
        ),
    ),
    Mutation(
        "a caller's body need not be the one that was signed",
        "service/access/authenticating.py",
        "!= body_sha256:",
        "!= body_sha256 and not body_sha256:",
        (
            UNIT
            + "service/test_authenticating.py::test_a_bad_signed_request_is_refused_with_one_text",
        ),
    ),
    Mutation(
        "a caller's body need not be signed",
        "service/access/authenticating.py",
        "needed.add(CONTENT_DIGEST)",
        "needed.add(METHOD)",
        (
            UNIT
            + "service/test_authenticating.py::test_a_bad_signed_request_is_refused_with_one_text",
        ),
    ),
    Mutation(
        "a caller's nonce passes again",
        "service/access/spent.py",
        'if known is not None and int.from_bytes(known, "big") > now_ms:',
        'if known is not None and int.from_bytes(known, "big") < now_ms:',
        (
            UNIT + "service/test_authenticating.py::"
            "test_a_signed_request_passes_once_and_a_restart_does_not_forget_it",
        ),
    ),
    Mutation(
        "a full table forgets a caller's nonce",
        "service/access/spent.py",
        "if txn.count(SPENT_TABLE) >= 2 * self._ids_max:",
        "if txn.count(SPENT_TABLE) >= 3 * self._ids_max:",
        (
            UNIT + "service/test_spent.py::"
            "test_a_full_table_refuses_and_takes_more_once_some_have_ended",
        ),
    ),
    Mutation(
        "a caller's token names a member twice",
        "client/credentials/forms.py",
        'if len(found) != len(pairs):\n        raise BadFormat("a JSON',
        'if len(found) > len(pairs):\n        raise BadFormat("a JSON',
        (UNIT + "service/test_authenticating.py::test_a_bad_token_is_refused_with_one_text",),
    ),
    Mutation(
        "a caller's token has several texts",
        "client/credentials/forms.py",
        "if encode_part(data) != text:",
        "if len(encode_part(data)) != len(text):",
        (UNIT + "service/test_authenticating.py::test_a_bad_token_is_refused_with_one_text",),
    ),
    Mutation(
        "a caller's token does not narrow",
        "service/access/policy.py",
        "if allowed and not caller.is_granted(right, scope):",
        "if not allowed and not caller.is_granted(right, scope):",
        (
            UNIT + "service/test_policy.py::test_a_credential_narrows_an_administrator_too",
            UNIT
            + "service/test_policy.py::test_a_credential_passes_only_what_its_longest_grant_has",
        ),
    ),
    Mutation(
        "any caller writes for an owner",
        "service/access/policy.py",
        'if right != "r" and not is_open:\n',
        'if right == "a" and not is_open:\n',
        (
            UNIT + "service/test_policy.py::test_without_rules",
            UNIT
            + "service/test_policy.py::test_a_rule_on_a_section_lets_nobody_write_for_an_owner",
        ),
    ),
    Mutation(
        "a rule reaches a caller by the beginning of a word",
        "service/access/scopes.py",
        '["/".join(parts[:count]) for count in range(len(parts), 0, -1)]',
        "[text[:count] for count in range(len(text), 0, -1)]",
        (UNIT + "service/test_policy.py::test_a_rule_covers_segments_and_not_beginnings_of_words",),
    ),
    Mutation(
        "the shortest rule about a caller wins",
        "service/access/scopes.py",
        "for count in range(len(parts), 0, -1)",
        "for count in range(1, len(parts) + 1)",
        (UNIT + "service/test_policy.py::test_the_longest_rule_wins",),
    ),
    Mutation(
        "a caller learns what it may not read",
        "service/statuses.py",
        'if isinstance(error, Unauthorized) and right == "r":',
        'if isinstance(error, Unauthorized) and right == "w":',
        (
            UNIT
            + "service/test_statuses.py::test_a_read_that_is_not_allowed_looks_like_one_of_nothing",
        ),
    ),
    Mutation(
        "a caller's rule is in force before it is durable",
        "service/access/policies.py",
        "replace_file(self._disk, self._path, [data])\n        self._policy = self._with(rules)",
        "self._policy = self._with(rules)\n        replace_file(self._disk, self._path, [data])",
        (UNIT + "service/test_policies.py::test_a_disk_that_is_full_keeps_the_old_rules",),
    ),
    # --- garbage ----------------------------------------------------------------------------------
    Mutation(
        "collect what pins keep",
        "store/kept/pins.py",
        "(pin.root_hash for pin in self._living()))\n",
        "(pin.root_hash for pin in self.leases()))\n",
        (UNIT + "store/test_collecting.py::test_what_nothing_reaches_goes_and_the_rest_stays",),
    ),
    Mutation(
        "count packs within the grace as old",
        "store/gc/marking.py",
        "            if behind is not None or found.time_ms <= since_ms:\n",
        "            if behind is not None or found.time_ms <= since_ms + 3_000:\n",
        (
            UNIT + "store/test_collecting.py"
            "::test_the_age_of_cells_is_in_their_packs_and_outlives_index_and_clock",
        ),
    ),
    Mutation(
        "drop what pins keep in memory",
        "store/memory.py",
        "            tops = [*([self._root] if self._root else []), *self.pins.roots()]\n",
        "            tops = [self._root] if self._root else []\n",
        (
            UNIT + "store/test_stores.py"
            "::test_every_store_keeps_former_roots_pins_and_leases_through_collections",
        ),
    ),
    Mutation(
        "commit over cells that a collection of memory removed",
        "store/memory.py",
        "            if self._has_collected:\n                self._check_below({hash:",
        "            if not self._has_collected:\n                self._check_below({hash:",
        (
            UNIT + "store/test_stores.py"
            "::test_every_store_refuses_a_value_over_cells_that_a_collection_removed",
        ),
    ),
    Mutation(
        "do not look again at what was committed while cells were copied",
        "store/gc/collection.py",
        "        self._marker.follow_tops()\n        self._marker.follow_packs()\n",
        "        self._marker.follow_tops()\n",
        (UNIT + "store/test_collecting.py::test_what_is_staged_right_before_the_lock_is_followed",),
    ),
    # --- weaver on the network --------------------------------------------------------------------
    Mutation(
        "weaver network: a chain is asked for down to its author's first intention",
        "sync/weaver/gaps.py",
        "            self._since[one.prev] = one.since\n",
        "            self._since[one.prev] = bytes(32)\n",
        (
            UNIT + "sync/test_weaver_chains.py::"
            "test_a_missing_predecessor_is_asked_for_as_a_chain_in_one_request",
        ),
    ),
    Mutation(
        "weaver network: what was not asked for is taken",
        "sync/weaver/conversation.py",
        '            if fetch.wanted.pop(part.hash, b"") is None:\n',
        "            if fetch.wanted.pop(part.hash, None) is None:\n",
        (
            UNIT + "sync/test_weaver_replica.py::"
            "test_intentions_that_were_not_asked_for_are_not_taken",
            UNIT + "sync/test_weaver_chains.py::test_what_lies_beyond_the_chain_is_not_taken",
        ),
    ),
    Mutation(
        "weaver network: a peer is clean after any comparison",
        "sync/replicator.py",
        "        if error is None and not running.is_partial:\n",
        "        if error is None:\n",
        (UNIT + "sync/test_dirty.py::test_what_is_lost_during_a_comparison_is_compared_again",),
    ),
    Mutation(
        "weaver network: a peer that is too far behind for news is forgotten",
        "sync/weaver/replica.py",
        "            return News(is_behind=True)\n",
        "            return None\n",
        (
            UNIT + "sync/test_dirty.py::"
            "test_a_peer_beyond_what_is_kept_to_be_pushed_is_compared_soon",
            UNIT + "sync/test_weaver_acceptance.py::test_after_drop",
        ),
    ),
    Mutation(
        "weaver network: every neighbour gets every intention",
        "sync/weaver/replica.py",
        "        if not asked and len(new) < len(offer.parts) - len(new):\n",
        "        if asked and len(new) < len(offer.parts) - len(new):\n",
        (UNIT + "sync/test_gossip.py::test_among_nine_nodes_each_intention_is_sent_eight_times",),
    ),
    Mutation(
        "weaver network: what was announced is not fetched",
        "sync/weaver/replica.py",
        "            absorbed.missing += lacking\n",
        "            absorbed.missing += lacking[:0]\n",
        (
            UNIT + "sync/test_gossip.py::"
            "test_what_is_lost_on_the_tree_is_fetched_from_who_announced_it",
        ),
    ),
    Mutation(
        "weaver network: a store pushes to all peers",
        "sync/weaver/gossip.py",
        "        if len(self._is_eager) < self._limit:\n",
        "        if self._limit:\n",
        (UNIT + "sync/test_gossip.py::test_a_store_has_so_many_neighbours",),
    ),
    Mutation(
        "weaver network: a push puts off the comparison",
        "sync/weaver/replica.py",
        "        return News((*offers, last), is_whole=False)\n",
        "        return News((*offers, last))\n",
        (
            UNIT + "sync/test_dirty.py::"
            "test_a_store_that_is_written_to_all_the_time_is_compared_all_the_same",
        ),
    ),
    Mutation(
        "weaver network: news of a revoked author is taken",
        "sync/weaver/replica.py",
        "            if not asked and signed.intention.author not in self.allowed:\n",
        "            if asked and signed.intention.author not in self.allowed:\n",
        (
            UNIT + "sync/test_weaver_replica.py::"
            "test_news_of_a_revoked_author_is_refused_while_its_history_spreads",
        ),
    ),
    # --- weaver -----------------------------------------------------------------------------------
    Mutation(
        "weaver: a failed piece of work stays in the transaction of the others",
        "engine/group.py",
        "        for (table, key), value in (self._undo or {}).items():\n",
        "        for (table, key), value in ():\n",
        (
            UNIT + "engine/test_engines.py::test_every_engine_keeps_the_protocol",
            LAWS + "test_group_laws.py::test_pieces_of_one_transaction_equal_one_after_the_other",
        ),
    ),
    Mutation(
        "weaver: of writes that come together a command does not see the one before",
        "weaver/writing.py",
        "            folding.apply(self._call.appended[folding.seq - self._call.head.seq])\n",
        "            break\n",
        (
            UNIT + "weaver/test_store.py::"
            "test_writes_that_come_together_are_written_one_after_the_other",
        ),
    ),
    Mutation(
        "journal: a commit does not wait for the disk",
        "engine/journal.py",
        "            file.sync()\n            with self._lock:\n",
        "            with self._lock:\n",
        (
            UNIT + "engine/test_journaled.py::test_a_crash_at_any_write_keeps_what_returned",
            UNIT + "engine/test_journaled.py::test_what_is_not_durable_yet_is_seen_by_no_one",
        ),
    ),
    Mutation(
        "journal: a reader takes a record while its writer still does",
        "engine/journal.py",
        "            with self._lock:\n                # Under one lock",
        "            if True:\n                # Under one lock",
        (
            UNIT + "engine/test_journaled.py::"
            "test_a_thread_that_reads_while_a_record_is_published_does_not_take_it_twice",
        ),
    ),
    Mutation(
        "journal: it ends where it is damaged",
        "engine/journal.py",
        "        if recent.end < published:\n            raise Corruption(",
        "        if recent.end < 0:\n            raise Corruption(",
        (
            UNIT + "engine/test_journaled.py::"
            "test_a_damaged_journal_is_an_error_and_not_an_older_state",
        ),
    ),
    Mutation(
        "journal: records that went to the tables count again",
        "engine/journal.py",
        "        self.check = generation\n",
        "        self.check = _NO_GENERATION\n",
        (UNIT + "engine/test_journaled.py::test_a_crash_at_any_write_keeps_what_returned",),
    ),
    Mutation(
        "journal: after a restart of the machine the header is believed",
        "engine/journal.py",
        "        is_bounded = header.boot == self._boot and (self._has_looked or not is_writer)\n",
        "        is_bounded = True\n",
        (UNIT + "engine/test_journaled.py::test_a_crash_at_any_write_keeps_what_returned",),
    ),
    Mutation(
        "weaver: an error before a transaction begins is lost",
        "engine/group.py",
        "            pieces.extend(self._take())\n        while True:\n            try:\n",
        "            pass\n        while True:\n            try:\n",
        (
            UNIT + "engine/test_group.py::"
            "test_a_transaction_that_cannot_begin_is_the_error_of_each_caller",
        ),
    ),
    Mutation(
        "weaver: a group of long keys is counted as one of its keys",
        "engine/longkeys.py",
        "                    surplus -= at == 0\n",
        "                    surplus -= 0\n",
        (UNIT + "engine/test_engines.py::test_every_engine_keeps_the_protocol",),
    ),
    Mutation(
        "weaver state: a promoted head keeps the value of the one that was replaced",
        "weaver/heads.py",
        "                    if left[0] != heads[0]:\n",
        "                    if not heads:\n",
        (UNIT + "weaver/test_heads.py::test_a_promoted_head_gets_its_value_back",),
    ),
    Mutation(
        "weaver state: what a refused operation changed stays",
        "weaver/state.py",
        "            for overlay in self._own.values():\n                overlay.clear()\n",
        "            for table, below in self._batch:\n"
        "                below.absorb(self._own[table])\n",
        (UNIT + "weaver/test_state.py::test_projection_stops_at_a_payload_that_cannot_be_applied",),
    ),
    Mutation(
        "weaver state: a position of another log is believed",
        "weaver/state.py",
        "        return self._log.content_hash(txn, position.seq) == position.content_hash\n",
        "        return self._log.content_hash(txn, position.seq) is not None\n",
        (UNIT + "weaver/test_state.py::test_a_position_of_another_log_rebuilds_without_events",),
    ),
    Mutation(
        "weaver state: the checksum of a snapshot is not compared",
        "weaver/snapshot.py",
        "    if source.take_unhashed(_HASH_BYTES) != source.digest.digest():\n",
        "    if source.take_unhashed(_HASH_BYTES) is None:\n",
        (UNIT + "weaver/test_state.py::test_snapshot_checksum_failure_last_byte",),
    ),
    Mutation(
        "weaver state: heads of the past are those of now and what they replaced",
        "weaver/kvstore.py",
        "    if len(found) > 1 and later:\n",
        "    if len(found) > 1 and not later:\n",
        (
            UNIT + "weaver/test_store.py::"
            "test_the_heads_of_a_key_at_a_record_are_found_after_later_ones",
        ),
    ),
    Mutation(
        "weaver in Spark: a stream goes on in a log that was made anew",
        "pipeline/weaver/source.py",
        "        if view.position(position.seq) == position:\n",
        "        if view.position(position.seq) is not None:\n",
        (
            UNIT + "pipeline/weaver/test_weaver.py::"
            "test_a_log_made_anew_is_a_loss_and_not_read_again_in_silence",
        ),
    ),
    Mutation(
        "weaver in Spark: a task reads whatever log is there",
        "pipeline/weaver/rows.py",
        "    if at != task.end:\n",
        "    if at.seq != task.end.seq:\n",
        (
            UNIT + "pipeline/weaver/test_weaver.py::"
            "test_a_log_made_anew_is_a_loss_and_not_read_again_in_silence",
        ),
    ),
    Mutation(
        "weaver cells: what no peer has holds up the values behind it",
        "node/weavercells.py",
        "                self._values[value.hash] = self._values.pop(value.hash)\n",
        "                self._values[value.hash] = value\n",
        (UNIT + "node/test_weavercells.py::test_values_that_no_peer_has_do_not_hold_up_others",),
    ),
    Mutation(
        "weaver cells: a cell is asked for once",
        "node/weavercells.py",
        " if now_ms - at < RETRY_MS and not has(hash)\n",
        " if not has(hash)\n",
        (
            UNIT + "node/test_weavercells.py::"
            "test_a_missing_value_is_asked_for_again_and_reported_after_a_while",
        ),
    ),
    Mutation(
        "weaver: received signatures are believed",
        "weaver/intention.py",
        '        if refused is not None:\n            raise IntentionRefused(refused, "signature"',
        '        if refused == -1:\n            raise IntentionRefused(refused, "signature"',
        (
            UNIT + "weaver/test_intention.py::test_tampered_signature_refused",
            UNIT + "weaver/test_intention.py::test_the_identity_point_is_no_author",
        ),
    ),
    Mutation(
        "weaver: the second branch of an author is witnessed, too",
        "weaver/ingest.py",
        "intention.store_prev == self._log.tip_hash(intention.author):\n            return True\n",
        "self._is_present(intention.store_prev):\n            return True\n",
        (
            UNIT + "weaver/test_log.py::test_another_authors_predecessor_is_never_witnessed",
            UNIT + "weaver/test_forks.py::test_a_branch_that_comes_later_even_much_later",
        ),
    ),
    Mutation(
        "weaver: a stamp from the future drags the clock",
        "weaver/append.py",
        "        stamp = clamp_future(stamp, self.clock, wall_ms)\n",
        "",
        (UNIT + "weaver/test_log.py::test_far_future_stamp_does_not_drag_the_clock",),
    ),
    Mutation(
        "weaver: a store in doubt is written to",
        "weaver/store.py",
        "        check_fence(txn, self.id)\n        part = self._section(txn)\n        writing",
        "        part = self._section(txn)\n        writing",
        (
            UNIT + "weaver/test_fence.py::test_a_copy_refuses_own_writes_until_a_peer_was_asked",
            UNIT + "sync/test_weaver_replica.py::"
            "test_own_intentions_that_a_peer_has_are_all_here_before_the_next_one_is_written",
        ),
    ),
    Mutation(
        "weaver: records that no signed one follows are believed",
        "weaver/witness.py",
        "    if end.seq > max(seqs, default=after.seq):\n",
        "    if False:\n",
        (UNIT + "weaver/test_witness.py::test_one_signature_covers_the_records_before_it",),
    ),
    Mutation(
        "weaver: what has come is dropped when a peer gives up",
        "sync/weaver/conversation.py",
        "        if fetch is not None and fetch.held:\n",
        "        if False:\n",
        (
            UNIT + "sync/test_weaver_replica.py::"
            "test_what_has_come_is_taken_in_when_a_peer_gives_up",
        ),
    ),
    Mutation(
        "weaver: a comparison that broke off ends a doubt",
        "sync/weaver/comparisons.py",
        "            if self._ranges.partial or not self._is_done:\n",
        "            if self._ranges.partial:\n",
        (UNIT + "sync/test_weaver_replica.py::test_a_comparison_that_breaks_off_ends_no_doubt",),
    ),
    Mutation(
        "weaver: a frontier is made of any number of entries",
        "weaver/append.py",
        "                left -= len(other.frontier)\n",
        "",
        (UNIT + "weaver/test_frontier.py::test_the_work_that_many_dependencies_are_is_bounded",),
    ),
    Mutation(
        "weaver: a frontier forgets all dependencies but the last",
        "weaver/append.py",
        "if left >= 0 and is_first and other.frontier.get(tip.number, 0) == base:\n",
        "if left >= 0 and other.frontier.get(tip.number, 0) == tip.seq:\n",
        (UNIT + "weaver/test_frontier.py::test_frontier_of_a_merge_has_all_its_dependencies",),
    ),
    Mutation(
        "weaver: an intention that waits for two dependencies is woken for the first only",
        "weaver/ingest.py",
        "            self._by_dep.setdefault(missing, {})[row.arrival] = row.signed.hash\n",
        "            if row.signed.hash in self._new:\n"
        "                self._by_dep.setdefault(missing, {})[row.arrival] = row.signed.hash\n",
        (UNIT + "weaver/test_log.py::test_a_thousand_missing_dependencies",),
    ),
    Mutation(
        "weaver: waiting intentions are bounded in number only",
        "weaver/ingest.py",
        "            size > limits.floating_bytes and size > head.floating_bytes\n",
        "            size > limits.floating_bytes and count > head.floating_count\n",
        (UNIT + "weaver/test_log.py::test_waiting_intentions_cannot_be_exchanged_for_larger_ones",),
    ),
    Mutation(
        "weaver: the write of a key that arrives last wins",
        "weaver/heads.py",
        "                place = self._place(op, left) if left else 0\n",
        "                place = 0\n",
        (
            LAWS + "test_weaver_machine_laws.py::test_every_legal_order_gives_the_same_bytes",
            LAWS + "test_weaver_machine_laws.py::test_heads_and_winners_are_those_of_a_fold",
        ),
    ),
    Mutation(
        "weaver: projection goes on behind an operation that cannot be applied",
        "weaver/state.py",
        "                if not run.apply(op):\n                    break\n",
        "                run.apply(op)\n",
        (
            UNIT
            + "weaver/test_state.py::test_a_stall_is_over_when_the_machine_can_apply_the_operation",
            UNIT + "weaver/test_state.py::"
            "test_projection_stops_at_a_payload_that_cannot_be_applied",
        ),
    ),
    Mutation(
        "weaver: a system write replaces the heads of its first key only",
        "weaver/system.py",
        "for key in final_changes(op) for head",
        "for key in list(final_changes(op))[:1] for head",
        (UNIT + "weaver/test_system.py::test_a_batch_depends_on_the_heads_of_every_key_it_writes",),
    ),
    Mutation(
        "weaver: a revoked peer may connect",
        "weaver/policy.py",
        "_CONNECTING: Final = (PeerStatus.ACTIVE, PeerStatus.DORMANT)\n",
        "_CONNECTING: Final = (PeerStatus.ACTIVE, PeerStatus.DORMANT, PeerStatus.REVOKED)\n",
        (
            UNIT + "weaver/test_stores.py::test_revoke_peer",
            UNIT + "weaver/test_stores.py::test_peers_are_copied_once_for_a_snapshot",
        ),
    ),
    Mutation(
        "weaver: an invite lets in as often as it is shown",
        "weaver/policy.py",
        "    if found is None or found.status is not InviteStatus.VALID:\n",
        "    if found is None:\n",
        (UNIT + "weaver/test_stores.py::test_invite_create_and_consume",),
    ),
    Mutation(
        "weaver: two lines of a drawing share a column without a gap",
        "weaver/graph.py",
        "            if busy + 1 < row:\n",
        "            if busy < row:\n",
        (UNIT + "weaver/test_graph.py::test_a_column_is_used_again_after_a_gap_of_one_row",),
    ),
    Mutation(
        "sketches: an id is recovered from a cell that it does not map to",
        "sync/reconcile/sketchcells.py",
        "        if walk.place != place:\n",
        "        if walk.place < place:\n",
        (UNIT + "sync/test_sketches.py::test_a_pure_cell_counts_only_where_its_id_maps_to",),
    ),
    Mutation(
        "sketches: done, though the sets stay unequal",
        "sync/reconcile/sketches.py",
        " or not both.are_equal_without(ours, given):\n",
        ":\n",
        (UNIT + "sync/test_sketches.py::test_a_result_that_does_not_hold_is_retried",),
    ),
    Mutation(
        "sketches: hashes are taken for ids that they do not have",
        "sync/reconcile/sketches.py",
        "or [self._key.id_of(hash) for hash in hashes] != self._wanted:\n",
        "or len(hashes) != len(self._wanted):\n",
        (
            UNIT
            + "sync/test_sketches.py::test_every_hash_is_checked_against_the_id_it_was_asked_by",
        ),
    ),
    Mutation(
        "sketches: windows of cells go on without end",
        "sync/reconcile/sketches.py",
        "return size if windows < limits.windows and have",
        "return size if have",
        (UNIT + "sync/test_sketches.py::test_windows_without_end_are_bounded",),
    ),
    Mutation(
        "sketches: a failed session counts as complete",
        "sync/weaver/comparisons.py",
        "            self._differs = True  # equal sets would be answered `done`\n"
        "            return super().start()\n",
        "            return Step(is_done=True)\n",
        (
            UNIT + "sync/test_weaver_replica.py::"
            "test_sketches_are_spoken_where_both_sides_are_willing_and_ranges_otherwise",
        ),
    ),
    Mutation(
        "webdav: anybody may use the token of a lock",
        "service/filelocks.py",
        "is_shown = one.token in tokens and one.holder == holder",
        "is_shown = one.token in tokens",
        (UNIT + "service/test_filelocks.py::test_a_write_needs_the_token_of_its_holder",),
    ),
    Mutation(
        "webdav: a lock does not wait for a write that has begun",
        "service/filelocks.py",
        "            self._writes.append(entry)\n",
        "",
        (UNIT + "service/test_filelocks.py::test_a_lock_waits_for_the_write_that_has_begun",),
    ),
    Mutation(
        "webdav: a DOCTYPE is taken",
        "api/webdav/documents.py",
        "    parser.StartDoctypeDeclHandler = _refuse_doctype\n",
        "",
        (UNIT + "api/test_webdav.py::test_xml_of_strangers_is_read_within_bounds",),
    ),
    Mutation(
        "webdav: an encoded slash parts a name",
        "api/webdav/requests.py",
        """if name in (".", "..") or "/" in name or""",
        """if name in (".", "..") or""",
        (UNIT + "api/test_webdav.py::test_paths_that_lead_elsewhere_are_refused",),
    ),
    Mutation(
        "webdav: what a caller expects is looked at before the write alone",
        "api/webdav/resources.py",
        'return {"is_new": True} if held is None else {"if_match": held.hash}',
        "return {}",
        (UNIT + "api/test_webdav.py::test_a_write_between_the_look_and_the_write_is_noticed",),
    ),
    Mutation(
        "webdav: a move keeps the lock of what is gone",
        "service/handlers/drive.py",
        "    if source != target:\n        _unlock_removed(call, request, source)\n",
        "",
        (UNIT + "api/test_webdav.py::test_a_lock_goes_with_what_it_is_on",),
    ),
)


# --- checking the mutations -----------------------------------------------------------------------


def misplaced(mutations: Iterable[Mutation]) -> Iterator[str]:
    """Yield a text for each piece and test of a mutation that does not exist."""
    for mutation in mutations:
        text = (PACKAGE / mutation.module).read_text(encoding="utf-8")
        count = text.count(mutation.old)
        if count != 1:
            yield f"{mutation.title}: its piece occurs {count} times in {mutation.module}"
        if mutation.old == mutation.new:
            yield f"{mutation.title}: it changes nothing"
        for test in mutation.tests:
            file, _, name = test.partition("::")
            path = ROOT / file
            if not path.is_file() or f"def {name}(" not in path.read_text(encoding="utf-8"):
                yield f"{mutation.title}: there is no test {test}"


# --- runs -----------------------------------------------------------------------------------------


@contextmanager
def copied(mutation: Mutation | None) -> Iterator[Path]:
    """Give a copy of the sources as plain Python, with a fault in it."""
    with tempfile.TemporaryDirectory(prefix="datalattice-mutation-") as folder:
        package = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("*.so"))
        if mutation is not None:
            module = package / mutation.module
            text = module.read_text(encoding="utf-8")
            module.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
            # Python trusts cached bytecode by date and size, which a mutation may leave as they
            # were.
            shutil.rmtree(module.parent / "__pycache__", ignore_errors=True)
        yield Path(folder)


def python(sources: Path, *arguments: str) -> tuple[int, str]:
    """Run Python over a copy of the sources; return its exit code and output."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(sources),
        "DATALATTICE_EXPECT_COMPILED": "0",
        "DATALATTICE_PROFILE": "quick",
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout


def run_tests(sources: Path, tests: Iterable[str]) -> tuple[set[str], str]:
    """Return the tests that failed, and the output.

    Raises: RuntimeError: the tests could not be run.
    """
    options = ("-q", "--tb=line", "-p", "no:randomly", "-p", "no:cacheprovider")
    code, told = python(
        sources, "-m", "pytest", *options, f"--timeout={TEST_TIMEOUT_S}", *dict.fromkeys(tests)
    )
    if code not in (0, 1):
        raise RuntimeError(f"pytest ended with {code}:\n{told}")
    return set(FAILED.findall(told)), told


def complaints(mutations: list[Mutation]) -> Iterator[str]:
    """Yield a text for each check that fails without any mutation."""
    with copied(None) as sources:
        _, told = python(sources, "-c", "import datalattice; print(datalattice.__file__)")
        if not told.startswith(str(sources)):
            yield f"the copy of the sources must be imported, got {told}"
        failed, told = run_tests(sources, (test for one in mutations for test in one.tests))
        if failed:
            yield f"without a mutation these fail: {', '.join(sorted(failed))}\n{told}"
        if any(one.simulated for one in mutations):
            code, told = python(sources, "-c", SIMULATE)
            if code:
                yield f"without a mutation the simulation fails: {told}"


def judge(mutation: Mutation) -> tuple[bool, str]:
    """Return whether all tests notice a mutation, and the simulation if it must, and a line."""
    began = time.monotonic()
    marks: list[str] = []
    is_noticed = True
    with copied(mutation) as sources:
        failed, _ = run_tests(sources, mutation.tests)
        for test in mutation.tests:
            is_noticed = is_noticed and test in failed
            marks.append(f"{'red' if test in failed else 'SURVIVED'} {test}")
        if mutation.simulated:
            code, told = python(sources, "-c", SIMULATE)
            is_noticed = is_noticed and code == 1
            marks.append(f"red simulation: {told.strip()}" if code == 1 else "SURVIVED simulation")
    took = time.monotonic() - began
    verdict = "red" if is_noticed else "SURVIVED"
    return is_noticed, (
        f"{verdict:8} {took:5.1f} s  {mutation.title} ({mutation.module}): {'; '.join(marks)}"
    )


def judged(mutation: Mutation) -> tuple[bool, str]:
    """Return as `judge`; a run that failed is a line of its own, and counts as not noticed."""
    try:
        return judge(mutation)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return False, f"BROKEN            {mutation.title} ({mutation.module}): {error}"


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="run those with it in their title")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--check", action="store_true", help="run nothing")
    given = parser.parse_args()
    chosen = [
        one for one in MUTATIONS if not given.words or any(w in one.title for w in given.words)
    ]
    wrong = list(misplaced(chosen)) or ([] if chosen else ["no mutation has such a title"])
    if not (wrong or given.check):
        wrong = list(complaints(chosen))
    for text in wrong:
        say(text)
    if wrong or given.check:
        return 1 if wrong else 0
    began = time.monotonic()
    survived = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for is_noticed, line in pool.map(judged, chosen):
            survived += not is_noticed
            say(line)
    took = time.monotonic() - began
    say(f"{len(chosen)} mutations, {survived} survived, {took:.0f} s")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
