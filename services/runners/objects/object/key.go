package object

import (
	"fmt"
	"regexp"
)

// MaxKey is the length of the longest key, in bytes. A key of this length is still a valid file name on every store.
const MaxKey = 200

// key is one or more segments. A segment begins with a letter or a digit, so it is never ".", ".." or a hidden file.
// Letters are lower case: some file systems do not tell them from upper case.
var key = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*$`)

// ValidateKey checks a key: segments of lower-case letters, digits, ".", "_" and "-" that are separated by "/". Each
// begins with a letter or a digit. The key has at most [MaxKey] bytes.
func ValidateKey(text string) error {
	if len(text) > MaxKey || !key.MatchString(text) {
		return fmt.Errorf("object key %.*q: use at most %d bytes, in segments such as jobs/17/archive.zip of lower-case "+
			"letters, digits, dots, underscores and hyphens", MaxKey, text, MaxKey)
	}
	return nil
}
