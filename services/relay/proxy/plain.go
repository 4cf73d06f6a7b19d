package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/http1"
	"lockstep.internal/services/relay/hub"
	"lockstep.internal/services/relay/tunnel"
)

// carry the request whose head has been read to its target, and the answer back. Who is to be refused, or is to wait before anything was sent, is left to the server.
func (d *direct) carry(size int) after {
	h := d.h
	v, plain := d.visit()
	if !plain || h.enter(v, d.cancel) != nil {
		return returned
	}
	if !h.cfg.Audit.TryReserve(1) {
		h.leave(v)
		return returned
	}
	as, err := h.admitted(v)
	if err != nil {
		h.cfg.Audit.Release(1)
		h.leave(v)
		return returned
	}
	v.as = impersonation{as}
	defer func() {
		h.record(v, audit.Ended)
		h.leave(v)
	}()
	buffer := heads.Get().(*[]byte) //nolint:errcheck,forcetypeassert // there are no others
	defer heads.Put(buffer)
	*buffer = d.head((*buffer)[:0], v)
	_, _ = d.reader.Discard(size) // it is there; what was read of it is no more
	d.await()
	defer d.answered()
	return d.exchange(v, buffer)
}

// heads are written into these.
var heads = sync.Pool{New: func() any {
	b := make([]byte, 0, 2*headBuffer)
	return &b
}}

// visit is what the request asks for, where it may be asked so and is nothing that lasts.
func (d *direct) visit() (v *visit, plain bool) {
	r := &d.request
	name := headerAuthorization
	if r.Own {
		name = headerOwn
	}
	caller, err := d.h.cfg.Authenticator.bearer(name, string(r.Token))
	if err != nil {
		return nil, false
	}
	path := string(r.Path)
	at, err := locate(path, "")
	if err != nil || at.protocol == audit.Kubernetes && lasting(r.Query) {
		return nil, false
	}
	v, err = d.h.visit(caller, at, asked{method: r.Method, path: path})
	return v, err == nil && !v.lasts
}

// lasting says whether a query may ask for something that lasts.
func lasting(query []byte) bool {
	return bytes.IndexByte(query, '%') >= 0 || bytes.Contains(query, []byte("watch")) || bytes.Contains(query, []byte("follow"))
}

// head of the request for the target, as rewrite makes it of one that is not plain.
func (d *direct) head(b []byte, v *visit) []byte {
	r := &d.request
	b = append(append(b, r.Method...), ' ')
	b = append(b, slash(string(r.Path[len(v.prefix):]))...)
	if r.Asks {
		b = append(append(b, '?'), r.Query...)
	}
	b = append(b, " HTTP/1.1\r\nHost: "...)
	if v.protocol == audit.Kubernetes {
		b = append(b, v.Target...)
		b = field(b, "Impersonate-User", v.as.User)
		for _, group := range v.as.Groups {
			b = field(b, "Impersonate-Group", group)
		}
	} else {
		proto := "http"
		if d.secure != nil {
			proto = "https"
		}
		b = append(b, r.Host...)
		b = field(b, "X-Forwarded-For", d.from)
		b = field(b, "X-Forwarded-Host", string(r.Host))
		b = field(b, "X-Forwarded-Proto", proto)
	}
	b = append(b, "\r\n"...)
	for _, f := range r.Fields {
		if v.protocol != audit.Kubernetes || !strings.EqualFold(string(f.Name), headerAuthorization) { // who the caller is says the relay alone
			b = line(b, f)
		}
	}
	return append(b, "\r\n"...)
}

// field is put behind a line that is not ended yet.
func field(b []byte, name, value string) []byte {
	return append(append(append(append(b, "\r\n"...), name...), ": "...), value...)
}

// line is one of its own.
func line(b []byte, f http1.Field) []byte {
	return append(append(append(append(b, f.Name...), ": "...), f.Value...), "\r\n"...)
}

// exchange sends the head in the buffer, and passes on the answer to it.
func (d *direct) exchange(v *visit, buffer *[]byte) after {
	a, err := d.ask(v, *buffer)
	keep := !d.last()
	switch {
	case err != nil:
		err = d.refuse(v, reason(d.ctx, err), keep && d.ctx.Err() == nil)
	case a.rest == nil:
		err = d.conclude(v, a, d.pass(v, a, buffer, keep))
	default:
		err = d.conclude(v, a, d.pour(v, a.rest, keep))
	}
	if err != nil || !keep || d.ctx.Err() != nil {
		return over
	}
	return next
}

