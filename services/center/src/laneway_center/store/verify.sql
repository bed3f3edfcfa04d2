-- What `laneway verify` reads.
-- Read in one REPEATABLE READ transaction, in chunks; :tenant_id NULL means all tenants.

-- name: verify_scope
-- The moment of the snapshot (no claim visible in it is later than its commit), and how much there is to read.
-- Commands that ended before history_since are dropped day by day; NULL: none has been archived yet.
SELECT now() AS at,
  (SELECT count(*) FROM point_command c
   WHERE CAST(:tenant_id AS bigint) IS NULL OR c.tenant_id = :tenant_id)
  + (SELECT count(*) FROM point_command_history c
     WHERE CAST(:tenant_id AS bigint) IS NULL OR c.tenant_id = :tenant_id) AS commands,
  (SELECT count(*) FROM point_command_event e JOIN point_command c ON c.id = e.command_pk
   WHERE CAST(:tenant_id AS bigint) IS NULL OR c.tenant_id = :tenant_id)
  + (SELECT count(*) FROM point_command_event_history e
     JOIN point_command_history c ON c.id = e.command_pk AND c.finished_at = e.finished_at
     WHERE CAST(:tenant_id AS bigint) IS NULL OR c.tenant_id = :tenant_id) AS events,
  (SELECT min(to_date(right(p.relname, 8), 'YYYYMMDD'))::timestamp AT TIME ZONE 'UTC'
   FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid
   WHERE i.inhparent = 'point_command_history'::regclass AND NOT i.inhdetachpending) AS history_since,
  (SELECT count(*) FROM lane l
   WHERE CAST(:tenant_id AS bigint) IS NULL OR l.tenant_id = :tenant_id) AS lanes;

-- name: verify_commands
-- Commands, hot and archived, with what the checker's rules ask about.
SELECT c.id, c.command_id::text AS command_id, c.tenant_id, c.lane_id, c.driver, d.device_sn, c.status, c.gate, c.retry,
       c.retry_safety, c.ack_expected, c.attempt, c.call_timeout_ms, c.expire_at, c.quiet_at, c.ack_due_at,
       c.review_hold, c.review_policy, c.device_id, c.priority, c.intent_key, c.purpose, c.error_code
FROM (SELECT {command_columns} FROM point_command
      UNION ALL SELECT {command_columns} FROM point_command_history) c
LEFT JOIN device d ON d.tenant_id = c.tenant_id AND d.device_id = c.device_id
WHERE CAST(:tenant_id AS bigint) IS NULL OR c.tenant_id = :tenant_id
ORDER BY c.id;

-- name: verify_events
-- All timelines in one order; of a claim also its lane token and start window, of a command superseded for whom, of a
-- new one what it does to others of its intent: as text.
SELECT e.id, e.command_pk, e.at, e.from_status, e.to_status, e.attempt, e.kind,
       CASE WHEN e.kind = 'CLAIMED' THEN e.detail ->> 'laneToken' END AS lane_token,
       CASE WHEN e.kind = 'CLAIMED' THEN e.detail ->> 'startBy' END AS start_by,
       CASE WHEN e.kind = 'SUPERSEDED' THEN e.detail ->> 'newer' END AS newer,
       CASE WHEN e.kind = 'STORED' THEN e.detail ->> 'merge' END AS merge
FROM (
  SELECT {event_columns} FROM point_command_event WHERE EXISTS (
    SELECT FROM point_command c WHERE c.id = command_pk
      AND (CAST(:tenant_id AS bigint) IS NULL OR c.tenant_id = :tenant_id))
  UNION ALL
  SELECT {event_columns} FROM point_command_event_history h WHERE EXISTS (
    SELECT FROM point_command_history c WHERE c.id = command_pk AND c.finished_at = h.finished_at
      AND (CAST(:tenant_id AS bigint) IS NULL OR c.tenant_id = :tenant_id))
) e
ORDER BY e.id;

-- name: verify_lanes
-- Lanes with their books.
SELECT l.lane_id, l.tenant_id, l.lane_key AS key, l.state, l.depth, l.holder_id, l.token, l.review_holds,
       l.operator_hold
FROM lane l
WHERE CAST(:tenant_id AS bigint) IS NULL OR l.tenant_id = :tenant_id
ORDER BY l.lane_id;

-- name: verify_acts
-- Holds and releases of lanes, oldest first, with the lane's newest token at that moment.
SELECT a.tenant_id, a.subject AS lane_key, a.action, CAST(a.after ->> 'token' AS bigint) AS token
FROM operator_action a
WHERE a.action IN ('lane.hold', 'lane.release') AND (CAST(:tenant_id AS bigint) IS NULL OR a.tenant_id = :tenant_id)
ORDER BY a.id;

-- name: verify_devices
-- Serial numbers of devices that belong to this tenant and to no other (a serial number is unique in a tenant only).
SELECT d.device_sn FROM device d
GROUP BY d.device_sn
HAVING CAST(:tenant_id AS bigint) IS NULL OR bool_and(d.tenant_id = :tenant_id);
