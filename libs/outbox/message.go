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

// RevisionHeader carries the message's revision on its subject: a decimal number that grows with each message there.
const RevisionHeader = topology.RevisionHeader

// allowance is what the headers set while publishing may take of topology.MaxMessageSize.
const allowance = 256

// channel is the prefix of the notification channel; the schema's name follows.
const channel = "lockstep_outbox_"

// ErrInvalidMessage says that a message cannot be published, now or later.
var ErrInvalidMessage = errors.New("message cannot go through the outbox")

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

// Insert adds messages to the outbox within the transaction, to be published in this order after it commits.
//
// The caller holds a lock, until the commit, that every writer to the messages' subjects takes first, such as the row of the
// entity: the order of commits on a subject is the order of these calls only then. A message that wants
// JetStream's de-duplication carries its own Nats-Msg-Id. Refused messages give ErrMessage.
func Insert(ctx context.Context, tx pgx.Tx, messages ...*nats.Msg) error {
	var batch pgx.Batch
	if _, err := (*Publisher)(nil).Queue(&batch, messages...); err != nil || batch.Len() == 0 {
		return err
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("insert %d messages into the outbox: %w", len(messages), err)
	}
	return nil
}

// Queued are messages that are inserted when a batch is sent.
type Queued struct {
	rows []row
	// first says that nothing waited in the outbox before them: no earlier message on any of their subjects, whose writers hold the same lock, is to come.
	first bool
}

// Queue is Insert as a part of a batch, which the caller sends in the transaction: with what else there is to write it is one way to the database and back. What it returns is to
// be offered to the publisher once the transaction has committed: see [Publisher.Offer]. A nil publisher is one of another process.
func (p *Publisher) Queue(batch *pgx.Batch, messages ...*nats.Msg) (*Queued, error) {
	if len(messages) == 0 {
		return &Queued{}, nil
	}
	queued := &Queued{rows: make([]row, len(messages))}
	subjects := make([]string, len(messages))
	headers := make([]string, len(messages))
	data := make([][]byte, len(messages))
	for i, m := range messages {
		if err := validate(m); err != nil {
			return nil, err
		}
		header := []byte("{}")
		if len(m.Header) > 0 {
			var err error
			if header, err = json.Marshal(m.Header); err != nil {
				return nil, fmt.Errorf("%w: headers of %s: %w", ErrInvalidMessage, m.Subject, err)
			}
		}
		subjects[i], headers[i], data[i] = m.Subject, string(header), m.Data
		if data[i] == nil {
			data[i] = []byte{}
		}
		queued.rows[i] = row{subject: m.Subject, header: m.Header, data: data[i]}
	}
	insertion, arguments := insertionOf(subjects, headers, data)
	// The notification is sent with the commit, once per transaction. It is only a hint, so it names nothing. The publisher of this process learns of it by the offer.
	if p == nil || !p.offers.taken.Load() {
		batch.Queue(`SELECT pg_notify($1 || current_schema(), '')`, channel)
	}
	// The snapshot is that of the statement: what it inserts does not wait there.
	batch.Queue(insertion+` RETURNING id, NOT EXISTS (SELECT FROM outbox ORDER BY id LIMIT 1)`, arguments...).Query(func(rows pgx.Rows) error {
		n := 0
		for ; rows.Next(); n++ {
			if err := rows.Scan(&queued.rows[n].id, &queued.first); err != nil {
				return err //nolint:wrapcheck // who sends the batch says what it asked for
			}
		}
		return rows.Err()
	})
	return queued, nil
}

// few messages are inserted by a statement that names each: the server makes ready and executes it in half the time that arrays take.
const few = 8

// insertionOf is the statement that inserts messages in their order, and its arguments.
func insertionOf(subjects, headers []string, data [][]byte) (string, []any) {
	const into = `INSERT INTO outbox (subject, header, data) `
	if len(subjects) > few {
		return into + `SELECT subject, header::jsonb, data
			FROM unnest($1::text[], $2::text[], $3::bytea[]) WITH ORDINALITY AS m (subject, header, data, position) ORDER BY position`,
			[]any{subjects, headers, data}
	}
	rows := make([]string, len(subjects))
	arguments := make([]any, 0, 3*len(subjects))
	for i := range subjects {
		n := len(arguments)
		rows[i] = fmt.Sprintf("($%d, $%d, $%d)", n+1, n+2, n+3)
		arguments = append(arguments, subjects[i], headers[i], data[i])
	}
	return into + `VALUES ` + strings.Join(rows, ", "), arguments
}

func validate(m *nats.Msg) error {
	if err := validateSubject(m.Subject); err != nil {
		return err
	}
	if m.Reply != "" {
		return fmt.Errorf("%w: %s asks for a reply", ErrInvalidMessage, m.Subject)
	}
	size := len(m.Data) + allowance
	for name, values := range m.Header {
		if name == RevisionHeader || strings.HasPrefix(name, "Nats-Expected-") {
			return fmt.Errorf("%w: header %s of %s is set by the publisher", ErrInvalidMessage, name, m.Subject)
		}
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }) {
			return fmt.Errorf("%w: %q of %s is not the name of a header", ErrInvalidMessage, name, m.Subject)
		}
		for _, value := range values {
			if strings.ContainsAny(value, "\r\n\x00") || !utf8.ValidString(value) {
				return fmt.Errorf("%w: header %s of %s has a line break, a zero byte or bytes that are no UTF-8", ErrInvalidMessage, name, m.Subject)
			}
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	if size > topology.MaxMessageSize {
		return fmt.Errorf("%w: %s has %d bytes, at most %d may be", ErrInvalidMessage, m.Subject, size, topology.MaxMessageSize)
	}
	return nil
}

func validateSubject(subject string) error {
	if !utf8.ValidString(subject) {
		return fmt.Errorf("%w: subject %q is no UTF-8", ErrInvalidMessage, subject)
	}
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || token == "*" || token == ">" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return fmt.Errorf("%w: %q is not a subject to publish to", ErrInvalidMessage, subject)
		}
	}
	return nil
}
