package cli

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/client"
)

const connectTimeout = 5 * time.Second

// natsKey is the key of a principal of NATS. flag names its file.
type natsKey struct{ principal, seedFile, flag string }

// operatorKey is the key that the client configuration names.
func (a *app) operatorKey() natsKey {
	return natsKey{natsauth.PrincipalOperator, a.client.NATSSeedFile, "--nats-seed-file"}
}

// withNATS is withNATSAs for the key of the operator.
func (a *app) withNATS(ctx context.Context, use func(context.Context, jetstream.JetStream) error) error {
	return a.withNATSAs(ctx, a.operatorKey(), use)
}

// withNATSAs calls use with JetStream. When NATS refuses the key or a permission, it ends ctx and returns the fault
// unauthenticated or permission_denied.
func (a *app) withNATSAs(
	ctx context.Context, key natsKey, use func(context.Context, jetstream.JetStream) error,
) error {
	conn, err := a.connectNATS(ctx, key)
	if err != nil {
		return err
	}
	defer disconnect(conn)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-conn.Refused():
			cancel()
		case <-ctx.Done():
		}
	}()
	err = a.flush(ctx, conn)
	if err == nil {
		var js jetstream.JetStream
		if js, err = conn.JetStream(); err == nil {
			err = use(ctx, js)
		}
	}
	refusal := conn.Refusal()
	if refusal == nil && errors.Is(err, nats.ErrPermissionViolation) {
		refusal = err // the call has it before the connection reports it
	}
	switch {
	case refusal == nil:
		return err
	case errors.Is(refusal, nats.ErrPermissionViolation):
		return fault.Wrap(refusal, errcode.PermissionDenied,
			"%v: %s must name the key of the %s", refusal, key.flag, key.principal)
	default:
		return fault.Wrap(refusal, errcode.Unauthenticated, "%v", refusal)
	}
}

// connectNATS starts to connect.
func (a *app) connectNATS(ctx context.Context, key natsKey) (*natsconn.Conn, error) {
	if a.client.NATSURL == "" {
		return nil, fault.New(
			errcode.InvalidArgument,
			"no NATS is configured: set --nats-url and --nats-seed-file, LOCKSTEP_NATS_URL and "+
				"LOCKSTEP_NATS_SEED_FILE, or nats_url and nats_seed_file in %s",
			a.missingOrNot(),
		)
	}
	cfg := natsconn.DefaultConfig()
	cfg.URL = config.URL(a.client.NATSURL)
	cfg.Name = "lockstep"
	cfg.InboxPrefix = natsauth.InboxPrefix(key.principal)
	cfg.TLS.CAFile = a.client.NATSCAFile
	if key.seedFile != "" {
		cfg.NKeySeedFile = config.SecretFile(key.seedFile)
	}
	conn, err := natsconn.Connect(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "NATS at %s: %v", a.client.NATSURL, err)
	}
	return conn, nil
}

// flush waits until NATS has processed everything sent before, or an attempt to connect has failed.
func (a *app) flush(ctx context.Context, conn *natsconn.Conn) error {
	wait, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	flushed := make(chan error, 1)
	go func() { flushed <- conn.FlushWithContext(wait) }()
	var err error
	select {
	case err = <-flushed:
	case <-conn.Failed():
		err = conn.DisconnectReason()
	}
	if err != nil {
		why := "it does not answer"
		if reason := conn.DisconnectReason(); reason != nil {
			why = cmp.Or(client.Reason(reason), reason.Error())
		}
		return fault.Wrap(err, errcode.Unavailable, "cannot reach NATS at %s: %s", a.client.NATSURL, why)
	}
	return nil
}

// disconnect closes the connection.
func disconnect(conn *natsconn.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	_ = conn.Shutdown(ctx) // everything has been read
}
