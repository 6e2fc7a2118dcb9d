"""Leader and follower of a partition: fetch, in-sync replicas, high watermark, leader epochs, leases."""
