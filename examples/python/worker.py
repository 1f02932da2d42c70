#!/usr/bin/env python3
"""A worker of Attune: is told over AMQP what to run, keeps its lease over HTTP, reports what became of it.

    worker.py --pool default --slots 4

It runs what actions name as `program`, and the built-in noop, echo, sleep and fail; everything
else it reports as failed. TERM or INT make it finish what runs and stop.

One loop owns all state. Programs run beside it as processes; nothing else is concurrent.

Needs Linux and pika. Written from docs/PROTOCOL.md alone.
"""

import argparse
import collections
import ctypes
import datetime
import json
import math
import os
import random
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

# What is kept of stdout and of stderr, in bytes.
OUTPUT_BYTES = 64 * 1024
# Between TERM and KILL.
KILL_GRACE_SECONDS = 5
# What waits for so long while all slots are taken goes back: another worker may have a free one.
GIVE_BACK_SECONDS = 0.1
# A run that lasts so long is told.
TOLD_AFTER_SECONDS = 0.1
# So often ends are told again until they are settled, and reports, and missing sections asked for.
AGAIN_SECONDS = 2.0
REPORT_SECONDS = 1.0
RESYNC_SECONDS = 0.5
# What was granted before owners knew that it stops comes for so long.
LINGER_SECONDS = 1.0
# At the end it waits for so long until all is settled: what the broker has confirmed is safe.
LAST_WORDS_SECONDS = 10
# Variables of this process that programs may see.
ENV_ALLOW = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
# What a report of an end has of its grant.
NAMES_OF_GRANT = ("execution_id", "attempt", "action_id")
# How deep a result may be nested.
MAX_DEPTH = 32
# Linux ends programs with their parent.
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


def log(words):
    print(f"{datetime.datetime.now().isoformat(timespec='milliseconds')} {words}", flush=True)


def now_text():
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


def items_of(message):
    payload = message["payload"]
    return payload if isinstance(payload, list) else [payload]


def key_of(item):
    return (item["execution_id"], item["attempt"])


def named(key, **more):
    return {"execution_id": key[0], "attempt": key[1], **more}


def partition_of(key):
    return key[0] & 0xFF


class LeaseExpired(Exception):
    """The lease of this life has ended: what runs must be killed."""


class Lease:
    """The lease of one life, over HTTP."""

    def __init__(self, args, worker):
        self.url = args.api.rstrip("/") + "/api/v1/worker/"
        self.args, self.worker = args, worker
        self.draining = False
        # By the monotonic clock: until then it can be trusted, and then it is to be renewed.
        self.trusted_until, self.due = 0.0, 0.0

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
            },
        )
        margin = min(2.0, lease / 6)
        self.trusted_until = sent + answer["lease_expires_in_ms"] / 1000 - margin
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


