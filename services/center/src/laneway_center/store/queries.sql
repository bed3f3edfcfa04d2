-- Every hot statement of the center, by name. What is looked up by key for each given row is a LATERAL subquery with
-- OFFSET 0: joined, the planner guesses how many rows there are, and reads whole tables before it has statistics. Rows go in as one JSON document (jsonb_to_recordset), so that one
-- statement serves one row or a thousand. Writers lock lanes in lane_id order, then commands in id order.
-- Arrays named :sources come from laneway_shared.lifecycle.TRANSITIONS.

-- name: known_commands
-- Which of these ids exist, with the hash of the body they came with. Each is looked up by its id, as in show_commands:
-- the planner takes any JSON for a hundred rows and would rather read a table of a few thousand commands as a whole;
-- the 0 keeps it from an index that begins with the tenant.
SELECT c.tenant_id, c.command_id::text AS command_id, c.body_hash
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, command_id uuid)
CROSS JOIN LATERAL (SELECT c.tenant_id, c.command_id, c.body_hash FROM point_command c
                    WHERE c.command_id = r.command_id AND c.tenant_id + 0 = r.tenant_id OFFSET 0) c;

-- name: intake_scope
-- Everything a submit is checked against, per row, and the database's clock. Policies as point, lane, device and
-- driver say (laneway_center.policies.LEVELS). The hash of the body that a known command came with, as known_commands.
SELECT r.n, clock_timestamp() AS now,
       (SELECT c.body_hash FROM point_command c
        WHERE c.command_id = r.command_id AND c.tenant_id + 0 = r.tenant_id OFFSET 0) AS known_body,
       d.device_id IS NOT NULL AS device_known, d.enabled AS device_enabled, d.device_sn, d.driver, d.profile,
       d.lane_key, l.lane_id, l.placement,
       p.point_id IS NOT NULL AS point_known, p.enabled AS point_enabled, p.name AS point, p.access, p.value_type,
       p.min, p.max, p.step, p.enum, p.retry_safety, p.ack, p.call_timeout_ms, p.purpose,
       ARRAY[p.gate, l.gate, d.gate, v.gate] AS gate,
       ARRAY[NULL, l.retry, d.retry, v.retry] AS retry,
       ARRAY[NULL, l.review_policy, d.review_policy, v.review_policy] AS review_policy,
       ARRAY[p.max_attempts, l.max_attempts, d.max_attempts, v.max_attempts] AS max_attempts,
       ARRAY[p.ack_timeout_ms, l.ack_timeout_ms, d.ack_timeout_ms, v.ack_timeout_ms] AS ack_timeout_ms,
       ARRAY[NULL, l.depth_limit, d.depth_limit, v.depth_limit] AS depth_limit,
       ARRAY[NULL, l.on_full, d.on_full, v.on_full] AS on_full,
       v.enabled AS driver_enabled, v.waiting_limit,
       EXISTS (SELECT FROM driver_instance i
               WHERE i.service = d.driver AND i.kind = 'driver' AND i.state = 'online') AS driver_online
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(
  n int, tenant_id bigint, command_id uuid, device_id bigint, point_id bigint)
LEFT JOIN LATERAL (SELECT * FROM device d
                   WHERE d.tenant_id = r.tenant_id AND d.device_id = r.device_id OFFSET 0) d ON true
LEFT JOIN LATERAL (SELECT * FROM point p WHERE p.tenant_id = r.tenant_id AND p.device_id = r.device_id
                     AND p.point_id = r.point_id OFFSET 0) p ON true
LEFT JOIN driver v ON v.name = d.driver
LEFT JOIN LATERAL (SELECT * FROM lane l WHERE l.tenant_id = d.tenant_id AND l.lane_key = d.lane_key OFFSET 0) l ON true
ORDER BY r.n;

