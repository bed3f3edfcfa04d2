"""The alerting rules name metrics that exist."""

import re
from pathlib import Path

import yaml
from prometheus_client import REGISTRY

import laneway_center.metrics  # registers them

RULES = Path(__file__).parents[2] / "infra" / "prometheus" / "alerts.yaml"


def test_every_metric_in_a_rule_is_one_that_the_center_shows() -> None:
    assert laneway_center.metrics.CLOCK_OFFSET
    shown = {sample.name for family in REGISTRY.collect() for sample in family.samples}
    shown |= {f"{family.name}{end}" for family in REGISTRY.collect() for end in ("", "_total")}
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {"LanewayClockSkew", "LanewayStuckInFlight"} <= {rule["alert"] for rule in rules}
    for rule in rules:
        named = set(re.findall(r"\blaneway_\w+", rule["expr"]))
        assert named
        assert named <= shown, f"{rule['alert']} names {named - shown}"
        assert rule["annotations"]["action"], "says what to do"
