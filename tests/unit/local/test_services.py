from laneway_local.services import all_services, by_name


def test_every_service_of_a_large_stack_is_found_by_its_name() -> None:
    everything = all_services(centers=3, drivers=2)
    names = [service.name for service in everything]
    assert len(set(names)) == len(names) == 9
    assert [by_name(name) for name in names] == list(everything)


def test_only_the_first_center_is_the_api_of_the_stack() -> None:
    urls = [service.url for service in all_services(centers=2) if service.url]
    assert sorted(urls) == ["LANEWAY_API_URL", "LANEWAY_SIMULATOR_URL"]


def test_replicas_of_a_driver_share_its_service() -> None:
    services = [service.settings["LANEWAY_SERVICE"] for service in all_services(drivers=2) if "driver" in service.name]
    assert services == ["virtual", "virtual", "mqtt", "mqtt"]


def test_unknown_names_are_nothing() -> None:
    assert by_name("centre") is None
    assert by_name("") is None
    assert by_name("simulator-2") is None
