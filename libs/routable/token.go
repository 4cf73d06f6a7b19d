package routable

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"

	"lockstep.internal/libs/topology"
)

// Prefix is the kind of a token. People and secret scanners recognize it.
type Prefix string

const (
	// Runner is the prefix of runner tokens. gitlab-runner expects it.
	Runner Prefix = "glrt-"
	// Personal is the prefix of personal access tokens. Older ones have it, too, in another format.
	Personal Prefix = "lsp_"
)

// Payload is what a token says about its owner.
type Payload struct {
	// Cell that made the token. Empty for none.
	Cell topology.Cell
	// Organization that the token belongs to. Zero for none, such as an instance runner, which belongs to its cell.
	Organization int64
	// Group, Project, Type and User are optional: zero means absent. Type is that of a runner.
	Group, Project, Type, User int64
}

// Token is the content of a token. It has no secret.
type Token struct {
	Prefix  Prefix
	Payload Payload
}

const (
	// MaxLength of a token in bytes.
	MaxLength = 256

	randomBytes = 16
	// version of the format, with its separators.
	version     = ".01."
	lengthSize  = 2
	crcSize     = 7
	base        = 36
	suffixSize  = len(version) + lengthSize + crcSize
	lengthBytes = 1
)

var (
	// ErrMalformed is wrapped by the errors of [Parse].
	ErrMalformed = errors.New("not a routable token")
	// ErrInvalidPayload is wrapped by the errors of [New].
	ErrInvalidPayload = errors.New("invalid payload of a token")
)

// New returns a token of 128 random bits. Show it once and store its hash.
func New(prefix Prefix, payload Payload) (string, error) {
	var random [randomBytes]byte
	rand.Read(random[:]) // Read never returns an error.
	return encode(prefix, random, payload)
}

func encode(prefix Prefix, random [randomBytes]byte, payload Payload) (string, error) {
	if !slices.Contains([]Prefix{Runner, Personal}, prefix) {
		return "", fmt.Errorf("%w: unknown prefix %q", ErrInvalidPayload, prefix)
	}
	lines, err := payload.lines()
	if err != nil {
		return "", err
	}
	raw := make([]byte, 0, randomBytes+len(lines)+lengthBytes)
	raw = append(raw, random[:]...)
	raw = append(raw, lines...)
	raw = append(raw, byte(len(lines)))
	text := encoding().EncodeToString(raw)
	body := string(prefix) + text + version + digits(uint64(len(text)), lengthSize)
	return body + checksum(body), nil
}

// lines returns the encoded payload.
func (p Payload) lines() (string, error) {
	var lines []string
	if p.Cell != "" {
		if err := topology.ValidateCell(string(p.Cell)); err != nil {
			return "", fmt.Errorf("%w: %w", ErrInvalidPayload, err)
		}
		lines = append(lines, "c:"+string(p.Cell))
	}
	for _, field := range []struct {
		key      string
		value    int64
		required bool
	}{
		{"g", p.Group, false},
		{"o", p.Organization, true},
		{"p", p.Project, false},
		{"t", p.Type, false},
		{"u", p.User, false},
	} {
		switch {
		case field.value < 0:
			return "", fmt.Errorf("%w: %s is negative", ErrInvalidPayload, field.key)
		case field.value > 0 || field.required:
			lines = append(lines, field.key+":"+strconv.FormatInt(field.value, base))
		}
	}
	return strings.Join(lines, "\n"), nil
}

// Parse reads a token. Its payload is a claim of whoever sends it; see the package.
func Parse(text string) (Token, error) {
	if len(text) > MaxLength {
		return Token{}, fmt.Errorf("%w: longer than %d bytes", ErrMalformed, MaxLength)
	}
	prefix, rest, found := cutPrefix(text)
	if !found {
		return Token{}, fmt.Errorf("%w: unknown prefix", ErrMalformed)
	}
	if len(rest) <= suffixSize || rest[len(rest)-suffixSize:len(rest)-suffixSize+len(version)] != version {
		return Token{}, fmt.Errorf("%w: wrong shape", ErrMalformed)
	}
	body := text[:len(text)-crcSize]
	if checksum(body) != text[len(body):] {
		return Token{}, fmt.Errorf("%w: wrong checksum: check that the token was copied completely", ErrMalformed)
	}
	encoded := rest[:len(rest)-suffixSize]
	if digits(uint64(len(encoded)), lengthSize) != body[len(body)-lengthSize:] {
		return Token{}, fmt.Errorf("%w: wrong length", ErrMalformed)
	}
	payload, err := decode(encoded)
	if err != nil {
		return Token{}, err
	}
	return Token{Prefix: prefix, Payload: payload}, nil
}

func cutPrefix(text string) (prefix Prefix, rest string, found bool) {
	for _, prefix := range []Prefix{Runner, Personal} {
		if rest, found := strings.CutPrefix(text, string(prefix)); found {
			return prefix, rest, true
		}
	}
	return "", "", false
}

func decode(encoded string) (Payload, error) {
	// The decoder ignores line ends; strict decoding refuses spare bits.
	if strings.ContainsAny(encoded, "\r\n") {
		return Payload{}, fmt.Errorf("%w: invalid characters", ErrMalformed)
	}
	raw, err := encoding().DecodeString(encoded)
	if err != nil {
		return Payload{}, fmt.Errorf("%w: invalid characters", ErrMalformed)
	}
	size := len(raw) - randomBytes - lengthBytes
	if size <= 0 || int(raw[len(raw)-lengthBytes]) != size {
		return Payload{}, fmt.Errorf("%w: wrong length of the payload", ErrMalformed)
	}
	return parsePayload(string(raw[randomBytes : randomBytes+size]))
}

func parsePayload(lines string) (Payload, error) {
	var payload Payload
	fields := map[string]*int64{
		"g": &payload.Group, "o": &payload.Organization, "p": &payload.Project, "t": &payload.Type, "u": &payload.User,
	}
	for line := range strings.SplitSeq(lines, "\n") {
		key, value, _ := strings.Cut(line, ":")
		if key == "c" {
			payload.Cell = topology.Cell(value)
			continue
		}
		field, known := fields[key]
		if !known {
			return Payload{}, fmt.Errorf("%w: unknown key in the payload", ErrMalformed)
		}
		number, err := strconv.ParseInt(value, base, 64)
		if err != nil {
			return Payload{}, fmt.Errorf("%w: a value of the payload is no base36 integer", ErrMalformed)
		}
		*field = number
	}
	// Encoding again finds everything that has another spelling: the order, repeated keys, zeros, upper case.
	if canonical, err := payload.lines(); err != nil || canonical != lines {
		return Payload{}, fmt.Errorf("%w: the payload is not in its canonical form", ErrMalformed)
	}
	return payload, nil
}

func encoding() *base64.Encoding { return base64.RawURLEncoding.Strict() }

func checksum(body string) string {
	return digits(uint64(crc32.ChecksumIEEE([]byte(body))), crcSize)
}

// digits returns a number as base36 digits with leading zeros.
func digits(number uint64, size int) string {
	text := strconv.FormatUint(number, base)
	return strings.Repeat("0", max(0, size-len(text))) + text
}
