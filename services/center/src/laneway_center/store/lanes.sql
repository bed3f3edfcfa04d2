-- Lanes as operators see them, and what operators do to them.

-- name: lock_lane
-- One lane by its key, locked.
SELECT * FROM lane WHERE tenant_id = :tenant_id AND lane_key = :lane_key FOR UPDATE;

-- name: hold_lane
-- Close a lane: nothing is claimed in it until it is released. What is in flight goes on.
UPDATE lane SET operator_hold = :operator, operator_hold_reason = :why, operator_hold_at = clock_timestamp()
WHERE lane_id = :lane_id;

-- name: release_lane
-- Open it again.
UPDATE lane SET operator_hold = NULL, operator_hold_reason = NULL, operator_hold_at = NULL,
  ready_at = CASE WHEN state = 'ready' AND holder_id IS NULL THEN clock_timestamp() ELSE ready_at END
WHERE lane_id = :lane_id;

-- name: move_to_tail
-- A command an operator puts behind all others of its lane, where it no longer keeps them waiting.
UPDATE point_command SET priority = :priority,
  retry = CASE WHEN status = 'RETRY_WAIT' THEN 'relaxed' ELSE retry END
WHERE id = :id;

-- name: lane_queue
-- The holder of a lane, its next waiting commands in the order in which they would be claimed, and its reviews, those
-- that close it first.
SELECT c.id, c.command_id::text AS command_id, c.tenant_id, c.device_id, c.point_id, c.status, c.priority, c.seq,
       c.attempt, c.create_time, c.claimed_at, c.next_visible_at, c.start_by, c.quiet_at, c.ack_due_at, c.expire_at,
       c.intent_key, c.ack_expected, c.gate, c.update_time,
       d.device_sn, d.enabled AS device_enabled, d.driver AS device_driver, d.profile,
       p.name AS point, p.enabled AS point_enabled, clock_timestamp() AS now
FROM (
  SELECT 0 AS part, 0::bigint AS place, c.* FROM point_command c WHERE c.id = :holder_id
  UNION ALL
  (SELECT 1, row_number() OVER turns, c.* FROM point_command c
   WHERE c.lane_id = :lane_id AND c.status IN ('PENDING', 'RETRY_WAIT') AND c.id IS DISTINCT FROM :holder_id
   WINDOW turns AS (ORDER BY
     GREATEST(0, c.priority - floor(EXTRACT(epoch FROM clock_timestamp() - c.update_time) / :ageing_s)), c.seq)
   ORDER BY 2 LIMIT :most)
  UNION ALL
  (SELECT 2, row_number() OVER turns, c.* FROM point_command c
   WHERE c.lane_id = :lane_id AND c.status = 'MANUAL_REVIEW'
   WINDOW turns AS (ORDER BY c.review_hold DESC, c.update_time, c.id)
   ORDER BY 2 LIMIT :most)
) c
LEFT JOIN device d ON d.tenant_id = c.tenant_id AND d.device_id = c.device_id
LEFT JOIN point p ON p.tenant_id = c.tenant_id AND p.device_id = c.device_id AND p.point_id = c.point_id
ORDER BY c.part, c.place;

-- name: lane_waiting
-- How many wait in a lane, by priority.
SELECT priority, count(*)::int AS waiting FROM point_command
WHERE lane_id = :lane_id AND status IN ('PENDING', 'RETRY_WAIT') GROUP BY priority ORDER BY priority;

-- name: lane_driver
-- The driver service of a lane: whether it may and can run commands, and how many are on their way to it.
SELECT v.name, v.enabled, x.online, x.capacity, x.last_seen,
       (SELECT count(*) FROM point_command c WHERE c.driver = v.name AND c.status IN ('DISPATCHING', 'SENT'))::int
         AS in_flight,
       ARRAY(SELECT DISTINCT unnest(i.profiles) FROM driver_instance i
             WHERE i.kind = 'ack-listener' AND i.state = 'online') AS profiles
