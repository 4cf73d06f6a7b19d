package proxy_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/services/relay/audit"
)

const (
	never  = time.Hour
	hasty  = time.Millisecond
	posted = "POST /agents/7/http/shop%s HTTP/1.1\r\nHost: relay\r\nAuthorization: {token}\r\nContent-Length: %d\r\n\r\n%s"
)

// echo says what it was asked.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %s %s %s", r.Method, r.URL.Path, body, r.Header.Get("X-Forwarded-Proto"))
}

func secured(s *stance) { s.secure = true }

func TestRequestsThatAreSentTogetherAreAnsweredInTurn(t *testing.T) {
	t.Parallel()
	f := stand(t, setup(t, http.HandlerFunc(echo)))
	c := f.call().taken("/first")
	var said strings.Builder
	for n := range 60 {
		path := fmt.Sprintf("/%d", n)
		if n%7 == 3 {
			_, _ = fmt.Fprintf(&said, posted, path, 4, "text")
		} else {
			said.WriteString(plain(path))
		}
	}
	c.say(said.String())
	for n := range 60 {
		_, body := c.hear()
		want := fmt.Sprintf("GET /%d  http", n)
		if n%7 == 3 {
			want = fmt.Sprintf("POST /%d text http", n)
		}
		require.Equal(t, want, body)
	}
	all := f.publish()
	require.Len(t, all, 61)
	for _, r := range all {
		require.Empty(t, r.Error)
	}
}

// A connection goes to and fro between the server and what carries plain requests.
func TestAConnectionGoesToAndFro(t *testing.T) {
	t.Parallel()
	for proto, said := range map[string]func(*stance){"http": func(*stance) {}, "https": secured} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			f := stand(t, setup(t, http.HandlerFunc(echo)), said)
			c := f.call()
			for n := range 200 {
				path := fmt.Sprintf("/%d", n)
				require.Equal(t, "GET "+path+"  "+proto, c.taken(path).get(path))
				c.say(fmt.Sprintf(posted, path, 4, "text"))
				_, body := c.hear()
				require.Equal(t, "POST "+path+" text "+proto, body)
				require.Zero(t, f.handler.Directs())
			}
			require.NoError(t, c.conn.Close())
		})
	}
}

// holding is a target that tells when it was asked, and answers when it is let, or when who asks is gone: then it tells that, too.
type holding struct {
	asked, gone chan string
	let         chan struct{}
	begins      string // of the answer, before it waits
}

func newHolding(begins string) *holding {
	return &holding{asked: make(chan string, 9), gone: make(chan string, 9), let: make(chan struct{}), begins: begins}
}

func (h *holding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/free") {
		echo(w, r)
		return
	}
	if h.begins != "" {
		_, _ = io.WriteString(w, h.begins)
		_ = http.NewResponseController(w).Flush()
	}
	h.asked <- r.URL.Path
	select {
	case <-h.let:
		_, _ = io.WriteString(w, "let")
	case <-r.Context().Done():
		h.gone <- r.URL.Path
	}
}

func TestACallerWhoIsGoneIsNoticed(t *testing.T) {
	t.Parallel()
	half := func(conn net.Conn) error {
		if secure, is := conn.(*tls.Conn); is {
			return secure.CloseWrite()
		}
		return conn.(*net.TCPConn).CloseWrite()
	}
	for name, c := range map[string]struct {
		begins    string
		attention time.Duration
		leave     func(net.Conn) error
	}{
		"at once":                        {"", 100 * time.Millisecond, net.Conn.Close},
		"while it is looked":             {"", hasty, net.Conn.Close},
		"in one direction":               {"", hasty, half},
		"while the answer comes":         {"begun", hasty, net.Conn.Close},
		"in one direction, in an answer": {"begun", hasty, half},
	} {
		for way, said := range map[string]func(*stance){"": func(*stance) {}, ", TLS": secured} {
			t.Run(name+way, func(t *testing.T) {
				t.Parallel()
				h := newHolding(c.begins)
				f := stand(t, setup(t, h), said)
				f.handler.Hurry(c.attention, soon)
				asks := f.call().taken("/free")
				asks.say(plain("/held"))
				<-h.asked
				if c.begins != "" {
					response, err := http.ReadResponse(asks.r, nil)
					require.NoError(t, err)
					_, err = io.ReadFull(response.Body, make([]byte, len(c.begins)))
					require.NoError(t, err)
				}
				require.NoError(t, c.leave(asks.conn))
				require.Equal(t, "/held", <-h.gone)
				f.gone()
				last := f.last()
				require.Contains(t, last.Error, "the caller has gone")
				if c.begins != "" {
					require.EqualValues(t, len(c.begins), last.BytesReceived)
				}
			})
		}
	}
}

