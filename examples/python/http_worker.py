#!/usr/bin/env python3
"""A worker of Attune that speaks HTTP alone, with nothing but what comes with Python.

    http_worker.py --api http://127.0.0.1:8080 --pool default --slots 4

It runs what actions name as `program`, and the built-in noop, echo, sleep and fail; everything
else it reports as failed. TERM or INT make it finish what runs and stop, also while nobody answers:
then half a minute after the last run has ended.

One loop owns all state. One call waits for sections all the time, and others say what is new.

Needs Linux. Written from docs/PROTOCOL.md alone.
"""

import argparse
import http.client
import json
import math
import os
import select
import signal
import socket
import ssl
import time
import urllib.parse

from life import KEY, LeaseExpired, Life, log, margin

WAIT_SECONDS = 10
TIMEOUT_SECONDS = 5


class Worker:
    def __init__(self, args):
        self.args, self.stopping = args, False
        self.tls = ssl.create_default_context(cafile=args.ca_file or None)
        # TLS 1.3 sends more than answers (tickets for sessions), and this loop takes whatever comes for one.
        self.tls.maximum_version = ssl.TLSVersion.TLSv1_2
        self.connection = self.connect()  # on which it waits for sections
        self.begin_life()

    def connect(self):
        url = urllib.parse.urlsplit(self.args.api)
        if url.scheme == "https":
            return http.client.HTTPSConnection(url.netloc, timeout=TIMEOUT_SECONDS, context=self.tls)
        return http.client.HTTPConnection(url.netloc, timeout=TIMEOUT_SECONDS)

    def begin_life(self):
        self.life = Life(self.args.slots)
        self.trusted_until = math.inf  # by the monotonic clock; nothing is granted before the first answer
        self.link = None
        self.hang_up()
        log(f"serving pool {self.args.pool} as {self.life.worker}")

    def hang_up(self):
        self.connection.close()
        self.waits_since = None

    def ask(self, connection, path="exchange", **said):
        body = {"worker": self.life.worker}
        if path == "exchange":
            names = ("name", "pool", "slots", "lease_seconds")
            body |= {name: getattr(self.args, name) for name in names} | {"draining": self.stopping} | said
        headers = {"Content-Type": "application/json"} | KEY
        connection.request("POST", f"/api/v1/worker/{path}", json.dumps(body, allow_nan=False), headers)
        self.life.is_known = True

    def answer(self, connection, sent):
        response = connection.getresponse()
        text = response.read()
        if response.status == 409:
            raise LeaseExpired(text)
        if response.status != 200:
            raise OSError(f"{response.status}: {text}")
        answer = json.loads(text)
        until = sent + answer["lease_expires_in_ms"] / 1000 - margin(self.args.lease_seconds)
        # The answer to a call that has waited may come after that to a later one.
        self.trusted_until = until if self.trusted_until == math.inf else max(until, self.trusted_until)
        return answer

    def is_good(self):
        return time.monotonic() < self.trusted_until

    def hear(self):
        """Has a call wait all the time, and takes what it brings."""
        if self.waits_since is None:
            self.waits_since = time.monotonic()
            self.ask(self.connection, wait_ms=WAIT_SECONDS * 1000)
        # Programs do not wake this loop, so it looks after them often.
        pause = 0.02 if self.life.entries else 0.1
        if select.select([self.connection.sock], [], [], pause)[0]:
            answer, self.waits_since = self.answer(self.connection, self.waits_since), None
            if answer["link"] != self.link:
                self.link = answer["link"]
                self.life.link_is_new()
            for section in answer["sections"]:
                self.life.take(section)
        elif time.monotonic() > self.waits_since + WAIT_SECONDS + TIMEOUT_SECONDS:
            raise OSError("no answer")

    def say(self):
        """Tells what is new on a connection of its own."""
        reports = [report | {"owner": owner} for owner, report in self.life.reports()]
        ends = self.life.ends()
        drains = self.stopping and self.life.draining_since is None
        if not (reports or ends or drains):
            return
        connection, sent = self.connect(), time.monotonic()
        self.ask(connection, reports=reports, completions=[entry.item for entry in ends])
        self.answer(connection, sent)
        connection.close()
        for entry in ends:
            entry.published_at, entry.is_safe = sent, True
        if drains:
            self.life.draining_since = sent

    def run(self):
        while not self.life.is_done():
            try:
                self.life.stops = self.stopping
                if not self.is_good():
                    raise LeaseExpired("it was not renewed in time")
                self.life.work(self.is_good)
                self.say()
                self.hear()
            except LeaseExpired as error:
                log(f"the lease is lost, everything is killed: {error}")
                self.life.end()
                if self.stopping:
                    break
                self.begin_life()
            except (OSError, http.client.HTTPException) as error:
                log(f"a call has failed: {error!r}")
                self.hang_up()
                self.life.link_is_new()
                time.sleep(0.2)
        self.hang_up()
        try:
            connection = self.connect()
            self.ask(connection, "retire")
            connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            log(f"the lease runs out by itself: {error}")
        log("stopped")

    def stop(self, *_):
        self.stopping = True


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--api", default=os.environ.get("ATTUNE_URL", "http://127.0.0.1:8080"))
    parser.add_argument(
        "--ca-file",
        default=os.environ.get("ATTUNE_CA_FILE"),
        help="for https: believe the authorities in this file (PEM), and not those of the system",
    )
    parser.add_argument("--pool", default="default")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--lease-seconds", type=int, default=60)
    parser.add_argument("--name", default=f"{socket.gethostname()}/python-{os.getpid()}")
    return parser.parse_args()


if __name__ == "__main__":
    worker = Worker(arguments())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.stop)
    worker.run()
