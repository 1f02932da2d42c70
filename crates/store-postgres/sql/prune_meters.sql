-- What says nothing any more, an hour later: the owners' clocks may be a little behind this one.
DELETE FROM attune.meter WHERE expires_at < now() - interval '1 hour'
