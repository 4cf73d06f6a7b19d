package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// hidden is printed instead of a secret.
const hidden = "(hidden)"

// maxSecret is the largest secret file, in bytes.
const maxSecret = 1 << 20

// Secret is a secret in a file. The configuration holds the path; its key ends in _file. A Secret never
// prints its value: not as a string, in JSON, in slog or in problems. The zero value is not set.
type Secret struct {
	path  string
	value *string // behind a pointer, so that printing an enclosing struct shows an address
}

// SecretFile returns a secret in a file. Each Read reads the file, so that it can be rotated.
func SecretFile(path string) Secret { return Secret{path: path} }

// SecretValue returns a secret in memory, for programs that start a service in their own process.
func SecretValue(value string) Secret { return Secret{value: &value} }

// IsSet reports whether there is a file or a value.
func (s Secret) IsSet() bool { return s.path != "" || s.value != nil }

// Path returns the path of the file, "" for a value in memory.
func (s Secret) Path() string { return s.path }

// Read returns the secret without the line break at its end. It returns an error when the secret is not
// set, and when the file cannot be read, is empty or is larger than 1 MiB.
func (s Secret) Read() (string, error) {
	if s.value != nil {
		return *s.value, nil
	}
	if s.path == "" {
		return "", errors.New("the secret is not set")
	}
	file, err := os.Open(s.path)
	if err != nil {
		return "", fmt.Errorf("cannot read the secret: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	raw, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("cannot read the secret: %w", err)
	}
	if len(raw) > maxSecret {
		return "", fmt.Errorf("the secret file %s is larger than 1 MiB", s.path)
	}
	value := strings.TrimRight(string(raw), "\r\n")
	if value == "" {
		return "", fmt.Errorf("the secret file %s is empty", s.path)
	}
	return value, nil
}

// Validate checks that a secret that is set can be read.
func (s Secret) Validate() []error {
	if !s.IsSet() {
		return nil
	}
	if _, err := s.Read(); err != nil {
		return []error{err}
	}
	return nil
}

// String returns the path, never the value.
func (s Secret) String() string {
	if s.value != nil {
		return hidden
	}
	return s.path
}

// GoString is String, for %#v.
func (s Secret) GoString() string { return "config.Secret(" + s.String() + ")" }

// LogValue is String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String; JSON uses it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets the path. An empty path unsets the secret.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = Secret{path: string(text)}
	return nil
}
