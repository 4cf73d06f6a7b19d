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

	caller policy.Caller
	reads  bool
	// lasts is that it may be open for long: it has two records.
	lasts bool
	// flows is that the answer is larger than what a connection takes without being read.
	flows bool
	// pretends is the header by which the caller would appear in the cluster as somebody; none is allowed.
	pretends string
	way      Way
	as       impersonation
	// groups that one which lasts is made in; the handler's mutex guards them.
	groups []string

	// body is what the caller sends; nil for nothing.
	body           *sentBody
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
	// over is that there is nothing more to read.
	over atomic.Bool
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.visit.sent.Add(int64(n))
	if err != nil {
		b.over.Store(true)
	}
	return n, err //nolint:wrapcheck // io.EOF must be as it is
}

// unread says whether the caller may still be sending. Its connection is then no good for another request.
func (v *visit) unread() bool { return v.body != nil && !v.body.over.Load() }

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
	return n, err
}

const (
	// DefaultStallTimeout is how long a caller may read nothing of a large answer.
	DefaultStallTimeout = 2 * time.Minute
	// stallSize is how much of an answer a connection takes in any case, in bytes.
	stallSize = 16 << 10
)

// answer counts what the caller is sent, and gives up one that does not read.
type answer struct {
	http.ResponseWriter

	visit *visit
	stall time.Duration
	// stalled runs while something is being written. A deadline that stays would end an HTTP/2 stream on which nothing comes.
	stalled *time.Timer
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
	a.watch()
	defer a.unwatched()
	n, err := a.ResponseWriter.Write(p)
	a.visit.received.Add(int64(n))
	return n, err //nolint:wrapcheck // the proxy looks at it
}

// FlushError is for [http.ResponseController].
func (a *answer) FlushError() error {
	a.watch()
	defer a.unwatched()
	return http.NewResponseController(a.ResponseWriter).Flush() //nolint:wrapcheck // the proxy looks at it
}

// watch gives the caller up unless what begins is over soon, and then unwatched.
func (a *answer) watch() {
	switch {
	case !a.visit.flows:
	case a.stalled == nil:
		a.stalled = time.AfterFunc(a.stall, func() {
			_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Unix(1, 0)) // it is over in any case
		})
	default:
		a.stalled.Reset(a.stall)
	}
}

func (a *answer) unwatched() {
	if a.stalled != nil {
		a.stalled.Stop()
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
		return c.CloseWrite()
	}
	return nil
}
