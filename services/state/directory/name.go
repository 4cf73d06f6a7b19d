package directory

import (
	"regexp"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// MaxDisplayName is the maximum length of names that need not be unique, such as those of tokens.
const MaxDisplayName = 100

var (
	nameForm     = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)
	usernameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`)
)

// CheckName returns the fault invalid_argument unless the name is DNS-safe and has at most 40 characters.
func CheckName(name string) error {
	if nameForm.MatchString(name) {
		return nil
	}
	return fault.New(errcode.InvalidArgument, "name %q must be 1 to 40 characters of a-z, 0-9 and inner -", name).
		With("field", "name")
}

// CheckUsername returns the fault invalid_argument unless it is a login name: as other names, with dots and
// underscores.
func CheckUsername(name string) error {
	if usernameForm.MatchString(name) {
		return nil
	}
	return fault.New(errcode.InvalidArgument,
		"username %q must be 1 to 64 characters of a-z, 0-9 and inner ., _ and -", name).With("field", "username")
}
