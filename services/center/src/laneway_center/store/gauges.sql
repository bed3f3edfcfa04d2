-- What the scheduler samples for the gauges.

-- name: gauge_lanes
-- Per driver service: lanes by state, commands waiting, how many lanes with waiting commands are closed by an operator
-- or a review, and how long the longest ready lane that is open has not been served.
SELECT l.driver, l.state, count(*) AS lanes, sum(l.depth)::bigint AS waiting,
       count(*) FILTER (WHERE x.closed AND l.depth > 0) AS closed,
       GREATEST(0, EXTRACT(epoch FROM clock_timestamp()
         - min(l.ready_at) FILTER (WHERE l.state = 'ready' AND NOT x.closed)))::float AS blocked_s
FROM lane l CROSS JOIN LATERAL (SELECT l.operator_hold IS NOT NULL OR l.review_holds > 0 AS closed) x
WHERE l.state <> 'idle' GROUP BY l.driver, l.state;

-- name: gauge_in_flight
-- Per driver service: commands on their way, and since when the oldest is.
SELECT driver, count(*) AS in_flight,
       EXTRACT(epoch FROM clock_timestamp() - min(claimed_at))::float AS oldest_s
FROM point_command WHERE status IN ('DISPATCHING', 'SENT') GROUP BY driver;

-- name: gauge_reviews
-- Commands a person has to decide.
SELECT count(*) AS reviews FROM point_command WHERE status = 'MANUAL_REVIEW';

-- name: gauge_dead_ends
-- Dead letters nobody has replayed or discarded.
SELECT count(*) AS dead_ends FROM dead_end WHERE state = 'open';

-- name: gauge_oldest_final
-- How long ago the oldest command ended that the archiver has not moved.
SELECT COALESCE(EXTRACT(epoch FROM clock_timestamp() - min(finished_at)), 0)::float AS oldest_s
FROM point_command WHERE finished_at IS NOT NULL;

-- name: gauge_instances
-- Live instances by service, and how wrong their clocks are at the most.
SELECT service, kind, count(*) FILTER (WHERE state = 'online') AS online,
       max(abs(clock_offset_ms)) FILTER (WHERE state = 'online') / 1000 AS clock_offset_s
FROM driver_instance GROUP BY service, kind;
