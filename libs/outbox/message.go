package outbox

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
)

// RevisionHeader carries the message's revision on its subject: a decimal number that grows with
// each message.
const RevisionHeader = topology.RevisionHeader

// headerAllowance is the part of topology.MaxMessageSize reserved for headers that the publisher
// sets.
const headerAllowance = 256

// channel is the prefix of the notification channel; the schema's name follows.
const channel = "lockstep_outbox_"

// ErrInvalidMessage reports a message that can never be published.
var ErrInvalidMessage = errors.New("invalid outbox message")

//go:embed migrations/*.sql
var files embed.FS

// Migrations creates the outbox's tables in the service's schema.
func Migrations() (postgres.Migrations, error) {
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		return postgres.Migrations{}, fmt.Errorf("open the outbox's migrations: %w", err)
	}
	return postgres.Migrations{Name: "outbox", FS: dir}, nil
}

// Insert adds messages to the outbox within the transaction. They are published in this order after the commit.
//
// Every writer to a subject, or to the subjects of one [Config.OrderingKey], must first take the same lock, such as the
// row of the entity, and hold it until the commit. Only then are the messages published in commit order. Set
// Nats-Msg-Id if a message needs the de-duplication of JetStream. An invalid message returns ErrInvalidMessage.
func Insert(ctx context.Context, tx pgx.Tx, messages ...*nats.Msg) error {
	if len(messages) == 0 {
		return nil
	}
	rows, err := RowsOf(messages...)
	if err != nil {
		return err
	}
	var batch pgx.Batch
	// PostgreSQL sends the notification with the commit, once per transaction. It is a hint without
	// a payload.
	batch.Queue(`SELECT ` + notify)
	batch.Queue(`
		INSERT INTO outbox (subject, header, data)
		SELECT subject, header::jsonb, data
		FROM unnest($1::text[], $2::text[], $3::bytea[]) WITH ORDINALITY AS m (subject, header, data, position)
		ORDER BY position`, rows.Subjects, rows.Headers, rows.Data)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("insert %d messages into the outbox: %w", len(messages), err)
	}
	return nil
}

// InsertFrom returns an INSERT that adds a message to the outbox for each row of a relation, as [Insert] does: the
// relation is a part of the same statement that locks and changes the entity, and has no row if the entity has changed
// before. first is the number of the first of three parameters, which are those of [Arguments].
func InsertFrom(relation string, first int) string {
	return fmt.Sprintf(`INSERT INTO outbox (subject, header, data) SELECT $%d, $%d::text::jsonb, $%d FROM %s RETURNING %s`,
		first, first+1, first+2, relation, notify)
}

// InsertRows is InsertFrom for several messages: the relation also has them, as the columns subject, header and data,
// each with the type text but data.
func InsertRows(relation string) string {
	return `INSERT INTO outbox (subject, header, data) SELECT subject, header::jsonb, data FROM ` + relation +
		` RETURNING ` + notify
}

// Arguments returns the parameters of [InsertFrom]. An invalid message returns ErrInvalidMessage.
func Arguments(m *nats.Msg) ([]any, error) {
	subject, header, data, err := encode(m)
	return []any{subject, header, data}, err
}

// Rows are messages as the columns that [InsertRows] needs.
type Rows struct {
	Subjects, Headers []string
	Data              [][]byte
}

// RowsOf returns the rows of messages. An invalid message returns ErrInvalidMessage.
func RowsOf(messages ...*nats.Msg) (Rows, error) {
	r := Rows{
		Subjects: make([]string, len(messages)), Headers: make([]string, len(messages)), Data: make([][]byte, len(messages)),
	}
	var err error
	for i, m := range messages {
		if r.Subjects[i], r.Headers[i], r.Data[i], err = encode(m); err != nil {
			return Rows{}, err
		}
	}
	return r, nil
}

// HasPublished reports whether the outbox has ever published to a stream, or will: prefix begins the subjects of the
// stream.
func HasPublished(ctx context.Context, tx pgx.Tx, stream, prefix string) (bool, error) {
	var published bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM outbox_streams WHERE stream = $1)
			OR EXISTS (SELECT FROM outbox WHERE starts_with(subject, $2))`, stream, prefix).Scan(&published)
	if err != nil {
		return false, fmt.Errorf("ask whether the outbox has published to stream %s: %w", stream, err)
	}
	return published, nil
}

// notify wakes the publisher.
const notify = `pg_notify('` + channel + `' || current_schema(), '')`

// encode returns a message as the table has it.
func encode(m *nats.Msg) (subject, header string, data []byte, err error) {
	if err := validate(m); err != nil {
		return "", "", nil, err
	}
	header = "{}"
	if len(m.Header) > 0 {
		encoded, err := json.Marshal(m.Header)
		if err != nil {
			return "", "", nil, fmt.Errorf("%w: headers of %s: %w", ErrInvalidMessage, m.Subject, err)
		}
		header = string(encoded)
	}
	if data = m.Data; data == nil {
		data = []byte{}
	}
	return m.Subject, header, data, nil
}

func validate(m *nats.Msg) error {
	if err := validateSubject(m.Subject); err != nil {
		return err
	}
	if m.Reply != "" {
		return fmt.Errorf("%w: %s has a reply subject", ErrInvalidMessage, m.Subject)
	}
	size := len(m.Data) + headerAllowance
	for name, values := range m.Header {
		if name == RevisionHeader || strings.HasPrefix(name, "Nats-Expected-") {
			return fmt.Errorf("%w: header %s of %s is set by the publisher", ErrInvalidMessage, name, m.Subject)
		}
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }) {
			return fmt.Errorf("%w: %q of %s is not a header name", ErrInvalidMessage, name, m.Subject)
		}
		for _, value := range values {
			if strings.ContainsAny(value, "\r\n\x00") || !utf8.ValidString(value) {
				return fmt.Errorf("%w: header %s of %s contains a line break, a zero byte or invalid UTF-8",
					ErrInvalidMessage, name, m.Subject)
			}
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	if size > topology.MaxMessageSize {
		return fmt.Errorf("%w: %s has %d bytes, the limit is %d",
			ErrInvalidMessage, m.Subject, size, topology.MaxMessageSize)
	}
	return nil
}

func validateSubject(subject string) error {
	if !utf8.ValidString(subject) {
		return fmt.Errorf("%w: subject %q is not valid UTF-8", ErrInvalidMessage, subject)
	}
	for token := range strings.SplitSeq(subject, ".") {
		control := strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f })
		if token == "" || token == "*" || token == ">" || control {
			return fmt.Errorf("%w: subject %q has an empty token, a wildcard or a control character", ErrInvalidMessage, subject)
		}
	}
	return nil
}
