"""The checker's rules, in the order in which they are reported."""

from laneway_center.verify.execution_rules import (
    expired_not_executed,
    in_window,
    order,
    strangers,
    success_executed,
    unsafe_once,
    withdrawn_not_executed,
)
from laneway_center.verify.facts import Facts
from laneway_center.verify.findings import Finding, Rule, Terms
from laneway_center.verify.lane_rules import held, intents, lane_order, withdrawn
from laneway_center.verify.timeline_rules import claimed_once, ended, lane_books, one_in_flight, transitions

RULES = (
    Rule(
        name="ended",
        means="Every accepted command is final, in review, or still within its bounds.",
        check=ended,
    ),
    Rule(
        name="order",
        means="In a lane nothing acts after a command that was dispatched later.",
        check=order,
        needs_journal=True,
    ),
    Rule(
        name="one_in_flight",
        means="At no time do two commands hold a lane.",
        check=one_in_flight,
    ),
    Rule(
        name="unsafe_once",
        means="No unsafe command is executed twice, unless an operator sent it again.",
        check=unsafe_once,
        needs_journal=True,
    ),
    Rule(
        name="in_window",
        means="No attempt acts after its start window and call, or without a claim.",
        check=in_window,
        needs_journal=True,
    ),
    Rule(
        name="success_executed",
        means="What is reported as SUCCESS was executed.",
        check=success_executed,
        needs_journal=True,
    ),
    Rule(
        name="expired_not_executed",
        means="What is reported as EXPIRED was never executed.",
        check=expired_not_executed,
        needs_journal=True,
    ),
    Rule(
        name="withdrawn_not_executed",
        means="What was cancelled or superseded is not executed after that.",
        check=withdrawn_not_executed,
        needs_journal=True,
    ),
    Rule(
        name="transitions",
        means="Every change of state is an allowed one and follows from the one before.",
        check=transitions,
    ),
    Rule(
        name="lane_books",
        means="Depth, holder, state and holds of each lane agree with its commands.",
        check=lane_books,
    ),
    Rule(
        name="lane_order",
        means="No command is claimed past one that is as urgent and waits longer.",
        check=lane_order,
    ),
    Rule(
        name="held",
        means="Nothing is claimed in a lane that an operator or a review holds.",
        check=held,
    ),
    Rule(
        name="intents",
        means="Nothing waits on behind or after what supersedes it by its intent.",
        check=intents,
    ),
    Rule(
        name="withdrawn",
        means="A command is superseded for a newer one only, and dropped if it is safe.",
        check=withdrawn,
    ),
    Rule(
        name="claimed_once",
        means="Attempts are numbered without gap, each claimed once; lane tokens grow.",
        check=claimed_once,
    ),
    Rule(
        name="stranger",
        means="Devices execute no commands that the database doesn't have.",
        check=strangers,
        needs_journal=True,
    ),
)


def judged(rule: Rule, facts: Facts, terms: Terms) -> list[Finding] | None:
    """What one rule finds; None: it needs a journal and none was given."""
    return None if rule.needs_journal and not facts.journals else list(rule.check(facts, terms))


def check(facts: Facts, terms: Terms) -> dict[str, list[Finding] | None]:
    """Findings of all rules by name."""
    return {rule.name: judged(rule, facts, terms) for rule in RULES}
