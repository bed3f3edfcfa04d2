-- Dead letters: messages as they came, and the ends of commands that operators see under that name.

-- name: store_letters
-- Dead letters and unreadable messages, each once. What belongs to no command is one for the operators' list; so is,
-- whatever it names, what the caller found useless.
WITH input AS MATERIALIZED (
  SELECT *, decode(letter_hash, 'hex') AS hash FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(
    letter_hash text, tenant_id bigint, command_id uuid, attempt int, queue text, routing_key text, reason text,
    explanation text, body text, headers jsonb, listed_as text, unless_known boolean, driver text, device_id bigint)
),
stored AS (
  INSERT INTO dead_letter (letter_hash, tenant_id, command_id, attempt, queue, routing_key, reason, explanation, body,
                           headers)
  SELECT hash, tenant_id, command_id, attempt, queue, routing_key, reason, explanation, decode(body, 'base64'), headers
  FROM input
  ON CONFLICT (letter_hash) DO NOTHING
  RETURNING id, letter_hash, received_at, tenant_id, command_id
)
INSERT INTO dead_end (at, tenant_id, command_id, letter_id, attempt, reason, explanation, driver, device_id)
SELECT DISTINCT ON (s.id) s.received_at, COALESCE(s.tenant_id, :nobody), s.command_id, s.id, i.attempt, i.listed_as,
       i.explanation, i.driver, i.device_id
FROM stored s JOIN input i ON i.hash = s.letter_hash
WHERE i.listed_as IS NOT NULL
  AND NOT (i.unless_known AND (
    EXISTS (SELECT FROM point_command c
            WHERE c.command_id = s.command_id AND (s.tenant_id IS NULL OR c.tenant_id = s.tenant_id))
    OR EXISTS (SELECT FROM point_command_history h
               WHERE h.command_id = s.command_id AND (s.tenant_id IS NULL OR h.tenant_id = s.tenant_id))))
ORDER BY s.id;

-- name: write_dead_ends
-- Commands that ended so that an operator may send them again. At most one open end per command.
INSERT INTO dead_end (at, tenant_id, command_pk, command_id, ended_as, attempt, reason, error_code, explanation, driver,
                      device_id)
SELECT r.at, c.tenant_id, c.id, c.command_id, c.status, c.attempt, r.reason, c.error_code, c.error_message, c.driver,
       c.device_id
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(n int, command_pk bigint, at timestamptz, reason text)
JOIN point_command c ON c.id = r.command_pk
ORDER BY r.n
ON CONFLICT (command_pk) WHERE state = 'open' AND command_pk IS NOT NULL DO NOTHING;

-- name: dead_ends
-- Dead ends by id, as they stand.
SELECT e.*, e.command_id::text AS command_uuid FROM dead_end e
WHERE e.tenant_id = :tenant_id AND e.id = ANY(CAST(:ids AS bigint[]));

-- name: lock_dead_ends
-- The same, locked in id order; behind the locks of lanes and commands.
SELECT e.*, e.command_id::text AS command_uuid FROM dead_end e
WHERE e.tenant_id = :tenant_id AND e.id = ANY(CAST(:ids AS bigint[]))
ORDER BY e.id FOR UPDATE;

-- name: lock_open_ends
-- The open ends of locked commands.
SELECT e.*, e.command_id::text AS command_uuid FROM dead_end e
WHERE e.command_pk = ANY(CAST(:commands AS bigint[])) AND e.state = 'open'
ORDER BY e.id FOR UPDATE;

-- name: handle_dead_ends
-- Replayed or discarded: once.
UPDATE dead_end SET state = :state, handled_at = clock_timestamp(), handled_by = :operator, handled_why = :why
WHERE id = ANY(CAST(:ids AS bigint[])) AND state = 'open';

-- name: replay_scope
-- What decides whether locked commands may be sent again, beside their own state: a newer command of the same intent
-- for the device, the lane and driver the device has by now. A device that left its lane is not of this lane any more.
SELECT c.id, n.command_id::text AS newer_id, n.status AS newer_status, d.lane_key AS device_lane, d.driver,
       COALESCE(d.enabled AND p.enabled AND v.enabled, false) AS enabled,
       EXISTS (SELECT FROM driver_instance i
               WHERE i.service = d.driver AND i.kind = 'driver' AND i.state = 'online') AS driver_online
FROM point_command c
LEFT JOIN device d ON d.tenant_id = c.tenant_id AND d.device_id = c.device_id
LEFT JOIN point p ON p.tenant_id = c.tenant_id AND p.device_id = c.device_id AND p.point_id = c.point_id
LEFT JOIN driver v ON v.name = d.driver
LEFT JOIN LATERAL (
  (SELECT x.id, x.command_id, x.status FROM point_command x
   WHERE x.lane_id = c.lane_id AND x.device_id = c.device_id AND x.intent_key = c.intent_key AND x.id > c.id
     AND x.finished_at IS NULL
   ORDER BY x.id DESC LIMIT 1)
  UNION ALL
  (SELECT x.id, x.command_id, x.status FROM point_command x
   WHERE x.lane_id = c.lane_id AND x.device_id = c.device_id AND x.intent_key = c.intent_key AND x.id > c.id
     AND x.finished_at IS NOT NULL AND x.status NOT IN ('CANCELLED', 'SUPERSEDED')
   ORDER BY x.id DESC LIMIT 1)
  UNION ALL
  (SELECT x.id, x.command_id, x.status FROM point_command_history x
   WHERE x.tenant_id = c.tenant_id AND x.device_id = c.device_id AND x.lane_id = c.lane_id
     AND x.intent_key = c.intent_key AND x.id > c.id AND x.status NOT IN ('CANCELLED', 'SUPERSEDED')
   ORDER BY x.id DESC LIMIT 1)
  ORDER BY id DESC LIMIT 1
) n ON c.intent_key IS NOT NULL
WHERE c.id = ANY(CAST(:commands AS bigint[]));

-- name: letters_of_command
-- The newest messages about a command that nobody could deliver, run or read; of long bodies the beginning.
SELECT d.id, d.received_at, d.reason, d.explanation, d.queue, d.routing_key, d.attempt, d.headers,
       substring(d.body FROM 1 FOR :most_bytes) AS body, octet_length(d.body) AS body_bytes
FROM dead_letter d
WHERE d.command_id = CAST(:command_id AS uuid) AND d.tenant_id = :tenant_id
ORDER BY d.id DESC LIMIT :most;

-- name: letter_of_end
-- The message of a dead end that belongs to no command.
SELECT d.id, d.received_at, d.reason, d.explanation, d.queue, d.routing_key, d.attempt, d.headers,
       substring(d.body FROM 1 FOR :most_bytes) AS body, octet_length(d.body) AS body_bytes
FROM dead_letter d WHERE d.id = :letter_id;