-- name: create_lanes
-- Lanes nobody has used yet. Sorted by key: concurrent makers wait for each other in one order.
INSERT INTO lane (tenant_id, lane_key, driver, state, ready_at)
SELECT r.tenant_id, r.lane_key, min(r.driver), 'idle', clock_timestamp()
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, lane_key text, driver text)
GROUP BY r.tenant_id, r.lane_key ORDER BY r.tenant_id, r.lane_key
ON CONFLICT (tenant_id, lane_key) DO NOTHING;

-- name: lanes_by_key
-- The row ids of lanes.
SELECT l.lane_id FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, lane_key text)
CROSS JOIN LATERAL (SELECT l.lane_id FROM lane l
                    WHERE l.tenant_id = r.tenant_id AND l.lane_key = r.lane_key OFFSET 0) l;

-- name: lock_lanes
-- Lanes about to be written, in lane_id order: the order of every writer.
SELECT {lane_columns} FROM lane l WHERE l.lane_id = ANY(CAST(:lanes AS bigint[])) ORDER BY l.lane_id FOR UPDATE;

-- name: live_intents
-- Open commands of these intents, oldest first. Their lanes are locked: none comes or goes.
SELECT c.lane_id, c.device_id, c.intent_key, c.tenant_id, c.command_id::text AS command_id, c.status, c.purpose, c.retry
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(lane_id bigint, device_id bigint, intent_key text)
CROSS JOIN LATERAL (SELECT * FROM point_command c
                    WHERE c.lane_id = r.lane_id AND c.device_id = r.device_id AND c.intent_key = r.intent_key
                      AND c.intent_key IS NOT NULL AND c.finished_at IS NULL OFFSET 0) c
ORDER BY c.id;

-- name: oldest_safe
-- The oldest waiting commands of full lanes that may be given up: safe ones that don't hold their lane.
SELECT r.lane_id, o.tenant_id, o.command_id
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(lane_id bigint, most int)
JOIN lane l ON l.lane_id = r.lane_id
CROSS JOIN LATERAL (
  SELECT c.tenant_id, c.command_id::text AS command_id FROM point_command c
  WHERE c.lane_id = r.lane_id AND c.status IN ('PENDING', 'RETRY_WAIT') AND c.retry_safety = 'safe'
    AND c.id IS DISTINCT FROM l.holder_id AND NOT c.command_id = ANY(CAST(:but AS uuid[]))
  ORDER BY c.seq LIMIT r.most) o;

