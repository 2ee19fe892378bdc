"""`inside.py COUNT_FILE COMMAND …`: runs a command in a network of its own, and writes down how many packets found no
way out of it. Started in a new network namespace, which has nothing but an idle loopback device."""

import fcntl
import pathlib
import re
import socket
import struct
import subprocess
import sys

GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP of Linux


def loopback_up() -> None:
    """What `ip link set lo up` does: kernels talk to their notebook over it."""
    with socket.socket() as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", flags | UP))


def packets_without_a_way() -> int:
    """Packets that this namespace's kernel was asked to send to where no route leads, IPv4 and IPv6."""
    names, values = (line.split() for line in pathlib.Path("/proc/net/snmp").read_text().splitlines()[:2])
    six = re.search(r"Ip6OutNoRoutes\s+(\d+)", pathlib.Path("/proc/net/snmp6").read_text())
    return int(values[names.index("OutNoRoutes")]) + int(six[1] if six else 0)


loopback_up()
before = packets_without_a_way()
status = subprocess.run(sys.argv[2:]).returncode
pathlib.Path(sys.argv[1]).write_text(str(packets_without_a_way() - before))
sys.exit(status)
