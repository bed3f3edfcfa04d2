"""Makes the faults of a plan, each at its time, and puts everything right again."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from chaos.plan import SERVERS, SERVICES, Fault, Kind
from laneway_local.stack import AMQP_URL, DATABASE_URL, MQTT_URL, Stack
from support.tcp_proxy import TcpProxy

SLOW_S = 0.3
URLS = {"rabbitmq": AMQP_URL, "postgres": DATABASE_URL, "mosquitto": MQTT_URL}


class Roads:
    """A proxy before each server: the roads that can be cut and slowed down."""

    def __init__(self, urls: dict[str, str]) -> None:
        self._direct = {server: urls[name] for server, name in URLS.items()}
        self.proxies = {
            server: TcpProxy(urlsplit(url).hostname or "127.0.0.1", urlsplit(url).port or 0)
            for server, url in self._direct.items()
        }
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for proxy in self.proxies.values():
            await self._open.enter_async_context(proxy.running())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def settings(self) -> dict[str, str]:
        """The servers' URLs over these roads, as settings of services."""
        return {URLS[server]: _by_port(url, self.proxies[server].port) for server, url in self._direct.items()}


def _by_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    where = f"127.0.0.1:{port}"
    return urlunsplit(parts._replace(netloc=f"{login}@{where}" if login else where))


@dataclass
class FaultMaker:
    """Acts on one stack; one fault per target at a time."""

    stack: Stack
    roads: Roads
    say: Callable[[str], None]
    made: list[tuple[Fault, float]] = field(default_factory=list)  # with the time (Unix) it was over
    _hands: asyncio.Lock = field(default_factory=asyncio.Lock)  # a stack is not for two threads at once
    _targets: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def run(self, plan: list[Fault]) -> None:
        """Make all faults; a target that is still in trouble waits for its next one."""
        async with asyncio.TaskGroup() as tasks:
            for fault in plan:
                tasks.create_task(self._make(fault))

    async def _make(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        async with self._targets.setdefault(fault.target, asyncio.Lock()):
            self.say(str(fault))
            if fault.kind in (Kind.CUT, Kind.SLOW):
                await self._on_the_road(fault)
            elif fault.target in SERVERS:
                await self._to_server(fault)
            else:
                await self._to_service(fault)
            self.made.append((fault, time.time()))

    async def _on_the_road(self, fault: Fault) -> None:
        proxy = self.roads.proxies[fault.target]
        if fault.kind is Kind.CUT:
            proxy.cut()
            await asyncio.sleep(fault.lasts_s)
            proxy.mend()
            return
        proxy.delay_s = SLOW_S
        await asyncio.sleep(fault.lasts_s)
        proxy.delay_s = 0.0

    async def _to_server(self, fault: Fault) -> None:
        server: Any = getattr(self.stack, fault.target)
        await self._hand(server.kill if fault.kind is Kind.KILL else server.stop)
        await asyncio.sleep(fault.lasts_s)
        await self._hand(server.start)

    async def _to_service(self, fault: Fault) -> None:
        if fault.kind is Kind.FREEZE:
            await self._hand(self.stack.pause_service, fault.target)
            await asyncio.sleep(fault.lasts_s)
            await self._hand(self.stack.resume_service, fault.target)
            return
        end = self.stack.kill_service if fault.kind is Kind.KILL else self.stack.stop_service
        await self._hand(end, fault.target)
        await asyncio.sleep(fault.lasts_s)
        await self._start(fault.target)

    async def _start(self, service: str) -> None:
        """Some servers may be away just now: a service that can't get ready then is tried again."""
        for attempt in range(5):
            try:
                await self._hand(self.stack.restart_service, service)
            except Exception as error:  # noqa: BLE001 - said, and tried again
                self.say(f"           {service} did not get ready (try {attempt + 1}): {error}")
                await asyncio.sleep(2)
            else:
                return
        raise AssertionError(f"{service} doesn't start any more")

    async def _hand(self, act: Callable[..., Any], *arguments: Any) -> None:
        async with self._hands:
            await asyncio.to_thread(act, *arguments)

    async def put_right(self) -> None:
        """Everything runs and every road is open."""
        for proxy in self.roads.proxies.values():
            proxy.mend()
            proxy.delay_s = 0.0
        for service in SERVICES:
            if not self.stack.processes.is_alive(service):
                await self._start(service)
