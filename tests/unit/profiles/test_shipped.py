import pytest

from laneway_shared.profiles import Profile, example_faults, load_profiles, shipped_profiles


@pytest.mark.parametrize("profile", shipped_profiles(), ids=lambda profile: profile.name)
def test_a_shipped_profile_keeps_to_its_examples(profile: Profile) -> None:
    assert example_faults(profile) == []


@pytest.mark.parametrize("profile", shipped_profiles(), ids=lambda profile: profile.name)
def test_every_word_of_a_shipped_profile_has_an_example(profile: Profile) -> None:
    shown = {(e.expect.status, e.expect.code) for e in profile.examples.answers if e.expect}
    assert shown == {(word.status, word.code) for word in profile.ack.outcome.words.values()}


def test_an_example_that_comes_out_otherwise_is_told() -> None:
    lock = load_profiles()["ydlink-lock"]
    tree = lock.model_dump()
    tree["examples"]["commands"][0]["expect"]["topic"] = "elsewhere"
    tree["examples"]["answers"][0]["expect"]["attempt"] = 9
    tree["examples"]["answers"][-1]["unreadable"] = "another reason"
    faults = example_faults(Profile.model_validate(tree))
    assert [fault.split(":")[0] for fault in faults] == [
        "examples.commands.0",
        "examples.answers.0",
        f"examples.answers.{len(lock.examples.answers) - 1}",
    ]
