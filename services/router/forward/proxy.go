package forward

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/sony/gobreaker/v2"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/copybuffer"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

type requestKey struct{}

func requestOf(ctx context.Context) *proxiedRequest {
	return ctx.Value(requestKey{}).(*proxiedRequest) //nolint:errcheck,forcetypeassert // forward sets it
}

// forward sends a request to its cell and the response back.
func (h *Handler) forward(w http.ResponseWriter, r *http.Request, p *proxiedRequest, cell cellmap.Cell) {
	to, err := h.upstreams.get(cell)
	if err != nil {
		p.result = failed
		h.fail(w, r, p, fault.Wrap(err, errcode.Unavailable, "cell %s has no valid address", cell.Name))
		return
	}
	if !to.acquire() {
		p.result = limited
		h.fail(w, r, p, fault.New(errcode.Unavailable, "cell %s has too many requests: try again later", cell.Name))
		return
	}
	defer to.release()
	p.upstream = to
	if p.body != nil {
		defer p.body.stop()
	}
	if r.ProtoMajor == 1 && p.body != nil {
		_ = http.NewResponseController(w).EnableFullDuplex() // a cell may respond before it has read the whole request
	}
	ctx := context.WithValue(r.Context(), requestKey{}, p)
	outgoing := r.WithContext(ctx)
	if p.start != nil {
		outgoing.Body = &whole{start: bytes.NewReader(p.start), rest: p.body}
		p.start = nil
	}
	defer func() {
		if p.result == aborted && ctx.Err() != nil {
			p.result = canceled
		}
	}()
	p.result = aborted // a panic ends a response that is not complete
	h.proxy.ServeHTTP(w, outgoing)
	if p.result == aborted {
		p.result = forwarded
	}
}

func (h *Handler) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: h.rewrite, Transport: roundTripper{}, BufferPool: copybuffer.Pool{},
		// Parts of a response of unknown length are sent at once: its client may wait for them.
		FlushInterval:  flushInterval,
		ModifyResponse: h.modifyResponse, ErrorHandler: h.handleError,
		ErrorLog: slog.NewLogLogger(h.cfg.Logger.Handler(), slog.LevelDebug),
	}
}

// rewrite sets URL and headers of the outgoing request. The cell gets the address of the client from the router only.
func (h *Handler) rewrite(r *httputil.ProxyRequest) {
	target := requestOf(r.In.Context()).upstream.target
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = target.Scheme, target.Host, ""
	r.Out.URL.RawQuery = r.In.URL.RawQuery // also parameters that Go cannot parse
	for name := range r.Out.Header {
		if strings.HasPrefix(name, "X-Forwarded-") || name == "X-Real-Ip" {
			delete(r.Out.Header, name)
		}
	}
	if requestOf(r.In.Context()).started {
		delete(r.Out.Header, "Expect")
	}
	delete(r.Out.Header, "Upgrade") // h2c, which a server may ignore
	delete(r.Out.Header, "Connection")
	r.SetXForwarded()
	r.Out.Header.Add("Via", r.In.Proto[len("HTTP/"):]+" "+pseudonym)
	if h.cfg.Propagate != nil {
		h.cfg.Propagate(r.In.Context(), r.Out.Header)
	}
}

// roundTripper sends a request to the cell in its context.
type roundTripper struct{}

// RoundTrip implements [http.RoundTripper].
func (roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	p := requestOf(r.Context())
	return p.upstream.roundTrip(r, func() bool { return p.body != nil && p.body.failure() != nil })
}

func (h *Handler) modifyResponse(response *http.Response) error {
	p := requestOf(response.Request.Context())
	if response.StatusCode == http.StatusSwitchingProtocols {
		return fault.New(errcode.Unavailable, "cell %s upgraded a connection that nobody asked to upgrade", p.cell)
	}
	h.metrics.responded(p.cell, time.Since(p.startedAt))
	if p.closesConnection() {
		response.Header.Set("Connection", "close")
	}
	return nil
}

func (h *Handler) handleError(w http.ResponseWriter, r *http.Request, err error) {
	p := requestOf(r.Context())
	p.result, err = explain(r.Context(), p, err)
	h.fail(w, r, p, err)
}

// explain returns why a request has no response, and the fault for its client.
func explain(ctx context.Context, p *proxiedRequest, err error) (result, error) {
	var timeout net.Error
	known, isFault := errors.AsType[*fault.Error](err)
	switch {
	case isFault:
		return failed, known
	case errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests):
		return open, fault.Wrap(err, errcode.Unavailable, "cell %s does not answer: try again later", p.cell)
	case p.body != nil && p.body.failure() != nil:
		return canceled, bodyFault(p.body.failure())
	case ctx.Err() != nil:
		return canceled, fault.Wrap(err, errcode.Canceled, "the client has gone")
	case isDial(err):
		return failed, fault.Wrap(err, errcode.Unavailable, "cell %s cannot be reached: try again later", p.cell)
	case errors.As(err, &timeout) && timeout.Timeout():
		return failed, fault.Wrap(err, errcode.DeadlineExceeded, "cell %s did not answer in time", p.cell)
	default:
		return failed, fault.Wrap(err, errcode.Unavailable,
			"the connection to cell %s was lost: the request may have had an effect", p.cell)
	}
}

func isDial(err error) bool {
	operation, ok := errors.AsType[*net.OpError](err)
	return ok && operation.Op == "dial"
}