-- name: enqueue
-- Allocate places in the (locked) lanes, wake idle lanes, insert the commands with their first event. A command id
-- that exists already inserts nothing; the caller then takes its place back with uncount.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at),
input AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(
    n int, command_id uuid, tenant_id bigint, type text, device_id bigint, point_id bigint, lane_id bigint,
    driver text, priority smallint, request_value text, source text, source_user_id bigint, intent_key text,
    purpose text, body_hash text, retry_safety text, gate text, retry text, review_policy text, ack_expected boolean,
    ack_timeout_ms int, call_timeout_ms int, max_attempts int, occurred_at timestamptz, expire_at timestamptz,
    merge text)
),
places AS (
  UPDATE lane l SET
    next_seq = l.next_seq + i.n,
    depth = l.depth + i.n,
    last_priority = CASE WHEN l.depth = 0 THEN i.last_priority ELSE GREATEST(l.last_priority, i.last_priority) END,
    driver = CASE WHEN l.state = 'idle' THEN i.driver ELSE l.driver END,
    state = CASE WHEN l.state = 'idle' THEN 'ready' ELSE l.state END,
    ready_at = CASE WHEN l.state = 'idle' THEN clock.at
                    WHEN l.state = 'ready' AND l.holder_id IS NULL THEN LEAST(l.ready_at, clock.at)
                    ELSE l.ready_at END
  FROM clock, (SELECT lane_id, count(*)::int AS n, max(priority) AS last_priority, min(driver) AS driver
               FROM input GROUP BY lane_id) i
  WHERE l.lane_id = i.lane_id
  RETURNING l.lane_id, l.next_seq
),
inserted AS (
  INSERT INTO point_command (
    command_id, tenant_id, type, device_id, point_id, lane_id, driver, priority, seq, request_value, status, source,
    source_user_id, intent_key, purpose, body_hash, retry_safety, gate, retry, review_policy, ack_expected,
    ack_timeout_ms, call_timeout_ms, max_attempts, occurred_at, expire_at, due_at, create_time, update_time)
  SELECT i.command_id, i.tenant_id, i.type, i.device_id, i.point_id, l.lane_id, i.driver, i.priority,
         l.next_seq - count(*) OVER lane + row_number() OVER (PARTITION BY l.lane_id ORDER BY i.n),
         i.request_value, 'PENDING', i.source, i.source_user_id, i.intent_key, i.purpose,
         decode(i.body_hash, 'hex'), i.retry_safety, i.gate, i.retry, i.review_policy, i.ack_expected,
         i.ack_timeout_ms, i.call_timeout_ms, i.max_attempts, i.occurred_at, i.expire_at, i.expire_at, clock.at,
         clock.at
  FROM input i JOIN places l ON l.lane_id = i.lane_id CROSS JOIN clock
  WINDOW lane AS (PARTITION BY l.lane_id)
  ORDER BY i.n
  ON CONFLICT (command_id, tenant_id) DO NOTHING
  RETURNING *
),
noted AS (
  INSERT INTO point_command_event (command_pk, at, to_status, attempt, kind, note, detail)
  SELECT n.id, clock.at, 'PENDING', 0, 'STORED', 'waits its turn',
         CASE WHEN i.merge IS NOT NULL THEN jsonb_build_object('merge', i.merge) END
  FROM inserted n JOIN input i ON i.command_id = n.command_id AND i.tenant_id = n.tenant_id CROSS JOIN clock
  ORDER BY n.id
)
SELECT c.*, (SELECT l.lane_key FROM lane l WHERE l.lane_id = c.lane_id) AS lane_key FROM inserted c;

-- name: lock_waiting
-- One at a time counts what waits, once a bound is near: two would both see the same room.
SELECT pg_advisory_xact_lock(hashtext('laneway waiting'), 0);

-- name: count_waiting
-- Commands waiting, per driver service.
SELECT driver, sum(depth)::bigint AS waiting FROM lane WHERE state <> 'idle' GROUP BY driver;

-- name: uncount
-- Take back the places of commands that turned out to exist.
UPDATE lane l SET
  depth = l.depth - r.n,
  state = CASE WHEN l.state = 'ready' AND l.holder_id IS NULL AND l.depth = r.n THEN 'idle' ELSE l.state END
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(lane_id bigint, n int)
WHERE l.lane_id = r.lane_id;

-- name: live_services
-- Driver services with live instances, their capacity, and whether some lane of theirs could send; profiles with a
-- live ack-listener.
SELECT i.service, sum(i.capacity) FILTER (WHERE i.kind = 'driver')::int AS capacity,
       bool_or(i.kind = 'driver') AS drives,
       -- the first of its index; the planner would rather read the table for an EXISTS once much of it is ready
       COALESCE((SELECT min(l.ready_at) FROM lane l
                 WHERE l.driver = i.service AND l.state = 'ready' AND l.operator_hold IS NULL AND l.review_holds = 0)
                <= clock_timestamp(), false) AS ready,
       array_agg(DISTINCT p.profile) FILTER (WHERE p.profile IS NOT NULL) AS profiles
FROM driver_instance i LEFT JOIN LATERAL unnest(i.profiles) AS p(profile) ON i.kind = 'ack-listener'
WHERE i.state = 'online'
GROUP BY i.service;

-- name: lock_room
-- One dispatcher at a time counts what is on its way to a driver service: two would both see the same room.
SELECT pg_advisory_xact_lock(hashtext('laneway room'), hashtext(:driver));