FROM driver v CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE i.state = 'online')::int AS online, max(i.last_seen) AS last_seen,
         COALESCE(sum(i.capacity) FILTER (WHERE i.state = 'online'), 0)::int AS capacity
  FROM driver_instance i WHERE i.service = v.name AND i.kind = 'driver') x
WHERE v.name = :driver;

-- name: lane_terms
-- What lane, device and driver (and the devices' points) say about a lane, per device in it.
SELECT d.device_id, d.device_sn, d.driver, l.lane_id,
       ARRAY[NULL, l.gate, d.gate, v.gate] AS gate,
       ARRAY[NULL, l.retry, d.retry, v.retry] AS retry,
       ARRAY[NULL, l.review_policy, d.review_policy, v.review_policy] AS review_policy,
       ARRAY[NULL, l.max_attempts, d.max_attempts, v.max_attempts] AS max_attempts,
       ARRAY[NULL, l.ack_timeout_ms, d.ack_timeout_ms, v.ack_timeout_ms] AS ack_timeout_ms,
       ARRAY[NULL, l.depth_limit, d.depth_limit, v.depth_limit] AS depth_limit,
       ARRAY[NULL, l.on_full, d.on_full, v.on_full] AS on_full,
       (SELECT jsonb_agg(jsonb_build_object('pointId', p.point_id, 'point', p.name, 'retrySafety', p.retry_safety,
                'gate', p.gate, 'maxAttempts', p.max_attempts, 'ackTimeoutMs', p.ack_timeout_ms, 'ack', p.ack)
                ORDER BY p.point_id)
        FROM point p WHERE p.tenant_id = d.tenant_id AND p.device_id = d.device_id
          AND (p.gate IS NOT NULL OR p.max_attempts IS NOT NULL OR p.ack_timeout_ms IS NOT NULL
               OR p.retry_safety = 'unsafe' OR p.ack = 'none'))::text AS points
FROM device d JOIN driver v ON v.name = d.driver
LEFT JOIN lane l ON l.tenant_id = d.tenant_id AND l.lane_key = d.lane_key
WHERE d.tenant_id = :tenant_id AND d.lane_key = :lane_key
ORDER BY d.device_id LIMIT 50;

-- name: show_lane
-- One lane with what is in flight in it.
SELECT l.*, clock_timestamp() AS now, c.command_id::text AS holder, c.status AS holder_status, c.claimed_at,
       c.attempt AS holder_attempt
FROM lane l LEFT JOIN point_command c ON c.id = l.holder_id
WHERE l.tenant_id = :tenant_id AND l.lane_key = :lane_key;

-- name: deepest_lanes
-- Lanes with most commands waiting.
SELECT l.*, clock_timestamp() AS now, c.command_id::text AS holder, c.status AS holder_status, c.claimed_at,
       c.attempt AS holder_attempt
FROM (
  SELECT * FROM lane
  WHERE tenant_id = :tenant_id AND (CAST(:driver AS text) IS NULL OR driver = :driver)
    AND (state <> 'idle' OR operator_hold IS NOT NULL OR review_holds > 0)
  ORDER BY depth DESC, lane_id LIMIT :most OFFSET :skip
) l LEFT JOIN point_command c ON c.id = l.holder_id
ORDER BY l.depth DESC, l.lane_id;

-- name: longest_blocked_lanes
-- Lanes whose commands wait longest: since the one in flight was claimed, or since the lane could have been served.
SELECT x.* FROM (
  SELECT l.*, clock_timestamp() AS now, c.command_id::text AS holder, c.status AS holder_status, c.claimed_at,
         c.attempt AS holder_attempt, CASE WHEN l.holder_id IS NULL THEN l.ready_at ELSE c.claimed_at END AS blocked_since
  FROM lane l LEFT JOIN point_command c ON c.id = l.holder_id
  WHERE l.tenant_id = :tenant_id AND (CAST(:driver AS text) IS NULL OR l.driver = :driver)
    AND l.depth > 0) x
ORDER BY x.blocked_since, x.lane_id LIMIT :most OFFSET :skip;
