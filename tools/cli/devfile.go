package cli

import (
	"io"
	"os"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// maxDevfile is the limit of the API in bytes.
const maxDevfile = 64 << 10

// devfile reads a devfile from a file, or from standard input for "-". It returns "" for no name.
func devfile(name string, stdin io.Reader) (string, error) {
	from := stdin
	switch name {
	case "":
		return "", nil
	case "-":
	default:
		file, err := os.Open(name)
		if err != nil {
			return "", fault.Wrap(err, errcode.InvalidArgument, "read the devfile: %v", err)
		}
		defer file.Close() //nolint:errcheck // only read
		from = file
	}
	raw, err := io.ReadAll(io.LimitReader(from, maxDevfile+1))
	switch {
	case err != nil:
		return "", fault.Wrap(err, errcode.InvalidArgument, "read the devfile: %v", err)
	case len(raw) > maxDevfile:
		return "", fault.New(errcode.PayloadTooLarge, "the devfile has more than %d bytes", maxDevfile)
	case len(raw) == 0:
		return "", fault.New(errcode.InvalidArgument, "the devfile is empty")
	}
	return string(raw), nil
}