-- name: lock_ready_lanes
-- Up to :most lanes of a driver service that may send now, no more than its live instances have room for. In a
-- statement of its own: the next one must see what was committed while this one looked.
SELECT lane_id FROM lane
WHERE driver = :driver AND state = 'ready' AND ready_at <= (SELECT clock_timestamp())
  AND operator_hold IS NULL AND review_holds = 0
ORDER BY ready_at LIMIT GREATEST(0, LEAST(
  CAST(:most AS bigint),
  :room - (SELECT count(*) FROM point_command WHERE driver = :driver AND status IN ('DISPATCHING', 'SENT'))))
FOR UPDATE SKIP LOCKED;

-- name: claim_heads
-- The heads of the locked lanes become attempts, where they can be sent: their device hangs at this driver, nothing
-- is disabled, and a live ack-listener waits for the answer if one is expected.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at),
heads AS MATERIALIZED (
  SELECT l.lane_id, l.lane_key, l.token + 1 AS token, h.id, h.status, h.expire_at,
         d.device_sn, d.profile, d.address, p.name AS point, p.value_type, p.min, p.max, p.step, p.enum
  FROM lane l CROSS JOIN clock CROSS JOIN LATERAL (
    {head}
  ) h
  -- each looked up by its key, whatever the planner believes of tables it has no statistics of yet
  CROSS JOIN LATERAL (SELECT * FROM device d WHERE d.tenant_id = h.tenant_id AND d.device_id = h.device_id OFFSET 0) d
  CROSS JOIN LATERAL (SELECT * FROM point p WHERE p.tenant_id = h.tenant_id AND p.device_id = h.device_id
                        AND p.point_id = h.point_id OFFSET 0) p
  WHERE l.lane_id = ANY(CAST(:lanes AS bigint[])) AND d.enabled AND d.driver = :driver AND p.enabled
    AND (SELECT v.enabled FROM driver v WHERE v.name = :driver)
    AND (d.profile IS NULL OR NOT h.ack_expected OR d.profile = ANY(CAST(:profiles AS text[])))
),
claimed AS (
  UPDATE point_command c SET
    status = 'DISPATCHING', attempt = c.attempt + 1, lane_token = h.token, driver = :driver, claimed_by = :by,
    claimed_at = clock.at, start_by = w.start_by,
    quiet_at = w.start_by + (c.call_timeout_ms + :grace_ms) * interval '1 ms',
    due_at = w.start_by + (CASE WHEN c.retry_safety = 'unsafe' THEN 0 ELSE c.call_timeout_ms END + :grace_ms)
             * interval '1 ms',
    started = false, unknown = false, letter = NULL, absent = false, started_at = NULL, next_visible_at = NULL,
    ack_due_at = NULL, error_code = NULL, error_message = NULL, update_time = clock.at
  FROM heads h, clock,
       LATERAL (SELECT LEAST(clock.at + :window_ms * interval '1 ms', h.expire_at) AS start_by) w
  WHERE c.id = h.id AND c.status = ANY(CAST(:sources AS text[]))
  RETURNING c.*, h.status AS from_status, h.lane_key, clock.at AS now, h.device_sn, h.profile, h.address, h.point,
            h.value_type, h.min, h.max, h.step, h.enum
),
taken AS (
  UPDATE lane l SET state = 'busy', token = l.token + 1, depth = l.depth - 1, holder_id = c.id
  FROM claimed c WHERE l.lane_id = c.lane_id
),
noted AS (
  INSERT INTO point_command_event (command_pk, at, from_status, to_status, attempt, kind, note, detail)
  SELECT c.id, c.now, c.from_status, 'DISPATCHING', c.attempt,
         'CLAIMED', 'head of its lane; on its way to the broker',
         jsonb_build_object('by', c.claimed_by, 'startBy', c.start_by, 'laneToken', c.lane_token)
  FROM claimed c
)
SELECT c.id, c.lane_id, c.command_id::text AS command_id, c.attempt, c.tenant_id, c.type, c.device_id, c.point_id,
       c.request_value, c.retry_safety, c.gate, c.lane_key, c.lane_token, c.source, c.source_user_id, c.occurred_at,
       c.expire_at, c.now AS published_at, c.start_by, c.call_timeout_ms, c.create_time, c.intent_key,
       c.device_sn, c.profile, c.address, c.point, c.value_type, c.min, c.max, c.step, c.enum
