import asyncio

import pytest

from laneway_simulator import fleet as fleet_module
from laneway_simulator.faults import Behaviour, Course, FaultPlan
from laneway_simulator.journal import Event
from laneway_simulator.locks import POINT_LIMIT, Lock
from unit.simulator.stage import COMMAND, Stage, stage

RECEIVED, EXECUTED, ANSWERED, IGNORED = Event.RECEIVED, Event.EXECUTED, Event.ANSWERED, Event.IGNORED


def ask(at: Stage, sn: str, behaviour: Behaviour) -> None:
    lock = at.fleet.summon(sn)
    assert lock is not None
    lock.behaviour = behaviour


async def test_a_write_is_done_and_answered_with_the_value() -> None:
    async with stage() as at:
        at.tell("A100")
        await at.clock.run_dry()

        assert at.events("A100") == [(RECEIVED, None), (EXECUTED, None), (ANSWERED, None)]
        assert at.answers == [
            (1_000.1, "A100", {"msgId": f"{COMMAND}.1", "sn": "A100", "result": "ok", "value": "1", "reason": None})
        ]


async def test_a_read_reports_the_last_value_or_zero() -> None:
    async with stage() as at:
        at.tell("A100", 1, op="read", cmd="level", value=None)
        at.tell("A100", 2, cmd="level", value="70")
        at.tell("A100", 3, op="read", cmd="level", value=None)
        await at.clock.run_dry()

        assert [answer["value"] for _, _, answer in at.answers] == ["0", "70", "70"]


async def test_unlock_is_a_pulse() -> None:
    async with stage() as at:
        at.tell("A100", cmd="unlock")
        await at.clock.run_dry()
        lock = at.fleet.find("A100")
        assert lock is not None

        assert (EXECUTED, "opened") in at.events("A100")
        assert lock.opened == 1
        assert lock.value_of("unlock", at.clock.time) == "1"
        assert lock.value_of("unlock", at.clock.time + 5) == "0"


async def test_a_message_that_comes_twice_is_done_twice() -> None:
    async with stage() as at:
        at.tell("A100")
        at.tell("A100")
        await at.clock.run_dry()

        assert [event for event, _ in at.events("A100")].count(EXECUTED) == 2
        assert at.results() == ["ok", "ok"]


async def test_one_lock_does_one_thing_at_a_time_and_all_locks_work_at_once() -> None:
    async with stage() as at:
        for attempt in (1, 2, 3):
            for sn in ("A", "B", "C"):
                at.tell(sn, attempt)
        await at.clock.run_dry()

        for sn in ("A", "B", "C"):
            own = [(time, answer["msgId"]) for time, name, answer in at.answers if name == sn]
            assert [msg_id for _, msg_id in own] == [f"{COMMAND}.{n}" for n in (1, 2, 3)]
            assert [time for time, _ in own] == pytest.approx([1_000.1, 1_000.2, 1_000.3])
        lock = at.fleet.find("A")
        assert lock is not None
        assert not lock.at_work


@pytest.mark.parametrize(
    ("course", "events", "results"),
    [
        (Course.REFUSE, [RECEIVED, ANSWERED], ["refused"]),
        (Course.BUSY, [RECEIVED, ANSWERED], ["busy"]),
        (Course.SILENT_BEFORE, [RECEIVED, IGNORED], []),
        (Course.SILENT_AFTER, [RECEIVED, EXECUTED], []),
    ],
)
async def test_each_course_by_request(course: Course, events: list[Event], results: list[str]) -> None:
    async with stage() as at:
        ask(at, "A100", Behaviour(course=course, times=1))
        at.tell("A100", 1)
        await at.clock.run_dry()

        assert [event for event, _ in at.events("A100")] == events
        assert at.results() == results

        at.tell("A100", 2)  # back to normal
        await at.clock.run_dry()
        assert at.results() == [*results, "ok"]


@pytest.mark.parametrize(
    ("plan", "events"),
    [
        (FaultPlan(refuse=1.0), [RECEIVED, ANSWERED]),
        (FaultPlan(silent_after=1.0), [RECEIVED, EXECUTED]),
        (FaultPlan(duplicate_ack=1.0), [RECEIVED, EXECUTED, ANSWERED, ANSWERED]),
    ],
)
async def test_faults_by_plan(plan: FaultPlan, events: list[Event]) -> None:
    async with stage(plan) as at:
        at.tell("A100")
        await at.clock.run_dry()
        assert [event for event, _ in at.events("A100")] == events


