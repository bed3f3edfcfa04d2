"""One call per device at a time, and the fence against attempts of an older claim."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable

from cachetools import LRUCache


class DeviceLocks:
    """A lock per device that exists while someone holds it or waits for it; first come, first served."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @contextlib.asynccontextmanager
    async def hold(self, device: Hashable) -> AsyncIterator[None]:
        """Wait for the device and keep it while the block runs."""
        lock, users = self._locks.get(device) or (asyncio.Lock(), 0)
        self._locks[device] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[device]
            if users == 1:
                del self._locks[device]
            else:
                self._locks[device] = (lock, users - 1)

    def __len__(self) -> int:
        return len(self._locks)


class LaneTokens:
    """The newest token seen of each lane, of as many lanes as `size`."""

    def __init__(self, size: int) -> None:
        self._newest: LRUCache[Hashable, int] = LRUCache(size)

    def admit(self, lane: Hashable, token: int) -> bool:
        """Whether no newer token of the lane was seen; remembers this one."""
        newest = self._newest.get(lane, 0)
        if token < newest:
            return False
        self._newest[lane] = token
        return True
