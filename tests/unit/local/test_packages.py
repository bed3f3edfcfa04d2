from collections.abc import Iterable

import pytest

from laneway_local.errors import PackagesMissingError
from laneway_local.packages import Package, ensure


class Machine:
    """A machine with some packages; `offers` are those an installation brings."""

    def __init__(self, *, has: Iterable[str] = (), offers: Iterable[str] = (), may_install: bool = True) -> None:
        self.has = set(has)
        self.offers = set(offers)
        self.may_install = may_install
        self.asked: list[list[str]] = []

    def packages(self) -> list[Package]:
        return [
            Package(name="rabbit", needs="RabbitMQ 3.10 or newer", url="AMQP", is_there=lambda: "rabbit" in self.has),
            Package(name="postgres", needs="PostgreSQL 15 or newer", url="DB", is_there=lambda: "postgres" in self.has),
        ]

    def install(self, names: Iterable[str]) -> None:
        self.asked.append(list(names))
        if not self.may_install:
            raise PackagesMissingError(f"Missing packages; please run: sudo apt-get install -y {' '.join(names)}")
        self.has |= self.offers & set(names)


def test_nothing_is_installed_when_everything_is_there() -> None:
    machine = Machine(has=["rabbit", "postgres"])
    ensure({}, machine.packages(), machine.install)
    assert machine.asked == []


def test_only_what_is_missing_is_installed() -> None:
    machine = Machine(has=["rabbit"], offers=["rabbit", "postgres"])
    ensure({}, machine.packages(), machine.install)
    assert machine.asked == [["postgres"]]


def test_what_is_given_by_a_url_is_not_needed() -> None:
    machine = Machine(has=["rabbit"])
    ensure({"DB": "postgresql://elsewhere/laneway"}, machine.packages(), machine.install)
    assert machine.asked == []


def test_without_the_right_to_install_one_line_names_what_is_missing() -> None:
    machine = Machine(may_install=False)
    with pytest.raises(PackagesMissingError, match=r"^Missing packages; please run: .* rabbit postgres$"):
        ensure({}, machine.packages(), machine.install)
    assert len(machine.asked) == 1


def test_a_system_that_only_has_old_versions_is_told_to_give_a_url() -> None:
    machine = Machine(has=["rabbit"])
    with pytest.raises(PackagesMissingError, match=r"PostgreSQL 15 or newer; give DB instead"):
        ensure({}, machine.packages(), machine.install)
