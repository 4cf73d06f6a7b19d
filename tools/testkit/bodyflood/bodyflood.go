// Package bodyflood attacks an API over HTTP/2: it sends many large bodies that never end, without a token.
package bodyflood

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// streams in all.
	streams = 250
	// sent is how much of each body is sent.
	sent = 1 << 20
	// MaxGrowth is how much the heap may grow, with that of the attacker, who runs in the same process. The bodies have
	// 250 MiB.
	MaxGrowth = 24 << 20
	timeout   = time.Minute
)

// RequireRefused requires that the server refuses each request to url with 401 before it reads the body, and that the
// heap grows by less than MaxGrowth. honest is called during the attack. No other test may run in the process.
func RequireRefused(t testing.TB, url string, honest func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	before := heap()
	results, stop := make(chan error, streams), make(chan struct{})
	var attack sync.WaitGroup
	for range streams {
		attack.Go(func() { results <- post(ctx, client, url, stop) })
	}
	for range streams {
		require.NoError(t, <-results)
	}
	honest()
	after := heap()
	close(stop)
	attack.Wait()
	require.Less(t, int64(after)-int64(before), int64(MaxGrowth))
}

// post sends a part of a body that ends with stop. It returns nil if the server responds with 401 before that.
func post(ctx context.Context, client *http.Client, url string, stop <-chan struct{}) error {
	body := io.MultiReader(io.LimitReader(zeros{}, sent), ending(stop))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return fmt.Errorf("attack: %w", err)
	}
	request.ContentLength = 2 * sent
	request.Header.Set("Content-Type", "application/proto")
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("attack: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // it is read
	text, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusUnauthorized {
		err = errors.Join(err, fmt.Errorf("the server responded %s: %s", response.Status, text))
	}
	return err
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// ending is a reader that blocks until the channel is closed.
type ending <-chan struct{}

func (e ending) Read([]byte) (int, error) {
	<-e
	return 0, bytes.ErrTooLarge
}

// heap is the memory in use after a garbage collection, in bytes.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
