"""Ask a running deployment one question; print its plan in short, the answer, and how fast it came.

    first_question.py NAME

Run by scripts/quickstart with the environment's Python. Standard library and llmserve's own command only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

QUESTION = "What is the sun? Answer in one sentence."

SHOWN = (
    "max_num_seqs",
    "max_model_len",
    "max_num_batched_tokens",
    "threads",
    "kv_cache_dtype",
    "speculative",
    "kv_offload_bytes",
)
"""What makes a goal's plan that goal's, of some thirty levers."""


def llmserve(*args: str) -> dict[str, Any]:
    """What a command prints with --json. Its own error goes to the terminal."""
    command = [str(Path(sys.executable).parent / "llmserve"), *args, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(args)} ended with exit code {done.returncode}: {done.stdout.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def print_plan(name: str) -> None:
    from orchestrator.supervisor.store import DeploymentFolder

    plan = DeploymentFolder(name).plan()
    print(
        f"\nThe plan: {plan.goal}, {plan.model.get('name', '')} on {plan.engine.name} {plan.engine.version}"
    )
    for lever in SHOWN:
        decision = plan.levers.get(lever)
        if decision is not None:
            head = f"  {lever:<23} {_value(decision.value):<10} "
            print(textwrap.fill(decision.reason, 79, initial_indent=head, subsequent_indent=" " * len(head)))


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("method", "on"))
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def ask(endpoint: str, model: str) -> tuple[str, int, float]:
    """(answer, tokens, tokens per second). Raises OSError or ValueError."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 80,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{endpoint}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    # a proxy of the environment has no way to this machine's loopback
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    began = time.monotonic()
    with opener.open(request, timeout=120) as response:
        reply = json.load(response)
    took = time.monotonic() - began
    text = reply["choices"][0]["message"]["content"].strip()
    tokens = int(reply["usage"]["completion_tokens"])
    if not text or not tokens:
        raise ValueError(f"an empty answer: {json.dumps(reply)[:300]}")
    rate = reply.get("timings", {}).get("predicted_per_second") or tokens / took
    return text, tokens, float(rate)


def main(name: str) -> None:
    status = llmserve("status", name)
    endpoint = status["endpoint"]
    if not endpoint:
        sys.exit(f"{name} has no address: it is {status['state']} ({status['reason']})")
    try:
        text, tokens, rate = ask(endpoint, status["served_model"])
    except urllib.error.HTTPError as e:
        sys.exit(f"{endpoint} answered {e.code}: {e.read(300).decode('utf-8', 'replace')}")
    except (OSError, ValueError, KeyError, IndexError, TypeError) as e:
        sys.exit(f"{endpoint} gave no answer: {e}")
    print_plan(name)
    print(f"\nQuestion: {QUESTION}")
    print(textwrap.fill(f"Answer:   {text}", 79, subsequent_indent=" " * 10))
    print(f"          {tokens} tokens, {rate:.0f} tokens per second")
    print(f"\nAddress:  {endpoint}/v1 (OpenAI-compatible, model {status['served_model']})")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
