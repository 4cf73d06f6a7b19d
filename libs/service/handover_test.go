package service_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/internal/testcert"
	"lockstep.internal/libs/service"
)

// taken is a connection that a handler has taken over.
type taken struct {
	conn   net.Conn // as the server had it
	read   []byte   // by the server, and not served
	secure *tls.ConnectionState
	handed bool // with this request
}

// desk is a server whose handler takes connections over, and has them back.
type desk struct {
	*process

	t        *testing.T
	handover *service.Handover
	dial     func() (net.Conn, error)
	taken    chan taken
	// What is asked to wait says that it has entered, and waits.
	entered, release chan struct{}
}

func newDesk(t *testing.T, secure bool) *desk {
	t.Helper()
	d := &desk{t: t, handover: service.NewHandover(), taken: make(chan taken), entered: make(chan struct{}), release: make(chan struct{})}
	cfg := service.DefaultListener("127.0.0.1:0")
	d.dial = func() (net.Conn, error) { return net.Dial("tcp", d.addrs["api"]) }
	if secure {
		authority, folder := testcert.New(t), t.TempDir()
		cfg.TLS.CertFile, cfg.TLS.KeyFile = authority.Issue(t, folder, "server")
		cfg.TLS.ClientCAFile = authority.CAFile
		pair, err := tls.LoadX509KeyPair(authority.Issue(t, t.TempDir(), "ada"))
		require.NoError(t, err)
		trusting := &tls.Config{RootCAs: authority.Pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		d.dial = func() (net.Conn, error) { return tls.Dial("tcp", d.addrs["api"], trusting) }
	}
	options := service.HTTPOptions{Logger: slog.New(slog.DiscardHandler), Handover: d.handover}
	d.process = start(t, nil, service.HTTPServer("api", cfg, http.HandlerFunc(d.serve), options))
	<-d.ready
	return d
}

func (d *desk) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/take":
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			d.t.Error(err)
			return
		}
		read, _ := buffered.Peek(buffered.Reader.Buffered())
		d.taken <- taken{conn, read, r.TLS, service.HandedOver(r)}
		return
	case "/wait":
		d.entered <- struct{}{}
		<-d.release
	}
	_, _ = io.WriteString(w, said(r.URL.Path, service.HandedOver(r), r.TLS))
}

// said is what the server says of a request.
func said(path string, handed bool, secure *tls.ConnectionState) string {
	who := "nobody"
	if secure != nil {
		who = secure.PeerCertificates[0].Subject.CommonName
	}
	return fmt.Sprintf("%s handed over: %t, by %s", path, handed, who)
}

// client is a connection to the desk.
type client struct {
	net.Conn

	t      *testing.T
	reader *bufio.Reader
}

// connect a client, and take its connection over.
func (d *desk) connect() (*client, taken) {
	d.t.Helper()
	conn, err := d.dial()
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(d.t, conn.SetDeadline(time.Now().Add(patience)))
	c := &client{conn, d.t, bufio.NewReader(conn)}
	c.send(asking("/take"))
	first := <-d.taken
	d.t.Cleanup(func() { _ = first.conn.Close() })
	return c, first
}

func asking(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: desk\r\n\r\n" }

func (c *client) send(text string) {
	c.t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(c.t, err)
}

// hears the answer to a request.
func (c *client) hears(want string) {
	c.t.Helper()
	response, err := http.ReadResponse(c.reader, nil)
	require.NoError(c.t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	require.Equal(c.t, want, string(body))
}

// ends is that the other side has nothing more to say.
func (c *client) ends() {
	c.t.Helper()
	_, err := c.reader.ReadByte()
	require.ErrorIs(c.t, err, io.EOF)
}

// both runs a test in clear and over TLS.
func both(t *testing.T, test func(t *testing.T, secure bool)) {
	t.Helper()
	for name, secure := range map[string]bool{"clear": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, secure)
		})
	}
}