// Who sends more while an answer is awaited is there.
func TestACallerWhoAsksOnIsNotGone(t *testing.T) {
	t.Parallel()
	h := newHolding("")
	f := stand(t, setup(t, h))
	f.handler.Hurry(hasty, soon)
	c := f.call().taken("/free")
	c.say(plain("/held"))
	<-h.asked
	next := plain("/free/next")
	c.say(next[:20])
	close(h.let)
	_, body := c.hear()
	require.Equal(t, "let", body)
	c.say(next[20:])
	_, body = c.hear()
	require.Equal(t, "GET /free/next  http", body)
}

func TestACallerThatHasSaidAllHearsTheAnswer(t *testing.T) {
	t.Parallel()
	h := newHolding("")
	f := stand(t, setup(t, h))
	f.handler.Hurry(never, soon)
	c := f.call().taken("/free")
	c.say(plain("/held"))
	<-h.asked
	require.NoError(t, c.conn.(*net.TCPConn).CloseWrite())
	close(h.let)
	_, body := c.hear()
	require.Equal(t, "let", body)
	require.Empty(t, c.over())
	f.gone()
}

func TestAHeadThatDoesNotEndIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said func(*stance)
		text string
	}{
		"slowly":     {func(s *stance) { s.header = 50 * time.Millisecond }, about("/free")},
		"one byte":   {func(s *stance) { s.header = 50 * time.Millisecond }, "G"},
		"nothing":    {func(s *stance) { s.idle = 50 * time.Millisecond }, ""},
		"over TLS":   {func(s *stance) { s.header, s.secure = 50*time.Millisecond, true }, about("/free")},
		"by nothing": {func(s *stance) { s.idle, s.secure = 50*time.Millisecond, true }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := stand(t, setup(t, http.HandlerFunc(echo)), c.said)
			asks := f.call()
			asks.say(plain("/free") + c.text)
			_, body := asks.hear()
			require.Contains(t, body, "GET /free")
			require.Empty(t, asks.over())
			f.gone()
		})
	}
}

func TestWhatIsNoRequestIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	f := stand(t, setup(t, http.HandlerFunc(echo)))
	c := f.call().taken("/free")
	c.say("SSH-2.0-OpenSSH_9\r\n")
	response, err := http.ReadResponse(c.r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	f.gone()
}

func TestACallerThatLeavesInTheMiddleOfAHeadLeavesNothing(t *testing.T) {
	t.Parallel()
	f := stand(t, setup(t, http.HandlerFunc(echo)))
	c := f.call().taken("/free")
	c.say(about("/free"))
	require.NoError(t, c.conn.Close())
	f.gone()
	require.Len(t, f.publish(), 1)
}

