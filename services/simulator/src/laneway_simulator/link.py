"""The way to Mosquitto: hears every lock's commands, sends their answers, comes back after a loss.

The inbound queue has no bound: a burst is stored, not dropped. At most 20 answers are under way at a
time, because Mosquitto closes the connection of a client that exceeds its receive maximum (20).
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import aiomqtt
import structlog

from laneway_shared.errors import SettingsError
from laneway_simulator.fleet import AnswerLostError
from laneway_simulator.topics import Topics

_log = structlog.get_logger()
_ANSWERS_UNDER_WAY = 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 3.0
_GIVE_UP_AFTER_S = 60.0  # an answer that the broker didn't take for so long is lost
_PATIENCE_S = 5.0  # one exchange with the broker, and the farewell
_PORTS = {"mqtt": 1883, "mqtts": 8883}
Receive = Callable[[str, bytes], None]


class MqttLink:
    """One connection at a time, MQTT 5, clean start, a client id of its own."""

    def __init__(self, url: str, *, topics: Topics, instance: str) -> None:
        self._options = connection_options(url)
        self._topics = topics
        self._instance = instance
        self._client: aiomqtt.Client | None = None
        self._up = asyncio.Event()
        self._waits: set[asyncio.Timeout] = set()  # for acknowledgements of this connection

    @property
    def is_ready(self) -> bool:
        """Connected and subscribed."""
        return self._up.is_set()

    def ack_topic(self, sn: str) -> str:
        """Where the lock answers."""
        return self._topics.ack_topic(sn)

    async def run(self, receive: Receive) -> None:
        """Hand every command to `receive` until cancelled, through whatever happens to the broker."""
        pause = _FIRST_PAUSE_S
        said = False
        while True:
            try:
                await self._hear(receive)
            except aiomqtt.MqttError as error:
                if _is_told_to_end():
                    return  # the farewell failed, and its error took the place of the cancellation
                was_up = self._up.is_set()
                self._hang_up()
                if was_up or not said:
                    _log.warning("MQTT broker is away, trying again until it is back", reason=str(error))
                    said = True
                pause = _FIRST_PAUSE_S if was_up else min(pause * 2, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause)

    async def send(self, sn: str, payload: bytes) -> None:
        """Publish the lock's answer until the broker has it; over a reconnect it may arrive twice.

        Raises:
            AnswerLostError: it wasn't taken within a minute.
        """
        try:
            async with asyncio.timeout(_GIVE_UP_AFTER_S):
                while not await self._sent(self.ack_topic(sn), payload):
                    pass
        except TimeoutError:
            raise AnswerLostError(f"the MQTT broker took no answer for {_GIVE_UP_AFTER_S:.0f} s") from None

    async def _sent(self, topic: str, payload: bytes) -> bool:
        await self._up.wait()
        client = self._client
        if client is None:
            return False
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    await client.publish(topic, payload, qos=self._topics.ack_qos)
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            return False  # hung up meanwhile
        except aiomqtt.MqttError:
            # the connection's end is seen by `run`; until then don't spin
            await asyncio.sleep(_FIRST_PAUSE_S)
            return False
        return True

    def _hang_up(self) -> None:
        """Nobody waits any longer for what this connection can't bring (aiomqtt would, for its whole timeout)."""
        self._up.clear()
        self._client = None
        for wait in self._waits:
            wait.reschedule(asyncio.get_running_loop().time())
        self._waits.clear()

    async def _hear(self, receive: Receive) -> None:
        client = aiomqtt.Client(
            **self._options,
            identifier=f"laneway-simulator-{self._instance}-{secrets.token_hex(4)}",
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=True,
            max_queued_incoming_messages=0,
            max_queued_outgoing_messages=0,
            max_inflight_messages=_ANSWERS_UNDER_WAY,
            max_concurrent_outgoing_calls=_ANSWERS_UNDER_WAY,
            keepalive=10,
            timeout=_PATIENCE_S,
        )
        client.pending_calls_threshold = _ANSWERS_UNDER_WAY
        async with client:
            await client.subscribe(self._topics.command_filter, qos=self._topics.command_qos)
            self._client = client
            self._up.set()
            _log.info("MQTT connected", listens=self._topics.command_filter)
            async for message in client.messages:
                receive(self._topics.sn_of(message.topic.value), _as_bytes(message.payload))


def _is_told_to_end() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def connection_options(url: str) -> dict[str, Any]:
    """`mqtt://[user:password@]host[:port]` (or mqtts://) as arguments of `aiomqtt.Client`.

    Raises:
        SettingsError: it is no such URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"LANEWAY_MQTT_URL can't be read: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise SettingsError("LANEWAY_MQTT_URL must look like mqtt://host:1883 or mqtts://host:8883")
    return {
        "hostname": parts.hostname,
        "port": port or _PORTS[parts.scheme],
        "username": None if parts.username is None else unquote(parts.username),
        "password": None if parts.password is None else unquote(parts.password),
        "tls_params": aiomqtt.TLSParameters() if parts.scheme == "mqtts" else None,
    }


def _as_bytes(payload: object) -> bytes:
    return bytes(payload) if isinstance(payload, (bytes, bytearray)) else str(payload).encode()
