from hypothesis import given
from hypothesis import strategies as st

from laneway_simulator.journal import Event, Journal

MANY = 1_000


def test_an_entry_as_json() -> None:
    journal = Journal(10)
    entry = journal.add(1_700_000_000.25, "A100", Event.EXECUTED, msg_id="c.2", point="lock", op="write", value="1")

    assert entry.document() == {
        "seq": 1,
        "at": "2023-11-14T22:13:20.250000Z",
        "epochMs": 1_700_000_000_250.0,
        "sn": "A100",
        "event": "executed",
        "msgId": "c.2",
        "commandId": "c",
        "attempt": 2,
        "point": "lock",
        "op": "write",
        "value": "1",
        "result": None,
        "detail": None,
    }


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from("ABC"), st.sampled_from(Event)), max_size=30),
    st.integers(0, 35),
    st.sampled_from([None, *Event]),
)
def test_the_newest_entries_are_kept_and_found_by_lock_kind_and_number(
    limit: int, happened: list[tuple[str, Event]], since: int, event: Event | None
) -> None:
    journal = Journal(limit)
    everything = [journal.add(0.0, sn, kind) for sn, kind in happened]
    kept = everything[-limit:]
    wanted = [entry for entry in kept if entry.seq > since and event in (None, entry.event)]

    assert len(journal) == len(kept)
    assert journal.cut_entries == len(everything) - len(kept)
    assert journal.of_all(event=event, since=since, limit=MANY) == wanted
    assert journal.of_all(event=event, since=since, limit=2) == wanted[:2]
    for sn in "ABC":
        own = [entry for entry in wanted if entry.sn == sn]
        assert journal.of_device(sn, event=event, since=since, limit=MANY) == own


def test_the_numbering_goes_on_after_a_clear() -> None:
    journal = Journal(1)
    journal.add(0.0, "A", Event.RECEIVED)
    journal.add(0.0, "A", Event.RECEIVED)
    journal.clear()

    assert (len(journal), journal.cut_entries, journal.last_seq) == (0, 0, 2)
    assert journal.of_all(limit=MANY) == journal.of_device("A", limit=MANY) == []
    assert journal.add(0.0, "A", Event.RECEIVED).seq == 3
    assert [entry.seq for entry in journal.of_all(since=2, limit=MANY)] == [3]
