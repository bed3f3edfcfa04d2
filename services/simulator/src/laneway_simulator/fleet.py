"""All locks at work: each does one thing at a time, all of them at once.

A lock without work is a few objects in a dictionary; only a lock at work has a task. There is no
deduplication: a message that comes twice is done twice, and the journal shows it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Protocol

import structlog

from laneway_simulator.faults import Course, Decision, FaultPlan
from laneway_simulator.journal import Event, Journal
from laneway_simulator.locks import Lock, MemoryFullError
from laneway_simulator.protocol import Command, UnfitCommandError, encode_ack, is_sn, parse_command

_log = structlog.get_logger()
WAITING_LIMIT = 10_000  # commands waiting at one lock; further ones are answered `busy`
_SHOWN_SN = 64  # characters of an impossible name in the journal


class Clock(Protocol):
    """Time, handed in so that tests own it."""

    def now(self) -> float:
        """Epoch seconds."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


Send = Callable[[str, bytes], Awaitable[None]]
"""Sends (sn, payload) as that lock's answer; returns when the broker has it, AnswerLostError if it never will."""


class AnswerLostError(Exception):
    """The broker didn't take the answer for too long."""


class Fleet:
    """The locks of one process. `receive` may be called as fast as messages come."""

    def __init__(
        self,
        *,
        plan: FaultPlan,
        journal: Journal,
        clock: Clock,
        send: Send,
        tasks: asyncio.TaskGroup,
        device_limit: int,
    ) -> None:
        self.journal = journal
        self._plan = plan
        self._clock = clock
        self._send = send
        self._tasks = tasks
        self._device_limit = device_limit
        self._locks: dict[str, Lock] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._cut_said = False

    def __len__(self) -> int:
        return len(self._locks)

    def __iter__(self) -> Iterator[Lock]:
        return iter(self._locks.values())

    def find(self, sn: str) -> Lock | None:
        """The lock, if there is one by that name."""
        return self._locks.get(sn)

    def summon(self, sn: str) -> Lock | None:
        """The lock by that name, made if need be; None when there are too many already."""
        lock = self._locks.get(sn)
        if lock is None and len(self._locks) < self._device_limit:
            lock = self._locks[sn] = Lock(sn)
        return lock

    def now(self) -> float:
        """The locks' clock, epoch seconds."""
        return self._clock.now()

    def receive(self, sn: str, payload: bytes) -> None:
        """A message has reached the lock `sn`."""
        lock = self.summon(sn) if is_sn(sn) else None
        if lock is None:
            why = "there are too many locks already" if is_sn(sn) else "no lock can have this name"
            self._note(sn[:_SHOWN_SN], Event.IGNORED, detail=why)
            return
        try:
            command = parse_command(payload)
        except UnfitCommandError as unfit:
            self._turn_down(lock, unfit)
            return
        self._of(lock, Event.RECEIVED, command)
        if self._is_stale(command):
            self._of(lock, Event.IGNORED, command, detail="validUntil had passed on arrival")
        elif len(lock.waiting) >= WAITING_LIMIT:
            self._spawn(self._answer(lock, command, "busy", Decision(), reason="too much waiting"))
        else:
            lock.waiting.append(command)
            if not lock.at_work:
                lock.at_work = True
                self._spawn(self._work(lock))

    async def answer_by_hand(self, sn: str, payload: bytes) -> None:
        """Send this on the lock's answer topic as if the lock had.

        Raises:
            AnswerLostError: the broker is away.
        """
        lock = self.find(sn)
        if lock is not None:
            lock.counts[Event.ANSWERED] += 1
        self._note(sn, Event.ANSWERED, value=payload[:1024].decode(errors="replace"), detail="sent by hand")
        await self._send(sn, payload)

    def clear_journal(self) -> None:
        """Empty the journal and the counts of every lock."""
        self.journal.clear()
        self._cut_said = False
        for lock in self:
            lock.counts.clear()

    def stop(self) -> None:
        """Drop whatever the locks are doing."""
        for task in self._running:
            task.cancel()

    # ------------------------------------------------------------------ a lock at work
    async def _work(self, lock: Lock) -> None:
        """Do what waits, one after the other; nothing can slip in between the last look and the end."""
        try:
            while lock.waiting:
                await self._do(lock, lock.waiting.popleft())
        finally:
            lock.at_work = False

    async def _do(self, lock: Lock, command: Command) -> None:
        if self._is_stale(command):
            self._of(lock, Event.IGNORED, command, detail="validUntil passed while it waited at the lock")
            return
        decision = lock.decide(self._plan, command.msg_id)
        if decision.course is Course.BUSY:
            await self._answer(lock, command, "busy", decision, reason="busy")
            return
        if decision.latency_ms:
            await self._clock.sleep(decision.latency_ms / 1000)
        if decision.course is Course.SILENT_BEFORE:
            self._of(lock, Event.IGNORED, command, detail="fault: silent before acting")
        elif decision.course is Course.REFUSE:
            await self._answer(lock, command, "refused", decision, reason="refused by the lock")
        else:
            await self._execute(lock, command, decision)

    async def _execute(self, lock: Lock, command: Command, decision: Decision) -> None:
        try:
            value, remark = lock.act(command, self._clock.now())
        except MemoryFullError:
            await self._answer(lock, command, "invalid", decision, reason="the lock remembers no more points")
            return
        silent = decision.course is Course.SILENT_AFTER
        remarks = [text for text in (remark, "fault: silent after acting" if silent else None) if text]
        self._of(lock, Event.EXECUTED, command, value=value, detail="; ".join(remarks) or None)
        if silent:
            return
        if decision.late_ack_ms:
            # the lock is free meanwhile: a late answer may come after the next one
            self._spawn(self._answer_later(lock, command, value, decision))
        else:
            await self._answer(lock, command, "ok", decision, value=value)

    async def _answer_later(self, lock: Lock, command: Command, value: str, decision: Decision) -> None:
        await self._clock.sleep(decision.late_ack_ms / 1000)
        await self._answer(lock, command, "ok", decision, value=value, remark="fault: late")

    async def _answer(
        self,
        lock: Lock,
        command: Command,
        result: str,
        decision: Decision,
        *,
        value: str | None = None,
        reason: str | None = None,
        remark: str | None = None,
    ) -> None:
        payload = encode_ack(lock.sn, command.msg_id, result, value, reason)
        for copy in range(2 if decision.duplicate_ack else 1):
            detail = "fault: said twice" if copy else remark or reason
            # written before it is sent: whoever sees the answer finds it in the journal
            self._of(lock, Event.ANSWERED, command, value=value, result=result, detail=detail)
            try:
                await self._send(lock.sn, payload)
            except AnswerLostError as lost:
                self._of(lock, Event.IGNORED, command, result=result, detail=f"the answer was lost: {lost}")

    def _turn_down(self, lock: Lock, unfit: UnfitCommandError) -> None:
        """Rubbish is noted; where it has a message id the lock says that it is invalid."""
        for event, detail in ((Event.RECEIVED, None), (Event.IGNORED, unfit.reason)):
            lock.counts[event] += 1
            self._note(lock.sn, event, msg_id=unfit.msg_id, detail=detail)
        if unfit.msg_id is not None:
            command = Command(unfit.msg_id, "", "", None, None)
            self._spawn(self._answer(lock, command, "invalid", Decision(), reason=unfit.reason))

    # ------------------------------------------------------------------------- bookkeeping
    def _is_stale(self, command: Command) -> bool:
        return command.valid_until is not None and self._clock.now() * 1000 > command.valid_until

    def _of(
        self,
        lock: Lock,
        event: Event,
        command: Command,
        *,
        value: str | None = None,
        result: str | None = None,
        detail: str | None = None,
    ) -> None:
        lock.counts[event] += 1
        self._note(
            lock.sn,
            event,
            msg_id=command.msg_id,
            point=command.point or None,
            op=command.op or None,
            value=command.value if value is None else value,
            result=result,
            detail=detail,
        )

    def _note(self, sn: str, event: Event, **facts: str | None) -> None:
        self.journal.add(self._clock.now(), sn, event, **facts)
        if self.journal.cut_entries and not self._cut_said:
            self._cut_said = True
            _log.warning("journal.full", limit=self.journal.limit, advice="the oldest entries are cut")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
