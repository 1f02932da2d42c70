-- Only what somebody has ended: the clock by which a lease looks old may have stepped.
DELETE FROM attune.worker_lease WHERE ended AND expires_at < now() - interval '1 day'