// A caller that reads nothing of a large answer is given up, and the target with it.
func TestACallerThatDoesNotReadIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said   func(*stance)
		length string
	}{"a length": {func(*stance) {}, "1073741824"}, "chunks": {func(*stance) {}, ""}, "TLS": {secured, "1073741824"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gone := make(chan struct{})
			f := stand(t, setup(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				defer close(gone)
				if c.length != "" {
					w.Header().Set("Content-Length", c.length)
				}
				for part := make([]byte, 1<<16); ; {
					if _, err := w.Write(part); err != nil {
						return
					}
				}
			})), c.said)
			f.handler.Hurry(hasty, 200*time.Millisecond)
			asks := f.call()
			asks.say(plain("/large"))
			<-gone
			f.gone()
			last := f.last()
			require.Equal(t, http.StatusOK, last.Status)
			require.Equal(t, "the caller has gone", last.Error)
		})
	}
}

func TestWhoMayNoLongerIsToldSo(t *testing.T) {
	t.Parallel()
	revoke := func(p *people) { p.users[developer] = directory.User{ID: developer, Blocked: true} }
	t.Run("while the answer is awaited", func(t *testing.T) {
		t.Parallel()
		h := newHolding("")
		f := stand(t, setup(t, h))
		c := f.call().taken("/free")
		c.say(plain("/held"))
		<-h.asked
		f.people.change(func() { revoke(f.people) })
		response, body := c.hear()
		require.Equal(t, http.StatusForbidden, response.StatusCode, body)
		require.True(t, response.Close)
		require.Equal(t, "/held", <-h.gone)
		require.Empty(t, c.over())
		require.Contains(t, f.last().Error, "permission_denied")
	})
	t.Run("while it comes", func(t *testing.T) {
		t.Parallel()
		h := newHolding("begun")
		f := stand(t, setup(t, h))
		c := f.call().taken("/free")
		c.say(plain("/held"))
		<-h.asked
		response, err := http.ReadResponse(c.r, nil)
		require.NoError(t, err)
		f.people.change(func() { revoke(f.people) })
		_, err = io.ReadAll(response.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "it does not look complete")
		require.Equal(t, "/held", <-h.gone)
		require.Contains(t, f.last().Error, "permission_denied")
	})
	t.Run("between requests", func(t *testing.T) {
		t.Parallel()
		f := stand(t, setup(t, http.HandlerFunc(echo)))
		c := f.call().taken("/free")
		token := f.token(developer)
		f.people.change(func() { revoke(f.people) })
		c.say(strings.ReplaceAll(plain("/free"), "{token}", token))
		response, body := c.hear()
		require.Equal(t, http.StatusForbidden, response.StatusCode, body)
		f.people.change(func() { f.people.users[developer] = directory.User{ID: developer} })
		require.Contains(t, c.get("/again"), "/again", "the connection is as good as before")
		require.Len(t, f.publish(), 2, "who is not known any more has no record")
	})
}

// A connection may carry the requests of many: what ends one of them does not end the next.
func TestWhoMayNoLongerDoesNotHinderWhoComesNext(t *testing.T) {
	t.Parallel()
	h := newHolding("")
	f := stand(t, setup(t, h))
	c := f.call().taken("/free")
	looks, look, looksAgain := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once, again sync.Once
	c.say(plain("/held"))
	<-h.asked
	f.people.change(func() {
		f.people.users[developer] = directory.User{ID: developer, Blocked: true}
		f.people.asked = func(id int64) {
			if id == developer {
				once.Do(func() {
					close(looks)
					<-look
				})
			}
		}
	})
	<-looks
	h.let <- struct{}{}
	_, body := c.hear()
	require.Equal(t, "let", body)
	c.say(strings.ReplaceAll(plain("/next"), "{token}", f.token(admin)))
	<-h.asked
	f.people.change(func() {
		f.people.asked = func(id int64) {
			if id == admin {
				again.Do(func() { close(looksAgain) })
			}
		}
	})
	close(look)
	<-looksAgain
	h.let <- struct{}{}
	response, body := c.hear()
	require.Equal(t, http.StatusOK, response.StatusCode, body)
	require.Equal(t, "let", body)
}

