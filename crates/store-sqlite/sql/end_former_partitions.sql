-- The leases of an earlier process: whoever has the lock of the file is the only one.
UPDATE partition_lease
   SET owner = NULL, owner_name = NULL, wanted_owner = NULL, renewals = renewals + 1,
       expires_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
       updated_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
 WHERE owner IS NOT NULL OR wanted_owner IS NOT NULL
