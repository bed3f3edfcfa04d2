-- Instances of drivers and ack-listeners, as their heartbeats say.

-- name: heartbeat
-- Driver and ack-listener instances as they last said.
INSERT INTO driver_instance AS i (service, instance, kind, version, state, capacity, in_flight, clock_offset_ms,
                                  profiles, last_seen)
SELECT DISTINCT ON (r.service, r.instance) r.service, r.instance, r.kind, r.version, r.state, r.capacity, r.in_flight,
       r.clock_offset_ms, r.profiles, clock_timestamp()
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(
  service text, instance text, kind text, version text, state text, capacity int, in_flight int,
  clock_offset_ms double precision, profiles text[], n int)
ORDER BY r.service, r.instance, r.n DESC
ON CONFLICT (service, instance) DO UPDATE SET
  kind = excluded.kind, version = excluded.version, state = excluded.state, capacity = excluded.capacity,
  in_flight = excluded.in_flight, clock_offset_ms = excluded.clock_offset_ms, profiles = excluded.profiles,
  last_seen = excluded.last_seen;

-- name: listening
-- This center can receive heartbeats right now. After a silence of its own it starts counting afresh.
INSERT INTO heartbeat_watch AS w (id, listening_since, listening_at)
VALUES (1, clock_timestamp(), clock_timestamp())
ON CONFLICT (id) DO UPDATE SET
  listening_since = CASE WHEN w.listening_at < clock_timestamp() - :deaf_ms * interval '1 ms'
                         THEN clock_timestamp() ELSE w.listening_since END,
  listening_at = clock_timestamp();

-- name: sweep_instances
-- Instances that were silent while the center listened are offline. While it is deaf the last state counts.
UPDATE driver_instance i SET state = 'offline'
FROM heartbeat_watch w
WHERE i.state = 'online'
  AND GREATEST(i.last_seen, w.listening_since) < w.listening_at - :silence_ms * interval '1 ms'
RETURNING i.service, i.instance, i.kind;

-- name: forget_instances
-- Instances that ended long ago; names made of process ids never come back.
DELETE FROM driver_instance WHERE state <> 'online' AND last_seen < clock_timestamp() - interval '1 day';