func TestADrainEndsConnectionsThatRest(t *testing.T) {
	t.Parallel()
	h, flowing := newHolding(""), newHolding("begun")
	f := stand(t, setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/flowing") {
			flowing.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})))
	resting, awaiting, hearing, late := f.call().taken("/free"), f.call(), f.call(), f.call()
	awaiting.say(plain("/held"))
	<-h.asked
	hearing.say(plain("/flowing"))
	<-flowing.asked
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		f.handler.Drain(t.Context())
	}()
	require.Empty(t, resting.over(), "it ends at once")
	late.say(plain("/free/late"))
	response, body := late.hear()
	require.Equal(t, "GET /free/late  http", body, "what has come is answered")
	require.True(t, response.Close)
	require.Empty(t, late.over())
	select {
	case <-drained:
		require.Fail(t, "two are under way")
	default:
	}
	close(h.let)
	response, body = awaiting.hear()
	require.Equal(t, "let", body)
	require.True(t, response.Close)
	require.Empty(t, awaiting.over())
	close(flowing.let)
	_, body = hearing.hear()
	require.Equal(t, "begunlet", body)
	require.Empty(t, hearing.over())
	<-drained
	f.gone()
}

func TestADrainThatIsOverCutsWhatIsLeft(t *testing.T) {
	t.Parallel()
	h := newHolding("")
	f := stand(t, setup(t, h))
	c := f.call().taken("/free")
	c.say(plain("/held"))
	<-h.asked
	finish, cut := context.WithCancel(t.Context())
	cut()
	f.handler.Drain(finish)
	<-h.gone
	f.gone()
	_, _ = io.ReadAll(c.r)
	require.Contains(t, f.last().Error, "drained")
}

func TestTheLimitsAreThoseOfAll(t *testing.T) {
	t.Parallel()
	h := newHolding("")
	f := stand(t, setup(t, h))
	c := f.call().taken("/free")
	others := make([]*caller, 3)
	for i := range others {
		others[i] = f.call()
		others[i].say(plain("/held"))
		<-h.asked
	}
	c.say(plain("/free"))
	response, _ := c.hear()
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	require.Equal(t, 3, f.handler.Requests())
	close(h.let)
	for _, other := range others {
		_, body := other.hear()
		require.Equal(t, "let", body)
	}
	require.Eventually(t, func() bool { return f.handler.Requests() == 0 }, soon, time.Millisecond)
	require.Contains(t, c.get("/free/again"), "again")
}

func TestWhatCannotBeRecordedWaits(t *testing.T) {
	t.Parallel()
	f := stand(t, setup(t, http.HandlerFunc(echo)), func(s *stance) { s.room = 2 })
	c := f.call().taken("/1")
	_ = c.get("/2")
	require.Eventually(t, func() bool { return f.handler.Requests() == 0 }, soon, time.Millisecond)
	c.say(plain("/3"))
	require.Eventually(t, func() bool { return f.handler.Requests() == 1 && f.handler.Directs() == 0 }, soon, time.Millisecond)
	f.flush()
	_, body := c.hear()
	require.Contains(t, body, "/3")
	require.Contains(t, c.get("/4"), "/4")
}

func TestAnAgentThatIsNotThereYetIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, http.HandlerFunc(echo))
	b.absent = make(chan struct{})
	f := stand(t, b)
	f.handler.Hurry(hasty, soon)
	waits, leaves := f.call(), f.call()
	waits.say(plain("/waits"))
	leaves.say(plain("/leaves"))
	require.Eventually(t, func() bool { return f.handler.Directs() == 2 && f.handler.Requests() == 2 }, soon, time.Millisecond)
	require.NoError(t, leaves.conn.Close())
	require.Eventually(t, func() bool { return f.handler.Directs() == 1 && f.handler.Requests() == 1 }, soon, time.Millisecond)
	close(b.absent)
	_, body := waits.hear()
	require.Contains(t, body, "/waits")
	all := f.publish()
	require.Len(t, all, 2)
	require.Contains(t, all[0].Error, "the caller has gone")
	require.EqualValues(t, 1, b.opened.Load())
}

