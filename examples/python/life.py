"""The worker's half of the protocol, without any way to anybody: what `worker.py` and `http_worker.py`
have in common. Needs Linux. Written from docs/PROTOCOL.md alone.

`Life` holds the rules of "What a worker holds"; `Run` runs a program, or one of the built-in noop, echo,
sleep and fail, and knows nothing of them.
"""

import collections
import ctypes
import datetime
import json
import math
import os
import signal
import subprocess
import tempfile
import time
import uuid

# What is kept of stdout and of stderr, in bytes; as JSON it may be six times as much.
OUTPUT_BYTES = 32 * 1024
# What ends take together that go in one message, in bytes, but for the last of them.
PACK_BYTES = 400 * 1024
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
# What was granted before owners knew that a worker stops comes for so long.
LINGER_SECONDS = 1.0
# At the end it waits for so long until all is settled: what was told durably is safe.
LAST_WORDS_SECONDS = 10
# Nor does it wait for longer than this for somebody to take what it has to tell.
UNHEARD_SECONDS = 30
# By what the API knows who asks, where it wants to.
KEY = {"Authorization": f"Bearer {os.environ['ATTUNE_KEY']}"} if os.environ.get("ATTUNE_KEY") else {}
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


def key_of(item):
    return (item["execution_id"], item["attempt"])


def named(key, **more):
    return {"execution_id": key[0], "attempt": key[1], **more}


def partition_of(key):
    return key[0] & 0xFF


def has_secret(value):
    """Whether something in it is sealed."""
    if isinstance(value, dict):
        return any(map(has_secret, value.values()))
    if isinstance(value, list):
        return any(map(has_secret, value))
    return isinstance(value, str) and value.startswith("attune:secret:")


class LeaseExpired(Exception):
    """The lease of this life has ended: what runs must be killed."""


def margin(lease_seconds):
    """By how much sooner a lease is given up than it ends."""
    return min(2.0, lease_seconds / 6)


class Run:
    """One attempt of one execution, from its start to its end."""

    def __init__(self, item):
        self.item, self.process = item, None
        self.began, self.started_at = time.monotonic(), now_text()
        self.cause = None  # why it is being ended: timed_out or cancelled
        self.kill_at = math.inf
        self.ends_at = math.inf  # of the built-in sleep
        self.ended = None
        env = item.get("env") or {}
        if has_secret(item["parameters"]) or not all(isinstance(it, str) for it in env.values()):
            words = "something of it is secret, and this worker has no secrets and opens none"
            self.ended = {"status": "failed", "code": "SECRET_UNAVAILABLE", "error": words}
            return
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
        if "traceparent" in item:
            env["TRACEPARENT"] = item["traceparent"]
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
        # Not what only Python takes for JSON: NaN, infinities and halves of characters.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
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
        self.bytes = len(json.dumps(item))


class Life:
    """What a life of the worker holds: the worker's half of the protocol, without any I/O."""

    def __init__(self, slots):
        self.worker = str(uuid.uuid4())
        self.slots = slots
        self.streams = {}  # by partition
        self.entries = {}  # by (execution_id, attempt), in order of arrival
        self.told = {}  # by owner: when, and what of it that is told again
        self.is_known = False  # whether anybody has heard of it
        self.stops = False  # nothing more begins
        self.draining_since = None  # when owners were told that nothing more is to come
        self.rests_since = None  # since when nothing runs, while it stops

    def all(self, *states):
        return [(key, entry) for key, entry in self.entries.items() if entry.state in states]

    def take(self, section):
        stream = self.streams.setdefault(section["partition"], Stream())
        place, sync = (section["epoch"], section["number"]), section.get("sync")
        # One that is long comes in parts, of which the first can be understood without what was before.
        after, to = section.get("sync_after"), section.get("sync_to")
        opens = sync is not None and after is None
        if section["epoch"] >= stream.heard:
            stream.heard, stream.owner = section["epoch"], section["owner"]
        if place < stream.next or (not opens and place != stream.next):
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
                is_told = (after is None or key[0] > after) and (to is None or key[0] <= to)
                if is_told and key not in held:
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

    def begin(self, is_good):
        """Begins what it has slots for, as long as the lease `is_good`."""
        free = self.slots - len(self.all("running"))
        for entry in self.ready()[: max(free, 0)]:
            if not is_good():
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

    def work(self, is_good):
        """Does what there is to do for what it holds."""
        if self.stops:
            self.give_back("its worker stops")
        else:
            self.begin(is_good)
            self.give_back_late()
        self.finish()

    def is_done(self):
        """Whether a life that stops has nothing left to do, or has waited for others long enough: they may
        be gone, so it ends whether or not anybody answers."""
        if not self.stops or self.all("running"):
            return False
        if not self.is_known:
            return True
        now = time.monotonic()
        self.rests_since = self.rests_since or now
        if not self.entries and self.draining_since is not None:
            return now - self.draining_since >= LINGER_SECONDS
        # What is not safe is lost when it ends: its slots come back as those of a worker that was lost.
        is_safe = all(entry.is_safe for _, entry in self.all("ended"))
        return now - self.rests_since >= (LAST_WORDS_SECONDS if is_safe else UNHEARD_SECONDS)

    def end(self):
        """Kills what runs and forgets everything."""
        for key in list(self.entries):
            self.forget(key)

    def link_is_new(self):
        for stream in self.streams.values():
            stream.missing, stream.asked_at = True, 0.0
        self.told.clear()
        for _, entry in self.all("ended"):
            entry.published_at = None

    def ends(self):
        """The ends that are to be published now, as many as one message holds."""
        due, room, ends = time.monotonic() - AGAIN_SECONDS, PACK_BYTES, []
        for _, entry in self.all("ended"):
            if room > 0 and (entry.published_at is None or entry.published_at <= due):
                room -= entry.bytes
                ends.append(entry)
        return ends

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
            report = dict(state)
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
