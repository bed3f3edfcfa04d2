from pathlib import Path

import pytest
import yaml

from laneway_shared.errors import ProfileError
from laneway_shared.profiles import Profile, choose, load_profiles, parse_profile


def written(profile: Profile) -> str:
    return yaml.safe_dump(profile.model_dump(), sort_keys=False)


def test_a_profile_survives_being_written_and_read(lock: Profile) -> None:
    assert parse_profile(written(lock), "ydlink-lock.yaml") == lock


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("qos: 0", "qos: 2", "command.qos"),
        ("title: ", "titel: ", "titel: Extra inputs are not permitted"),
        ("topic: ydlink/{sn}/down", "topic: ydlink/+/down", "command.topic"),
        ("topic: ydlink/{sn}/down", "topic: ydlink/{value}/down", "names {value}"),
        ("topic: ydlink/{sn}/down", "topic: ydlink/{sn!r}/down", "one variable's name"),
        ("topic: ydlink/{sn}/down", "topic: ydlink/{sn/down", "command.topic"),
        ("op: '{op}'", "op: '{operation}'", "names {operation}"),
        ("topic: ydlink/+/up/ack", "topic: ydlink/#/ack", "# stands alone and last"),
        ("topic: ydlink/+/up/ack", "topic: ydlink/A+/up/ack", "+ stands alone"),
        ("topic: ydlink/+/up/ack", "topic: ydlink/A100/up/ack", "is no wildcard"),
        ("topic: ydlink/+/up/ack", "topic: $share/g/ydlink/+/up/ack", "shared subscriptions"),
        ("pattern: '{commandId}.{attempt}'", "pattern: '{attempt}'", "{commandId} once"),
        ("source: payload", "source: topic", "source topic takes pattern, topic_segment"),
        ("timeout_s: 5.0", "timeout_s: 0", "ack.timeout_s"),
        ("timeout_s: 5.0", "timeout_s: .nan", "ack.timeout_s"),
        ("timeout_s: 5.0", "timeout_s: '5'", "ack.timeout_s"),
        ("status: FAILED", "status: BROKEN", "ack.outcome.words.refused.status"),
        ("code: DEVICE_REFUSED", "code: null", "FAILED has a code"),
        ("name: ydlink-lock", "name: other-lock", "belongs into a file other-lock.yaml"),
        ("qos: 0", "qos: 0\n  qos: 1", "stands twice"),
        ("name: ydlink-lock", "name: [", "not YAML"),
        ("name: ydlink-lock", "name: &a [*a]", "ydlink-lock.yaml"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_field(lock: Profile, old: str, new: str, said: str) -> None:
    text = written(lock)
    assert old in text
    with pytest.raises(ProfileError) as caught:
        parse_profile(text.replace(old, new, 1), "somewhere/ydlink-lock.yaml")
    assert caught.value.message.startswith("somewhere/ydlink-lock.yaml: ")
    assert said in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["", "[]", "17", "null", "\x00", "!!python/object:os.system {}"])
def test_a_document_that_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(ProfileError):
        parse_profile(text, "x.yaml")


def test_a_folder_adds_profiles_and_wins_over_shipped_ones(tmp_path: Path, lock: Profile) -> None:
    ours = lock.model_copy(update={"title": "ours"})
    other = lock.model_copy(update={"name": "other-lock"})
    for profile in (ours, other):
        (tmp_path / f"{profile.name}.yaml").write_text(written(profile))
    (tmp_path / "README.md").write_text("not a profile")
    profiles = load_profiles(tmp_path)
    assert profiles["ydlink-lock"].title == "ours"
    assert "other-lock" in profiles


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="can't be read"):
        load_profiles(tmp_path / "nowhere")


def test_choosing_nothing_is_choosing_all(lock: Profile) -> None:
    assert choose({"a": lock, "b": lock}, []) == {"a": lock, "b": lock}
    assert choose({"a": lock, "b": lock}, ["b"]) == {"b": lock}
    with pytest.raises(ProfileError, match="no profile 'c'; there are a, b"):
        choose({"a": lock, "b": lock}, ["c"])
