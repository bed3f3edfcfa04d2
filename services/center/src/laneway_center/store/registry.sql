-- The registry where it touches lanes.

-- name: misplaced_devices
-- Devices among these (or at these drivers) that are not in the lane their registration says, and whether they have
-- open commands where they are. A NULL lane_key: the registration names no lane.
SELECT d.tenant_id, d.device_id, d.lane_key AS was, w.lane_key,
       EXISTS (SELECT FROM lane l JOIN point_command c ON c.lane_id = l.lane_id
               WHERE l.tenant_id = d.tenant_id AND l.lane_key = d.lane_key AND c.device_id = d.device_id
                 AND c.finished_at IS NULL) AS in_use,
       COALESCE(d.lane_by, v.lane_by) AS lane_by
FROM device d JOIN driver v ON v.name = d.driver
CROSS JOIN LATERAL (SELECT COALESCE(d.own_lane_key, CASE COALESCE(d.lane_by, v.lane_by)
  WHEN 'device' THEN 'device:' || d.device_id
  WHEN 'group' THEN 'group:' || d.lane_group
  WHEN 'topic' THEN 'topic:' || left(d.address ->> 'topic', 120)
  WHEN 'global' THEN 'global' END) AS lane_key) w
WHERE d.lane_key IS DISTINCT FROM w.lane_key
  AND (d.driver = ANY(CAST(:drivers AS text[])) OR (d.tenant_id, d.device_id) IN (
    SELECT r.tenant_id, r.device_id FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, device_id bigint)))
ORDER BY d.tenant_id, d.device_id;

-- name: note_left_lanes
-- Devices have left these lanes.
UPDATE lane SET placement = placement + 1 WHERE lane_id = ANY(CAST(:lanes AS bigint[]));

-- name: place_devices
-- Put devices in other lanes.
UPDATE device d SET lane_key = r.lane_key
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, device_id bigint, lane_key text)
WHERE d.tenant_id = r.tenant_id AND d.device_id = r.device_id;

-- name: make_lanes
-- The lanes of devices, so that they can be looked at and held before anything is sent in them.
INSERT INTO lane (tenant_id, lane_key, driver, state, ready_at)
SELECT d.tenant_id, d.lane_key, min(d.driver), 'idle', clock_timestamp()
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, device_id bigint)
JOIN device d ON d.tenant_id = r.tenant_id AND d.device_id = r.device_id
GROUP BY d.tenant_id, d.lane_key ORDER BY d.tenant_id, d.lane_key
ON CONFLICT (tenant_id, lane_key) DO NOTHING;

-- name: move_lanes
-- Devices may have moved to another driver: so do their lanes (the dispatcher follows the head's from then on). Lanes
-- are locked in order first.
WITH locked AS MATERIALIZED (
  SELECT l.lane_id, l.driver, (SELECT d.driver FROM device d WHERE d.tenant_id = l.tenant_id
                               AND d.lane_key = l.lane_key ORDER BY d.update_time DESC LIMIT 1) AS to_be
  FROM lane l WHERE (l.tenant_id, l.lane_key) IN (
    SELECT d.tenant_id, d.lane_key
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(tenant_id bigint, device_id bigint)
    JOIN device d ON d.tenant_id = r.tenant_id AND d.device_id = r.device_id)
  ORDER BY l.lane_id FOR UPDATE OF l
)
UPDATE lane l SET driver = k.to_be FROM locked k WHERE l.lane_id = k.lane_id AND k.driver <> k.to_be;

-- name: put_lane_policies
-- Policies of lanes; a lane nobody has used yet is made, for the driver of a device in it.
INSERT INTO lane AS l (tenant_id, lane_key, driver, state, ready_at, gate, retry, review_policy, max_attempts,
                       ack_timeout_ms, depth_limit, on_full)
SELECT r.tenant_id, r.lane_key, min(d.driver), 'idle', clock_timestamp(), min(r.gate), min(r.retry),
       min(r.review_policy), min(r.max_attempts), min(r.ack_timeout_ms), min(r.depth_limit), min(r.on_full)
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(
  tenant_id bigint, lane_key text, gate text, retry text, review_policy text, max_attempts int, ack_timeout_ms int,
  depth_limit int, on_full text)
JOIN device d ON d.tenant_id = r.tenant_id AND d.lane_key = r.lane_key
GROUP BY r.tenant_id, r.lane_key ORDER BY r.tenant_id, r.lane_key
ON CONFLICT (tenant_id, lane_key) DO UPDATE SET
  gate = excluded.gate, retry = excluded.retry, review_policy = excluded.review_policy,
  max_attempts = excluded.max_attempts, ack_timeout_ms = excluded.ack_timeout_ms, depth_limit = excluded.depth_limit,
  on_full = excluded.on_full
RETURNING tenant_id, lane_key;

-- name: lane_policies
-- The lanes of a tenant that have a policy of their own.
SELECT lane_key, gate, retry, review_policy, max_attempts, ack_timeout_ms, depth_limit, on_full
FROM lane WHERE tenant_id = :tenant_id
  AND (gate, retry, review_policy, max_attempts, ack_timeout_ms, depth_limit, on_full) IS DISTINCT FROM
      (NULL::text, NULL::text, NULL::text, NULL::int, NULL::int, NULL::int, NULL::text)
ORDER BY lane_key;
