package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/policy"
)

// visit is one request on its way.
type visit struct {
	audit.Record
	address

	caller  policy.Caller
	project int64
	reads   bool
	// lasts is that it may be open for long: it has two records, and is given up when its caller may not do it any more.
	lasts bool
	// flows is that the answer is larger than what a connection takes without being read.
	flows bool
	way   Way
	as    impersonation

	sent, received atomic.Int64
}

// impersonation is as whom the caller appears in the cluster.
type impersonation struct{ policy.Impersonation }

// set says so to the agent (https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation).
func (i impersonation) set(header http.Header) {
	header["Impersonate-User"] = []string{i.User}
	if len(i.Groups) > 0 {
		header["Impersonate-Group"] = i.Groups
	}
}

type visitKey struct{}

func visitOf(ctx context.Context) *visit {
	v, _ := ctx.Value(visitKey{}).(*visit)
	return v
}

// sentBody counts what the caller sends.
type sentBody struct {
	io.ReadCloser

	visit *visit
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.visit.sent.Add(int64(n))
	return n, err //nolint:wrapcheck // io.EOF must be as it is
}

// receivedBody counts what the target sends.
type receivedBody struct {
	io.ReadCloser

	visit *visit
}

func (b *receivedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.visit.received.Add(int64(n))
	return n, err //nolint:wrapcheck // io.EOF must be as it is
}

// watched is the body of a watch: when the relay is drained it just ends, as watches do now and then.
type watched struct {
	io.ReadCloser

	ctx context.Context //nolint:containedctx // of the request
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if err != nil && errors.Is(context.Cause(w.ctx), errDrained) {
		err = io.EOF
	}
	return n, err //nolint:wrapcheck // io.EOF must be as it is
}

const (
	// stallTimeout is how long a caller may read nothing of an answer.
	stallTimeout = 2 * time.Minute
	// stallSize is how much of an answer a connection takes in any case, in bytes.
	stallSize = 16 << 10
	// stallCheck is how often the time-out is set anew while there is something to write.
	stallCheck = 10 * time.Second
)

// answer counts what the caller is sent, and gives up one that does not read.
type answer struct {
	http.ResponseWriter

	visit *visit
	set   time.Time
	now   func() time.Time
}

// Unwrap is for [http.ResponseController].
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		a.visit.Status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	if a.visit.flows {
		if now := a.now(); now.Sub(a.set) > stallCheck {
			a.set = now
			if err := http.NewResponseController(a.ResponseWriter).SetWriteDeadline(now.Add(stallTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return 0, err //nolint:wrapcheck // the connection is gone
			}
		}
	}
	n, err := a.ResponseWriter.Write(p)
	a.visit.received.Add(int64(n))
	return n, err //nolint:wrapcheck // the proxy looks at it
}

// end leaves the connection as it was, for the next request on it.
func (a *answer) end() {
	if !a.set.IsZero() {
		_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Time{}) // a connection that is gone has no next one
	}
}

// exchanged counts what passes in both directions of a connection that switched protocols.
type exchanged struct {
	io.ReadWriteCloser

	visit *visit
}

func (e *exchanged) Read(p []byte) (int, error) {
	n, err := e.ReadWriteCloser.Read(p)
	e.visit.received.Add(int64(n))
	return n, err //nolint:wrapcheck // io.EOF must be as it is
}

func (e *exchanged) Write(p []byte) (int, error) {
	n, err := e.ReadWriteCloser.Write(p)
	e.visit.sent.Add(int64(n))
	return n, err //nolint:wrapcheck // the stream's own
}

// CloseWrite ends the direction to the target.
func (e *exchanged) CloseWrite() error {
	if c, can := e.ReadWriteCloser.(interface{ CloseWrite() error }); can {
		return c.CloseWrite() //nolint:wrapcheck // the stream's own
	}
	return nil
}
