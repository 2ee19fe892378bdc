"""What holds for every test: one thread per process, Ctrl-C is heard, and no network."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, and for every process that a test starts

import ipaddress
import signal
import socket

import pytest
import torch

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs behind it deaf to Ctrl-C


@pytest.fixture(autouse=True, scope="session")
def no_network():
    """A test that tries to reach another machine fails; this machine's own servers (JupyterLab, kernels) are fine."""
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not is_local(address[0]):
            raise AssertionError(f"a test tried to reach {address[0]} over the network")
        return connect(self, address)

    socket.socket.connect = guarded
    yield
    socket.socket.connect = connect


def is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture(scope="session")
def trained():
    """(model, tokenizer): the toy. Trains it if it is missing, which takes about a minute."""
    from transformer_lib.toy import load_toy

    return load_toy()