FROM claimed c;

-- name: settle_headless_lanes
-- Locked lanes of which nothing was sent: idle if nothing waits; else they follow their head's device to its driver,
-- and are looked at again soon, or when their next one may be visible. The head is the one that a claim takes.
-- Returns the driver services at which they can be sent now.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at)
UPDATE lane x SET
  depth = CASE WHEN w.waits THEN x.depth ELSE 0 END,
  state = CASE WHEN NOT w.waits AND x.holder_id IS NULL THEN 'idle' ELSE 'ready' END,
  driver = COALESCE(w.driver, x.driver),
  ready_at = CASE WHEN w.driver <> x.driver AND w.visible_at <= w.now THEN w.now
                  ELSE GREATEST(w.visible_at, w.now + interval '500 ms') END
FROM (
  SELECT l.lane_id, clock.at AS now, f.visible_at, d.driver,
         EXISTS (SELECT FROM point_command c
                 WHERE c.lane_id = l.lane_id AND c.status IN ('PENDING', 'RETRY_WAIT')) AS waits
  FROM lane l CROSS JOIN clock
  LEFT JOIN LATERAL (
    SELECT h.tenant_id, h.device_id, clock.at AS visible_at FROM (
      {head}
    ) h
    UNION ALL
    (SELECT c.tenant_id, c.device_id, c.next_visible_at FROM point_command c
     WHERE c.lane_id = l.lane_id AND c.status = 'RETRY_WAIT' AND c.expire_at > clock.at
       AND c.next_visible_at > clock.at AND (l.holder_id IS NULL OR c.id = l.holder_id)
     ORDER BY c.next_visible_at LIMIT 1)
    ORDER BY visible_at LIMIT 1
  ) f ON true
  LEFT JOIN LATERAL (SELECT d.driver FROM device d
                     WHERE d.tenant_id = f.tenant_id AND d.device_id = f.device_id OFFSET 0) d ON true
  WHERE l.lane_id = ANY(CAST(:lanes AS bigint[]))
) w
WHERE x.lane_id = w.lane_id
RETURNING CASE WHEN x.ready_at <= w.now THEN x.driver END AS driver;

-- name: stray_lanes
-- Lanes that could send, at drivers without a live instance: their next one may be at another driver.
SELECT l.lane_id FROM driver v CROSS JOIN LATERAL (
  SELECT l.lane_id FROM lane l
  WHERE l.driver = v.name AND l.state = 'ready' AND l.ready_at <= (SELECT clock_timestamp())
    AND l.operator_hold IS NULL AND l.review_holds = 0
  ORDER BY l.ready_at LIMIT 100) l
WHERE NOT EXISTS (SELECT FROM driver_instance i
                  WHERE i.service = v.name AND i.kind = 'driver' AND i.state = 'online');

-- name: confirm_sent
-- The broker confirmed these attempts. Guarded: a fast result often comes first.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at),
locked AS MATERIALIZED (
  SELECT c.id, c.attempt FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id bigint, attempt int)
  JOIN point_command c ON c.id = r.id
  WHERE c.attempt = r.attempt AND c.status = ANY(CAST(:sources AS text[]))
  ORDER BY c.id FOR UPDATE OF c
),
sent AS (
  UPDATE point_command c SET status = 'SENT', sent_at = clock.at, update_time = clock.at
  FROM locked l, clock
  WHERE c.id = l.id AND c.attempt = l.attempt AND c.status = ANY(CAST(:sources AS text[]))
  RETURNING c.id, c.attempt, clock.at
)
INSERT INTO point_command_event (command_pk, at, from_status, to_status, attempt, kind, note)
SELECT id, at, 'DISPATCHING', 'SENT', attempt, 'CONFIRMED', 'the broker has it' FROM sent;