class Run:
    """One attempt of one execution, from its start to its end."""

    def __init__(self, item):
        self.item, self.process = item, None
        self.began, self.started_at = time.monotonic(), now_text()
        self.cause = None  # why it is being ended: timed_out or cancelled
        self.kill_at = math.inf
        self.ends_at = math.inf  # of the built-in sleep
        self.ended = None
        try:
            self.start(item["run"], item["parameters"])
        except OSError as error:
            self.ended = {"status": "failed", "error": f"it cannot be started: {error}"}

    def start(self, run, parameters):
        name = run.get("builtin")
        if "program" in run:
            self.start_program(run["program"], json.dumps(parameters).encode())
        elif name == "noop":
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
        # Files instead of pipes: nobody has to read them while it runs. They have no names, so that
        # nothing is left of them when this process is killed.
        stdin, self.stdout, self.stderr = (tempfile.TemporaryFile() for _ in range(3))
        stdin.write(parameters)
        stdin.seek(0)
        self.stdin = stdin  # open for as long as it runs, because it has a path for so long
        item, env = self.item, {name: os.environ[name] for name in ENV_ALLOW if name in os.environ}
        env |= item.get("env") or {}
        env |= {
            "ATTUNE_EXECUTION_ID": str(item["execution_id"]),
            "ATTUNE_ATTEMPT": str(item["attempt"]),
            "ATTUNE_ACTION": item["action_ref"],
            "ATTUNE_PARAMETERS_FILE": f"/proc/{os.getpid()}/fd/{stdin.fileno()}",
        }
        self.process = subprocess.Popen(
            argv, stdin=stdin, stdout=self.stdout, stderr=self.stderr, env=env,
            start_new_session=True, preexec_fn=end_with_worker,
        )

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def end(self, cause):
        """Begins to end it; `poll` goes on with that."""
        if self.cause is None:
            self.cause = cause
            if self.process is None:
                self.ended = {"status": cause}
            else:
                self.signal(signal.SIGTERM)
                self.kill_at = time.monotonic() + KILL_GRACE_SECONDS

    def kill(self):
        """Ends it at once, because its slot or the lease is lost; nothing of it is reported."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def poll(self):
        """What it came to, once it is over."""
        now = time.monotonic()
        if now - self.began > self.item["timeout_seconds"]:
            self.end("timed_out")
        if self.ended is None and now >= self.ends_at:
            self.ended = {"status": "succeeded"}
        if self.ended is None and self.process is not None:
            if now >= self.kill_at:
                self.signal(signal.SIGKILL)
            code = self.process.poll()
            if code is not None:
                # What it has started and left behind goes with it.
                self.signal(signal.SIGKILL)
                self.ended = self.outcome(code)
        if self.ended is None:
            return None
        known = {name: self.item[name] for name in NAMES_OF_GRANT}
        return known | {"started_at": self.started_at, "finished_at": now_text()} | self.ended

    def outcome(self, code):
        stdout, whole = kept(self.stdout)
        found = {"status": "succeeded", "stdout": stdout, "stderr": kept(self.stderr)[0]}
        if code >= 0:
            found["exit_code"] = code
        if self.cause is not None:
            found |= {"status": self.cause, "error": f"{self.cause} while it ran"}
        elif code != 0:
            how = f"exited with code {code}" if code > 0 else f"was ended by signal {-code}"
            found |= {"status": "failed", "error": f"the program {how}"}
        if stdout:
            found["result"] = result_of(stdout) if whole else stdout
        return found


def kept(file):
    """The beginning of an output, marked when it is cut, and whether it is whole."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    text = file.read(OUTPUT_BYTES).decode(errors="replace")
    if size > OUTPUT_BYTES:
        return f"{text}\n[cut: {size - OUTPUT_BYTES} more bytes]", False
    return text, True


def result_of(stdout):
    """What a program has printed as JSON, or else as a text."""
    try:
        value = json.loads(stdout)
        # Not what only Python takes for JSON: NaN and infinities.
        json.dumps(value, allow_nan=False)
        return value if depth_of(value) <= MAX_DEPTH else stdout
    except (ValueError, RecursionError):
        return stdout.rstrip("\n")


