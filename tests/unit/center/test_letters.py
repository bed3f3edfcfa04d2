from laneway_center.store.letters import Letter


def letter(**headers: object) -> Letter:
    return Letter(body=b"x", queue="q", routing_key="k", reason="expired", headers=headers)


def test_a_letter_delivered_again_is_the_same_letter() -> None:
    """RabbitMQ counts deliveries in a header: stored, not acked, and delivered again, it was kept twice."""
    assert letter(trace="1").hash == letter(trace="1", **{"x-delivery-count": 2}).hash
    assert letter(trace="1").hash != letter(trace="2").hash
