package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"lockstep.internal/libs/service"
	"lockstep.internal/services/relay/http1"
	"lockstep.internal/services/relay/tunnel"
)

const (
	// headBuffer is the largest head of a request that a [direct] reads.
	headBuffer = 4 << 10
	// attention is how long an answer is awaited before it is looked whether its caller still is there.
	attention = 100 * time.Millisecond
)

// direct is a connection of a caller that was taken from the server of HTTP, and carries plain requests (see package http1) one after the other, at half of what they cost there. With the
// first that is not plain, or is to be refused, the server has it back.
type direct struct {
	h      *Handler
	conn   net.Conn
	secure *tls.ConnectionState
	// reader reads what had been read before, and then the connection.
	reader *bufio.Reader
	before bytes.Reader
	from   string          // the caller's address, without a port
	ctx    context.Context //nolint:containedctx // of the connection
	cancel context.CancelCauseFunc

	request  http1.Request
	response http1.Response

	// When the deadlines are set anew, which is not for each request.
	renewRead, renewWrite time.Time
	// attentive looks for a caller who is gone, and looked has an element when it has.
	attentive *time.Timer
	looked    chan struct{}

	mu       sync.Mutex // guards what follows, and the conn until there is one
	k        *kept      // given up with ctx
	awaiting bool       // an answer
	resting  bool       // between two requests
	leaving  bool       // there is to be no next request
}

// direct takes a request's connection over if the request is plain, and carries it and those after it. It says whether it has.
func (h *Handler) direct(w http.ResponseWriter, r *http.Request) bool {
	if h.cfg.Handover == nil || r.ProtoMajor != 1 || r.ContentLength != 0 || len(r.TransferEncoding) > 0 || service.HandedOver(r) {
		return false
	}
	head, plain := written(r)
	d := &direct{h: h, secure: r.TLS, looked: make(chan struct{}, 1)}
	if !plain || !h.begin(d) {
		return false
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		h.end(d)
		return false // the server serves it, or it is gone
	}
	more, _ := buffered.Peek(buffered.Reader.Buffered()) // there is as much
	conn, unread := service.Reclaim(conn)
	d.mu.Lock()
	d.conn = conn
	d.mu.Unlock()
	d.before.Reset(slices.Concat(head, more, unread))
	d.reader = bufio.NewReaderSize(io.MultiReader(&d.before, conn), headBuffer)
	d.from, _, _ = net.SplitHostPort(r.RemoteAddr)
	d.ctx, d.cancel = context.WithCancelCause(context.WithoutCancel(r.Context()))
	if d.attentive = time.AfterFunc(h.attention, d.look); !d.attentive.Stop() {
		<-d.looked // it was late; what it has found is not to be taken for what another one does
	}
	go func() {
		defer h.end(d)
		defer d.rescue()
		d.run()
	}()
	return true
}

// rescue is as in net/http's server: what goes wrong with a request that nobody has thought of ends its connection, and no other.
func (d *direct) rescue() {
	if failure := recover(); failure != nil {
		d.h.cfg.Logger.Error("a connection of a caller is given up for a fault of the relay's own", slog.Any("panic", failure), slog.String("stack", string(debug.Stack())))
		d.cancel(nil)
		d.close()
	}
}

// close the connection, whatever it is used for.
func (d *direct) close() {
	d.mu.Lock()
	conn := d.conn
	d.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // nothing follows; over TLS it may take a while to say so
	}
}

// written is a request's head as it may have been sent, if it is plain.
func written(r *http.Request) (head []byte, plain bool) {
	var b bytes.Buffer
	b.WriteString(r.Method + " " + r.RequestURI + " " + r.Proto + "\r\nHost: " + r.Host + "\r\n")
	_ = r.Header.Write(&b) // into memory
	b.WriteString("\r\n")
	size, err := new(http1.Request).Read(b.Bytes())
	return b.Bytes(), err == nil && size == b.Len() && size <= headBuffer
}

// after a request.
type after uint8

const (
	// next is that another one is read.
	next after = iota
	// returned is that the server has the connection back, with the request that was read last.
	returned
	// over is that the connection is closed.
	over
)

