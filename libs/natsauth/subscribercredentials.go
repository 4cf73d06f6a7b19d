package natsauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// SubscriberCredentials are all that an outside tool needs to read deploy facts, in one file. The
// file is also a context of the `nats` command line: its fields have the names that they have
// there, and it leaves alone those it does not know. Encoded as JSON they contain the token;
// printed and logged they do not.
type SubscriberCredentials struct {
	Description string `json:"description"`
	// URL is one or more nats:// or tls:// URLs with commas between.
	URL string `json:"url"`
	// User reads the consumer; Listener, with the same password, hears facts as they are stored.
	User     string `json:"user"`
	Password string `json:"password"`
	Listener string `json:"listener"`
	// InboxPrefix begins the only inboxes that the user may have.
	InboxPrefix string `json:"inbox_prefix"`
	// Stream and Consumer are what it reads.
	Stream   string `json:"stream"`
	Consumer string `json:"consumer"`
	// Filter is the subjects that it may hear.
	Filter string `json:"filter"`
	// CA is the path of a PEM file that vouches for the servers. Empty means the machine's own
	// roots.
	CA string `json:"ca"`
}

// LogValue shows whose credentials they are.
func (c SubscriberCredentials) LogValue() slog.Value {
	return slog.GroupValue(slog.String("url", c.URL), slog.String("user", c.User), slog.String("filter", c.Filter))
}

// String is [SubscriberCredentials.LogValue] as text.
func (c SubscriberCredentials) String() string { return c.LogValue().String() }

// GoString keeps %#v from printing secrets.
func (c SubscriberCredentials) GoString() string { return c.String() }

// ErrInvalidSubscriberCredentials is wrapped by errors about credentials that cannot be used.
var ErrInvalidSubscriberCredentials = errors.New("invalid subscriber credentials")

// WriteSubscriberCredentials writes the file whole or not at all, readable by its owner only, and
// beside it, ending with .ca.pem, the PEM that vouches for the servers where there is any. It
// replaces what is there.
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
