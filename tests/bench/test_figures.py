"""Tests of the scripts that judge figures: no figure that is missing or unknown passes for a met one."""

import json
import math
import sys
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import compare
import rows
from cluster import CountedBytes
from load.nodes import Mix, NodesLoad, Sent, capacity, p99
from report import Report, shown, three_digits
from rows.cluster.latency import LOAD_MAX, rate_of_load, ratio
from run import exit_status
from server import ROOT_KEY, ROOT_SECRET, ServerError
from signing import signers

UNKNOWN = (None, math.nan, math.inf, -math.inf)
CONNECTIONS = 4


def reported(add):
    """The report after `add` has added rows to it."""
    report = Report()
    add(report)
    return report


class Counting(unittest.TestCase):
    def test_bytes_between_nodes_are_summed_over_nodes_and_turns(self):
        counted = CountedBytes(nodes_that_sent([5, 7], [9, 8], [9, 8], [10, 18]))
        self.assertEqual([counted.spent(lambda: "load") for _ in range(2)], ["load", "load"])
        self.assertEqual(counted.bytes, 5 + 11)

    def test_nodes_that_count_nothing_are_an_error(self):
        with self.assertRaises(ServerError):
            CountedBytes(nodes_that_sent([0, 0], [0, 0])).spent(lambda: "load")


class MetricsOfSent:
    """Metrics that have only the bytes that were sent to other nodes."""

    def __init__(self, sent):
        self.sent = sent

    def sum(self, name, direction):
        return self.sent if (name, direction) == ("mlgw_cluster_bytes_total", "out") else 0


def nodes_that_sent(*samples):
    """Nodes whose metrics show the bytes of these samples, one after the other."""
    left = iter([MetricsOfSent(sent) for sent in chain(*samples)])
    server = SimpleNamespace(metrics=lambda: next(left))
    stores = dict.fromkeys(range(len(samples[0])), SimpleNamespace(server=server))
    return SimpleNamespace(running=lambda: stores, spent=lambda work: work())


class Judging(unittest.TestCase):
    def test_a_figure_that_is_missing_or_no_number_is_a_miss_with_exit_status_1(self):
        for value in UNKNOWN:
            for add in (lambda report: report.at_most("row", value, "s", 1),
                        lambda report: report.at_least("row", value, "s", 1),
                        lambda report: report.information("row", value, "s")):
                row = reported(add).rows[0]
                self.assertTrue(row.missed(slack=1e9), f"{value}: {row}")
                self.assertEqual(row.verdict, "MISSED")
                self.assertEqual(exit_status([row], 1e9), 1)

    def test_a_target_that_is_no_number_is_a_miss(self):
        for target in (math.nan, math.inf):
            self.assertTrue(reported(lambda report: report.at_most("row", 1, "s", target)).rows[0].missed())

    def test_a_group_that_breaks_and_a_run_without_rows_have_exit_status_1(self):
        self.assertEqual(exit_status(reported(lambda report: report.missed("row", "it broke")).rows, 1), 1)
        self.assertEqual(exit_status([], 1), 1)

    def test_met_rows_have_exit_status_0(self):
        def add(report):
            report.at_most("most", 0.4, "s", 0.4)
            report.at_least("least", 2, "s", 1)
            report.information("information", 0, "s")

        self.assertEqual(exit_status(reported(add).rows, 1), 0)

    def test_kept_rows_are_json_and_lack_what_is_unknown(self):
        report = reported(lambda report: report.at_most("row", math.nan, "s", 1))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.json"
            report.save(path, {})
            kept = json.loads(path.read_text(), parse_constant=self.fail)["rows"][0]
        self.assertEqual((kept["measured"], kept["met"]), (None, False))

    def test_every_figure_can_be_shown(self):
        self.assertEqual([shown(value) for value in (*UNKNOWN, 0.25, 1234)],
                         ["-", "nan", "inf", "-inf", "0.25", "1,230"])


class Latencies(unittest.TestCase):
    def test_a_p99_beside_one_of_failed_requests_is_an_error_and_no_ratio(self):
        for usual in (math.inf, math.nan):
            self.assertRaises(ServerError, ratio, usual, 0.001)
        self.assertEqual(ratio(0.001, math.inf), math.inf)

    def test_a_period_without_requests_has_no_p99(self):
        self.assertEqual(p99([], 0.0, 1.0), math.inf)
        self.assertEqual(p99([Sent(1, "GET", "k", 0, 0.5)], 0.0, 1.0), math.inf, "it was not answered")


