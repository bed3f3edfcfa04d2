"""Reading profiles: those shipped with Laneway, and those of a directory."""

from collections.abc import Hashable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from laneway_shared.errors import ProfileError
from laneway_shared.profiles.model import Profile

SUFFIX = ".yaml"


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key stands once; the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", key_node.start_mark)
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep)


def parse_profile(text: str, file: str) -> Profile:
    """The profile in a YAML text; `file` is its name, for messages, and must be the profile's name.

    Raises:
        ProfileError: names the file, the field and what is wrong with it.
    """
    try:
        tree = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ProfileError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    try:
        profile = Profile.model_validate(tree)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'the document'}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False)
        )
        raise ProfileError(f"{file}: {faults}") from None
    except RecursionError:
        raise ProfileError(f"{file}: it refers to itself") from None
    if Path(file).name != profile.name + SUFFIX:
        raise ProfileError(f"{file}: name: {profile.name!r} belongs into a file {profile.name}{SUFFIX}")
    return profile


def load_profiles(directory: Path | None = None) -> dict[str, Profile]:
    """All profiles by name: the shipped ones, and those of `directory`, which win over shipped ones of that name.

    Raises:
        ProfileError: a profile isn't valid, or the directory can't be read.
    """
    profiles = {profile.name: profile for profile in shipped_profiles()}
    if directory is not None:
        try:
            files = sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
            texts = [(str(path), path.read_text(encoding="utf-8")) for path in files]
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"{directory}: profiles can't be read: {error}") from None
        profiles.update({profile.name: profile for profile in (parse_profile(text, file) for file, text in texts)})
    return profiles


def shipped_profiles() -> list[Profile]:
    """The profiles that come with Laneway, by name."""
    folder = resources.files(__package__ or "laneway_shared.profiles") / "data"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(SUFFIX)), key=lambda file: file.name)
    return [parse_profile(file.read_text(encoding="utf-8"), file.name) for file in files]


def choose(profiles: Mapping[str, Profile], names: Iterable[str]) -> dict[str, Profile]:
    """The named ones among `profiles`; all of them when no name is given.

    Raises:
        ProfileError: a name that no profile has.
    """
    wanted = list(names)
    unknown = [name for name in wanted if name not in profiles]
    if unknown:
        raise ProfileError(f"no profile {', '.join(map(repr, unknown))}; there are {', '.join(sorted(profiles))}")
    return {name: profiles[name] for name in wanted} if wanted else dict(profiles)