// fickle targets let go of a connection once they have answered, by a reset or an end: whoever asks meets it now before, now while he asks.
func TestATargetThatLetsGoIsAskedOnceMore(t *testing.T) {
	t.Parallel()
	for name, rude := range map[string]bool{"by an end": false, "by a reset": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var served atomic.Int64
			target := &http.Server{
				ReadHeaderTimeout: soon,
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					served.Add(1)
					conn, _, err := http.NewResponseController(w).Hijack()
					if err != nil {
						return
					}
					_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(r.URL.Path), r.URL.Path)
					if rude {
						_ = conn.(*net.TCPConn).SetLinger(0)
					}
					_ = conn.Close()
				}),
			}
			var serving sync.WaitGroup
			serving.Go(func() { _ = target.Serve(l) })
			t.Cleanup(func() {
				_ = target.Close()
				serving.Wait()
			})
			f := stand(t, setupAt(t, l.Addr().String()))
			c := f.call()
			for n := range 300 {
				path := fmt.Sprintf("/%d", n)
				c.say(plain(path))
				response, err := http.ReadResponse(c.r, nil)
				require.NoError(t, err)
				body, err := io.ReadAll(response.Body)
				if rude && (err != nil || response.StatusCode == http.StatusServiceUnavailable) { // the reset overtook the answer
					if response.Close || err != nil {
						c = f.call()
					}
					continue
				}
				require.NoError(t, err)
				require.Equal(t, path, string(body))
			}
			require.EqualValues(t, 300, served.Load(), "each was asked, and once")
		})
	}
}

func TestAnAnswerThatIsLostOnTheWayDoesNotLookComplete(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]string{
		"a length": "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n", "chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n", "to the end": "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0": "HTTP/1.0 200 OK\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{answer: head + "begun"}
			b := setupAt(t, s.start(t))
			f := stand(t, b)
			c := f.call().taken("/warm")
			c.say(plain("/case"))
			response, err := http.ReadResponse(c.r, nil)
			require.NoError(t, err)
			_, err = io.ReadFull(response.Body, make([]byte, 5))
			require.NoError(t, err)
			require.NoError(t, b.session.Close())
			_, err = io.ReadAll(response.Body)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			last := f.last()
			require.Equal(t, "the answer was not completed", last.Error)
			require.EqualValues(t, 5, last.BytesReceived)
		})
	}
}

// When it is looked whether a caller is there, just then an answer may come, or another request.
func TestALookMayMeetAnything(t *testing.T) {
	t.Parallel()
	for _, said := range []func(*stance){func(*stance) {}, secured} {
		f := stand(t, setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var wait time.Duration
			_, _ = fmt.Sscanf(r.URL.Path, "/%d", &wait)
			select {
			case <-time.After(wait % 5 * 500 * time.Microsecond):
			case <-r.Context().Done():
			}
			echo(w, r)
		})), said)
		f.handler.Hurry(hasty, soon)
		c := f.call()
		const all = 150
		var speaking sync.WaitGroup
		token := f.token(developer)
		speaking.Go(func() {
			for n := range all {
				text := strings.ReplaceAll(plain(fmt.Sprintf("/%d", n)), "{token}", token)
				for len(text) > 0 { // in pieces that end anywhere
					piece := min(len(text), 1+n*7)
					if _, err := io.WriteString(c.conn, text[:piece]); err != nil {
						return
					}
					text = text[piece:]
				}
			}
		})
		for n := range all {
			response, body := c.hear()
			require.Equal(t, http.StatusOK, response.StatusCode, body)
			require.True(t, strings.HasPrefix(body, fmt.Sprintf("GET /%d ", n)), body)
		}
		speaking.Wait()
		records := f.publish()
		require.Len(t, records, all)
		for _, r := range records {
			require.Equal(t, audit.Ended, r.Phase)
			require.Empty(t, r.Error)
		}
	}
}
