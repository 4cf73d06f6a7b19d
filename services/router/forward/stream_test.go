package forward_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/services/router/forward"
	"lockstep.internal/services/router/route"
)

// receive returns the next value.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(soon):
		require.FailNow(t, "nothing received")
		panic("not reached")
	}
}

// TestBodyIsStreamed sends a part of a body after the cell has received the part before.
func TestBodyIsStreamed(t *testing.T) {
	t.Parallel()
	const parts, size = 64, 256 << 10
	for name, prepare := range map[string]func(f *fixture, r *http.Request) (prefix string){
		"token in a header": func(f *fixture, r *http.Request) string {
			r.Header.Set(headerJob, f.runner("one"))
			return ""
		},
		"token in the body": func(f *fixture, r *http.Request) string {
			r.Header.Set("Content-Type", "application/json")
			return `{"token":"` + f.runner("one") + `","x":"` + strings.Repeat("x", route.MaxBody)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, nil)
			received := make(chan int, parts+1)
			f.addCell("one", func(_ http.ResponseWriter, r *http.Request) {
				part := make([]byte, size)
				for {
					n, err := io.ReadFull(r.Body, part)
					if n > 0 {
						received <- n
					}
					if err != nil {
						return
					}
				}
			})
			reader, writer := io.Pipe()
			r := f.request(http.MethodPost, "/api/v4/jobs/1/artifacts", "", reader)
			prefix := prepare(f, r)
			responded := make(chan int, 1)
			go func() {
				response, _ := f.send(r)
				responded <- response.StatusCode
			}()
			// The start of the body counts for the first part.
			_, err := io.WriteString(writer, prefix)
			require.NoError(t, err)
			part := bytes.Repeat([]byte("x"), size)
			_, err = writer.Write(part[len(prefix):])
			require.NoError(t, err)
			require.Equal(t, size, receive(t, received))
			for range parts - 1 {
				_, err := writer.Write(part)
				require.NoError(t, err)
				require.Equal(t, size, receive(t, received))
			}
			require.NoError(t, writer.Close())
			require.Equal(t, http.StatusOK, receive(t, responded))
		})
	}
}

func TestResponseIsStreamedWithTrailers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	next := make(chan struct{})
	f.addCell("one", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Checksum")
		for range 3 {
			_, _ = io.WriteString(w, "part\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
			}
		}
		w.Header().Set("X-Checksum", "7")
	})
	response, err := f.client.Do(f.request(http.MethodGet, "/", f.runner("one"), nil))
	require.NoError(t, err)
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for range 3 {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "part\n", line)
		next <- struct{}{}
	}
	_, err = lines.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, "7", response.Trailer.Get("X-Checksum"))
}

func TestStatusAndHeadersOfTheCellAreKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.addCell("one", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Range", "0-7")
		w.Header().Set("Job-Status", "canceling")
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, "not gzip")
	})
	for range 5 { // a response opens no breaker
		response, body := f.get(f.runner("one"))
		require.Equal(t, http.StatusBadGateway, response.StatusCode)
		require.Equal(t, "0-7", response.Header.Get("Range"))
		require.Equal(t, "canceling", response.Header.Get("Job-Status"))
		require.Equal(t, "gzip", response.Header.Get("Content-Encoding"))
		require.Equal(t, "not gzip", body)
	}
	f.requireCount("one", "forwarded", 5)
}

// TestRefusedUploadIsNotSent is about a client that waits for 100 Continue.
func TestRefusedUploadIsNotSent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.addCell("one", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		_, _ = io.Copy(w, r.Body)
	})
	for path, expected := range map[string]int{"/refused": http.StatusRequestEntityTooLarge, "/stored": http.StatusOK} {
		sent := &reads{Reader: strings.NewReader("artifact")}
		r := f.request(http.MethodPost, path, f.runner("one"), sent)
		r.Header.Set("Expect", "100-continue")
		response, body := f.send(r)
		require.Equal(t, expected, response.StatusCode)
		if expected == http.StatusOK {
			require.Equal(t, "artifact", body)
		} else {
			require.Zero(t, sent.count)
		}
	}
}

// reads counts the reads of a body.
type reads struct {
	io.Reader

	count int
}

func (r *reads) Read(p []byte) (int, error) {
	r.count++
	return r.Reader.Read(p)
}