-- name: lock_subjects
-- Lock, one after the other in lane_id order, the lanes of the commands that evidence names (a device's answer names no
-- tenant) and these other lanes; with the row ids of those commands, which never change their lanes.
SELECT l.*, a.commands
FROM (
  SELECT s.lane_id, array_agg(s.id) FILTER (WHERE s.id IS NOT NULL) AS commands FROM (
    SELECT c.id, c.lane_id FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, command_id uuid)
    CROSS JOIN LATERAL (SELECT x.id, x.lane_id FROM point_command x
      WHERE x.command_id = r.command_id AND (r.tenant_id IS NULL OR x.tenant_id = r.tenant_id) OFFSET 0) c
    UNION ALL
    SELECT NULL, x FROM unnest(CAST(:lanes AS bigint[])) AS x) s
  GROUP BY s.lane_id ORDER BY s.lane_id) a
CROSS JOIN LATERAL (SELECT {lane_columns} FROM lane l WHERE l.lane_id = a.lane_id FOR UPDATE) l;

-- name: lanes_of_devices
-- The lanes of devices that answer without naming a command.
SELECT l.lane_id FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, device_sn text)
JOIN device d ON d.device_sn = r.device_sn AND (r.tenant_id IS NULL OR d.tenant_id = r.tenant_id)
JOIN lane l ON l.tenant_id = d.tenant_id AND l.lane_key = d.lane_key;

-- name: commands_of_evidence
-- Lock the commands that evidence is about, in id order, with the database's clock.
SELECT clock_timestamp() AS now, c.id, c.tenant_id, c.command_id::text AS command_id, c.lane_id, c.status, c.attempt,
       c.attempts_spent, c.max_attempts, c.retry_safety, c.gate, c.retry, c.ack_expected, c.ack_timeout_ms, c.seq,
       c.expire_at, c.start_by, c.quiet_at, c.started, c.unknown, c.letter, c.called, c.may_have_run, c.absent,
       c.ack_due_at, c.due_at, c.next_visible_at, c.response_value, c.error_code, c.error_message, c.create_time,
       c.claimed_at, c.device_id, c.driver, c.intent_key, c.review_hold, c.review_policy, c.priority,
       c.retry = 'relaxed' AND c.intent_key IS NOT NULL AND EXISTS (
         SELECT FROM point_command n WHERE n.lane_id = c.lane_id AND n.device_id = c.device_id
           AND n.intent_key = c.intent_key AND n.finished_at IS NULL AND n.id > c.id) AS overtaken,
       (SELECT d.device_sn FROM device d WHERE d.tenant_id = c.tenant_id AND d.device_id = c.device_id) AS device_sn
FROM point_command c WHERE c.id = ANY(CAST(:commands AS bigint[]))
ORDER BY c.id FOR UPDATE OF c;

