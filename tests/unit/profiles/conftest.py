from typing import Any

import pytest

from laneway_shared.profiles import Profile, load_profiles


@pytest.fixture(scope="session")
def lock() -> Profile:
    """The shipped lock."""
    return load_profiles()["ydlink-lock"]


class Changed:
    """The shipped lock with parts replaced: `changed(ack={"codec": "text"})` keeps the other fields."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def __call__(self, **parts: dict[str, Any]) -> Profile:
        tree = self._profile.model_dump()
        for part, fields in parts.items():
            tree[part] |= fields
        return Profile.model_validate(tree)


@pytest.fixture(scope="session")
def changed(lock: Profile) -> Changed:
    """Makes profiles."""
    return Changed(lock)
