"""A backlog of waiting commands, put straight into the tables as submits would have left them."""

from sqlalchemy import text

from bench.system import POINT, System
from support.stored import run

DRIVER = "virtual"
_STEPS = (
    """
    INSERT INTO driver (name) VALUES (:driver) ON CONFLICT DO NOTHING
    """,
    """
    INSERT INTO device (tenant_id, device_id, device_sn, driver, lane_key)
    SELECT 1, n, 'SN' || n, :driver, 'device:' || n FROM generate_series(1, :lanes) AS n
    """,
    """
    INSERT INTO point (tenant_id, device_id, point_id, name, access, value_type)
    SELECT 1, n, :point, 'volume', 'RW', 'int' FROM generate_series(1, :lanes) AS n
    """,
    """
    INSERT INTO lane (tenant_id, lane_key, driver, state, ready_at, next_seq, depth, last_priority)
    SELECT 1, 'device:' || n, :driver, 'ready', clock_timestamp(), count(*), count(*), 1
    FROM (SELECT 1 + (i - 1) % :lanes AS n FROM generate_series(1, :commands) AS i) AS c GROUP BY n ORDER BY n
    """,
    """
    INSERT INTO point_command (
      command_id, tenant_id, type, device_id, point_id, lane_id, driver, priority, seq, request_value, status, source,
      body_hash, retry_safety, gate, retry, ack_expected, call_timeout_ms, max_attempts, occurred_at, expire_at, due_at)
    SELECT gen_random_uuid(), 1, 'WRITE', d.n, :point, l.lane_id, :driver, 1, 1 + (i - 1) / :lanes, i::text, 'PENDING',
           'HTTP', decode(md5(i::text), 'hex'), 'safe', 'ack', 'strict', true, 5000, 3, now(), t.at, t.at
    FROM generate_series(1, :commands) AS i
    CROSS JOIN LATERAL (SELECT 1 + (i - 1) % :lanes AS n) AS d
    CROSS JOIN (SELECT now() + interval '20 h' AS at) AS t
    JOIN lane l ON l.tenant_id = 1 AND l.lane_key = 'device:' || d.n
    ORDER BY i
    """,
    """
    INSERT INTO point_command_event (command_pk, at, to_status, attempt, kind, note)
    SELECT id, create_time, 'PENDING', 0, 'STORED', 'waits its turn' FROM point_command ORDER BY id
    """,
)


async def pile_up(system: System, commands: int, lanes: int) -> None:
    """So many waiting commands over so many new lanes; the database looks as it does some time after that."""
    given = {"driver": DRIVER, "point": POINT, "lanes": lanes, "commands": commands}
    async with system.engine.begin() as connection:  # as a submit: whoever looks sees lanes with their commands
        for step in _STEPS:
            wanted = {name: value for name, value in given.items() if f":{name}" in step}
            await connection.execute(text(step), wanted)
    for table in ("device", "point", "lane", "point_command", "point_command_event"):
        await run(system.engine, f"ANALYZE {table}")