-- name: write_back
-- What a transaction has made of its locked rows, in one statement: commands as judged (the guard repeats the allowed
-- sources; the caller counts whether a row slipped), lanes freed, kept for a retry, or with one waiting command more or
-- less, and timeline rows: every change, and every piece of evidence that changed nothing.
WITH judged AS (
  UPDATE point_command c SET
    status = r.status, attempts_spent = r.attempts_spent, started = r.started, unknown = r.unknown, letter = r.letter,
    called = r.called, may_have_run = r.may_have_run, absent = r.absent, ack_due_at = r.ack_due_at, due_at = r.due_at,
    next_visible_at = r.next_visible_at, response_value = r.response_value, error_code = r.error_code,
    error_message = r.error_message, seq = r.seq, expire_at = r.expire_at, review_hold = r.review_hold,
    started_at = CASE WHEN r.started THEN COALESCE(c.started_at, r.at) ELSE c.started_at END,
    finished_at = CASE WHEN r.final THEN r.at END,
    update_time = r.at
  FROM jsonb_to_recordset(CAST(:commands AS jsonb)) AS r(
    id bigint, status text, allowed text[], attempt int, attempts_spent int, started boolean, unknown boolean,
    letter text, called boolean, may_have_run boolean, absent boolean, ack_due_at timestamptz, due_at timestamptz,
    next_visible_at timestamptz, response_value text, error_code text, error_message text, seq bigint,
    expire_at timestamptz, review_hold boolean, final boolean, at timestamptz)
  WHERE c.id = r.id AND c.attempt = r.attempt AND c.status = ANY(r.allowed)
  RETURNING c.id
),
opened AS (
  UPDATE lane l SET state = r.state, ready_at = r.ready_at, depth = r.depth, holder_id = r.holder_id,
    next_seq = r.next_seq, review_holds = r.review_holds, last_priority = r.last_priority
  FROM jsonb_to_recordset(CAST(:lanes AS jsonb)) AS r(
    lane_id bigint, state text, ready_at timestamptz, depth int, holder_id bigint, next_seq bigint, review_holds int,
    last_priority smallint)
  WHERE l.lane_id = r.lane_id
),
noted AS (
  INSERT INTO point_command_event (command_pk, at, from_status, to_status, attempt, kind, note, detail)
  SELECT r.command_pk, r.at, r.from_status, r.to_status, r.attempt, r.kind, r.note, r.detail
  FROM jsonb_to_recordset(CAST(:events AS jsonb)) AS r(
    command_pk bigint, at timestamptz, from_status text, to_status text, attempt int, kind text, note text,
    detail jsonb, n int)
  ORDER BY r.n
)
SELECT count(*) FROM judged;

-- name: take_due
-- Commands whose bound has passed, for an absence check (attempt 0: never dispatched). Asked again, ever more seldom,
-- if nothing comes of it: the question may be waiting in the result queue.
WITH due AS MATERIALIZED (
  SELECT id FROM point_command
  WHERE due_at <= (SELECT clock_timestamp()) -- in a subquery: a volatile function is no condition for an index
  ORDER BY due_at LIMIT :most FOR UPDATE SKIP LOCKED
)
UPDATE point_command c SET due_at = clock_timestamp() + LEAST(
  interval '2 min', GREATEST(interval '5 s', clock_timestamp() - COALESCE(c.quiet_at, c.expire_at)))
FROM due WHERE c.id = due.id
RETURNING c.tenant_id, c.command_id::text AS command_id, c.attempt, clock_timestamp() AS now;

-- name: show_commands
-- Commands by id, as callers see them.
SELECT c.*, l.lane_key FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, command_id uuid)
CROSS JOIN LATERAL (SELECT * FROM point_command c
                    WHERE c.command_id = r.command_id AND c.tenant_id + 0 = r.tenant_id OFFSET 0) c
CROSS JOIN LATERAL (SELECT l.lane_key FROM lane l WHERE l.lane_id = c.lane_id OFFSET 0) l;

-- name: show_events
-- The timeline of one command, oldest first.
SELECT e.id, e.at, e.from_status, e.to_status, e.attempt, e.kind, e.note, e.detail
FROM point_command_event e JOIN point_command c ON c.id = e.command_pk
WHERE c.tenant_id = :tenant_id AND c.command_id = CAST(:command_id AS uuid)
ORDER BY e.id;

-- name: lines_after
-- New lines in the timeline of one command, oldest first.
SELECT e.id, e.at, e.from_status, e.to_status, e.attempt, e.kind, e.note, e.detail
FROM point_command_event e WHERE e.command_pk = :command_pk AND e.id > :after ORDER BY e.id LIMIT :most;

-- name: newest_lines
-- The newest line of each of these commands, for those who follow them.
SELECT c.id AS command_pk, e.id AS line
FROM unnest(CAST(:commands AS bigint[])) AS c(id)
JOIN LATERAL (SELECT max(x.id) AS id FROM point_command_event x WHERE x.command_pk = c.id) e ON e.id IS NOT NULL;
