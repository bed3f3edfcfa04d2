"""One call per device at a time, and the fence against attempts of an older claim."""

import asyncio
from collections.abc import Hashable

from cachetools import LRUCache


class DeviceLocks:
    """A lock per device that exists while someone holds it or waits for it; first come, first served."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, _DeviceLock] = {}

    def hold(self, device: Hashable) -> "_Hold":
        """Wait for the device and keep it while the block runs."""
        return _Hold(self._locks, device)

    def __len__(self) -> int:
        return len(self._locks)


class _DeviceLock(asyncio.Lock):
    users = 0


class _Hold:
    """A class, since a generator's context costs three times as much and every command passes one."""

    __slots__ = ("_device", "_locks")

    def __init__(self, locks: dict[Hashable, _DeviceLock], device: Hashable) -> None:
        self._locks, self._device = locks, device

    async def __aenter__(self) -> None:
        lock = self._locks.setdefault(self._device, _DeviceLock())
        lock.users += 1
        try:
            await lock.acquire()
        except BaseException:
            self._leave(lock)
            raise

    async def __aexit__(self, *_error: object) -> None:
        lock = self._locks[self._device]
        lock.release()
        self._leave(lock)

    def _leave(self, lock: _DeviceLock) -> None:
        lock.users -= 1
        if not lock.users:
            del self._locks[self._device]


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
