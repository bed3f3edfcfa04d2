-- Final commands after the hot window: point_command_history and point_command_event_history, a partition per day (UTC)
-- on which commands ended. A command and its timeline move together, in one transaction, under the command's row lock;
-- whoever finds nothing in one table looks in the other in a later statement, which then sees where it went.
-- {command_columns} and {event_columns} are filled in from tables.py.

-- name: lock_archiving
-- One archiver works at a time, in whichever center; True: it is this one, until its transaction ends.
SELECT pg_try_advisory_xact_lock(hashtext('laneway history'));

-- name: lock_finished
-- Up to :most commands that ended before the hot window, from :after on, oldest first; locked in id order. What
-- somebody else holds is left for the next round, so that nobody ever waits for anybody here. (The clock is read in a
-- subquery: a volatile function is no condition for an index.)
WITH hot AS MATERIALIZED (SELECT clock_timestamp() - :hot_ms * interval '1 ms' AS since),
oldest AS MATERIALIZED (
  SELECT id FROM point_command
  WHERE finished_at >= :after AND finished_at < (SELECT since FROM hot)
  ORDER BY finished_at LIMIT :most
)
SELECT c.id, c.finished_at FROM point_command c
WHERE c.id IN (SELECT id FROM oldest) AND c.finished_at < (SELECT since FROM hot)
  AND c.status = ANY(CAST(:final AS text[])) AND NOT c.review_hold
ORDER BY c.id FOR UPDATE OF c SKIP LOCKED;

-- name: archive_commands
-- Move locked commands with their timelines; what is older than the retention already goes for good.
WITH keep AS MATERIALIZED (
  SELECT date_trunc('day', clock_timestamp() - :retention_ms * interval '1 ms', 'UTC') AS since
),
moved AS (
  DELETE FROM point_command WHERE id = ANY(CAST(:ids AS bigint[])) RETURNING {command_columns}
),
lines AS (
  DELETE FROM point_command_event WHERE command_pk = ANY(CAST(:ids AS bigint[])) RETURNING {event_columns}
),
kept AS (
  INSERT INTO point_command_history ({command_columns})
  SELECT {command_columns} FROM moved, keep WHERE finished_at >= since
  RETURNING id
),
kept_lines AS (
  INSERT INTO point_command_event_history ({event_columns}, finished_at)
  SELECT {event_columns}, finished_at
  FROM lines JOIN (SELECT id AS pk, finished_at FROM moved) m ON pk = command_pk, keep WHERE finished_at >= since
)
SELECT count(*) AS kept FROM kept;

-- name: partitions_to_make
-- For each day that needs one (from the oldest command still to be archived to :ahead days from now) and has none:
-- statements that make a partition and attach it, which locks nobody out as CREATE … PARTITION OF would.
WITH today AS MATERIALIZED (
  SELECT clock_timestamp() AS now, date_trunc('day', clock_timestamp(), 'UTC') AS at
),
wanted AS (
  SELECT day FROM today, LATERAL generate_series(
    GREATEST(date_trunc('day', today.now - :retention_ms * interval '1 ms', 'UTC'), LEAST(today.at, date_trunc('day',
      (SELECT min(c.finished_at) FROM point_command c WHERE c.finished_at IS NOT NULL), 'UTC'))),
    today.at + :ahead * interval '1 day', interval '1 day') AS day
),
named AS (
  SELECT p.oid::regclass AS parent, p.relnamespace, day,
         format('%s_%s', p.relname, to_char(day AT TIME ZONE 'UTC', 'YYYYMMDD')) AS name
  FROM wanted, pg_class p
  WHERE p.oid IN ('point_command_history'::regclass, 'point_command_event_history'::regclass)
)
SELECT name, format('CREATE TABLE %s.%I (LIKE %s)', relnamespace::regnamespace, name, parent) AS make,
       format('ALTER TABLE %s ATTACH PARTITION %s.%I FOR VALUES FROM (%L) TO (%L)',
              parent, relnamespace::regnamespace, name, day, day + interval '1 day') AS attach
FROM named n
WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.relname = n.name AND c.relnamespace = n.relnamespace)
ORDER BY day, name;

-- name: partitions_to_drop
-- Days that are older than the retention as a whole, commands before their timelines: a statement that takes each out
-- of its table without locking anybody out (NULL: it is out, but was not dropped), and one that drops it.
SELECT c.relname AS name,
       CASE WHEN i.inhrelid IS NOT NULL
            THEN format('ALTER TABLE %s DETACH PARTITION %s %s', p.oid::regclass, c.oid::regclass,
                        CASE WHEN i.inhdetachpending THEN 'FINALIZE' ELSE 'CONCURRENTLY' END)
       END AS detach,
       format('DROP TABLE %s', c.oid::regclass) AS remove
FROM pg_class p
JOIN pg_class c ON c.relnamespace = p.relnamespace AND c.relkind = 'r' AND c.relname ~ '_[0-9]{8}$'
               AND left(c.relname, -9) = p.relname
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE p.oid IN ('point_command_history'::regclass, 'point_command_event_history'::regclass)
  AND right(c.relname, 8) < to_char((clock_timestamp() - :retention_ms * interval '1 ms') AT TIME ZONE 'UTC', 'YYYYMMDD')
ORDER BY right(c.relname, 8), p.relname DESC;

-- name: lock_dropping
-- One process at a time drops partitions; True: it is this one, until it says that it is done or its connection ends.
SELECT pg_try_advisory_lock(hashtext('laneway history drop'));

