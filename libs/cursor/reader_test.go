package cursor_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
)

// Open pull requests are canceled when Run ends.
func TestNoRequestIsLeftWhenTheConsumerEnds(t *testing.T) {
	t.Parallel()
	for name, published := range map[string]int{"while it waits for the first message": 0, "while it waits for more": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			b.publish(published)
			var conn *nats.Conn
			stop := b.run(b.consumer(func(c *cursor.Config[string]) {
				c.Batch, c.Linger, conn = 10, timeout, c.JetStream.Conn()
			}))
			stream, err := b.js.Stream(t.Context(), stream)
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				for info := range stream.ListConsumers(t.Context()).Info() {
					if int(info.Delivered.Consumer) == published && info.NumWaiting > 0 {
						return true
					}
				}
				return false
			}, timeout, time.Millisecond, "the server has an open pull request")
			stop()
			require.Equal(t, 1, conn.NumSubscriptions(), "only that for the responses to other requests is left")
		})
	}
}
