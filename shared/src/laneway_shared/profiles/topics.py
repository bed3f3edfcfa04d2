"""MQTT topic filters: whether one is valid, and which topics it covers."""

TOPIC_LIMIT = 65_535  # bytes of UTF-8, by the MQTT standard


def filter_fault(topic_filter: str) -> str | None:
    """What is wrong with a filter, or None."""
    if not topic_filter or "\x00" in topic_filter or len(topic_filter.encode(errors="replace")) > TOPIC_LIMIT:
        return "a topic filter has 1 to 65,535 bytes and no NUL"
    segments = topic_filter.split("/")
    if any("#" in segment for segment in segments[:-1]) or ("#" in segments[-1] and segments[-1] != "#"):
        return f"{topic_filter!r}: # stands alone and last"
    if any("+" in segment and segment != "+" for segment in segments):
        return f"{topic_filter!r}: + stands alone between slashes"
    if segments[0].startswith("$"):
        return f"{topic_filter!r}: topics of the broker and shared subscriptions ($…) are not for answers"
    return None


def covers(topic_filter: str, topic: str) -> bool:
    """Whether the filter matches the topic."""
    if topic.startswith("$"):
        return False
    wanted, given = topic_filter.split("/"), topic.split("/")
    for position, segment in enumerate(wanted):
        if segment == "#":
            return True
        if position >= len(given) or segment not in ("+", given[position]):
            return False
    return len(wanted) == len(given)
