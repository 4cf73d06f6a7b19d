package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/lastvalue"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/gateway/session"
)

const (
	// writeTimeout bounds a write to the bucket.
	writeTimeout = 5 * time.Second
	// minTTL is the shortest lifetime of a message that NATS accepts.
	minTTL = time.Second
)

// HostKeys keeps the host key of each workspace in the bucket GATEWAY: the first key that a workspace shows is its key.
type HostKeys struct {
	JetStream jetstream.JetStream
}

// Check returns an error unless the key is that of the workspace. It stores the first key of a workspace. Of replicas
// that see a first key at the same time, one stores it.
func (h HostKeys) Check(ctx context.Context, workspace string, key ssh.PublicKey) error {
	subject := topology.GatewayHostKey(workspace)
	offered := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
	known, sequence, err := h.read(ctx, subject)
	if err == nil && known == "" {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		_, err = h.JetStream.Publish(ctx, subject, []byte(offered), jetstream.WithExpectLastSequencePerSubject(sequence))
		switch {
		case err == nil:
			return nil
		case isConflict(err):
			known, _, err = h.read(ctx, subject)
		}
	}
	if err != nil {
		return fmt.Errorf("the host key of workspace %s: %w", workspace, err)
	}
	if known != offered {
		return fmt.Errorf("the host key of workspace %s is not that of the first connection: somebody is between the "+
			"gateway and the workspace, or its folder .lockstep was replaced; restore the folder, or, if you have replaced it, "+
			"run lockstep ws reset-host-key", workspace)
	}
	return nil
}

// Forget removes the key of a workspace, if there is one. The next key that the workspace shows is its key.
func (h HostKeys) Forget(ctx context.Context, workspace string) error {
	subject := topology.GatewayHostKey(workspace)
	known, _, err := h.read(ctx, subject)
	if err == nil && known != "" {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		// Nobody may delete from the stream. An empty message replaces the key and expires.
		_, err = h.JetStream.Publish(ctx, subject, nil, jetstream.WithMsgTTL(minTTL))
	}
	if err != nil {
		return fmt.Errorf("forget the host key of workspace %s: %w", workspace, err)
	}
	return nil
}

// read returns the key of a workspace and the sequence of its message; empty for none.
func (h HostKeys) read(ctx context.Context, subject string) (key string, sequence uint64, err error) {
	last, err := stored.Reader{JetStream: h.JetStream, Stream: topology.StreamGateway}.Last(ctx, subject)
	if err != nil {
		return "", 0, fmt.Errorf("read the stored key: %w", err)
	}
	if last == nil {
		return "", 0, nil
	}
	return string(last.Data), last.Sequence, nil
}

func isConflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// Codes are one-time codes that were used, in the bucket GATEWAY.
type Codes struct {
	JetStream jetstream.JetStream
}

// ErrUsed is returned for a code that was used before.
var ErrUsed = errors.New("it was used before")

// Use marks a code as used, for at least as long as it is valid. The error is ErrUsed if it was before, at any replica.
func (c Codes) Use(ctx context.Context, code string, lifetime time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := c.JetStream.Publish(ctx, topology.GatewayUsed(code), nil,
		jetstream.WithExpectLastSequencePerSubject(0), jetstream.WithMsgTTL(max(lifetime, minTTL)+writeTimeout))
	if isConflict(err) {
		return ErrUsed
	}
	if err != nil {
		return fmt.Errorf("mark a one-time code as used: %w", err)
	}
	return nil
}

// Revocations are the sessions that have ended before their time, shared by all replicas through the bucket GATEWAY.
type Revocations struct {
	*session.Revocations

	js     jetstream.JetStream
	now    func() time.Time
	logger *slog.Logger
	reader *lastvalue.Reader
}

// NewRevocations returns a table that Run keeps up to date.
func NewRevocations(
	js jetstream.JetStream, cell topology.Cell, now func() time.Time, logger *slog.Logger,
) *Revocations {
	r := &Revocations{Revocations: session.NewRevocations(now), js: js, now: now, logger: logger}
	r.reader = lastvalue.NewReader(lastvalue.Config{
		JetStream: js, Stream: topology.StreamGateway, Subjects: topology.GatewayAllRevoked,
		Live: cell.All(topology.FamilyGatewayLive), Handler: (*revocationLoader)(r), Logger: logger,
	})
	return r
}

// Run reads the bucket until ctx ends. It calls ready once all entries are read.
func (r *Revocations) Run(ctx context.Context, ready func()) error {
	r.reader.Run(ctx, ready)
	return nil
}

// Ready reports whether all entries were read once.
func (r *Revocations) Ready() bool { return r.reader.Ready() }

// Check is a health check.
func (r *Revocations) Check(ctx context.Context) error { return r.reader.Check(ctx) }

// Revoke ends a session that would have been valid until then, at all replicas.
func (r *Revocations) Revoke(ctx context.Context, id string, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	lifetime := max(until.Sub(r.now()).Truncate(time.Second)+time.Second, minTTL)
	_, err := r.js.Publish(ctx, topology.GatewayRevoked(id), []byte(until.UTC().Format(time.RFC3339Nano)),
		jetstream.WithMsgTTL(lifetime))
	if err != nil {
		return fmt.Errorf("end a session: %w", err)
	}
	r.Add(id, until)
	return nil
}

// revocationLoader receives what the reader reads.
type revocationLoader Revocations

// Begin implements [lastvalue.Handler]. A stream that was recreated ends no session again: what has ended stays ended.
func (*revocationLoader) Begin(bool) {}

// Apply implements [lastvalue.Handler].
func (l *revocationLoader) Apply(ctx context.Context, m lastvalue.Message) {
	id, err := topology.Unescape(strings.TrimPrefix(m.Subject, strings.TrimSuffix(topology.GatewayAllRevoked, "*")))
	var until time.Time
	if err == nil {
		until, err = time.Parse(time.RFC3339Nano, string(m.Data))
	}
	if err != nil {
		l.logger.ErrorContext(ctx, "ignored a session that has ended", logkey.Error(err))
		return
	}
	l.Add(id, until)
}

// Loaded implements [lastvalue.Handler].
func (*revocationLoader) Loaded() {}
