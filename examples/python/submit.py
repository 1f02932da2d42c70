#!/usr/bin/env python3
"""Submits one execution to Attune over AMQP, and waits for the answer.

    submit.py core.echo message=hi count=3

The parameters are KEY=VALUE; a value is JSON where it can be read as JSON, else text. The answer
is printed as one line of JSON. Exit codes: 0 accepted, 1 rejected (once it is recorded as rejected,
--message-id repeats the refusal: ask again without), 3 no answer in time, or only one copy of
several is known to be refused (whether it was accepted is then unknown; --message-id repeats it
safely).

Needs pika. Written from docs/PROTOCOL.md alone.
"""

import argparse
import datetime
import json
import os
import random
import sys
import time
import uuid

import pika
import pika.exceptions


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action_ref")
    parser.add_argument("parameter", nargs="*", help="KEY=VALUE")
    parser.add_argument(
        "--amqp", default=os.environ.get("ATTUNE_AMQP_URL", "amqp://127.0.0.1:5672/%2f")
    )
    parser.add_argument("--prefix", default="", help="what broker.prefix is set to")
    parser.add_argument(
        "--client",
        help="the name that was given to `attune topology permissions --client`; if it is not given, the "
        "name of the user of the broker without `client-`",
    )
    parser.add_argument("--priority", default="normal")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds")
    parser.add_argument("--message-id", type=uuid.UUID, default=None)
    return parser.parse_args()


def parameters(pairs):
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            sys.exit(f"{pair!r} is not KEY=VALUE, as in message=hi")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def envelope(message_id, submission):
    """The message; it must be the same, byte for byte, whenever it is published again."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return json.dumps(
        {
            "message_id": str(message_id),
            "message_type": "enforcement.created",
            "version": 1,
            "timestamp": now.isoformat(),
            "payload": submission,
        },
        allow_nan=False,
    ).encode()


def publish(url, exchange, message_id, body, reply_to, deadline):
    """Publishes until the broker has confirmed it. A lost confirm leaves the outcome unknown, and
    a repetition under the same id is harmless: so each failure leads to another try. Returns how many
    copies the broker may have."""
    ceiling = 0.1
    copies = 0
    while True:
        copies += 1
        try:
            connection = pika.BlockingConnection(pika.URLParameters(url))
            try:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.basic_publish(
                    exchange,
                    "enforcement.created",
                    body,
                    pika.BasicProperties(
                        content_type="application/json",
                        delivery_mode=2,
                        message_id=str(message_id),
                        reply_to=reply_to,
                        user_id=pika.URLParameters(url).credentials.username,
                    ),
                    mandatory=True,
                )
                return copies
            finally:
                if connection.is_open:
                    connection.close()
        except (pika.exceptions.AMQPError, OSError) as error:
            if time.monotonic() + ceiling > deadline:
                raise
            print(f"not confirmed yet: {error!r}", file=sys.stderr)
        time.sleep(random.uniform(0, ceiling))
        ceiling = min(ceiling * 2, 30)


def outcome(body, request_id):
    """The outcome of our request in a message of answers, if it is there."""
    message = json.loads(body)
    if message["message_type"] != "command.answer" or message["version"] != 1:
        return None
    items = message["payload"]
    for item in items if isinstance(items, list) else [items]:
        if uuid.UUID(item["request_id"]) == request_id:
            return item["outcome"]
    return None


def main():
    args = arguments()
    submission = {
        "action_ref": args.action_ref,
        "parameters": parameters(args.parameter),
        "priority": args.priority,
    }
    # The first item of a message has the message's id as its request id.
    message_id = args.message_id or uuid.uuid4()
    body = envelope(message_id, submission)
    deadline = time.monotonic() + args.timeout

    # A connection of its own: a broker that is short of memory stops reading from connections
    # that publish.
    listening = pika.BlockingConnection(pika.URLParameters(args.amqp))
    answers = listening.channel()
    # A name that a user of the broker for this client may declare; nothing stands before it, whatever
    # broker.prefix is.
    user = pika.URLParameters(args.amqp).credentials.username
    client = args.client or user.removeprefix("client-")
    address = f"attune.reply.{client}.{uuid.uuid4()}"
    answers.queue_declare(address, exclusive=True, auto_delete=True)
    found = []

    def take(channel, method, _properties, answer):
        channel.basic_ack(method.delivery_tag)
        told = outcome(answer, message_id)
        if told is not None:
            found.append(told)

    answers.basic_consume(address, take)
    exchange = args.prefix + "attune.executions"
    copies = publish(args.amqp, exchange, message_id, body, address, deadline)
    while not found and time.monotonic() < deadline:
        listening.process_data_events(time_limit=min(1.0, max(0.0, deadline - time.monotonic())))
    listening.close()
    if not found:
        print(f"no answer; repeat with --message-id {message_id}", file=sys.stderr)
        return 3
    print(json.dumps(found[0]))
    # All other refusals are stored, so that every copy gets them.
    if copies > 1 and found[0].get("rejected", {}).get("code") == "UNKNOWN_ACTION":
        print(f"another copy may be accepted; repeat with --message-id {message_id}", file=sys.stderr)
        return 3
    return 0 if "accepted" in found[0] else 1


if __name__ == "__main__":
    sys.exit(main())
