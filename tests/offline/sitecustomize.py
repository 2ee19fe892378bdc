"""Loaded by every Python process whose PYTHONPATH names this folder: whoever tries to reach another machine is written
down in the file OFFLINE_LOG, and fails. (An audit hook sees every socket of the process, whatever library opens it.)"""

import ipaddress
import os
import sys

LOG = os.environ.get("OFFLINE_LOG")
WATCHED = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname")


def is_here(host) -> bool:
    """This machine: a loopback address, its name, or no address at all (a Unix socket, a wildcard)."""
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if host in (None, "", "localhost") or not isinstance(host, str):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def watch(event: str, arguments: tuple) -> None:
    if event not in WATCHED:
        return
    by_address = event in ("socket.connect", "socket.sendto", "socket.sendmsg")
    address = arguments[1] if by_address else arguments[0]
    host = (address[0] if isinstance(address, tuple) else None) if by_address else address
    if not is_here(host):
        line = f"{event} {host!r} in {' '.join(sys.orig_argv)[:200]!r}\n"
        handle = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, line.encode())
        os.close(handle)
        raise OSError(f"the network is cut off: {event} {host!r}")


if LOG:
    sys.addaudithook(watch)
