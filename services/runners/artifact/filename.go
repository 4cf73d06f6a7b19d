package artifact

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// maxFilename is the length of the longest file name, in bytes: file systems allow no longer ones.
const maxFilename = 255

// ValidateFilename checks the name that people and runners save an artifact under. It is one name without folders. It
// has no control characters, and none that change the direction of writing: they hide the real ending of a name.
func ValidateFilename(name string) error {
	var problem string
	switch {
	case name == "" || len(name) > maxFilename:
		problem = "must have 1 to 255 bytes"
	case !utf8.ValidString(name):
		problem = "must be UTF-8"
	case name == "." || name == ".." || strings.ContainsAny(name, `/\`):
		problem = "must be the name of a file, without folders"
	case strings.ContainsFunc(name, hidden):
		problem = "must have no control characters"
	default:
		return nil
	}
	return fault.New(errcode.InvalidArgument, "file name %.*q: %s", maxFilename, name, problem)
}

func hidden(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }
