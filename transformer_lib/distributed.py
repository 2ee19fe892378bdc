"""Several processes train one model together: `torchrun --nproc-per-node=N -m transformer_lib train …`.

It is torch's own DistributedDataParallel: every process holds the whole model and takes an equal share of each batch's
rows; their gradients are averaged before every update, so that all of them make the same one. The losses are those of
one process, up to the order in which sums are added. Over "gloo" on the CPU, over "nccl" on GPUs, one per process.

torchrun starts the processes and tells each its place in environment variables. Without them there is one process.
`launched` calls torchrun for two processes of this machine, which is how the toy is trained.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, distributed, nn

KEPT: list[nn.Module] = []  # what `Team.wrap` has made


@dataclass(frozen=True)
class Team:
    """The processes that train together. rank: this one's number, from 0; local_rank: its number on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> Team:
        """What torchrun says, or one process alone."""
        variables = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
        return cls(*(int(os.environ.get(name, alone)) for name, alone in variables))

    @property
    def leads(self) -> bool:
        """One process of a team writes the checkpoints and talks to the user."""
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Inside the block the processes can reach each other."""
        if self.size == 1:
            yield
            return
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        try:
            yield
        finally:
            distributed.destroy_process_group()

    def device(self, device: torch.device) -> torch.device:
        """Where this process computes: each has a GPU of its own."""
        return torch.device("cuda", self.local_rank) if device.type == "cuda" and self.size > 1 else device

    def wrap(self, model: nn.Module) -> nn.Module:
        """`model`, with gradients that are averaged over the team.

        The wrapper lives until the process ends. Whoever destroys it waits for the threads of "gloo" and holds Python's
        lock meanwhile, for which one of those threads may be waiting: then both wait for ever.
        """
        if self.size == 1:
            return model
        KEPT.append(nn.parallel.DistributedDataParallel(model))
        return KEPT[-1]

    def own_rows(self, batch):
        """This process's share of the rows: (B, …) -> (B / size, …)."""
        if self.size == 1:
            return batch
        if not isinstance(batch, Tensor):
            raise TypeError(
                "several processes share a batch only if it is one tensor: with a mask, an equal share of the rows is "
                "no equal share of the tokens; train with one process."
            )
        if len(batch) % self.size:
            raise ValueError(
                f"{self.size} processes cannot share {len(batch)} rows equally; "
                f"choose a batch size that {self.size} divides."
            )
        return batch[self.rank :: self.size]

    def mean(self, value: Tensor) -> float:
        """The mean of a number over the team, the same in every process."""
        if self.size == 1:
            return value.item()
        total = value.detach().clone()
        distributed.all_reduce(total)
        return total.item() / self.size

    def any(self, here: bool, device: torch.device) -> bool:
        """Whether it is so in one process at least."""
        return self.mean(torch.tensor(float(here), device=device)) > 0


ALONE = Team()
LOOPBACK = {"linux": "lo", "darwin": "lo0"}  # the network interface by which a machine talks to itself


@contextmanager
def launched(arguments: list[str], processes: int) -> Iterator[subprocess.Popen]:
    """`python ARGUMENTS …` in several processes of one thread each, started and watched by torchrun, without a word.

    They talk to one another within this machine. Whoever leaves the block before they end interrupts them, as Ctrl-C
    would, and waits until they have ended.
    """
    team = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={processes}"]
    alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK[sys.platform]}
    process = subprocess.Popen(
        [sys.executable, *team, *arguments],
        env=os.environ | alone,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches it once, from here
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait()


def leave(status: int) -> NoReturn:
    """End this process of a team, without Python's own teardown, which would destroy what `Team.wrap` keeps (see also
    pytorch issue 190489). All its files are written by then.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