// conclude an answer that was passed on, or not to its end.
func (d *direct) conclude(v *visit, a *answerOf, err error) error {
	live := d.release()
	switch {
	case err == nil && live && !a.closes && a.reader.Buffered() == 0:
		d.h.cfg.Transport.keep(a.kept)
	case err == nil:
		_ = a.Close() // the answer is whole
	default:
		a.Reset(tunnel.Cancelled, "the caller is gone")
		if v.Error = unfinished(context.Cause(d.ctx), true); errors.Is(err, errGone) {
			v.Error = errGone.Error()
		}
	}
	return err
}

// answerOf a target, which has begun: its head is in the connection's response, or in rest where that is not plain.
type answerOf struct {
	*kept

	rest *http.Response
	// closes is that the target takes no other request on the stream.
	closes bool
}

// ask until there is an answer.
func (d *direct) ask(v *visit, head []byte) (*answerOf, error) {
	var attempt hub.Attempt
	for {
		k, err := d.h.cfg.Transport.take(d.ctx, &attempt, v.way.To)
		if err != nil {
			return nil, err
		}
		v.way.ConnectionID = k.Connection.ID
		d.hold(k)
		a := &answerOf{kept: k}
		_, _ = k.Write(head) // the answer tells, also why there is none
		if err = d.begun(v, a); err == nil {
			return a, nil
		}
		d.release()
		k.Reset(tunnel.Cancelled, "no answer to a request")
		if d.ctx.Err() != nil || !k.failed(&attempt, err, true) {
			return nil, err
		}
	}
}

// begun reads the head of an answer.
func (d *direct) begun(v *visit, a *answerOf) error {
	if err := a.await(); err != nil {
		return err
	}
	var cut error // the reader of net/http says what is wrong with it
	for {
		head, _ := a.reader.Peek(a.reader.Buffered()) // there is as much
		size, err := d.response.Read(head, v.Method == http.MethodHead)
		switch {
		case err == nil:
			_, _ = a.reader.Discard(size) // it is there
			a.closes = d.response.Close
			return nil
		case cut != nil || !errors.Is(err, http1.ErrShort) || len(head) == a.reader.Size():
			if a.rest, err = a.receive(&http.Request{Method: v.Method}); err == nil { //nolint:bodyclose // it ends with the stream
				a.closes = a.rest.Close
			}
			return err
		}
		_, cut = a.reader.Peek(len(head) + 1)
	}
}

// pass on a plain answer.
func (d *direct) pass(v *visit, a *answerOf, buffer *[]byte, keep bool) error {
	v.Status = d.response.Status
	out := begin((*buffer)[:0], v.Status)
	for _, f := range d.response.Fields {
		out = line(out, f)
	}
	out = d.end(out, d.response.Dated, keep)
	left := d.response.Length
	here, _ := a.reader.Peek(int(min(left, int64(a.reader.Buffered())))) // there is as much
	out = append(out, here...)
	*buffer = out
	_, _ = a.reader.Discard(len(here)) // it is there
	if err := d.write(out); err != nil {
		return err
	}
	v.received.Add(int64(len(here)))
	left -= int64(len(here))
	if left == 0 {
		return nil
	}
	return d.copy(v, io.LimitReader(a.reader, left), left, false)
}

// hopByHop are fields of an answer that are for the connection (RFC 9110, section 7.6.1).
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// pour an answer that is not plain: in chunks where its length is not said.
func (d *direct) pour(v *visit, r *http.Response, keep bool) error {
	v.Status = r.StatusCode
	for _, names := range r.Header["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			r.Header.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopByHop {
		delete(r.Header, name)
	}
	bodiless := v.Method == http.MethodHead || v.Status == http.StatusNoContent || v.Status == http.StatusNotModified
	if v.Status == http.StatusNoContent {
		delete(r.Header, "Content-Length") // it has none, but who believes it would take the next answer for it
	}
	chunked := !bodiless && r.ContentLength < 0
	if chunked {
		r.Header["Transfer-Encoding"] = []string{"chunked"}
		for name := range r.Trailer {
			r.Header.Add("Trailer", name)
		}
	} else if !bodiless {
		r.Header["Content-Length"] = []string{strconv.FormatInt(r.ContentLength, 10)}
	}
	head := bytes.NewBuffer(begin(nil, v.Status))
	_ = r.Header.Write(head) // into memory
	if err := d.write(d.end(head.Bytes(), len(r.Header["Date"]) > 0, keep)); err != nil || bodiless {
		return err
	}
	if err := d.copy(v, r.Body, r.ContentLength, chunked); err != nil || !chunked {
		return err
	}
	last := bytes.NewBufferString("0\r\n")
	_ = r.Trailer.Write(last) // into memory
	last.WriteString("\r\n")
	return d.write(last.Bytes())
}

