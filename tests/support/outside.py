"""What is around the center in a history: a broker, two driver instances and devices, which do whatever their rules
allow, in any order. They keep the promises of docs/lifecycle.md; what they do is asserted where it happens.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from laneway_center.store.locked_rows import Subject
from laneway_shared.judgement import Evidence
from laneway_shared.lifecycle import LETTER_DELIVERY_LIMIT, LETTER_EXPIRED, LETTER_REJECTED, ResultKind

K = ResultKind
INSTANCES = (0, 1)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device, in a lane of its own or in one it shares.

    `echo` says what its answers name: "all" command and attempt, "command" no attempt, "nothing" only itself.
    About a "wild" one anything at all may be said.
    """

    number: int
    retry: str
    review_policy: str
    echo: str
    depth_limit: int | None = None
    on_full: str | None = None

    @property
    def sn(self) -> str:
        """Its serial number."""
        return f"SN{self.number}"


@dataclass(eq=False, kw_only=True)
class Flight:
    """An attempt on its way, as its message tells."""

    device: Device
    lane: str
    pk: int
    command_id: str
    attempt: int
    token: int
    unsafe: bool
    gate: str
    ack_expected: bool
    start_by: datetime
    acts_until: datetime

    @property
    def exact(self) -> bool:
        """Whether no answer can be taken for another attempt's: such answers never count for an unsafe command."""
        return self.device.echo == "all" or (self.device.echo == "nothing" and self.unsafe)

    @property
    def keeps_lane(self) -> bool:
        """Whether nothing else of its lane goes on before its device has answered."""
        return self.gate == "ack" and self.ack_expected

    def __str__(self) -> str:
        return f"{self.pk}.{self.attempt}"


@dataclass(eq=False)
class Task:
    """A flight in the hands of a driver instance. `attached`: its delivery hasn't gone back to the broker."""

    flight: Flight
    instance: int
    stage: str = "taken"  # then started, called
    attached: bool = True


@dataclass(frozen=True, kw_only=True)
class Message:
    """Evidence on the road back."""

    subject: Subject
    evidence: Evidence

    def __str__(self) -> str:
        said = self.evidence
        return " ".join(str(part) for part in (said.kind, said.attempt, said.reason) if part is not None)


@dataclass
class Acts:
    """What really happened, which the center can't see."""

    calls: list[Flight] = field(default_factory=list)
    executed_at: list[tuple[Flight, datetime]] = field(default_factory=list)
    refused: list[Flight] = field(default_factory=list)  # by the device, for certain
    sent_again: dict[str, int] = field(default_factory=dict)  # by an operator
    resolved: set[str] = field(default_factory=set)

    @property
    def executions(self) -> list[Flight]:
        """What devices did, in order."""
        return [flight for flight, _ in self.executed_at]

    def executed(self, command_id: str) -> int:
        """How often the device did it."""
        return sum(flight.command_id == command_id for flight in self.executions)

    def doubtful(self, command_id: str) -> int:
        """How often the device was called and didn't refuse: so often it may have acted."""
        return sum(flight.command_id == command_id for flight in self.calls if flight not in self.refused)


class Action(NamedTuple):
    """Something that may happen now, and how often compared with the others."""

    weight: int
    label: str
    act: Callable[[], Awaitable[None]]


def say(flight: Flight, kind: ResultKind, *, by_device: bool = False, **said: Any) -> Message:
    """A result about a flight, as far as its author can name it."""
    echo = flight.device.echo if by_device else "all"
    named = None if echo == "nothing" else flight.command_id
    return Message(
        subject=Subject(command_id=named, device_sn=flight.device.sn),
        evidence=Evidence(kind=kind, attempt=flight.attempt if echo == "all" else None, **said),
    )


