#!/usr/bin/env python3
"""A worker of Attune: is told over AMQP what to run, keeps its lease over HTTP, reports what became of it.

    worker.py --pool default --slots 4

It runs what actions name as `program`, and the built-in noop, echo, sleep and fail; everything
else it reports as failed. TERM or INT make it finish what runs and stop, also while nobody answers:
then half a minute after the last run has ended.

One loop owns all state. Programs run beside it as processes; nothing else is concurrent.

Needs Linux and pika. Written from docs/PROTOCOL.md alone.
"""

import argparse
import json
import os
import random
import signal
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
import uuid

import pika
import pika.exceptions

from life import KEY, LeaseExpired, Life, log, margin, now_text


def user_of(url):
    """As whom the broker knows this worker: it vouches for who publishes."""
    return pika.URLParameters(url).credentials.username


def items_of(message):
    payload = message["payload"]
    return payload if isinstance(payload, list) else [payload]


class Lease:
    """The lease of one life, over HTTP."""

    def __init__(self, args, worker):
        self.url = args.api.rstrip("/") + "/api/v1/worker/"
        self.args, self.worker = args, worker
        self.tls = ssl.create_default_context(cafile=args.ca_file or None)
        self.draining = False
        # By the monotonic clock: until then it can be trusted, and then it is to be renewed.
        self.trusted_until, self.due = 0.0, 0.0
        self.said_draining = False

    def call(self, path, body):
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"} | KEY,
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=3, context=self.tls) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            problem = error.read().decode(errors="replace")
            if error.code == 409 and "LEASE_EXPIRED" in problem:
                raise LeaseExpired(problem) from error
            raise OSError(f"{error.code}: {problem}") from error
        return json.loads(text) if text else None

    def renew(self):
        sent, lease = time.monotonic(), self.args.lease_seconds
        answer = self.call(
            "lease",
            {
                "worker": self.worker,
                "name": self.args.name,
                "pool": self.args.pool,
                "slots": self.args.slots,
                "lease_seconds": lease,
                "draining": self.draining,
                "broker_user": user_of(self.args.amqp),
            },
        )
        self.said_draining = self.draining
        self.trusted_until = sent + answer["lease_expires_in_ms"] / 1000 - margin(lease)
        self.due = sent + lease / 3

    def keep(self):
        if time.monotonic() >= self.due:
            try:
                self.renew()
            except OSError as error:
                self.due = time.monotonic() + self.args.lease_seconds / 20
                log(f"the lease was not renewed: {error}")
        if 0 < self.trusted_until <= time.monotonic():
            raise LeaseExpired("it could not be renewed in time")

    def is_good(self):
        return time.monotonic() < self.trusted_until