// copy a body of so many bytes, or to its end and in chunks.
func (d *direct) copy(v *visit, body io.Reader, left int64, chunked bool) error {
	buffer := bodies.Get().([]byte) //nolint:errcheck,forcetypeassert // there are no others
	defer bodies.Put(buffer)        //nolint:staticcheck // a slice header more or less
	for chunked || left > 0 {
		n, err := body.Read(buffer[chunkHead : len(buffer)-len(crlf)])
		left -= int64(n)
		if n > 0 {
			out := buffer[chunkHead : chunkHead+n]
			if chunked {
				out = chunk(buffer, n)
			}
			if errWrite := d.write(out); errWrite != nil {
				return errWrite
			}
			v.received.Add(int64(n))
		}
		switch {
		case errors.Is(err, io.EOF) && (chunked || left == 0):
			return nil
		case err != nil:
			return fmt.Errorf("read the answer: %w", err)
		}
	}
	return nil
}

const (
	crlf = "\r\n"
	// chunkHead is the room for the length of a chunk of [copyBuffer] at the most.
	chunkHead = 4 + len(crlf)
)

// chunk of n bytes that are in the buffer behind the room for its head (RFC 9112, section 7.1).
func chunk(buffer []byte, n int) []byte {
	head := append(strconv.AppendInt(make([]byte, 0, chunkHead), int64(n), 16), crlf...)
	at := chunkHead - len(head)
	copy(buffer[at:], head)
	return append(buffer[at:chunkHead+n], crlf...)
}

// begin an answer.
func begin(b []byte, status int) []byte {
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status)
	}
	b = strconv.AppendInt(append(b, "HTTP/1.1 "...), int64(status), 10)
	return append(append(append(b, ' '), text...), crlf...)
}

// end the head of an answer. One that does not say when it was made is said to be made now (RFC 9110, section 6.6.1); keep is that another may follow.
func (d *direct) end(b []byte, dated, keep bool) []byte {
	if !dated {
		b = append(d.h.cfg.Now().UTC().AppendFormat(append(b, "Date: "...), http.TimeFormat), crlf...)
	}
	if !keep {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, crlf...)
}

// write to the caller. The error is [errGone], or that it does not read.
func (d *direct) write(b []byte) error {
	if now := time.Now(); now.After(d.renewWrite) {
		d.renewWrite = now.Add(d.h.stall / 8)
		_ = d.conn.SetWriteDeadline(now.Add(d.h.stall)) // the write tells
	}
	if _, err := d.conn.Write(b); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

// refuse a request that has no answer.
func (d *direct) refuse(v *visit, err error, keep bool) error {
	v.Error = fault.From(err).Error()
	w := &told{header: http.Header{}}
	d.h.answer(w, (&http.Request{Method: v.Method, URL: &url.URL{Path: v.prefix}}).WithContext(d.ctx), err)
	v.Status = w.status
	w.header["Content-Length"] = []string{strconv.Itoa(w.body.Len())}
	head := bytes.NewBuffer(begin(nil, w.status))
	_ = w.header.Write(head) // into memory
	out := d.end(head.Bytes(), false, keep)
	if v.Method != http.MethodHead {
		out = append(out, w.body.Bytes()...)
		v.received.Add(int64(w.body.Len()))
	}
	return d.write(out)
}

// told is what a caller is told instead of an answer.
type told struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (t *told) Header() http.Header { return t.header }

func (t *told) WriteHeader(status int) { t.status = status }

func (t *told) Write(p []byte) (int, error) { return t.body.Write(p) } //nolint:wrapcheck // into memory
