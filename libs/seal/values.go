package seal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// ErrWrongLabel means that the box was sealed with another label; see [Values.Seal].
var ErrWrongLabel = errors.New("sealed values have another label")

// Seal seals the values together with a label that names what they belong to, such as a workspace and
// the digest of its values.
func (v Values) Seal(label, recipientPublic string, sender Key) ([]byte, error) {
	plaintext := appendString(nil, label)
	plaintext = appendValues(plaintext, v)

	defer clear(plaintext)

	return Seal(plaintext, recipientPublic, sender)
}

// OpenValues opens what [Values.Seal] sealed with the same label. Errors wrap [ErrNotOpened] or
// [ErrWrongLabel].
func OpenValues(box []byte, label, senderPublic string, recipient Key) (Values, error) {
	plaintext, err := Open(box, senderPublic, recipient)
	if err != nil {
		return nil, err
	}
	defer clear(plaintext)

	sealedFor, rest, ok := cutString(plaintext)
	if !ok {
		return nil, fmt.Errorf("%w: the content is not an encoding of values", ErrNotOpened)
	}

	if sealedFor != label {
		return nil, fmt.Errorf("%w: to %q, not %q", ErrWrongLabel, sealedFor, label)
	}

	values, ok := parseValues(rest)
	if !ok {
		return nil, fmt.Errorf("%w: it holds no values", ErrNotOpened)
	}

	return values, nil
}

// appendValues appends the canonical encoding of values: names in byte order, each name and value with its length
// before it, so that no two different maps give the same bytes.
func appendValues(to []byte, values Values) []byte {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		to = appendString(to, name)
		to = appendString(to, values[name].text)
	}

	return to
}

// parseValues decodes the canonical encoding and rejects others.
func parseValues(from []byte) (Values, bool) {
	values := make(Values)
	before, first := "", true

	for len(from) > 0 {
		name, rest, ok := cutString(from)
		if !ok || (!first && name <= before) {
			return nil, false
		}

		text, rest, ok := cutString(rest)
		if !ok {
			return nil, false
		}

		values[name] = NewValue(text)
		from, before, first = rest, name, false
	}

	return values, true
}

func appendString(to []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(to, uint64(len(s))), s...)
}

func cutString(from []byte) (string, []byte, bool) {
	const size = 8
	if len(from) < size {
		return "", nil, false
	}

	length, rest := binary.BigEndian.Uint64(from), from[size:]
	if length > uint64(len(rest)) {
		return "", nil, false
	}

	return string(rest[:length]), rest[length:], true
}
