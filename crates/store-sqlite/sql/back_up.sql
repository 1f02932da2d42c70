-- Everything at one moment, into an empty file.
VACUUM INTO ?1