async def test_a_late_answer_comes_after_the_one_of_the_next_command() -> None:
    async with stage() as at:
        ask(at, "A100", Behaviour(late_ack_ms=3_000, duplicate_ack=True, times=1))
        at.tell("A100", 1)
        at.tell("A100", 2)
        await at.clock.run_dry()

        assert [answer["msgId"] for _, _, answer in at.answers] == [f"{COMMAND}.{n}" for n in (2, 1, 1)]
        assert [time for time, _, _ in at.answers] == pytest.approx([1_000.2, 1_003.1, 1_003.1])
        assert at.events("A100")[-2:] == [(ANSWERED, "fault: late"), (ANSWERED, "fault: said twice")]


async def test_what_came_too_late_is_ignored() -> None:
    async with stage() as at:
        at.tell("A100", validUntil=999_999)
        await at.clock.run_dry()

        assert at.events("A100") == [(RECEIVED, None), (IGNORED, "validUntil had passed on arrival")]
        assert at.answers == []


async def test_what_waited_too_long_at_the_lock_is_ignored() -> None:
    async with stage() as at:
        at.tell("A100", 1)
        at.tell("A100", 2, validUntil=1_000_050)  # the lock works at the first until 1,000,100
        await at.clock.run_dry()

        assert at.events("A100")[-1] == (IGNORED, "validUntil passed while it waited at the lock")
        assert len(at.answers) == 1


async def test_rubbish_is_noted_and_answered_only_where_it_has_an_id() -> None:
    async with stage() as at:
        at.fleet.receive("A100", b"\x00rubbish")
        at.tell("B200", op="erase")
        await at.clock.run_dry()

        assert [event for event, _ in at.events("A100")] == [RECEIVED, IGNORED]
        assert "not JSON" in (at.events("A100")[1][1] or "")
        assert [event for event, _ in at.events("B200")] == [RECEIVED, IGNORED, ANSWERED]
        assert [(sn, answer["result"]) for _, sn, answer in at.answers] == [("B200", "invalid")]


async def test_impossible_names_and_too_many_locks_are_noted() -> None:
    async with stage(device_limit=1) as at:
        at.tell("A100")
        at.tell("B200")
        at.tell("ä" * 100)
        await at.clock.run_dry()

        assert len(at.fleet) == 1
        assert at.events("B200") == [(IGNORED, "there are too many locks already")]
        assert at.events("ä" * 64) == [(IGNORED, "no lock can have this name")]


async def test_a_lock_with_too_much_waiting_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "WAITING_LIMIT", 1)
    async with stage() as at:
        for attempt in (1, 2):
            at.tell("A100", attempt)
        await at.clock.run_dry()

        assert sorted(at.results()) == ["busy", "ok"]


async def test_a_lock_remembers_so_many_points_and_no_more() -> None:
    async with stage() as at:
        lock = at.fleet.summon("A100")
        assert lock is not None
        lock.set_by_hand({f"p{n}": "1" for n in range(POINT_LIMIT)})
        at.tell("A100", 1, cmd="new")
        at.tell("A100", 2, cmd="p0", value="2")
        await at.clock.run_dry()

        assert at.results() == ["invalid", "ok"]


async def test_an_answer_that_never_arrived_is_noted() -> None:
    async with stage() as at:
        at.broker_is_away = True
        at.tell("A100")
        await at.clock.run_dry()

        assert at.events("A100")[-2:] == [(ANSWERED, None), (IGNORED, "the answer was lost: away")]


async def test_an_answer_by_hand_goes_out_and_into_the_journal() -> None:
    async with stage() as at:
        await at.fleet.answer_by_hand("A100", b'{"msgId":"x.1"}')

        assert at.answers == [(1_000.0, "A100", {"msgId": "x.1"})]
        assert at.events("A100") == [(ANSWERED, "sent by hand")]


async def test_a_full_journal_is_cut_and_counts_stay_right() -> None:
    async with stage(journal_limit=4) as at:
        for attempt in (1, 2):
            at.tell("A100", attempt)
        await at.clock.run_dry()
        lock = at.fleet.find("A100")
        assert lock is not None

        assert (len(at.fleet.journal), at.fleet.journal.cut_entries) == (4, 2)
        assert lock.counts[RECEIVED] == 2
        at.fleet.clear_journal()
        assert lock.counts[RECEIVED] == 0


async def test_a_stopped_fleet_leaves_no_task() -> None:
    async with asyncio.timeout(5), stage() as at:
        ask(at, "A100", Behaviour(latency_ms=3_600_000))
        at.tell("A100")
        await at.clock.settle()
    # the stage's task group has ended although an hour of work was left
    assert [event for event, _ in at.events("A100")] == [RECEIVED]


def test_times_are_used_up_by_commands() -> None:
    lock = Lock("A100", behaviour=Behaviour(course=Course.REFUSE, times=2))

    assert [lock.decide(FaultPlan(), f"c.{n}").course for n in range(3)] == [Course.REFUSE, Course.REFUSE, Course.ACT]
    assert lock.behaviour is None