-- name: unlock_dropping
-- It is done.
SELECT pg_advisory_unlock(hashtext('laneway history drop'));

-- name: drop_letters
-- Dead letters older than their retention, a batch at a time.
DELETE FROM dead_letter WHERE id IN (
  SELECT id FROM dead_letter WHERE received_at < (SELECT clock_timestamp() - :retention_ms * interval '1 ms')
  ORDER BY received_at LIMIT :most FOR UPDATE SKIP LOCKED);

-- name: drop_dead_ends
-- What operators saw of them, handled or not, as old.
DELETE FROM dead_end WHERE id IN (
  SELECT id FROM dead_end WHERE at < (SELECT clock_timestamp() - :retention_ms * interval '1 ms')
  ORDER BY at LIMIT :most FOR UPDATE SKIP LOCKED);

-- name: archived_bodies
-- Which of these ids are archived, with the hash of the body they came with.
SELECT h.tenant_id, h.command_id::text AS command_id, h.body_hash
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, command_id uuid)
CROSS JOIN LATERAL (SELECT h.tenant_id, h.command_id, h.body_hash FROM point_command_history h
                    WHERE h.command_id = r.command_id AND h.tenant_id + 0 = r.tenant_id OFFSET 0) h;

-- name: show_archived_commands
-- Archived commands by id, as callers see them.
SELECT h.*, l.lane_key FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, command_id uuid)
CROSS JOIN LATERAL (SELECT * FROM point_command_history h
                    WHERE h.command_id = r.command_id AND h.tenant_id + 0 = r.tenant_id OFFSET 0) h
CROSS JOIN LATERAL (SELECT l.lane_key FROM lane l WHERE l.lane_id = h.lane_id OFFSET 0) l;

-- name: show_archived_events
-- The timeline of one archived command, oldest first.
SELECT e.id, e.at, e.from_status, e.to_status, e.attempt, e.kind, e.note, e.detail
FROM point_command_history h
JOIN point_command_event_history e ON e.command_pk = h.id AND e.finished_at = h.finished_at
WHERE h.tenant_id = :tenant_id AND h.command_id = CAST(:command_id AS uuid)
ORDER BY e.id;

-- name: lanes_of_archived
-- Lock the lanes of commands, archived ones that are about to come back and hot ones, in lane_id order.
SELECT lane_id FROM lane WHERE lane_id IN (
  SELECT x.lane_id FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, command_id uuid)
  CROSS JOIN LATERAL (
    SELECT h.lane_id FROM point_command_history h
    WHERE h.command_id = r.command_id AND (r.tenant_id IS NULL OR h.tenant_id = r.tenant_id)
    UNION ALL
    SELECT c.lane_id FROM point_command c
    WHERE c.command_id = r.command_id AND (r.tenant_id IS NULL OR c.tenant_id = r.tenant_id) OFFSET 0) x)
ORDER BY lane_id FOR UPDATE;

-- name: lock_archived
-- Lock archived commands in id order, with the database's clock: nobody brings them back meanwhile.
SELECT clock_timestamp() AS now, h.*,
       (SELECT d.device_sn FROM device d WHERE d.tenant_id = h.tenant_id AND d.device_id = h.device_id) AS device_sn
FROM point_command_history h
WHERE h.id = ANY(ARRAY(
  SELECT x.id FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, command_id uuid)
  CROSS JOIN LATERAL (SELECT x.id FROM point_command_history x WHERE x.command_id = r.command_id
                        AND (r.tenant_id IS NULL OR x.tenant_id = r.tenant_id) OFFSET 0) x))
ORDER BY h.id FOR UPDATE OF h;

-- name: bring_back
-- Locked archived commands and their timelines go back to the hot tables as they are, row ids included.
WITH moved AS (
  DELETE FROM point_command_history WHERE id = ANY(CAST(:ids AS bigint[])) RETURNING {command_columns}
),
lines AS (
  DELETE FROM point_command_event_history WHERE command_pk = ANY(CAST(:ids AS bigint[])) RETURNING {event_columns}
),
back AS (
  INSERT INTO point_command ({command_columns}) OVERRIDING SYSTEM VALUE SELECT {command_columns} FROM moved
)
INSERT INTO point_command_event ({event_columns}) OVERRIDING SYSTEM VALUE SELECT {event_columns} FROM lines;

-- name: write_archived_events
-- Evidence that came after its command had been archived. Ids come from where all event ids come from.
INSERT INTO point_command_event_history (id, command_pk, at, from_status, to_status, attempt, kind, note, detail,
                                         finished_at)
SELECT nextval(pg_get_serial_sequence('point_command_event', 'id')), r.*
FROM (SELECT command_pk, at, from_status, to_status, attempt, kind, note, detail, finished_at
      FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS x(
        command_pk bigint, at timestamptz, from_status text, to_status text, attempt int, kind text, note text,
        detail jsonb, finished_at timestamptz, n int)
      ORDER BY n) r;

-- name: came_back
-- Whether one of these commands is hot now: brought back while it was looked for.
SELECT EXISTS (
  SELECT FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, command_id uuid)
  CROSS JOIN LATERAL (SELECT c.id FROM point_command c WHERE c.command_id = r.command_id
                        AND (r.tenant_id IS NULL OR c.tenant_id = r.tenant_id) OFFSET 0) c
  WHERE c.id <> ALL (CAST(:seen AS bigint[])));
