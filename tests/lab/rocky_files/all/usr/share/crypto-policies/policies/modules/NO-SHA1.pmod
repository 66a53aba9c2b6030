# This is a module of the crypto policy disabling SHA1 in signatures.
hash = -SHA1
sign = -*-SHA1
sha1_in_certs = 0
