#!/usr/bin/env python3
"""A worker of Attune: receives over AMQP, claims over HTTP, runs programs, reports their ends.

    worker.py --pool default --slots 4

It runs what actions name as `program`, and the built-in noop, echo, sleep and fail; everything
else it reports as failed. TERM or INT make it finish what runs and stop.

One loop owns all state. Programs run beside it as processes; nothing else is concurrent.

Needs pika. Written from docs/PROTOCOL.md alone.
"""

import argparse
import collections
import datetime
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid

import pika
import pika.exceptions

# Deliveries that wait here while others could take them.
PREFETCH = 4
# What is kept of stdout and of stderr, in bytes.
OUTPUT_BYTES = 64 * 1024
# Between TERM and KILL.
KILL_GRACE_SECONDS = 5
# Claims that are remembered, so that a redelivery does not run twice.
REMEMBERED = 10_000
# Completions that wait for the broker; with more of them nothing is claimed.
MOST_UNREPORTED = 1000
# With all slots taken for so long, what waits goes back to the broker, which closes the channel
# of a consumer that does not acknowledge within 30 minutes.
GIVE_BACK_SECONDS = 600
# Variables of this process that programs may see.
ENV_ALLOW = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")


def log(words):
    print(f"{datetime.datetime.now().isoformat(timespec='milliseconds')} {words}", flush=True)


def now_text():
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


def items_of(message):
    payload = message["payload"]
    return payload if isinstance(payload, list) else [payload]


def key_of(item):
    return (item["execution_id"], item["attempt"])


class LeaseExpired(Exception):
    """The lease of this worker has ended: what runs must be killed."""


class Backoff:
    """Ever longer pauses, drawn at random so that workers do not return together."""

    def __init__(self, most=5.0):
        self.ceiling, self.most = 0.1, most

    def next(self):
        pause = random.uniform(0, self.ceiling)
        self.ceiling = min(self.ceiling * 2, self.most)
        return pause


class Remembered(collections.OrderedDict):
    """A set that forgets what is oldest."""

    def add(self, key):
        self[key] = True
        self.move_to_end(key)
        while len(self) > REMEMBERED:
            self.popitem(last=False)


class Claims:
    """The lease of a worker and its claims, over HTTP."""

    def __init__(self, args):
        self.url = args.api.rstrip("/") + "/api/v1/worker/"
        self.args = args
        self.renew_as_fresh()

    def renew_as_fresh(self):
        self.worker = str(uuid.uuid4())
        # By the monotonic clock; until then the lease can be trusted.
        self.trusted_until = float("inf")
        self.due = 0.0

    def call(self, path, body):
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=3) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            problem = error.read().decode(errors="replace")
            if error.code == 409 and "LEASE_EXPIRED" in problem:
                raise LeaseExpired(problem) from error
            raise OSError(f"{error.code}: {problem}") from error
        return json.loads(text) if text else None

    def claim(self, keys=()):
        """Renews the lease and claims; what is answered may run."""
        sent = time.monotonic()
        lease = self.args.lease_seconds
        answer = self.call(
            "claims",
            {
                "worker": self.worker,
                "name": self.args.name,
                "pool": self.args.pool,
                "slots": self.args.slots,
                "lease_seconds": lease,
                "items": [{"execution_id": id, "attempt": attempt} for id, attempt in keys],
            },
        )
        margin = min(2.0, lease / 6)
        self.trusted_until = sent + answer["lease_expires_in_ms"] / 1000 - margin
        self.due = sent + lease / 3
        return {key_of(item): item["cancel_requested"] for item in answer["claimed"]}

    def retire(self):
        self.call("retire", {"worker": self.worker})