class Outside:
    """Dispatchers' hands, broker, driver instances, devices."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime],
        confirm: Callable[[Flight], Awaitable[None]],
        row: Callable[[Flight], Awaitable[tuple[str, int]]],
    ) -> None:
        self._clock, self._confirm, self._row = clock, confirm, row
        self.acts = Acts()
        self.claimed: list[Flight] = []  # in the hands of a dispatcher, not published
        self.published: list[Flight] = []  # not marked SENT yet
        self.queue: list[tuple[Flight, bool]] = []  # with: redelivered
        self.tasks: list[Task] = []
        self.tokens: dict[tuple[int, str], int] = {}  # newest by instance and lane
        self.inbox: list[Flight] = []  # calls on which the device may still act
        self.answers: list[tuple[Flight, Message]] = []  # of devices, not yet on the road
        self.answered: dict[tuple[int, int], datetime] = {}  # when each attempt's exact answer came on the road
        self.road: list[Message] = []  # the result queue

    def dispatch(self, flight: Flight) -> None:
        """Give a claimed attempt into a dispatcher's hands."""
        doubtful, again = self.acts.doubtful(flight.command_id), self.acts.sent_again.get(flight.command_id, 0)
        assert not flight.unsafe or doubtful <= again, f"unsafe {flight} is claimed though it may have acted"
        self.claimed.append(flight)

    def actions(self) -> list[Action]:
        """Whatever may happen outside the center now."""
        possible: list[Action] = []
        for flight in self.claimed:
            possible += self._of_a_claim(flight)
        for flight, redelivered in self.queue:
            possible += self._of_a_message(flight, redelivered)
        for task in self.tasks:
            possible += self._of_a_task(task)
        for flight in self.inbox:
            possible += self._of_a_call(flight)
        for flight, answer in self.answers:
            possible += self._of_an_answer(flight, answer)
        for flight in self.published:
            possible += self._of_a_confirm(flight)
        for instance in sorted({task.instance for task in self.tasks}):
            possible.append(Action(1, f"driver {instance} dies", partial(self._driver_dies, instance)))
        return possible

    # ----------------------------------------------------------------------- dispatcher, broker
    def _of_a_claim(self, flight: Flight) -> list[Action]:
        async def publish(*, confirmed: bool = True, arrives: bool = True) -> None:
            self.claimed.remove(flight)
            if arrives:
                self.queue.append((flight, False))
            if confirmed:
                self.published.append(flight)

        async def unsent(kind: ResultKind) -> None:
            self.claimed.remove(flight)
            self.road.append(say(flight, kind))

        lost = partial(publish, confirmed=False)
        return [
            Action(8, f"publish {flight}", publish),
            Action(1, f"publish {flight}, its confirm is lost", lost),
            Action(1, f"the dispatcher of {flight} dies", partial(lost, arrives=False)),
            Action(1, f"broker away for {flight}", partial(unsent, K.RELEASED)),
            Action(1, f"no queue for {flight}", partial(unsent, K.NOT_SENT)),
        ]

    def _of_a_confirm(self, flight: Flight) -> list[Action]:
        async def marks(*, stays: bool = False) -> None:
            if not stays:
                self.published.remove(flight)
            await self._confirm(flight)

        again = partial(marks, stays=True)
        return [Action(2, f"confirm {flight}", marks), Action(1, f"confirm {flight}, and once more later", again)]

    def _of_a_message(self, flight: Flight, redelivered: bool) -> list[Action]:
        async def take(instance: int) -> None:
            self.queue.remove((flight, redelivered))
            if not redelivered:
                self.tasks.append(Task(flight, instance))
            elif any(task.flight is flight and task.instance == instance for task in self.tasks):
                self.road.append(say(flight, K.DUPLICATE))
            else:
                self.road.append(say(flight, K.REDELIVERED))

        async def letter(reason: str) -> None:
            self.queue.remove((flight, redelivered))
            self.road.append(say(flight, K.LETTER, reason=reason))

        copy = "a copy of " if redelivered else ""
        possible = [Action(4, f"driver {i} takes {copy}{flight}", partial(take, i)) for i in INSTANCES]
        if self._clock() >= flight.start_by:
            possible.append(Action(2, f"letter {copy}{flight} expired", partial(letter, LETTER_EXPIRED)))
        reason = LETTER_DELIVERY_LIMIT if redelivered else LETTER_REJECTED
        return [*possible, Action(3 if redelivered else 1, f"letter {copy}{flight} {reason}", partial(letter, reason))]

    # -------------------------------------------------------------------------------- drivers
    def _of_a_task(self, task: Task) -> list[Action]:
        flight = task.flight
        possible: list[Action] = []

        async def ends(kind: ResultKind, **said: Any) -> None:
            self.tasks.remove(task)
            self.road.append(say(flight, kind, **said))

        async def connection_lost() -> None:
            task.attached = False
            self.queue.append((flight, True))
            if task.stage == "taken":
                self.tasks.remove(task)

        if task.stage == "taken":
            rivals = [t for t in self.tasks if t.instance == task.instance and t.flight.device is flight.device]
            if all(t.stage == "taken" for t in rivals):  # the device lock is free
                possible.append(Action(8, f"begin {flight}", partial(self._begin, task)))
                if flight.unsafe:
                    unconfirmed = partial(self._begin, task, confirmed=False)
                    possible.append(Action(1, f"begin {flight}, but STARTED isn't confirmed", unconfirmed))
            possible.append(Action(1, f"driver drains {flight}", partial(ends, K.RELEASED)))
        elif task.stage == "started":
            possible.append(Action(8, f"call {flight}", partial(self._call, task)))
            possible.append(Action(1, f"couldn't call for {flight}", partial(ends, K.NOT_SENT)))
        else:
            patience = timedelta(seconds=2)
            possible.append(Action(4, f"TRANSMITTED {flight}", partial(ends, K.TRANSMITTED)))
            possible.append(Action(1, f"ACCEPTED {flight}", partial(ends, K.ACCEPTED, ack_timeout=patience)))
            possible.append(Action(2, f"UNKNOWN {flight}", partial(ends, K.UNKNOWN)))
        if task.attached:
            possible.append(Action(1, f"connection of {flight} lost", connection_lost))
        return possible

    async def _begin(self, task: Task, *, confirmed: bool = True) -> None:
        flight, place = task.flight, (task.instance, task.flight.lane)
        answer = None
        if flight.token < self.tokens.get(place, 0):
            answer = K.STALE
        elif self._clock() >= flight.start_by:
            answer = K.EXPIRED
        self.tokens[place] = max(flight.token, self.tokens.get(place, 0))
        if answer is None and flight.unsafe:
            self.road.append(say(flight, K.STARTED))
            answer = None if confirmed else K.NOT_SENT
        if answer is None:
            task.stage = "started"
        else:
            self.tasks.remove(task)
            self.road.append(say(flight, answer))

    async def _call(self, task: Task) -> None:
        flight = task.flight
        if self._clock() >= flight.start_by:
            self.tasks.remove(task)
            self.road.append(say(flight, K.EXPIRED))
            return
        later = self._overtakers(self.acts.calls, flight)
        assert not flight.exact or later == [], f"{flight} is called after {later[0]}"
        await self._expect_in_flight(flight)
        task.stage = "called"
        self.acts.calls.append(flight)
        self.inbox.append(flight)

    async def _driver_dies(self, instance: int) -> None:
        for task in [each for each in self.tasks if each.instance == instance]:
            self.tasks.remove(task)
            if task.attached:
                self.queue.append((task.flight, True))
        self.tokens = {place: token for place, token in self.tokens.items() if place[0] != instance}

    # -------------------------------------------------------------------------------- devices
    def _of_a_call(self, flight: Flight) -> list[Action]:
        async def ends(answer: Message | None, *, acts: bool = False) -> None:
            self.inbox.remove(flight)
            if acts:
                await self._execute(flight)
            if answer is not None:
                self.answers.append((flight, answer))
            if answer in (no, not_now):
                self.acts.refused.append(flight)

        no, not_now = (say(flight, K.FAILED, by_device=True, retryable=again) for again in (False, True))
        lost = Action(1, f"{flight} is lost before the device", partial(ends, None))
        if self._clock() >= flight.acts_until:
            return [lost]
        done = say(flight, K.SUCCESS, by_device=True, response_value="1")
        return [
            Action(6, f"device executes {flight}", partial(ends, done, acts=True)),
            Action(1, f"device executes {flight} in silence", partial(ends, None, acts=True)),
            Action(1, f"device refuses {flight}", partial(ends, no)),
            Action(1, f"device refuses {flight} for now", partial(ends, not_now)),
            lost,
        ]

    def _of_an_answer(self, flight: Flight, answer: Message) -> list[Action]:
        async def arrives(*, times: int = 1, stays: bool = False) -> None:
            if not stays:
                self.answers.remove((flight, answer))
            self.road += [answer] * times
            if times and flight.device.echo == "all":
                self.answered.setdefault((flight.pk, flight.attempt), self._clock())

        return [
            Action(6, f"answer {answer} arrives", arrives),
            Action(1, f"answer {answer} arrives, and will again", partial(arrives, stays=True)),
            Action(1, f"answer {answer} is lost", partial(arrives, times=0)),
        ]

    async def _execute(self, flight: Flight) -> None:
        acts = self.acts
        if flight.unsafe:
            allowed = 1 + acts.sent_again.get(flight.command_id, 0)
            assert acts.executed(flight.command_id) < allowed, f"unsafe {flight} is executed twice"
        if flight.keeps_lane:
            later = self._overtakers(acts.executions, flight)
            assert not flight.exact or later == [], f"{flight} is executed after {later[0]}"
            await self._expect_in_flight(flight)
        acts.executed_at.append((flight, self._clock()))

    def _overtakers(self, done: list[Flight], flight: Flight) -> list[Flight]:
        """What was dispatched later and done before: at its device, or in its lane if it keeps that until the end."""
        return [
            each
            for each in done
            if each.token > flight.token
            and (each.device is flight.device or (each.lane == flight.lane and flight.keeps_lane))
        ]

    async def _expect_in_flight(self, flight: Flight) -> None:
        """While the device may act the center keeps the attempt in flight (if answers say which one they are about)."""
        if flight.exact:
            status, attempt = await self._row(flight)
            assert attempt == flight.attempt, f"{flight} acts while attempt {attempt} exists"
            assert status in ("DISPATCHING", "SENT", "AWAITING_ACK"), f"{flight} acts while it is {status}"
