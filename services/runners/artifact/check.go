package artifact

import (
	"archive/zip"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Bounds of what [Check] does.
type Bounds struct {
	// Entries is the largest number of entries of an archive.
	Entries int
	// Directory is the size of the largest central directory, in bytes. It is in memory during the check, as up to eight
	// times as much.
	Directory int64
	// Checked is the size of the largest file that is checked with its checksums, in bytes.
	Checked int64
	// Decompressed is how much is decompressed for that at most, in bytes.
	Decompressed int64
}

// DefaultBounds returns bounds that take at most some seconds of a processor.
func DefaultBounds() Bounds {
	return Bounds{Entries: 200_000, Directory: 16 << 20, Checked: 64 << 20, Decompressed: 512 << 20}
}

// Report says what [Check] has seen.
type Report struct {
	// Entries of an archive.
	Entries int
	// Verified reports that all checksums are right. Large and encrypted content is not verified.
	Verified bool
}

// Check reads a stored file and reports whether it is valid, see the package. A file that is not valid is the fault
// invalid_argument. Other errors are those of content and of ctx. It holds 1 MiB of the file in memory, and the
// central directory of an archive.
func Check(ctx context.Context, format Format, content io.ReaderAt, size int64, bounds Bounds) (Report, error) {
	if size <= 0 {
		return Report{}, invalid("it is empty")
	}
	w := newWindow(ctx, content, size)
	var report Report
	var err error
	switch format {
	case Zip:
		report, err = checkZip(w, bounds)
	case Gzip:
		report, err = checkGzip(w, bounds)
	case Raw:
		return Report{}, nil
	default:
		return Report{}, fmt.Errorf("artifact format %q is not known", format)
	}
	if w.err != nil {
		return Report{}, fmt.Errorf("check the artifact: %w", w.err)
	}
	return report, err
}

func invalid(format string, args ...any) error {
	reason := fmt.Sprintf(format, args...)
	return fault.New(errcode.InvalidArgument, "the artifact is not valid: %s: upload it again", reason)
}

func checkZip(w *window, bounds Bounds) (Report, error) {
	// The end of the directory is searched in the last 66 KiB.
	w.allow(bounds.Directory + 128<<10)
	archive, err := zip.NewReader(w, w.size)
	switch {
	case w.spent:
		return Report{}, invalid("its central directory is larger than %d bytes", bounds.Directory)
	case errors.Is(err, zip.ErrInsecurePath): // the names are checked below
	case err != nil:
		return Report{}, invalid("it is no complete zip archive: %v", err)
	}
	if len(archive.File) > bounds.Entries {
		return Report{}, invalid("it has %d entries, and %d are allowed", len(archive.File), bounds.Entries)
	}
	for _, entry := range archive.File {
		if escapes(entry.Name) {
			return Report{}, invalid("the entry %.200q leads out of its folder", entry.Name)
		}
	}
	report := Report{Entries: len(archive.File)}
	if w.size > bounds.Checked {
		return report, nil
	}
	// Entries that overlap or are in a hostile order are read more than once.
	w.allow(2 * w.size)
	report.Verified, err = verifyEntries(archive.File, bounds.Decompressed)
	if w.spent {
		return Report{Entries: report.Entries}, nil
	}
	return report, err
}

// escapes reports whether an entry would be extracted outside of the folder, on any operating system.
func escapes(name string) bool {
	name = strings.ReplaceAll(name, `\`, "/")
	hasDrive := len(name) > 2 && name[1] == ':' && name[2] == '/'
	clean := path.Clean(name)
	return hasDrive || path.IsAbs(name) || clean == ".." || strings.HasPrefix(clean, "../")
}

// verifyEntries decompresses the entries until the budget is used up.
func verifyEntries(entries []*zip.File, budget int64) (verified bool, err error) {
	verified = true
	for _, entry := range entries {
		reader, err := entry.Open()
		switch {
		case errors.Is(err, zip.ErrAlgorithm):
			verified = false
			continue
		case err != nil:
			return false, invalid("the entry %.200q: %v", entry.Name, err)
		}
		if entry.Flags&1 != 0 { // encrypted
			verified = false
			if err := reader.Close(); err != nil {
				return false, invalid("the entry %.200q: %v", entry.Name, err)
			}
			continue
		}
		n, err := io.Copy(io.Discard, io.LimitReader(reader, budget+1))
		err = errors.Join(err, reader.Close())
		switch {
		case err != nil:
			return false, invalid("the entry %.200q: %v", entry.Name, err)
		case n > budget:
			return false, nil
		}
		budget -= n
	}
	return verified, nil
}

func checkGzip(w *window, bounds Bounds) (Report, error) {
	w.allow(w.size + windowSize)
	reader, err := gzip.NewReader(io.NewSectionReader(w, 0, w.size))
	if err != nil {
		return Report{}, invalid("it is no gzip file: %v", err)
	}
	defer reader.Close() //nolint:errcheck // the checksum was compared at the end
	if w.size > bounds.Checked {
		return Report{}, nil
	}
	n, err := io.Copy(io.Discard, io.LimitReader(reader, bounds.Decompressed+1))
	if err != nil {
		return Report{}, invalid("it is no complete gzip file: %v", err)
	}
	return Report{Verified: n <= bounds.Decompressed}, nil
}