def depth_of(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def end_with_worker():
    """In a program that is about to begin: it ends with this process, also when that is killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Stream:
    """What was taken of the sections of one partition."""

    def __init__(self):
        self.next = (0, 0)  # epoch and number
        self.heard, self.owner = 0, None  # the latest epoch of which anything came, and its owner
        self.missing = False
        self.asked_at = 0.0


class Entry:
    """What became of a grant, until that is settled."""

    def __init__(self, state, grant=None, why=None):
        self.state = state  # waiting, running, ended or returned
        self.grant = grant  # None of what a sync has named and nobody has seen here
        self.why = why
        self.since = time.monotonic()
        self.ready_since = None  # a free slot of this worker is all that it waits for
        self.run = None
        self.told = False  # that it runs
        self.item = None  # its end, as execution.completed
        self.published_at = None
        self.is_safe = False  # the broker has confirmed it

    def ends(self, item):
        self.state, self.item, self.published_at = "ended", item, None


class Life:
    """What a life of the worker holds: the worker's half of the protocol, without any I/O."""

    def __init__(self, slots):
        self.worker = str(uuid.uuid4())
        self.slots = slots
        self.streams = {}  # by partition
        self.entries = {}  # by (execution_id, attempt), in order of arrival
        self.told = {}  # by owner: when, and what of it that is told again

    def all(self, *states):
        return [(key, entry) for key, entry in self.entries.items() if entry.state in states]

    def take(self, section):
        stream = self.streams.setdefault(section["partition"], Stream())
        place, sync = (section["epoch"], section["number"]), section.get("sync")
        if section["epoch"] >= stream.heard:
            stream.heard, stream.owner = section["epoch"], section["owner"]
        if place < stream.next or (sync is None and place != stream.next):
            # A copy, or of an owner that is one no more; or something before it is missing.
            if place > stream.next and section["epoch"] >= stream.heard:
                stream.missing = True
            return
        stream.next = (section["epoch"], section["number"] + 1)
        if section["epoch"] >= stream.heard:
            stream.missing = False
        if sync is not None:
            held = {key_of(item) for item in sync}
            for key in [key for key in self.entries if partition_of(key) == section["partition"]]:
                if key not in held:
                    self.forget(key)
        for item in section.get("settled", ()):
            self.forget(key_of(item))
        for key in map(key_of, sync or ()):
            entry = self.entries.setdefault(key, Entry("returned", why="it was lost on its way"))
            # What was said of it may be lost.
            entry.told, entry.published_at = False, None
        for grant in section.get("grants", ()):
            if key_of(grant) in self.entries:
                continue
            closed = self.is_closed(section["partition"], grant["action_id"])
            entry = Entry("returned" if closed else "waiting", grant)
            entry.why = "something before it was given back" if closed else None
            self.entries[key_of(grant)] = entry
        for item in section.get("cancel", ()):
            entry = self.entries.get(key_of(item))
            if entry and entry.state == "running":
                entry.run.end("cancelled")
            elif entry and entry.state == "waiting":
                known = {name: entry.grant[name] for name in NAMES_OF_GRANT}
                entry.ends(known | {"status": "cancelled"})
        self.give_back("it was called back", section.get("recall", ()))

    def is_closed(self, partition, action_id):
        """Whether something of the action is on its way back: what begins now would overtake it."""
        return any(
            partition_of(key) == partition
            and (entry.grant is None or entry.grant["action_id"] == action_id)
            for key, entry in self.all("returned")
        )

    def forget(self, key):
        entry = self.entries.pop(key, None)
        if entry and entry.state == "running":
            entry.run.kill()

    def ready(self):
        """What waits for nothing but a free slot of this worker, in order of arrival."""
        before = collections.Counter()
        ready = []
        for _, entry in self.all("waiting", "running"):
            action, most = entry.grant["action_id"], entry.grant.get("slots")
            # One that is granted ahead of its slot begins when enough of those before it have ended.
            if entry.state == "waiting" and (most is None or before[action] < most):
                entry.ready_since = entry.ready_since or time.monotonic()
                ready.append(entry)
            before[action] += 1
        return ready

    def begin(self, lease):
        free = self.slots - len(self.all("running"))
        for entry in self.ready()[: max(free, 0)]:
            if not lease.is_good():
                return
            entry.state, entry.since = "running", time.monotonic()
            entry.run = Run(entry.grant)

    def finish(self):
        for _, entry in self.all("running"):
            item = entry.run.poll()
            if item is not None:
                entry.ends(item)

    def give_back(self, why, actions=None):
        """Gives back everything that waits, or all of it of some actions: never one from the middle."""
        for _, entry in self.all("waiting"):
            if actions is None or entry.grant["action_id"] in actions:
                entry.state, entry.why = "returned", why

    def give_back_late(self):
        """Gives back what has waited for long because all slots are taken."""
        if len(self.all("running")) >= self.slots:
            late = time.monotonic() - GIVE_BACK_SECONDS
            waiting = [entry for entry in self.ready() if entry.ready_since <= late]
            actions = {entry.grant["action_id"] for entry in waiting}
            self.give_back("all slots of its worker are taken", actions)

    def link_is_new(self):
        for stream in self.streams.values():
            stream.missing, stream.asked_at = True, 0.0
        self.told.clear()
        for _, entry in self.all("ended"):
            entry.published_at = None

    def ends(self):
        """The ends that are to be published now."""
        due = time.monotonic() - AGAIN_SECONDS
        ended = [entry for _, entry in self.all("ended")]
        return [entry for entry in ended if entry.published_at is None or entry.published_at <= due]

    def reports(self):
        """What is to be told now, by owner."""
        now = time.monotonic()
        owner_of = lambda key: self.streams[partition_of(key)].owner
        for owner in {stream.owner for stream in self.streams.values()}:
            unended = [owner_of(key) for key, _ in self.all("waiting", "running")]
            # Of what was given back always everything that is not settled.
            returned = [(key, e.why) for key, e in self.all("returned") if owner_of(key) == owner]
            state = {
                "elsewhere": sum(of != owner for of in unended),
                "returned": [named(key, why=why) for key, why in returned],
            }
            report = {"worker": self.worker} | state
            for key, entry in self.all("running"):
                age = now - entry.since
                if owner_of(key) == owner and not entry.told and age >= TOLD_AFTER_SECONDS:
                    entry.told = True
                    report.setdefault("started", []).append(named(key, age_ms=int(age * 1000)))
            for partition, stream in self.streams.items():
                is_due = now - stream.asked_at >= RESYNC_SECONDS
                if stream.owner == owner and stream.missing and is_due:
                    stream.asked_at = now
                    report.setdefault("resync", []).append(partition)
            told_at, told = self.told.get(owner, (0.0, {"elsewhere": 0, "returned": []}))
            again = any(state.values()) and now - told_at >= REPORT_SECONDS
            if state != told or again or "started" in report or "resync" in report:
                self.told[owner] = (now, state)
                yield owner, report


class Worker:
    def __init__(self, args):
        self.args = args
        self.executions = args.prefix + "attune.executions"
        self.workers = args.prefix + "attune.workers"
        self.to_owners = args.prefix + "attune.reports"
        self.begin_life()
        self.link = None  # the channel on which this life is told what to do
        self.telling = None  # the channel for reports
        self.safe = None  # the channel for ends, which the broker confirms
        self.stopping = False
        self.linger_until = None
        self.stop_at = None

    def begin_life(self):
        self.life = Life(self.args.slots)
        self.lease = Lease(self.args, self.life.worker)

    def lose_lease(self, error):
        log(f"the lease is lost, everything is killed: {error}")
        for key in list(self.life.entries):
            self.life.forget(key)
        self.begin_life()
        self.close()

    # --- the broker -----------------------------------------------------------------------

    def connect(self):
        """A connection to receive on, and one to publish on; with a queue of its own, whose name
        is new each time."""
        receiving = pika.BlockingConnection(pika.URLParameters(self.args.amqp))
        self.link = receiving.channel()
        self.link.exchange_declare(self.executions, exchange_type="topic", durable=True)
        self.link.exchange_declare(self.workers, exchange_type="direct", durable=True)
        self.link.exchange_declare(self.to_owners, exchange_type="direct", durable=True)
        own = self.link.queue_declare("", exclusive=True, auto_delete=True).method.queue
        self.link.queue_bind(own, self.workers, self.life.worker)
        self.link.basic_consume(own, self.on_message, auto_ack=True)
        publishing = pika.BlockingConnection(pika.URLParameters(self.args.amqp))
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
            self.publish(self.telling, self.to_owners, owner, "worker.report", report)
        ends = self.life.ends()[:100]
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

    def step(self):
        """Does what there is to do and waits a moment for more. False when all is done."""
        if self.stopping and not self.lease.draining:
            self.lease.draining = True
            self.linger_until = time.monotonic() + LINGER_SECONDS
            self.lease.renew()
            self.say_hello()
        self.lease.keep()
        if self.stopping:
            self.life.give_back("its worker stops")
        else:
            self.life.begin(self.lease)
            self.life.give_back_late()
        self.life.finish()
        self.report()
        if self.stopping and not self.life.all("running"):
            self.stop_at = self.stop_at or time.monotonic() + LAST_WORDS_SECONDS
            is_safe = all(entry.is_safe for _, entry in self.life.all("ended"))
            has_heard = time.monotonic() >= self.linger_until and not self.life.entries
            if has_heard or (is_safe and time.monotonic() >= self.stop_at):
                return False
        # Programs do not wake this loop, so it looks after them often.
        pause = 0.01 if self.life.entries else 0.05
        self.link.connection.process_data_events(time_limit=pause)
        self.telling.connection.process_data_events(time_limit=0)
        return True

    def run(self):
        serving, pause = True, 0.1
        while serving:
            try:
                if self.link is None:
                    self.connect()
                    pause = 0.1
                serving = self.step()
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
                self.lease.keep()
            except LeaseExpired as error:
                self.lose_lease(error)
            self.life.finish()
            time.sleep(0.05)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--amqp", default=os.environ.get("ATTUNE_AMQP_URL", "amqp://127.0.0.1:5672/%2f")
    )
    parser.add_argument("--api", default=os.environ.get("ATTUNE_URL", "http://127.0.0.1:8080"))
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
