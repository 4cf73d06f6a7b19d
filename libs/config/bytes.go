package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size in bytes, written 512, 64KiB, 10MB: a whole number with an optional unit, B, KB to TB
// (powers of 1000) or KiB to TiB (powers of 1024).
type Bytes int64

// The units.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40

	kB Bytes = 1e3
	mB Bytes = 1e6
	gB Bytes = 1e9
	tB Bytes = 1e12
)

var errBytes = errors.New("not a size such as 512, 64KiB or 10MB")

// ParseBytes reads a size. Units may be written in any case; sizes are never negative.
func ParseBytes(text string) (Bytes, error) {
	text = strings.TrimSpace(text)
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	n, err := strconv.ParseInt(text[:digits], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is %w", text, errBytes)
	}
	unit, ok := unitOf(strings.TrimSpace(text[digits:]))
	if !ok {
		return 0, fmt.Errorf("%q is %w", text, errBytes)
	}
	if n > math.MaxInt64/int64(unit) {
		return 0, fmt.Errorf("%q is more than can be counted", text)
	}
	return Bytes(n) * unit, nil
}

func unitOf(name string) (Bytes, bool) {
	switch strings.ToLower(name) {
	case "", "b":
		return 1, true
	case "kb":
		return kB, true
	case "mb":
		return mB, true
	case "gb":
		return gB, true
	case "tb":
		return tB, true
	case "kib":
		return KiB, true
	case "mib":
		return MiB, true
	case "gib":
		return GiB, true
	case "tib":
		return TiB, true
	default:
		return 0, false
	}
}

// String writes the size in the largest binary unit that divides it, so that ParseBytes reads it back.
func (b Bytes) String() string {
	for _, unit := range []struct {
		size Bytes
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b >= unit.size && b%unit.size == 0 {
			return strconv.FormatInt(int64(b/unit.size), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText is String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText is ParseBytes.
func (b *Bytes) UnmarshalText(text []byte) error {
	parsed, err := ParseBytes(string(text))
	if err != nil {
		return err
	}
	*b = parsed
	return nil
}
