package wire

import (
	"strconv"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// ContentRange is a part of a trace: the bytes from Start to End, both included. It has at least one byte.
type ContentRange struct {
	Start, End int64
}

// maxOffset bounds ranges, so that their sums cannot overflow.
const maxOffset = 1 << 50

// ParseContentRange reads the header Content-Range of a trace, such as "0-1954". An error is the fault
// invalid_argument.
func ParseContentRange(value string) (ContentRange, error) {
	if value == "" {
		return ContentRange{}, fault.New(errcode.InvalidArgument,
			"the header Content-Range is missing: send the offsets of the first and the last byte, such as 0-1954")
	}
	first, last, found := strings.Cut(value, "-")
	start, okStart := offset(first)
	end, okEnd := offset(last)
	if !found || !okStart || !okEnd || end < start {
		return ContentRange{}, fault.New(errcode.InvalidArgument,
			"the header Content-Range is invalid: send the offsets of the first and the last byte, such as 0-1954")
	}
	return ContentRange{Start: start, End: end}, nil
}

// String returns the value of the header.
func (r ContentRange) String() string { return decimal(r.Start) + "-" + decimal(r.End) }

// Size returns the number of bytes.
func (r ContentRange) Size() int64 { return r.End - r.Start + 1 }

// StoredRange returns the value of the header Range in answers about a trace: "0-" and the number of stored bytes. That
// is not the offset of the last byte, as in a range of HTTP: runners continue at this number.
func StoredRange(size int64) string { return "0-" + decimal(size) }

// offset reads a decimal number without sign and leading zeros.
func offset(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0 && n < maxOffset && decimal(n) == text
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
