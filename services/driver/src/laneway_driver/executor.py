"""From an attempt in hand to its result. The order of the steps is the safety of the whole (docs/lifecycle.md)."""

import asyncio
from typing import Any, Protocol, assert_never

import structlog

from laneway_driver.clock import CenterClock
from laneway_driver.dedup import Attempt, Phase
from laneway_driver.locks import DeviceLocks, LaneTokens
from laneway_driver.port import Accepted, Call, DeviceAdapter, Done, NotSent, Outcome, Refused, Transmitted, Unknown
from laneway_shared import failpoints
from laneway_shared.errors import cut
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import CommandMessage, CommandType, ResultMessage

log = structlog.get_logger(__name__)
K = ResultKind


class Announcing(Protocol):
    """What the executor needs of the result sender."""

    async def announce(self, result: ResultMessage) -> bool:
        """Send it once; whether RabbitMQ confirmed it."""


class Executor:
    """Runs attempts: device lock, lane token, STARTED, time, call."""

    def __init__(
        self, adapter: DeviceAdapter, results: Announcing, clock: CenterClock, *, instance: str, lanes: int
    ) -> None:
        self._adapter = adapter
        self._results = results
        self._clock = clock
        self._instance = instance
        self._devices = DeviceLocks()
        self._tokens = LaneTokens(lanes)
        self.draining = False  # nothing is started any more

    async def run(self, attempt: Attempt) -> ResultMessage | None:
        """The attempt's result; None when its delivery was lost before it started, and it is to be dropped."""
        command = attempt.command
        async with self._devices.hold((command.tenant_id, command.target.device_sn)):
            if attempt.delivery.lost:
                return None
            if self.draining:
                return self.released(command)
            if not self._tokens.admit((command.tenant_id, command.lane_key), command.lane_token):
                return self.result(command, K.STALE, error_message="a newer claim of the lane was seen here")
            failpoints.hit("driver.locked")
            attempt.phase = Phase.STARTED
            if command.unsafe:
                refusal = await self._announce(command)
                if refusal is not None:
                    return refusal
                failpoints.hit("driver.started")
            call = self._admitted(command)
            if isinstance(call, ResultMessage):
                return call
            attempt.phase = Phase.CALLING
            outcome = await self._call(command, call)
            failpoints.hit("driver.called")
            return self._told(command, outcome)

    def interrupted(self, attempt: Attempt) -> ResultMessage:
        """The result of an attempt that is cut off because the process must end."""
        if attempt.phase is Phase.CALLING:
            why = "the driver had to stop in the middle of the call"
            return self.result(attempt.command, K.UNKNOWN, error_code="INTERRUPTED", error_message=why)
        return self.released(attempt.command)

    def failed(self, attempt: Attempt) -> ResultMessage:
        """The result of an attempt that met a bug in the driver."""
        kind = K.UNKNOWN if attempt.phase is Phase.CALLING else K.NOT_SENT
        return self.result(attempt.command, kind, error_code="DRIVER_ERROR", error_message="see the driver's log")

    def released(self, command: CommandMessage) -> ResultMessage:
        """The result of an attempt that is given back unstarted."""
        return self.result(command, K.RELEASED, error_message="the driver stops")

    def result(self, command: CommandMessage, kind: ResultKind, **fields: Any) -> ResultMessage:
        """A result about the command's attempt, from this instance, as of now."""
        return ResultMessage(
            status=kind,
            tenant_id=command.tenant_id,
            command_id=command.command_id,
            attempt=command.attempt,
            instance=self._instance,
            finished_at=self._clock.now(),
            **fields,
        )

    async def _announce(self, command: CommandMessage) -> ResultMessage | None:
        late = self._late(command)  # spares a STARTED that nothing would follow
        if late is not None:
            return late
        if await self._results.announce(self.result(command, K.STARTED)):
            return None
        why = "RabbitMQ didn't confirm STARTED, so the device wasn't called"
        return self.result(command, K.NOT_SENT, error_code="STARTED_UNCONFIRMED", error_message=why)

    def _late(self, command: CommandMessage) -> ResultMessage | None:
        if not self._clock.trusted:
            why = "this driver can't tell yet how old the message is: its clock and the center's disagree"
            return self.result(command, K.EXPIRED, error_code="CLOCK_UNSETTLED", error_message=why)
        now = self._clock.now()
        if now >= command.expire_at:
            why = "the deadline passed before the call"
            return self.result(command, K.EXPIRED, error_code="DEADLINE", error_message=why)
        if now >= command.start_by:
            why = "the start window passed before the call"
            return self.result(command, K.EXPIRED, error_code="START_WINDOW", error_message=why)
        return None

    def _admitted(self, command: CommandMessage) -> Call | ResultMessage:
        """The call and the time it has, or why it may not begin any more."""
        at = asyncio.get_running_loop().time()  # read first: a process that is stopped from here on loses that time
        late = self._late(command)
        if late is not None:
            return late
        left = min(command.start_by, command.expire_at) - self._clock.now()
        return Call(
            tenant_id=command.tenant_id,
            command_id=command.command_id,
            attempt=command.attempt,
            begin_by=at + left.total_seconds(),
            deadline=at + command.call_timeout,
            start_by=command.start_by,
            expire_at=command.expire_at,
        )

    async def _call(self, command: CommandMessage, call: Call) -> Outcome:
        bound = asyncio.timeout_at(call.deadline)
        try:
            async with bound:
                failpoints.hit("driver.calling")
                if command.type is CommandType.READ:
                    return await self._adapter.read(command.target, call)
                return await self._adapter.write(command.target, command.payload.value or "", call)
        except Exception as error:
            if bound.expired() and isinstance(error, TimeoutError):
                return Unknown("CALL_TIMEOUT", f"the call took longer than {command.call_timeout:g} s")
            log.exception("adapter.bug", commandId=command.command_id, attempt=command.attempt,
                          tenantId=command.tenant_id, laneKey=command.lane_key)  # fmt: skip
            return Unknown("ADAPTER_ERROR", f"the adapter failed: {type(error).__name__}: {error}")

    def _told(self, command: CommandMessage, outcome: Outcome) -> ResultMessage:
        match outcome:
            case Transmitted(ack_timeout=ack_timeout):
                return self.result(command, K.TRANSMITTED, ack_timeout=ack_timeout)
            case Accepted(operation=operation):
                return self.result(command, K.ACCEPTED, operation=operation)
            case Done(value=value):
                return self.result(command, K.SUCCESS, response_value=value)
            case Refused(code=code, message=message, retryable=retryable):
                return self._error(command, K.FAILED, code, message, retryable=retryable)
            case NotSent(code=code, message=message):
                return self._error(command, K.NOT_SENT, code, message)
            case Unknown(code=code, message=message):
                return self._error(command, K.UNKNOWN, code, message)
            case _:
                assert_never(outcome)

    def _error(
        self, command: CommandMessage, kind: ResultKind, code: str, message: str, *, retryable: bool = False
    ) -> ResultMessage:
        return self.result(command, kind, error_code=code, error_message=cut(message), retryable=retryable)