func TestAConnectionThatWasTakenOverIsGivenBack(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, secure bool) {
		d := newDesk(t, secure)
		c, first := d.connect()
		require.False(t, first.handed)
		conn, unread := service.Reclaim(first.conn)
		require.Same(t, first.conn, conn, "it is its own")
		require.Empty(t, unread)
		if secure {
			require.IsType(t, &tls.Conn{}, conn)
		} else {
			require.IsType(t, &net.TCPConn{}, conn)
			require.Nil(t, first.secure)
		}

		// Who has it serves a request, reads some of two others, and has the server do these.
		c.send(asking("/own"))
		request, err := http.ReadRequest(bufio.NewReader(conn))
		require.NoError(t, err)
		require.Equal(t, "/own", request.URL.Path)
		_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown")
		require.NoError(t, err)
		c.hears("own")
		c.send(asking("/one") + asking("/two"))
		begin := make([]byte, len(asking("/one"))+7)
		_, err = io.ReadFull(conn, begin)
		require.NoError(t, err)
		d.handover.Give(conn, begin, first.secure)
		c.hears(said("/one", true, first.secure))
		c.hears(said("/two", false, first.secure))
		c.send(asking("/three"))
		c.hears(said("/three", false, first.secure))

		// A handler takes it again, with what was read of it and what was not.
		rest := strings.Repeat("more than a buffer holds ", 1000)
		c.send(asking("/take"))
		second := <-d.taken
		require.False(t, second.handed)
		again, unread := service.Reclaim(second.conn)
		require.Same(t, conn, again)
		require.Empty(t, unread)
		d.handover.Give(again, []byte(asking("/take")+rest), second.secure)
		third := <-d.taken
		require.True(t, third.handed)
		require.Equal(t, first.secure, third.secure)
		again, unread = service.Reclaim(third.conn)
		require.Same(t, conn, again)
		require.NotEmpty(t, third.read)
		require.NotEmpty(t, unread)
		require.Equal(t, rest, string(slices.Concat(third.read, unread)))
	})
}

func TestAConnectionStaysWhatItIsHoweverOftenItIsGivenBack(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, secure bool) {
		d := newDesk(t, secure)
		c, now := d.connect()
		original := now.conn
		for range 1000 {
			conn, unread := service.Reclaim(now.conn)
			require.Same(t, original, conn)
			require.Empty(t, unread)
			require.Empty(t, now.read)
			d.handover.Give(conn, []byte(asking("/take")), now.secure)
			now = <-d.taken
			require.True(t, now.handed)
		}
		conn, _ := service.Reclaim(now.conn)
		require.Same(t, original, conn)
		d.handover.Give(conn, []byte(asking("/last")), now.secure)
		c.hears(said("/last", true, now.secure))
	})
}

// A handler that takes over a connection which had been given, and knows nothing of that, finds in it what it would have found in the original.
func TestTheDirectionsOfAGivenConnectionEndSeparately(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, secure bool) {
		d := newDesk(t, secure)
		c, first := d.connect()
		d.handover.Give(first.conn, []byte(asking("/take")+"early, "), first.secure)
		given := <-d.taken
		below, is := given.conn.(interface{ NetConn() net.Conn })
		require.True(t, is)
		require.Same(t, first.conn, below.NetConn())
		half, can := given.conn.(interface{ CloseWrite() error })
		require.True(t, can)
		_, err := io.WriteString(given.conn, "bye")
		require.NoError(t, err)
		require.NoError(t, half.CloseWrite())
		heard, err := io.ReadAll(c.reader)
		require.NoError(t, err)
		require.Equal(t, "bye", string(heard))
		c.send("and late")
		require.NoError(t, c.Close())
		late, err := io.ReadAll(io.MultiReader(bytes.NewReader(given.read), given.conn))
		require.NoError(t, err)
		require.Equal(t, "early, and late", string(late))
	})
}

func TestAGivenConnectionEndsNoDirectionThatItHasNot(t *testing.T) {
	t.Parallel()
	d := newDesk(t, false)
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	d.handover.Give(there, []byte(asking("/take")), nil)
	given := <-d.taken
	require.ErrorIs(t, given.conn.(interface{ CloseWrite() error }).CloseWrite(), errors.ErrUnsupported)
}

func TestAConnectionThatIsGivenTooLateIsClosed(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, secure bool) {
		d := newDesk(t, secure)
		c, first := d.connect()
		d.cancel()
		require.NoError(t, <-d.ended, "who took it over has it: nobody else waits for it")
		d.handover.Give(first.conn, []byte(asking("/late")), first.secure)
		c.ends()
	})
}

func TestADrainEndsConnectionsThatWereGiven(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, secure bool) {
		d := newDesk(t, secure)
		idle, first := d.connect()
		d.handover.Give(first.conn, []byte(asking("/one")), first.secure)
		idle.hears(said("/one", true, first.secure))
		busy, second := d.connect()
		d.handover.Give(second.conn, []byte(asking("/wait")), second.secure)
		<-d.entered
		held, third := d.connect()

		d.cancel()
		idle.ends()
		select {
		case err := <-d.ended:
			require.Fail(t, "a request is under way", "%v", err)
		default:
		}
		close(d.release)
		busy.hears(said("/wait", true, second.secure))
		busy.ends()
		require.NoError(t, <-d.ended)
		d.handover.Give(third.conn, nil, third.secure)
		held.ends()
	})
}

func TestWhatWasNotGivenIsNotHandedOver(t *testing.T) {
	t.Parallel()
	require.False(t, service.HandedOver(httptest.NewRequest(http.MethodGet, "/", http.NoBody)))
}