class Run:
    """One attempt of one execution, from its claim to its end."""

    def __init__(self, item):
        self.item = item
        self.began, self.started_at = time.monotonic(), now_text()
        self.cause = None  # why it is being ended: timed_out or cancelled
        self.kill_at = None
        self.process = None
        self.ends_at = None  # of the built-in sleep
        self.ended = None  # of what ended at once
        self.folder = None
        try:
            self.start()
        except OSError as error:
            self.ended = {"status": "failed", "error": f"it cannot be started: {error}"}

    def start(self):
        run, parameters = self.item["run"], self.item["parameters"]
        if "program" in run:
            self.start_program(run["program"], json.dumps(parameters).encode())
            return
        name = run.get("builtin")
        if name == "noop":
            self.ended = {"status": "succeeded"}
        elif name == "echo":
            self.ended = {"status": "succeeded", "result": parameters}
        elif name == "fail":
            self.ended = {"status": "failed", "error": str(parameters.get("message", "failed"))}
        elif name == "sleep":
            self.ends_at = self.began + float(parameters["seconds"])
        else:
            self.ended = {"status": "failed", "error": f"this worker cannot run {run}"}

    def start_program(self, argv, parameters):
        self.folder = tempfile.mkdtemp(prefix="attune-run-")
        given = os.path.join(self.folder, "parameters.json")
        with open(given, "wb") as file:
            file.write(parameters)
        env = {name: os.environ[name] for name in ENV_ALLOW if name in os.environ}
        env.update(self.item.get("env") or {})
        env.update(
            ATTUNE_EXECUTION_ID=str(self.item["execution_id"]),
            ATTUNE_ATTEMPT=str(self.item["attempt"]),
            ATTUNE_ACTION=self.item["action_ref"],
            ATTUNE_PARAMETERS_FILE=given,
        )
        # Files instead of pipes: nobody has to read them while it runs.
        with open(given, "rb") as stdin, self.output("stdout", "wb") as stdout, self.output(
            "stderr", "wb"
        ) as stderr:
            self.process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=env,
                cwd=self.folder,
                start_new_session=True,
            )

    def output(self, name, mode):
        return open(os.path.join(self.folder, name), mode)

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def end(self, cause):
        """Begins to end it; `poll` goes on with that."""
        if self.cause is not None:
            return
        self.cause = cause
        if self.process is None:
            self.ended = {"status": cause}
            return
        self.signal(signal.SIGTERM)
        self.kill_at = time.monotonic() + KILL_GRACE_SECONDS

    def kill(self):
        """Ends it at once, because its lease is lost; nothing of it is reported."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.clean()

    def poll(self):
        """What it came to, once it is over."""
        now = time.monotonic()
        if self.cause is None and now - self.began > self.item["timeout_seconds"]:
            self.end("timed_out")
        if self.ends_at is not None and now >= self.ends_at and self.ended is None:
            self.ended = {"status": "succeeded"}
        if self.ended is None and self.process is not None:
            if self.kill_at is not None and now >= self.kill_at:
                self.signal(signal.SIGKILL)
            code = self.process.poll()
            if code is not None:
                # What it has started and left behind goes with it.
                self.signal(signal.SIGKILL)
                self.ended = self.outcome(code)
        if self.ended is None:
            return None
        self.clean()
        item = {
            "execution_id": self.item["execution_id"],
            "attempt": self.item["attempt"],
            "action_id": self.item["action_id"],
            "started_at": self.started_at,
            "finished_at": now_text(),
        }
        return item | self.ended

    def outcome(self, code):
        stdout, whole = self.kept("stdout")
        stderr, _ = self.kept("stderr")
        status = "succeeded" if code == 0 else "failed"
        found = {"status": self.cause or status, "stdout": stdout, "stderr": stderr}
        if code >= 0:
            found["exit_code"] = code
        if self.cause == "timed_out":
            found["error"] = f"it ran longer than {self.item['timeout_seconds']} s"
        elif self.cause == "cancelled":
            found["error"] = "cancelled while it ran"
        elif code > 0:
            found["error"] = f"the program exited with code {code}"
        elif code < 0:
            found["error"] = f"the program was ended by signal {-code}"
        if stdout:
            found["result"] = self.result(stdout) if whole else stdout
        return found

    @staticmethod
    def result(stdout):
        try:
            value = json.loads(stdout)
            # Not what only Python takes for JSON: NaN and infinities.
            json.dumps(value, allow_nan=False)
            return value
        except (ValueError, RecursionError):
            return stdout.rstrip("\n")

    def kept(self, name):
        """The beginning of an output, marked when it is cut, and whether it is whole."""
        with self.output(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            text = file.read(OUTPUT_BYTES).decode(errors="replace")
        if size > OUTPUT_BYTES:
            return f"{text}\n[cut: {size - OUTPUT_BYTES} more bytes]", False
        return text, True

    def clean(self):
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


class Worker:
    def __init__(self, args):
        self.args = args
        self.claims = Claims(args)
        self.exchange = args.prefix + "attune.executions"
        self.dead_letters = args.prefix + "attune.dead-letters"
        self.pool_queue = f"{args.prefix}attune.requested.{args.pool}"
        self.runs = {}  # by (execution_id, attempt)
        self.claimed = Remembered()
        self.cancelled = Remembered()
        # Items that wait for a free slot, by key; and what each delivery still waits for.
        self.waiting = collections.OrderedDict()
        self.deliveries = {}
        self.outbox = []  # completions that are not published yet
        self.unconfirmed = None  # (message id, body) that is being published
        self.publishing = None
        self.consuming = None
        self.requested = None
        self.stopping = False
        self.full_since = None  # when the last free slot was taken while something waited
        self.claim_at = 0.0
        self.claim_backoff = Backoff()
        self.publish_at = 0.0
        self.publish_backoff = Backoff()

    # --- receiving ------------------------------------------------------------------------

    def connect(self):
        """Consumes on a connection of its own. What had been delivered on the one before, and
        was not acknowledged, comes again."""
        self.waiting.clear()
        self.deliveries.clear()
        self.consuming = pika.BlockingConnection(pika.URLParameters(self.args.amqp))
        cancels = self.consuming.channel()
        cancels.exchange_declare(self.exchange, exchange_type="topic", durable=True)
        cancels.exchange_declare(self.dead_letters, exchange_type="fanout", durable=True)
        own = cancels.queue_declare("", exclusive=True, auto_delete=True).method.queue
        cancels.queue_bind(own, self.exchange, "execution.cancel")
        cancels.basic_consume(own, self.on_cancel)
        self.consume_pool()
        log(f"serving pool {self.args.pool}")

    def consume_pool(self):
        self.requested = self.consuming.channel()
        arguments = {
            "x-queue-type": self.args.queue_type,
            "x-max-length-bytes": 1073741824,
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": self.dead_letters,
        }
        if self.args.queue_type == "quorum":
            arguments["x-dead-letter-strategy"] = "at-least-once"
            arguments["x-delivery-limit"] = 1000
        self.requested.queue_declare(self.pool_queue, durable=True, arguments=arguments)
        key = f"execution.requested.{self.args.pool}"
        self.requested.queue_bind(self.pool_queue, self.exchange, key)
        self.requested.basic_qos(prefetch_count=PREFETCH)
        self.requested.basic_consume(self.pool_queue, self.on_requested)

    def give_back(self):
        """Closes the channel of the pool, which gives back, in order, what is not claimed."""
        if self.requested is not None and self.requested.is_open:
            self.requested.close()
        self.requested = None
        self.waiting.clear()
        self.deliveries.clear()

    def balance(self):
        """Holds nothing for long that others could take."""
        free = self.args.slots - len(self.runs)
        if free > 0:
            self.full_since = None
            if self.requested is None and not self.stopping:
                self.consume_pool()
        elif self.waiting:
            self.full_since = self.full_since or time.monotonic()
            if time.monotonic() - self.full_since > GIVE_BACK_SECONDS:
                self.give_back()

    def on_requested(self, channel, method, properties, body):
        try:
            message = json.loads(body)
            if message["message_type"] != "execution.requested" or message["version"] != 1:
                raise ValueError(f"{message['message_type']} version {message['version']}")
            items = {key_of(item): item for item in items_of(message)}
        except (ValueError, KeyError, TypeError) as error:
            self.bury(channel, method, body, f"not a request that this worker knows: {error!r}")
            return
        fresh = {
            key: item
            for key, item in items.items()
            if key not in self.runs and key not in self.claimed
        }
        if not fresh:
            channel.basic_ack(method.delivery_tag)
            return
        self.deliveries[method.delivery_tag] = set(fresh)
        for key, item in fresh.items():
            self.waiting.setdefault(key, item)

    def bury(self, channel, method, body, reason):
        """Puts what cannot be used among the dead letters; acknowledged only after that."""
        log(f"a message goes to the dead letters: {reason}")
        letter = pika.BasicProperties(
            delivery_mode=2,
            message_id=str(uuid.uuid4()),
            headers={"x-attune-reason": reason, "x-attune-topic": method.routing_key},
        )
        try:
            self.publisher().basic_publish(self.dead_letters, "", body, letter, mandatory=True)
        except (pika.exceptions.AMQPError, OSError) as error:
            # It stays unacknowledged, and comes again with the next connection.
            log(f"the dead letters cannot be reached: {error!r}")
            return
        channel.basic_ack(method.delivery_tag)

    def on_cancel(self, channel, method, _properties, body):
        try:
            message = json.loads(body)
            if message["message_type"] != "execution.cancel" or message["version"] != 1:
                raise ValueError(f"{message['message_type']} version {message['version']}")
            keys = [key_of(item) for item in items_of(message)]
        except (ValueError, KeyError, TypeError) as error:
            self.bury(channel, method, body, f"not a cancel that this worker knows: {error!r}")
            return
        channel.basic_ack(method.delivery_tag)
        for key in keys:
            # It may be faster than the dispatch.
            self.cancelled.add(key)
            if key in self.runs:
                self.runs[key].end("cancelled")

    # --- claiming and running -------------------------------------------------------------

    def claim(self):
        free = self.args.slots - len(self.runs)
        if not self.waiting or free <= 0 or self.stopping or time.monotonic() < self.claim_at:
            return
        if len(self.outbox) > MOST_UNREPORTED:
            return
        keys = list(self.waiting)[: min(free, 1000)]
        try:
            won = self.claims.claim(keys)
        except OSError as error:
            # Whether they were claimed is unknown; the same worker may ask again.
            self.claim_at = time.monotonic() + self.claim_backoff.next()
            log(f"a claim failed: {error}")
            return
        self.claim_backoff = Backoff()
        for key in keys:
            item = self.waiting.pop(key)
            if key not in won:
                continue
            self.claimed.add(key)
            if won[key] or key in self.cancelled:
                self.outbox.append(
                    {
                        "execution_id": item["execution_id"],
                        "attempt": item["attempt"],
                        "action_id": item["action_id"],
                        "worker": self.claims.worker,
                        "status": "cancelled",
                    }
                )
            else:
                self.runs[key] = Run(item)
        self.settle(keys)

    def settle(self, keys):
        """Acknowledges deliveries for all of whose items the claim has answered."""
        for tag, open_keys in list(self.deliveries.items()):
            open_keys.difference_update(keys)
            if not open_keys:
                del self.deliveries[tag]
                self.requested.basic_ack(tag)

    def finish(self):
        for key, run in list(self.runs.items()):
            completion = run.poll()
            if completion is not None:
                del self.runs[key]
                self.outbox.append(completion | {"worker": self.claims.worker})

    def keep_lease(self):
        if time.monotonic() >= self.claims.due:
            try:
                self.claims.claim()
            except OSError as error:
                self.claims.due = time.monotonic() + self.args.lease_seconds / 20
                log(f"the lease was not renewed: {error}")
        if time.monotonic() >= self.claims.trusted_until:
            raise LeaseExpired("it could not be renewed in time")

    def lose_lease(self, error):
        log(f"the lease is lost, everything is killed: {error}")
        for run in self.runs.values():
            run.kill()
        self.runs.clear()
        self.claims.renew_as_fresh()

    # --- reporting ------------------------------------------------------------------------

    def publisher(self):
        if self.publishing is None or self.publishing.is_closed:
            connection = pika.BlockingConnection(pika.URLParameters(self.args.amqp))
            self.publishing = connection.channel()
            self.publishing.confirm_delivery()
        return self.publishing

    def report(self):
        """Publishes all completions that are ready in one message, and the same message again
        until it is confirmed."""
        if self.unconfirmed is None and self.outbox:
            message_id = str(uuid.uuid4())
            packed, self.outbox = self.outbox[:100], self.outbox[100:]
            message = {
                "message_id": message_id,
                "message_type": "execution.completed",
                "version": 1,
                "timestamp": now_text(),
                "payload": packed,
            }
            self.unconfirmed = (message_id, json.dumps(message, allow_nan=False).encode())
        if self.unconfirmed is None or time.monotonic() < self.publish_at:
            return
        message_id, body = self.unconfirmed
        properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=2, message_id=message_id
        )
        try:
            self.publisher().basic_publish(
                self.exchange, "execution.completed", body, properties, mandatory=True
            )
        except (pika.exceptions.AMQPError, OSError) as error:
            self.publish_at = time.monotonic() + self.publish_backoff.next()
            log(f"completions are not confirmed yet: {error!r}")
            return
        self.unconfirmed = None
        self.publish_backoff = Backoff()

    # --- the loop -------------------------------------------------------------------------

    def stop(self, *_):
        self.stopping = True

    def step(self):
        """Does what there is to do and waits a moment for more. False when all is done."""
        try:
            self.keep_lease()
            self.claim()
        except LeaseExpired as error:
            self.lose_lease(error)
        self.finish()
        self.report()
        if self.stopping:
            self.give_back()
            if not (self.runs or self.outbox or self.unconfirmed):
                return False
        else:
            self.balance()
        # Programs do not wake this loop, so it looks after them often.
        self.consuming.process_data_events(time_limit=0.01 if self.runs else 0.05)
        if self.publishing is not None and self.publishing.is_open:
            self.publishing.connection.process_data_events(time_limit=0)
        return True

    def run(self):
        backoff = Backoff(most=10.0)
        serving = True
        while serving:
            try:
                if self.consuming is None:
                    self.connect()
                    backoff = Backoff(most=10.0)
                serving = self.step()
            except (pika.exceptions.AMQPError, OSError) as error:
                log(f"the connection is lost: {error!r}")
                self.consuming, self.requested = None, None
                self.go_on_alone(backoff.next())
        try:
            self.claims.retire()
        except OSError as error:
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
            self.finish()
            time.sleep(0.05)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--amqp", default=os.environ.get("ATTUNE_AMQP_URL", "amqp://127.0.0.1:5672/%2f")
    )
    parser.add_argument("--api", default=os.environ.get("ATTUNE_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--prefix", default="", help="what broker.prefix is set to")
    parser.add_argument("--queue-type", default="quorum", choices=("quorum", "classic"))
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
