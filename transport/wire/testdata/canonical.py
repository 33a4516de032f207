"""Reference for the canonical form: reads one hex-encoded JSON text a line, answers "ok <hex>" or "no".

The rules are those of agent protocol C.3: Python's own reader and writer, with what cannot be represented refused.
"""
import json
import sys


def refuse(_):
    raise ValueError("constant")


def finite(token):
    value = float(token)
    if value in (float("inf"), float("-inf")):
        raise ValueError("out of range")
    return value


def check(value):
    if isinstance(value, str):
        value.encode("utf-8")  # a lone surrogate fails
    elif isinstance(value, list):
        for item in value:
            check(item)


def members(pairs):
    for key, value in pairs:
        check(key)
        check(value)
    return dict(pairs)


def canonical(raw):
    value = json.loads(
        raw.decode("utf-8"), parse_constant=refuse, parse_float=finite, object_pairs_hook=members
    )
    check(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


for line in sys.stdin:
    try:
        answer = "ok " + canonical(bytes.fromhex(line.strip())).hex()
    except (ValueError, RecursionError):
        answer = "no"
    sys.stdout.write(answer + "\n")
    sys.stdout.flush()
