package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size in bytes. Its text is a whole number and an optional unit: 512, 64KiB, 10MB.
type Bytes int64

// Binary units.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// units are all units, the binary ones first and from large to small.
var units = []struct {
	name string
	size Bytes
}{
	{
		"TiB",
		TiB,
	},
	{"GiB", GiB},
	{"MiB", MiB},
	{"KiB", KiB},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"KB", 1e3},
	{"B", 1},
	{"", 1},
}

// ParseBytes parses a size. The case of the unit does not matter.
func ParseBytes(text string) (Bytes, error) {
	text = strings.TrimSpace(text)
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	n, err := strconv.ParseInt(text[:digits], 10, 64)
	for _, unit := range units {
		if err != nil || !strings.EqualFold(strings.TrimSpace(text[digits:]), unit.name) {
			continue
		}
		if n > math.MaxInt64/int64(unit.size) {
			return 0, fmt.Errorf("%q is larger than 8388607TiB", text)
		}
		return Bytes(n) * unit.size, nil
	}
	return 0, fmt.Errorf("%q is not a size such as 512, 64KiB or 10MB", text)
}

// String returns the size in the largest binary unit that divides it. ParseBytes parses it back.
func (b Bytes) String() string {
	for _, unit := range units[:4] {
		if b >= unit.size && b%unit.size == 0 {
			return strconv.FormatInt(int64(b/unit.size), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText implements [encoding.TextMarshaler].
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
