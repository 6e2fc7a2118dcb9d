-- The revenue of each day, from a topic of JSON orders.
--
--     chronik topic create orders --config table.enabled=true
--     chronik pipeline tables --once
--     chronik pipeline run examples/orders_revenue.sql
--
-- Orders that have not landed yet are read from the live log, so the answer is up to date either way.

CREATE OR REPLACE TEMPORARY VIEW paid AS
SELECT CAST(timestamp AS DATE) AS day, id, total
FROM orders
WHERE status = 'paid';

SELECT day, count(*) AS orders, round(sum(total), 2) AS revenue
FROM paid
GROUP BY day
ORDER BY day;