class Worker:
    def __init__(self, args):
        self.args = args
        self.executions = args.prefix + "attune.executions"
        self.lives = args.prefix + "attune.lives"
        self.to_owners = args.prefix + "attune.reports"
        self.stopping = False
        self.begin_life()
        self.link = None  # the channel on which this life is told what to do
        self.telling = None  # the channel for reports
        self.safe = None  # the channel for ends, which the broker confirms

    def begin_life(self):
        self.life = Life(self.args.slots)
        self.lease = Lease(self.args, self.life.worker)

    def lose_lease(self, error):
        log(f"the lease is lost, everything is killed: {error}")
        self.life.end()
        self.begin_life()
        # Of a life that begins while this worker stops nobody hears.
        self.life.stops = self.stopping
        self.close()

    # --- the broker -----------------------------------------------------------------------

    def connect(self):
        """A connection to receive on, and one to publish on; with a queue of its own, whose name
        is new each time, and one that a user of the broker for workers of this pool may declare."""
        parameters = pika.URLParameters(self.args.amqp)
        # A broker that is short of memory takes nothing, and this loop must not wait for it.
        parameters.blocked_connection_timeout = self.args.lease_seconds / 4
        receiving = pika.BlockingConnection(parameters)
        self.link = receiving.channel()
        # Others make the exchanges. Until they are there it comes again.
        for exchange in (self.executions, self.lives, self.to_owners):
            self.link.exchange_declare(exchange, passive=True)
        own = f"{self.args.prefix}attune.worker.{self.args.pool}.{self.life.worker}.{uuid.uuid4()}"
        self.link.queue_declare(own, exclusive=True, auto_delete=True)
        self.link.queue_bind(own, self.lives, f"{self.args.pool}.{self.life.worker}")
        self.link.basic_consume(own, self.on_message, auto_ack=True)
        publishing = pika.BlockingConnection(parameters)
        self.telling, self.safe = publishing.channel(), publishing.channel()
        self.safe.confirm_delivery()
        self.lease.renew()
        self.life.link_is_new()
        self.say_hello()
        log(f"serving pool {self.args.pool} as {self.life.worker}")

    def close(self):
        for channel in (self.link, self.telling):
            try:
                if channel is not None and channel.connection.is_open:
                    channel.connection.close()
            except (pika.exceptions.AMQPError, OSError) as error:
                log(f"closing: {error!r}")
        self.link, self.telling, self.safe = None, None, None

    def on_message(self, _channel, _method, _properties, body):
        try:
            message = json.loads(body)
            if message["message_type"] != "execution.requested" or message["version"] != 2:
                raise ValueError(f"{message['message_type']} version {message['version']}")
            for section in items_of(message):
                if section["worker"] == self.life.worker:
                    self.life.take(section)
        except (ValueError, KeyError, TypeError) as error:
            # What it granted comes back by the sync that the gap makes this worker ask for.
            log(f"not a message that this worker knows: {error!r}")

    def publish(self, channel, exchange, key, kind, payload, durable=False, mandatory=True):
        message_id = str(uuid.uuid4())
        message = {
            "message_id": message_id,
            "message_type": kind,
            "version": 1,
            "timestamp": now_text(),
            "payload": payload,
        }
        properties = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=2 if durable else 1,
            message_id=message_id,
            user_id=user_of(self.args.amqp),
        )
        body = json.dumps(message, allow_nan=False).encode()
        channel.basic_publish(exchange, key, body, properties, mandatory=mandatory)

    def say_hello(self):
        hello = {"worker": self.life.worker, "pool": self.args.pool}
        kind = "worker.hello"
        self.publish(self.telling, self.executions, kind, kind, hello, mandatory=False)

    def report(self):
        for owner, report in self.life.reports():
            # One that nobody receives waits for the sync of the next owner.
            report["worker"] = self.life.worker
            self.publish(self.telling, self.to_owners, owner, "worker.report", report)
        ends = self.life.ends()
        if ends:
            kind = "execution.completed"
            items = [entry.item | {"worker": self.life.worker} for entry in ends]
            try:
                self.publish(self.safe, self.executions, kind, kind, items, durable=True)
                for entry in ends:
                    entry.is_safe = True
            except (pika.exceptions.UnroutableError, pika.exceptions.NackError) as error:
                log(f"ends are not kept yet: {error!r}")
            for entry in ends:
                entry.published_at = time.monotonic()

    # --- the loop -------------------------------------------------------------------------

    def stop(self, *_):
        self.stopping = True

    def keep_lease(self):
        """Renews the lease when that is due, and at once when this worker begins to stop."""
        self.life.stops = self.stopping
        if self.stopping and not self.lease.draining:
            self.lease.draining, self.lease.due = True, 0.0
        self.lease.keep()
        self.life.is_known = self.lease.trusted_until > 0

    def step(self):
        """Does what there is to do and waits a moment for more."""
        self.keep_lease()
        if self.lease.said_draining and self.life.draining_since is None:
            self.say_hello()
            self.life.draining_since = time.monotonic()
        self.life.work(self.lease.is_good)
        self.report()
        # Programs do not wake this loop, so it looks after them often.
        pause = 0.01 if self.life.entries else 0.05
        self.link.connection.process_data_events(time_limit=pause)
        self.telling.connection.process_data_events(time_limit=0)

    def run(self):
        pause = 0.1
        while not self.life.is_done():
            try:
                if self.link is None:
                    self.connect()
                    pause = 0.1
                self.step()
            except LeaseExpired as error:
                self.lose_lease(error)
            except (pika.exceptions.AMQPError, OSError) as error:
                log(f"the connection is lost: {error!r}")
                self.close()
                self.go_on_alone(random.uniform(0, pause))
                pause = min(2 * pause, 10.0)
        self.close()
        try:
            self.lease.call("retire", {"worker": self.life.worker})
        except (LeaseExpired, OSError) as error:
            log(f"the lease runs out by itself: {error}")
        log("stopped")

    def go_on_alone(self, seconds):
        """Without the broker what runs goes on, under its lease."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                self.keep_lease()
            except LeaseExpired as error:
                self.lose_lease(error)
            self.life.finish()
            if self.life.is_done():
                return
            time.sleep(0.05)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--amqp", default=os.environ.get("ATTUNE_AMQP_URL", "amqp://127.0.0.1:5672/%2f")
    )
    parser.add_argument("--api", default=os.environ.get("ATTUNE_URL", "http://127.0.0.1:8080"))
    parser.add_argument(
        "--ca-file",
        default=os.environ.get("ATTUNE_CA_FILE"),
        help="for https: believe the authorities in this file (PEM), and not those of the system",
    )
    parser.add_argument("--prefix", default="", help="what broker.prefix is set to")
    parser.add_argument("--pool", default="default")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--lease-seconds", type=int, default=60)
    parser.add_argument("--name", default=f"{socket.gethostname()}/python-{os.getpid()}")
    return parser.parse_args()


def main():
    worker = Worker(arguments())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.stop)
    worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
