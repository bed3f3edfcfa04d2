from collections.abc import Sequence

import pytest

from laneway_ack_listener import forwarding
from laneway_ack_listener.forwarding import Forwarder
from laneway_ack_listener.reading import SetAside
from laneway_shared.broker import Outcome, Outgoing
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import ResultMessage, decode_results
from laneway_shared.topology import Topology

RESULT = ResultMessage(status=ResultKind.SUCCESS, command_id="0190c3e2-0000-7000-8000-000000000001", device_sn="A100")
RUBBISH = SetAside(topic="ydlink/A100/up/ack", payload=b"rubbish", reason="not JSON")


class Rounds:
    """A publisher that gives these outcomes, one list per call."""

    def __init__(self, *rounds: list[Outcome]) -> None:
        self.sent: list[list[Outgoing]] = []
        self._rounds = list(rounds)

    async def publish(self, messages: Sequence[Outgoing], *, timeout_s: float | None = None) -> list[Outcome]:
        self.sent.append(list(messages))
        assert timeout_s is None
        outcomes = self._rounds.pop(0)
        assert len(outcomes) == len(messages)
        return outcomes


def forwarder(publisher: Rounds) -> Forwarder:
    return Forwarder(publisher, Topology(), "mqtt")


async def test_results_go_as_one_array_and_rubbish_as_it_came() -> None:
    publisher = Rounds([Outcome.CONFIRMED, Outcome.CONFIRMED])
    await forwarder(publisher).forward([RESULT, RUBBISH, RESULT])
    ((results, dead),) = publisher.sent
    assert (results.exchange, results.routing_key) == ("dc3.e.point_command_result", "dc3.r.point_command_result.mqtt")
    assert decode_results(results.body) == [RESULT, RESULT]
    assert (dead.exchange, dead.body) == ("dc3.e.point_command_dead", b"rubbish")
    assert dead.headers == {"x-laneway-reason": "not JSON", "x-laneway-queue": "mqtt:ydlink/A100/up/ack"}


@pytest.mark.parametrize("miss", [Outcome.UNKNOWN, Outcome.NOT_SENT, Outcome.UNROUTABLE])
async def test_it_returns_only_when_all_is_confirmed(miss: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "RETRY_FIRST_S", 0.001)
    publisher = Rounds([miss, miss], [miss, Outcome.CONFIRMED], [miss], [Outcome.CONFIRMED])
    await forwarder(publisher).forward([RESULT, RUBBISH])
    assert [len(sent) for sent in publisher.sent] == [2, 2, 1, 1]
    assert publisher.sent[-1][0].exchange == "dc3.e.point_command_result"


async def test_an_empty_batch_sends_nothing() -> None:
    publisher = Rounds([])
    await forwarder(publisher).forward([])
    assert publisher.sent == [[]]
