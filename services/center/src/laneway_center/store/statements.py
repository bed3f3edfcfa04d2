"""Loads the .sql files of this package: `SQL["enqueue"]` is the statement of that name."""

import re
from importlib.resources import files

from sqlalchemy import Table, TextClause, text

from laneway_center.store.tables import point_command, point_command_event

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def _columns(table: Table) -> str:
    return ", ".join(column.name for column in table.columns)


# Of a lane l, with clock and :ageing_s: the waiting command whose turn it is, if there is one that may go now.
_HEAD = """
(SELECT c.id, c.status, c.expire_at, c.tenant_id, c.device_id, c.point_id, c.ack_expected
 FROM point_command c
 WHERE c.id = l.holder_id AND c.status IN ('PENDING', 'RETRY_WAIT') AND c.expire_at > clock.at
   AND (c.next_visible_at IS NULL OR c.next_visible_at <= clock.at))
UNION ALL
(SELECT f.id, f.status, f.expire_at, f.tenant_id, f.device_id, f.point_id, f.ack_expected
 FROM (SELECT level FROM generate_series(0, l.last_priority) AS level LIMIT 10) s CROSS JOIN LATERAL (
   SELECT c.id, c.status, c.expire_at, c.tenant_id, c.device_id, c.point_id, c.ack_expected, c.priority, c.seq,
          c.update_time
   FROM point_command c
   WHERE c.lane_id = l.lane_id AND c.priority = s.level AND c.status IN ('PENDING', 'RETRY_WAIT')
     AND c.expire_at > clock.at AND (c.next_visible_at IS NULL OR c.next_visible_at <= clock.at)
   ORDER BY c.seq LIMIT 1) f
 WHERE l.holder_id IS NULL
 ORDER BY GREATEST(0, f.priority - floor(EXTRACT(epoch FROM clock.at - f.update_time) / :ageing_s)), f.seq LIMIT 1)
"""
# Of a lane l: what whoever locks it needs to know.
_LANE_COLUMNS = (
    "l.lane_id, l.tenant_id, l.lane_key, l.state, l.ready_at, l.depth, l.holder_id, l.next_seq, l.review_holds,"
    " l.last_priority, l.placement, l.driver"
)
_PARTS = {
    "{command_columns}": _columns(point_command),
    "{event_columns}": _columns(point_command_event),
    "{lane_columns}": _LANE_COLUMNS,
    "{head}": _HEAD,
}
"""What a statement may say instead of naming each column of a table, or a rule, so that it stands once."""


def _load(source: str) -> dict[str, TextClause]:
    for name, part in _PARTS.items():
        source = source.replace(name, part)
    parts = _NAME.split(source)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {name: text(_without_comments(body).rstrip().rstrip(";")) for name, body in pairs}


def _without_comments(body: str) -> str:
    return "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--"))


SQL = {
    name: statement
    for file in sorted(files(__package__).iterdir(), key=lambda each: each.name)
    if file.name.endswith(".sql")
    for name, statement in _load(file.read_text(encoding="utf-8")).items()
}