// TestResponseDoesNotWaitForTheBody is about a cell that refuses an upload that its client has stopped sending.
func TestResponseDoesNotWaitForTheBody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.addCell("one", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 4))
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(f.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nRUNNER-TOKEN: "+f.runner("one")+
		"\r\nContent-Length: 1000000\r\n\r\npart")
	require.NoError(t, err)
	raw, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, string(raw), "HTTP/1.1 413 ")
	require.Contains(t, string(raw), "\r\nConnection: close\r\n")
	f.requireCount("one", "forwarded", 1)
}

func TestClientThatLeavesCancelsItsRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	begun, ended := make(chan struct{}), make(chan struct{})
	f.addCell("one", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(begun)
		<-r.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := f.request(http.MethodPost, "/api/v4/jobs/request", f.runner("one"), strings.NewReader(`{}`)).WithContext(ctx)
	failed := make(chan error, 1)
	go func() {
		response, err := f.client.Do(r)
		if err == nil {
			err = response.Body.Close()
		}
		failed <- err
	}()
	receive(t, begun)
	cancel()
	receive(t, ended)
	require.ErrorIs(t, receive(t, failed), context.Canceled)
	f.requireCount("one", "canceled", 1)
}

func TestBodyThatDoesNotProgressIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(cfg *forward.Config) { cfg.BodyTimeout = 10 * time.Millisecond })
	f.addCell("one", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	reader, writer := io.Pipe()
	defer writer.Close()
	response, body := f.send(f.request(http.MethodPost, "/", f.runner("one"), reader))
	require.Equal(t, http.StatusRequestTimeout, response.StatusCode, body)
	require.True(t, response.Close)
	f.requireCount("one", "canceled", 1)
}

// TestCellThatCutsItsResponse is about a response that the client must not take for a whole one.
func TestCellThatCutsItsResponse(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.addCell("one", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "part")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	response, err := f.client.Do(f.request(http.MethodGet, "/", f.runner("one"), nil))
	require.NoError(t, err)
	defer response.Body.Close()
	_, err = io.ReadAll(response.Body)
	require.Error(t, err)
	f.requireCount("one", "aborted", 1)
}

func TestCellThatUpgradesUnasked(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.addCell("one", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusSwitchingProtocols) })
	response, _ := f.get(f.runner("one"))
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	f.requireCount("one", "failed", 1)
}

func TestResponseThatDoesNotBegin(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(cfg *forward.Config) { cfg.ResponseTimeout = 10 * time.Millisecond })
	f.addCell("one", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	response, body := f.get(f.runner("one"))
	require.Equal(t, http.StatusGatewayTimeout, response.StatusCode, body)
}

// TestHungCellCostsOthersNothing fills a cell.
func TestHungCellCostsOthersNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(cfg *forward.Config) { cfg.MaxRequestsPerCell = 2 })
	begun, end := make(chan struct{}), make(chan struct{})
	f.addCell("one", func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-end
	})
	f.addCell("two", text("two"))
	one := f.runner("one")
	ended := make(chan int, 2)
	for range 2 {
		go func() {
			response, _ := f.get(one)
			ended <- response.StatusCode
		}()
		receive(t, begun)
	}
	response, body := f.get(one)
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode, body)
	require.NotEmpty(t, response.Header.Get("Retry-After"))
	_, body = f.get(f.runner("two"))
	require.Equal(t, "two", body)
	close(end)
	for range 2 {
		require.Equal(t, http.StatusOK, receive(t, ended))
	}
	f.requireCount("one", "limited", 1)
	f.requireCount("one", "forwarded", 2)
}

// TestCellThatIsDownCostsOthersNothing opens the breaker of a cell.
func TestCellThatIsDownCostsOthersNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.addCell("one", text("one")).Close()
	f.addCell("two", text("two"))
	tokens := map[topology.Cell]string{"one": f.runner("one"), "two": f.runner("two")}
	for i := range 6 {
		response, body := f.get(tokens["one"])
		require.Equal(t, http.StatusServiceUnavailable, response.StatusCode, body)
		require.NotEmpty(t, response.Header.Get("Retry-After"))
		require.Equal(t, i >= 3, strings.Contains(body, "does not answer"), body)
		require.NotContains(t, body, "127.0.0.1", "clients do not learn the address of a cell")
		_, body = f.get(tokens["two"])
		require.Equal(t, "two", body)
	}
	f.requireCount("one", "failed", 3)
	f.requireCount("one", "open", 3)
	f.requireCount("two", "forwarded", 6)
	f.addCell("one", text("elsewhere")) // at another address
	_, body := f.get(tokens["one"])
	require.Equal(t, "elsewhere", body)
}
