// Package routable makes and reads routable tokens: tokens whose text names the cell and the organization that they
// belong to, so that a router finds the owner without a database.
//
// The format is the one that GitLab ships for its runner tokens. A token is a prefix, the base64url text (no padding)
// of 16 random bytes, the payload and one byte with the payload's length, and then ".01.", two base36 digits with the
// length of the base64 text, and seven base36 digits with the CRC32 (IEEE) of everything before them:
//
//	glrt-AAECAwQFBgcICQoLDA0OD2M6MgpnOjlpeApvOjEKdDoyCnU6MRU.01.1f09ud6oa
//
// The payload is a list of lines key:value, sorted by key. The example has the lines c:2, g:9ix, o:1, t:2 and u:1.
// Integers are base36. The line o is always there; o:0 means no organization.
//
// A payload is a claim, not a proof: whoever knows the format can make a token with any payload. It only selects who
// checks the token. That service compares the hash of the whole text. A CRC detects mistyped and truncated tokens.
//
// [Parse] accepts one spelling of each token only. It reads at most [MaxLength] bytes and allocates nothing in
// proportion to a longer text. Its errors never quote the token.
package routable
