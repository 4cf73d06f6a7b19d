package cursor_test

import (
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
)

// Open pull requests are canceled when Run ends. The test is not parallel, because it counts goroutines of the
// process.
func TestNoRequestIsLeftWhenTheConsumerEnds(t *testing.T) { //nolint:paralleltest // see there
	for name, published := range map[string]int{"while it waits for the first message": 0, "while it waits for more": 1} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // see there
			b := newFixture(t)
			b.publish(published)
			stop := b.run(b.consumer(func(c *cursor.Config[string]) { c.Batch, c.Linger = 10, timeout }))
			stream, err := b.js.Stream(t.Context(), stream)
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				for info := range stream.ListConsumers(t.Context()).Info() {
					if int(info.Delivered.Consumer) == published && info.NumWaiting > 0 {
						return requests(t) > 0
					}
				}
				return false
			}, timeout, time.Millisecond, "the server and the client have an open pull request")
			stop()
			require.Eventually(
				t, func() bool { return requests(t) == 0 }, timeout/6, time.Millisecond,
				"before the pull request times out",
			)
		})
	}
}

// requests is how many requests for messages the client has open.
func requests(t *testing.T) int {
	t.Helper()
	var stacks strings.Builder
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&stacks, 2))
	return strings.Count(stacks.String(), "created by github.com/nats-io/nats.go/jetstream.(*pullConsumer)")
}
