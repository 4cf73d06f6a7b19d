package cli

import (
	"io"
	"os"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// maxDevfile is as much as the API takes, in bytes, so that the wrong file is not read whole.
const maxDevfile = 64 << 10

// devfile reads a devfile from a file, or for - from standard input; without a name there is none.
func devfile(name string, stdin io.Reader) (string, error) {
	from := stdin
	switch name {
	case "":
		return "", nil
	case "-":
	default:
		file, err := os.Open(name)
		if err != nil {
			return "", fault.Wrap(err, errcode.InvalidArgument, "the devfile cannot be read: %v", err)
		}
		defer file.Close() //nolint:errcheck // it was only read
		from = file
	}
	raw, err := io.ReadAll(io.LimitReader(from, maxDevfile+1))
	switch {
	case err != nil:
		return "", fault.Wrap(err, errcode.InvalidArgument, "the devfile cannot be read: %v", err)
	case len(raw) > maxDevfile:
		return "", fault.New(errcode.PayloadTooLarge, "the devfile has more than %d bytes; is it the right file?", maxDevfile)
	case len(raw) == 0:
		return "", fault.New(errcode.InvalidArgument, "the devfile is empty")
	}
	return string(raw), nil
}
