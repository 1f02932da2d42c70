PRAGMA quick_check(1)
