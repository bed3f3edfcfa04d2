-- Operators' actions.

-- name: record_actions
-- What an operator did, in the transaction that did it.
INSERT INTO operator_action (operator, action, tenant_id, subject, why, before, after)
SELECT r.operator, r.action, r.tenant_id, r.subject, r.why, r.before, r.after
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(
  n int, operator text, action text, tenant_id bigint, subject text, why text, before jsonb, after jsonb)
ORDER BY r.n;
