package natsauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"lockstep.internal/libs/logkey"
)

// SubscriberCredentials is the content of a subscriber's credentials file. The file is also a context of the `nats`
// CLI: its fields have the names of the CLI, which ignores unknown fields. Its JSON contains the token. String and
// LogValue hide it.
type SubscriberCredentials struct {
	Description string `json:"description"`
	// URL is one or more nats:// or tls:// URLs, separated by commas.
	URL string `json:"url"`
	// User reads the consumer. Listener, with the same password, receives facts when they are stored.
	User     string `json:"user"`
	Password string `json:"password"`
	Listener string `json:"listener"`
	// InboxPrefix is the required prefix of the user's inboxes.
	InboxPrefix string `json:"inbox_prefix"`
	// Stream and Consumer are what it reads.
	Stream   string `json:"stream"`
	Consumer string `json:"consumer"`
	// Filter is the subject filter of the events that it may read.
	Filter string `json:"filter"`
	// CA is the path of a PEM file with the CA of the servers. Empty means the machine's own roots.
	CA string `json:"ca"`
}

// LogValue shows whose credentials they are.
func (c SubscriberCredentials) LogValue() slog.Value {
	return slog.GroupValue(slog.String(logkey.URL, c.URL), slog.String(logkey.User, c.User),
		slog.String(logkey.Filter, c.Filter))
}

// String is [SubscriberCredentials.LogValue] as text.
func (c SubscriberCredentials) String() string { return c.LogValue().String() }

// GoString keeps %#v from printing secrets.
func (c SubscriberCredentials) GoString() string { return c.String() }

// ErrInvalidSubscriberCredentials is wrapped by errors about credentials that cannot be used.
var ErrInvalidSubscriberCredentials = errors.New("invalid subscriber credentials")

// WriteSubscriberCredentials writes the file atomically with mode 0600, and the servers' CA, if given, to a file
// beside it with the suffix .ca.pem. It replaces existing files.
func WriteSubscriberCredentials(path string, c SubscriberCredentials, ca string) error {
	if c.URL == "" || c.User == "" || c.Password == "" || c.Consumer == "" {
		return fmt.Errorf("%w: url, user, password and consumer are required", ErrInvalidSubscriberCredentials)
	}

	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("subscriber credentials: %w", err)
	}

	if ca != "" {
		c.CA = strings.TrimSuffix(path, filepath.Ext(path)) + ".ca.pem"
		if err := replaceFile(c.CA, []byte(ca)); err != nil {
			return fmt.Errorf("subscriber credentials: %w", err)
		}
	}

	content, err := json.MarshalIndent(c, "", "  ") //nolint:gosec // the file is for the secret
	if err != nil {
		return fmt.Errorf("encode subscriber credentials: %w", err)
	}
	defer clear(content)

	if err := replaceFile(path, append(content, '\n')); err != nil {
		return fmt.Errorf("subscriber credentials: %w", err)
	}

	return nil
}

func replaceFile(path string, content []byte) error {
	temp, err := writeTemp(path, content, keyFileMode)
	if err != nil {
		return err
	}

	if err := os.Rename(temp, path); err != nil {
		return errors.Join(fmt.Errorf("put in place: %w", err), os.Remove(temp))
	}

	return nil
}
