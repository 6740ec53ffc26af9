"""wrk: the cheapest client for small requests, which leaves most of two cores to the server."""

import re
import subprocess
from pathlib import Path

from load.result import Load

SCRIPT = Path(__file__).resolve().parent / "requests.lua"


class LoadError(Exception):
    """Requests failed, or wrk did."""


def wrk(host, lines, seconds, connections, body_bytes=0, seed=1):
    """Sends request lines of a file, drawn uniformly, for a number of seconds."""
    done = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(SCRIPT), f"http://{host}",
         "--", str(lines), str(body_bytes), host, str(seed)], capture_output=True, text=True)
    found = re.search(r"RESULT (.*)", done.stdout)
    if not found:
        raise LoadError(f"wrk printed no result:\n{done.stdout}{done.stderr}")
    result = {name: int(value) for name, value in (pair.split("=") for pair in found.group(1).split())}
    failed = {
        name: result[name] for name in ("status", "connect", "read", "write", "timeout") if result[name]}
    if failed:
        raise LoadError(f"requests failed: {failed}")
    return Load(result["requests"], result["micros"] / 1e6, result["p50"], result["p99"])