class Answers(BaseHTTPRequestHandler):
    """Answers everything, with an error if the name says so."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(503 if "refused" in self.path else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_PUT = do_GET

    def log_message(self, *_):
        pass


class AnsweringServer(ThreadingHTTPServer):
    request_queue_size = 128


class Loads(unittest.TestCase):
    def setUp(self):
        self.server = AnsweringServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        port = self.server.server_port
        server = SimpleNamespace(port=port, host=f"127.0.0.1:{port}")
        self.stores = {1: SimpleNamespace(server=server, signers=lambda: signers([(ROOT_KEY, ROOT_SECRET)]))}

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def test_a_closed_loop_has_a_request_on_each_connection_and_counts_the_answered_ones(self):
        self.assertGreater(capacity(self.stores, Mix(["k"], 5, 100, "load"), 1, CONNECTIONS, 1), 0)
        with NodesLoad(self.stores, Mix(["k"], 5, 100, "load"), None, CONNECTIONS, 1) as load:
            while len(load.requests) < 10 * CONNECTIONS:
                self.assertLessEqual(sum(sent.done is None for sent in list(load.requests)), CONNECTIONS)
        self.assertEqual([sent.failure for sent in load.requests if sent.done is None], [])

    def test_a_capacity_with_failed_requests_is_an_error(self):
        mix = Mix(["refused"], 0, 100, "load")
        self.assertRaisesRegex(Exception, "503", capacity, self.stores, mix, 1, CONNECTIONS, 1)

    def test_the_rate_of_a_p99_is_at_most_its_part_of_the_capacity_and_the_part_is_a_row(self):
        bench = SimpleNamespace(report=Report(), options=SimpleNamespace(quickly=True, seed=1))
        mix = Mix(["k"], 5, 100, "load")
        for wanted in (10**9, 1):
            rate = rate_of_load(bench, "some", self.stores, mix, wanted)
            row = bench.report.rows[-1]
            self.assertEqual((row.name, row.target, row.missed()), ("some-load", LOAD_MAX, False))
            self.assertLessEqual(three_digits(row.measured), LOAD_MAX)
            self.assertLessEqual(rate, wanted)


class Comparing(unittest.TestCase):
    def test_a_row_is_worse_if_all_its_runs_are_and_by_more_than_the_noise(self):
        for before, after, verdict in (
            ([10, 11, 12], [13, 14, 15], "worse"),
            ([10, 11, 12], [12, 14, 15], "same"),
            ([100, 101, 102], [103, 104, 105], "same"),
            ([13, 14, 15], [10, 11, 12], "better"),
            ([0, 0, 0], [2, 3, 4], "worse"),
            ([0, 0, 0], [0, 0, 0], "same"),
            ([-3, -3, -2], [-1, -1, -1], "worse"),
        ):
            self.assertEqual(compare.compared(before, after, False, 0.05)[1], verdict, (before, after))
            if min(*before, *after) > 0:
                rates = [1 / value for value in before], [1 / value for value in after]
                self.assertEqual(compare.compared(*rates, True, 0.05)[1], verdict, rates)

    def test_a_figure_that_a_later_run_lacks_is_worse(self):
        for after in ([1, None, 1], [1, math.nan, 1], []):
            self.assertEqual(compare.compared([1, 1, 1], after, False, 0.05)[1], "worse", after)

    def test_the_table_has_every_row_and_names_the_worse_ones(self):
        row = lambda value, target=1: {"measured": value, "target": target, "at_least": False}
        runs = {"before": [{"a": row(1), "b": row(1), "machine": row(1, None)}],
                "after": [{"a": row(2), "c": row(1), "machine": row(9, None)}]}
        lines, worse = compare.table(runs, 0.05)
        self.assertEqual(worse, ["a", "b"])
        self.assertEqual(len(lines), 2 + 4)
        self.assertIn("| `a` | 1 | 2 | 2.000 | worse |", lines)
        self.assertIn("| `machine` | 1 | 9 | 9.000 |  |", lines)

    def test_a_group_that_breaks_makes_the_later_build_worse_and_not_the_earlier_one(self):
        row = lambda value, target=1: {"measured": value, "target": target, "at_least": False}
        broken, whole = [{"group": row(None, None)}, {"a": row(1)}], [{"a": row(1)}, {"a": row(1)}]
        self.assertEqual(compare.table({"before": broken, "after": whole}, 0.05)[1], [])
        self.assertEqual(compare.table({"before": whole, "after": broken}, 0.05)[1], ["a", "group"])

    def test_one_server_is_compared_by_default(self):
        sys.argv = ["compare", "--before", "a", "--after", "b", "--keep", "c"]
        only = compare.arguments().only.split(",")
        self.assertEqual(only, [name for name in rows.GROUPS if not name.startswith("cluster-")])


if __name__ == "__main__":
    unittest.main()
