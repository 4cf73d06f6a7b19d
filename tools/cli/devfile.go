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
	if name == "" {
		return "", nil
	}
	raw, err := readInput(name, "devfile", maxDevfile, stdin)
	return string(raw), err
}

// readInput reads a file that is not empty, or standard input for "-".
func readInput(name, what string, limit int, stdin io.Reader) ([]byte, error) {
	from := stdin
	if name != stdinFlag {
		file, err := os.Open(name)
		if err != nil {
			return nil, fault.Wrap(err, errcode.InvalidArgument, "read the %s: %v", what, err)
		}
		defer file.Close() //nolint:errcheck // only read
		from = file
	}
	raw, err := io.ReadAll(io.LimitReader(from, int64(limit)+1))
	switch {
	case err != nil:
		return nil, fault.Wrap(err, errcode.InvalidArgument, "read the %s: %v", what, err)
	case len(raw) > limit:
		return nil, fault.New(errcode.PayloadTooLarge, "the %s has more than %d bytes", what, limit)
	case len(raw) == 0:
		return nil, fault.New(errcode.InvalidArgument, "the %s is empty", what)
	}
	return raw, nil
}
