"""The connection to a Ray cluster: made within ten seconds or refused with one sentence, and noticed when it is gone.

Ray itself tries for minutes where nothing answers, writes to the terminal meanwhile, and ends the process where the
cluster's head is gone. So an address is tried by another process first, which is ended when its time is over.
"""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, final

from remanence.errors import BadInput

_KNOCK = 3.0  # seconds for a TCP connection
_PROBE = 7.0  # seconds for all tries together
_BETWEEN = 5.0  # seconds between two looks at the cluster's head
_GONE = 20.0  # seconds without a head after which it does not come back: Ray would end the process after 60
_TRY = """
import sys
try:
    import ray
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except BaseException as error:
    print(str(error).strip().partition("\\n")[0])
    sys.exit(1)
"""


def check_reachable(address: str) -> None:
    """Refuse an address that is malformed, or at which no Ray cluster takes this machine in."""
    if address == "local":  # Ray's word for a cluster of one's own
        return
    end = monotonic() + _PROBE
    if address != "auto":
        _knock(address)
    command = [sys.executable, "-P", "-c", _TRY, address]
    try:
        tried = subprocess.run(
            command, timeout=end - monotonic(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise unreachable(address, f"no answer within {_PROBE:g} seconds") from None
    if tried.returncode:
        raise unreachable(address, tried.stdout.decode(errors="replace").strip() or f"exit code {tried.returncode}")


def _knock(address: str) -> None:
    """Refuse at once where nothing listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not re.fullmatch(r"\[[0-9a-fA-F:.%\w]+\]|[\w.-]+", host) or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise unreachable(address, "an address is `auto` or HOST:PORT, as in 127.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host is that long
        raise unreachable(address, getattr(error, "strerror", None) or str(error)) from None


def unreachable(address: str, reason: str) -> BadInput:
    """The refusal of an address, with the reason."""
    shown = address if address.isprintable() and len(address) < 200 else repr(address[:60])
    message = (
        f"no Ray cluster answers at `{shown}` ({reason.rstrip('.')}): start one with `ray start --head`, or leave the "
        "address out"
    )
    return BadInput(message, code="unreachable", argument="address")


def connect(**options: Any) -> None:
    """`ray.init`, without its words on the terminal, and with the handler of SIGTERM as it was before."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what dies is said by us
    on_term, in_main = signal.getsignal(signal.SIGTERM), threading.current_thread() is threading.main_thread()
    ended = False
    with _no_stderr():
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except SystemExit:  # SIGTERM came to the handler of Ray
            ended = True
        finally:
            if in_main:
                signal.signal(signal.SIGTERM, on_term)
    if ended:
        signal.raise_signal(signal.SIGTERM)


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Within it what compiled code writes to stderr is dropped; Ray says there which level of logging it was given."""
    sys.stderr.flush()
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def leave_at_once(code: int) -> None:
    """End an interrupted process that works with Ray, whose own end may abort it; its cluster ends with it."""
    if "ray" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@final
class Watch:
    """Looks whether the parts of the cluster that this process needs still answer: before each call of Ray the raylet
    of this machine, without which such a call ends the process in silence, and now and then the head."""

    def __init__(self) -> None:
        import ray

        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        self._raylet = str(here["NodeManagerAddress"]), int(here["NodeManagerPort"])
        host, _, port = str(context.gcs_address).rpartition(":")
        self._head = host.strip("[]"), int(port)
        self._answered = self._looked = monotonic()

    def look(self) -> None:
        """Raise `ConnectionError` where the raylet is gone, or the head has been for a while; one that is started again
        is waited for."""
        import ray

        if not _answers(*self._raylet):
            ray.shutdown()  # or the process ends when its references to objects do
            raise lost()
        if monotonic() - self._looked < _BETWEEN:
            return
        if _answers(*self._head):
            self._answered = monotonic()
        elif monotonic() - self._answered > _GONE:
            raise lost()
        self._looked = monotonic()


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_KNOCK).close()
    except OSError:
        return False
    return True


def lost() -> ConnectionError:
    """The error of a cluster that is gone."""
    return ConnectionError("the Ray cluster was lost: repeat the command; with `--store` it goes on where it stopped")
