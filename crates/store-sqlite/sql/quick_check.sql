-- Whether the pages of the file fit together: `ok`, or the first thing that is wrong. Reads all of it, so it takes
-- its time; takes no lock that a writer would wait for.
PRAGMA quick_check(1)
