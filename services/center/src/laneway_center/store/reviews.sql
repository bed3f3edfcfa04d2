-- Reviews: what a person has to decide, and what is known about it.

-- name: open_reviews
-- Commands in review, oldest first, with the line that put them there and how many wait behind them.
SELECT c.*, l.lane_key, l.depth AS waiting_behind, e.at AS since, e.note AS why, e.id AS event_id
FROM point_command c JOIN lane l ON l.lane_id = c.lane_id
JOIN LATERAL (
  SELECT x.id, x.at, x.note FROM point_command_event x
  WHERE x.command_pk = c.id AND x.to_status = 'MANUAL_REVIEW' AND x.from_status <> 'MANUAL_REVIEW'
  ORDER BY x.id DESC LIMIT 1) e ON true
WHERE c.status = 'MANUAL_REVIEW' AND c.tenant_id = :tenant_id AND c.id > :after
  AND (CAST(:device_id AS bigint) IS NULL OR c.device_id = :device_id)
  AND (CAST(:driver AS text) IS NULL OR c.driver = :driver)
ORDER BY c.id LIMIT :most;

-- name: waiting_in_lane
-- How many commands wait in the lane of a command.
SELECT l.depth FROM lane l WHERE l.lane_id = :lane_id;

-- name: review_decisions
-- How these (hot) commands left review, the last one first.
SELECT e.command_pk, e.at, e.kind, e.to_status, e.note, e.detail
FROM point_command_event e
WHERE e.command_pk = ANY(CAST(:commands AS bigint[])) AND e.from_status = 'MANUAL_REVIEW'
  AND e.to_status <> 'MANUAL_REVIEW'
ORDER BY e.id DESC;
