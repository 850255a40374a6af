"""Explicit generators, and the one way to lend them to code that knows only the global one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator

SEED_LIMIT = 2**63 - 1


def derived_seed(seed: int, *path: int) -> int:
    """A seed for one purpose, far from the seeds of all other purposes."""
    rng = Generator().manual_seed(seed % SEED_LIMIT)
    for number in path:
        mixed = int(torch.randint(SEED_LIMIT, (), generator=rng)) ^ (number * 0x9E3779B97F4A7C15 % SEED_LIMIT)
        rng = Generator().manual_seed(mixed % SEED_LIMIT)
    return int(torch.randint(SEED_LIMIT, (), generator=rng))


@contextmanager
def global_rng(seed: int) -> Iterator[None]:
    """Seed the global generators of all devices in use, and put them back, whatever happens."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        # torch.manual_seed would format a traceback for each device that is not in use: 1 ms
        (torch.manual_seed if devices else torch.default_generator.manual_seed)(seed)
        yield