func (d *direct) run() {
	stop := context.AfterFunc(d.ctx, d.giveUp)
	size, then := d.read() // what it has been taken for, even if there is to be no other
	for then == next {
		if then = d.carry(size); then == next {
			size, then = d.next()
		}
	}
	stop()
	d.cancel(nil)
	if then == returned {
		unread, _ := d.reader.Peek(d.reader.Buffered()) // there is as much
		before, _ := io.ReadAll(&d.before)              // of memory
		_ = d.conn.SetDeadline(time.Time{})             // who reads it learns what is wrong with it
		d.h.cfg.Handover.Give(d.conn, slices.Concat(unread, before), d.secure)
		return
	}
	d.close()
}

// next waits for a request, and reads its head.
func (d *direct) next() (size int, then after) {
	d.mu.Lock()
	if d.leaving {
		d.mu.Unlock()
		return 0, over
	}
	d.resting = true
	d.readBy(d.h.cfg.IdleTimeout)
	d.mu.Unlock()
	_, err := d.reader.Peek(1)
	d.mu.Lock()
	d.resting = false
	d.mu.Unlock()
	if err != nil {
		return 0, over
	}
	return d.read()
}

// read a head, and leave it where it is.
func (d *direct) read() (size int, then after) {
	for slow := false; ; slow = true {
		head, _ := d.reader.Peek(d.reader.Buffered()) // there is as much
		size, err := d.request.Read(head)
		switch {
		case err == nil:
			return size, next
		case !errors.Is(err, http1.ErrShort) || len(head) == headBuffer:
			return 0, returned
		case !slow:
			d.renewRead = time.Time{}
			d.readBy(d.h.cfg.ReadHeaderTimeout)
			d.renewRead = time.Time{} // it is not for the next one
		}
		if _, err = d.reader.Peek(len(head) + 1); err != nil {
			return 0, over
		}
	}
}

// readBy bounds how long a read may take from now on, within an eighth of it; 0 is for ever.
func (d *direct) readBy(timeout time.Duration) {
	now := time.Now()
	switch {
	case now.Before(d.renewRead):
	case timeout == 0:
		d.renewRead = now.Add(math.MaxInt64)
		_ = d.conn.SetReadDeadline(time.Time{}) // the read tells
	default:
		d.renewRead = now.Add(timeout / 8)
		_ = d.conn.SetReadDeadline(now.Add(timeout)) // the read tells
	}
}

// leave after the request that is under way, if one is.
func (d *direct) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving = true
	if d.resting {
		_ = d.conn.SetReadDeadline(time.Unix(1, 0)) // it ends the read
	}
}

// last says whether there will be no other request.
func (d *direct) last() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leaving
}

// hold a stream, which is given up with the connection's context.
func (d *direct) hold(k *kept) {
	d.mu.Lock()
	d.k = k
	d.mu.Unlock()
	if d.ctx.Err() != nil {
		d.giveUp()
	}
}

// release the stream that is held, and say whether it may go on.
func (d *direct) release() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.k = nil
	return d.ctx.Err() == nil
}

func (d *direct) giveUp() {
	d.mu.Lock()
	k := d.k
	d.mu.Unlock()
	if k != nil { // it is not kept any more: see release
		k.Reset(tunnel.Cancelled, "the caller is gone")
	}
}

// await an answer: from now on until [direct.answered] the caller must not go.
func (d *direct) await() {
	d.mu.Lock()
	d.awaiting = true
	d.mu.Unlock()
	d.attentive.Reset(d.h.attention)
}

// answered is that nothing is awaited any more.
func (d *direct) answered() {
	if d.attentive.Stop() {
		return
	}
	d.mu.Lock()
	d.awaiting = false
	_ = d.conn.SetReadDeadline(time.Unix(1, 0)) // it ends the look
	d.mu.Unlock()
	<-d.looked
	d.renewRead = time.Time{}
}

var errGone = errors.New("the caller has gone")

// look whether the caller is gone: it sends nothing more, or something for later.
func (d *direct) look() {
	defer func() { d.looked <- struct{}{} }()
	d.mu.Lock()
	awaiting := d.awaiting
	if awaiting {
		_ = d.conn.SetReadDeadline(time.Time{}) // the read tells
	}
	d.mu.Unlock()
	if !awaiting {
		return
	}
	var timeout net.Error
	_, err := d.reader.Peek(d.reader.Buffered() + 1)
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) && (!errors.As(err, &timeout) || !timeout.Timeout()) {
		d.cancel(errGone)
	}
}
